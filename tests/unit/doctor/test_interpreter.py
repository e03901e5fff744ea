import sys

import pytest

from polyarm.doctor import Case, interpreter


def only(findings):
    [finding] = findings
    return finding


@pytest.fixture
def case():
    return Case()


def test_python_is_named_with_its_virtual_environment(case, monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/venv")
    finding = only(interpreter.check_python(case))
    assert finding.status == "ok"
    assert sys.executable in finding.text
    assert "virtual environment" in finding.text


def test_a_python_of_the_system_is_a_hint(case, monkeypatch):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    finding = only(interpreter.check_python(case))
    assert finding.status == "hint"
    assert "-m venv" in finding.fix


def test_conda_is_as_good_as_a_virtual_environment(case, monkeypatch):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    assert only(interpreter.check_python(case)).status == "ok"


def test_the_kernel_gives_what_workers_are_started_with(case):
    finding = only(interpreter.check_start_methods(case))
    assert finding.status == "ok"
    assert "fork, memfd, eventfd, pidfd" in finding.text


def test_a_refused_system_call_is_broken_with_the_way_out(case, child_says):
    child_says((0, '{"fork": "", "pidfd": "PermissionError: not permitted"}', ""))
    broken, fine = interpreter.check_start_methods(case)
    assert broken.status == "broken"
    assert "pidfd does not work: PermissionError" in broken.text
    assert "seccomp" in broken.fix
    assert fine.text.startswith("fork")


def test_a_probe_that_is_killed_is_broken(case, child_says):
    child_says((-31, "", ""))
    finding = only(interpreter.check_start_methods(case))
    assert finding.status == "broken"
    assert "SIGSYS" in finding.text


def test_extras_are_listed_with_their_versions(case, monkeypatch):
    monkeypatch.setattr(interpreter, "version", lambda name: "1.2")
    finding = only(interpreter.check_extras(case))
    assert finding.status == "ok"
    assert "torch 1.2" in finding.text
    assert "jinja2 1.2" in finding.text


def test_a_missing_extra_is_a_hint_with_its_pip_command(case, monkeypatch):
    def version(name):
        if name in ("av", "torch"):
            raise interpreter.PackageNotFoundError
        return "1.2"

    monkeypatch.setattr(interpreter, "version", version)
    there, torch, video = interpreter.check_extras(case)
    assert there.status == "ok"
    assert (torch.status, video.status) == ("hint", "hint")
    assert torch.fix == f"{sys.executable} -m pip install 'polyarm[torch]'"
    assert "polyarm[video]" in video.fix
