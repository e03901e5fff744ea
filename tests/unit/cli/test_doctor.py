"""The command shows findings and fixes, and its exit code says whether the suite can run."""

import io
import json

import pytest

from polyarm import doctor as doctors
from polyarm.cli import console, doctor
from polyarm.cli.main import main
from polyarm.doctor import Finding, Report, ramp
from polyarm.doctor.ramp import Rung

FIX = "sudo apt-get install -y libxcb-icccm4 libxcb-keysyms1 libxcb-xinerama0 libxkbcommon-x11-0 x"


def polyarm(*arguments, capsys):
    """Exit code, stdout and stderr of a command line."""
    with pytest.raises(SystemExit) as leaving:
        main(["doctor", *arguments])
    return leaving.value.code, *capsys.readouterr()


@pytest.fixture
def finds(monkeypatch):
    """Replaces the examination by findings."""

    def replace(*findings):
        def examine(case, started, found):
            started("toys")
            for finding in findings:
                found("Toys", finding)
            return Report(case.suite_name, case.num_envs, 0.5, {"Toys": list(findings)})

        monkeypatch.setattr(doctors, "examine", examine)

    return replace


@pytest.fixture
def climbs(monkeypatch):
    """Replaces the ramp by rungs; an exception among them is raised."""

    def replace(*rungs):
        def climb(planned):
            for rung in rungs:
                if isinstance(rung, BaseException):
                    raise rung
                yield rung

        monkeypatch.setattr(ramp, "climb", climb)

    return replace


def test_help_shows_every_option_and_examples(capsys):
    code, out, _ = polyarm("--help", capsys=capsys)
    assert code == 0
    for option in ("suite", "num-envs", "json", "log", "ramp", "task", "max-workers"):
        assert f"--{option} " in out
    assert "polyarm doctor --suite rlbench" in out
    words = " ".join(out.replace("│", " ").split())
    assert "Exit code 0 if something in it is known, 1 if nothing is" in words


@pytest.mark.parametrize(("flag", "value"), [("--task", "toy/count-3"), ("--max-workers", "4")])
def test_what_belongs_to_the_ramp_asks_for_it(flag, value, capsys):
    code, _, err = polyarm(flag, value, capsys=capsys)
    assert code == 2
    assert f"{flag} is of the ramp alone: add --ramp" in err


def test_all_is_well(finds, capsys):
    finds(Finding("Xvfb", "ok", "/usr/bin/Xvfb"), Finding("GPU", "hint", "none"))
    code, out, _ = polyarm("--suite", "metaworld", capsys=capsys)
    assert code == 0
    assert out.splitlines()[0] == "Toys"
    assert "ok       Xvfb               /usr/bin/Xvfb" in out
    assert "metaworld has all it needs here" in out


@pytest.mark.parametrize("status", ["missing", "broken"])
def test_something_that_is_needed_has_exit_code_1_and_its_fix(status, finds, capsys):
    finds(Finding("Xvfb", "ok", "there"), Finding("Qt libraries", status, "libxcb-icccm", FIX))
    code, out, _ = polyarm("--suite", "rlbench", capsys=capsys)
    assert code == 1
    assert f"fix: {FIX}" in out
    assert "rlbench is held up by 1: Qt libraries" in out


def test_json_is_one_object_on_stdout(finds, capsys):
    finds(Finding("Xvfb", "missing", "not there", "install it"))
    code, out, _ = polyarm("--json", capsys=capsys)
    assert code == 1
    assert out.count("\n") == 1
    report = json.loads(out)
    assert report["ok"] is False
    assert report["sections"]["Toys"] == [
        {"name": "Xvfb", "status": "missing", "text": "not there", "fix": "install it"}
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_a_fix_is_never_broken_into_lines_so_that_it_can_be_copied(width):
    out = console._Console(file=io.StringIO(), width=width, highlight=False)
    text = "a long finding " * 12
    doctor._print_finding(Finding("Qt libraries", "missing", text, FIX), out)
    *lines, fix = out.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert fix == f"         fix: {FIX}"


def test_markup_in_findings_is_shown_as_it_is(finds, capsys):
    finds(Finding("extras", "hint", "[bold]video[/bold]", "pip install 'polyarm[video]'"))
    _, out, _ = polyarm(capsys=capsys)
    assert "[bold]video[/bold]" in out
    assert "polyarm[video]" in out


def test_an_unknown_suite_names_the_closest_one(capsys):
    code, _, err = polyarm("--suite", "rlbnch", capsys=capsys)
    assert code == 2
    assert "did you mean 'rlbench'" in err


def test_a_log_is_explained(tmp_path, capsys):
    log = tmp_path / "worker.stderr"
    log.write_text('XIO:  fatal IO error 11 on X server ":99"\n*** buffer overflow detected ***\n')
    code, out, _ = polyarm("--log", str(log), capsys=capsys)
    assert code == 0
    assert "network add-ons" in out.splitlines()[0]
    assert "also in it:" in out
    assert "The X server died" in out


def test_a_log_is_read_from_stdin(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("RuntimeError: Handle Panda does not exist."))
    code, out, _ = polyarm("--log", "-", "--json", capsys=capsys)
    assert code == 0
    assert "4.1.0" in json.loads(out)["explanations"][0]


@pytest.mark.parametrize(
    ("text", "words"), [("hm\nall is lost\n\n", "all is lost"), ("", "It is empty")]
)
def test_a_log_that_says_nothing_known_has_exit_code_1(text, words, tmp_path, capsys):
    (tmp_path / "log").write_text(text)
    code, out, _ = polyarm("--log", str(tmp_path / "log"), capsys=capsys)
    assert code == 1
    assert words in out


def test_a_log_that_is_not_there_is_one_message(tmp_path, capsys):
    code, _, err = polyarm("--log", str(tmp_path / "gone"), capsys=capsys)
    assert code == 2
    assert "cannot be read: No such file" in err


def test_the_ramp_shows_what_ran_and_where_the_limit_is(climbs, capsys):
    failed = Rung(4, error="slot 3 died of SIGSEGV\nIt crashed.\n--- last stderr ---\nnoise")
    climbs(Rung(1, 2.5, 100.0, 2**28), Rung(2, 3.5, 150.0, 2**28), failed)
    code, out, _ = polyarm("--task", "toy/count-3", "--ramp", capsys=capsys)
    assert code == 0
    assert "3.50 s" in out
    assert "256 MiB" in out
    assert "2 workers run fine; with 4: slot 3 died of SIGSEGV\nIt crashed.\n" in out
    assert "noise" not in out


def test_a_ramp_on_which_nothing_runs_has_exit_code_1(climbs, capsys):
    climbs(Rung(1, error="could not build it"))
    code, out, _ = polyarm("--task", "toy/count-3", "--ramp", capsys=capsys)
    assert code == 1
    assert out == "no worker ran; toy/count-3: could not build it\n"


def test_ctrl_c_shows_what_the_ramp_has_found(climbs, capsys):
    climbs(Rung(1, 2.5, 100.0, 2**28), KeyboardInterrupt())
    code, out, _ = polyarm("--task", "toy/count-3", "--ramp", capsys=capsys)
    assert code == 130
    assert "2.50 s" in out
    assert "interrupted: 1 worker runs fine; more were not tried." in out


def test_the_ramp_as_json(climbs, capsys):
    climbs(Rung(1, 2.5, 100.0, 2**28), Rung(2, 2.5, 100.0, 2**28))
    arguments = ["--task", "toy/count-3", "--ramp", "--max-workers", "2", "--json"]
    code, out, _ = polyarm(*arguments, capsys=capsys)
    assert code == 0
    report = json.loads(out)
    assert report["workers"] == 2
    assert [rung["workers"] for rung in report["rungs"]] == [1, 2]
    assert report["interrupted"] is False
    assert "--max-workers 2" in report["verdict"]


def test_a_ramp_needs_something_to_start(capsys):
    code, _, err = polyarm("--ramp", capsys=capsys)
    assert code == 2
    assert "--suite" in err
