import subprocess

import pytest

from polyarm.doctor import child

SHELL = ["/bin/sh", "-c"]


def test_a_child_s_words_and_status_come_back():
    ended = child.run([*SHELL, "echo out; echo words >&2; exit 3"], 10)
    assert (ended.status, ended.stdout, ended.stderr) == (3, "out\n", "words\n")
    assert ended.complaint == "words"


def test_a_child_that_works_has_no_complaint():
    assert child.run([*SHELL, "echo warning >&2"], 10).complaint == ""


def test_a_silent_death_is_named_by_its_signal_or_code():
    assert child.run([*SHELL, "kill -SEGV $$"], 10).complaint == "it ended with SIGSEGV"
    assert child.run([*SHELL, "exit 7"], 10).complaint == "it ended with code 7"


def test_at_the_deadline_a_child_ends_with_all_it_has_started():
    # The grandchild holds the pipe: killing the shell alone would leave us waiting for it.
    ended = child.run([*SHELL, "sleep 60 & sleep 60"], 0.2)
    assert ended.status is None
    assert ended.seconds < 10
    assert "no answer within" in ended.complaint


def test_ctrl_c_ends_the_child_and_is_passed_on_even_if_it_has_ended(monkeypatch):
    def interrupted(process, **_):
        process.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.run([*SHELL, "exit 0"], 10)


def test_a_missing_program_is_an_error_of_the_caller():
    with pytest.raises(OSError, match="nothing-like-it"):
        child.run(["nothing-like-it"], 1)


def test_our_scripts_see_the_standard_library_alone():
    code = "import sys; print(any('site-packages' in path for path in sys.path), *sys.argv[1:])"
    assert child.run_python(code, "a", timeout_s=10).stdout == "False a\n"
