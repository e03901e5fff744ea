"""The examination goes through everything, and nothing that a check does ends it."""

import json
import subprocess
import sys

import pytest

from polyarm.doctor import Case, Finding, Report, examination, examine
from polyarm.doctor.findings import install, listed
from polyarm.errors import InvalidCall, UnknownName


def titles(case):
    return {section.title for section in examination.sections(case)}


def checks(case):
    return {name for section in examination.sections(case) for name in section.checks}


def report(*statuses):
    findings = [Finding(status, status, "") for status in statuses]
    return Report("toy", 1, 0.5, {"Section": findings})


WHOLE = """
import json, sys
from pathlib import Path
from polyarm.doctor import Case, examine
heard = []
report = examine(Case(), heard.append).to_dict()
modules = {"mujoco", "metaworld", "libero", "rlbench", "pyrep", "OpenGL", "torch"}
report["loaded"] = sorted(modules & set(sys.modules))
maps = Path("/proc/self/maps").read_text()
report["loaded"] += [name for name in ("libEGL", "libGL", "libOSMesa", "libX11") if name in maps]
print(json.dumps({**report, "heard": heard}))
"""


def test_the_whole_doctor_runs_here_and_loads_no_driver_and_no_simulator():
    run = subprocess.run(
        [sys.executable, "-c", WHOLE], capture_output=True, text=True, timeout=100, check=True
    )
    report = json.loads(run.stdout)
    assert set(report["sections"]) == {"Python", "Suites", "Rendering", "RLBench", "Machine"}
    assert "test frames" in report["heard"]
    assert "the check itself failed" not in run.stdout
    assert report["loaded"] == []


def test_a_check_that_raises_is_a_broken_line_and_the_next_one_runs(monkeypatch):
    def raising(case):
        yield Finding("first", "ok", "")
        raise RuntimeError("no such luck")

    def working(case):
        yield Finding("second", "ok", "")

    section = examination.Section("Toys", {"raising": raising, "working": working})
    monkeypatch.setattr(examination, "sections", lambda _: [section])
    first, failure, second = examine(Case()).findings
    assert (first.name, second.name) == ("first", "second")
    assert failure.status == "broken"
    assert "RuntimeError: no such luck (test_examination.py:" in failure.text


def test_findings_are_told_as_they_are_found(monkeypatch):
    section = examination.Section("Toys", {"toy": lambda case: [Finding("a", "ok", "")]})
    monkeypatch.setattr(examination, "sections", lambda _: [section])
    told = []
    examine(Case(), found=lambda title, finding: told.append((title, finding.name)))
    assert told == [("Toys", "a")]


@pytest.mark.parametrize("status", ["missing", "broken"])
def test_what_is_missing_or_broken_makes_a_report_unhealthy(status):
    assert not report("ok", status).healthy
    assert report("ok", status).to_dict()["ok"] is False


def test_hints_and_warnings_do_not_count():
    assert report("ok", "hint", "warning").healthy


def test_of_something_optional_missing_is_a_hint_and_broken_a_warning():
    milder = [Finding("", status, "").optional().status for status in ("ok", "missing", "broken")]
    assert milder == ["ok", "hint", "warning"]


def test_a_suite_is_spared_what_does_not_concern_it():
    assert titles(Case("metaworld")) == {"Python", "Suites", "Rendering", "Machine"}
    assert "Xvfb" not in checks(Case("metaworld"))
    assert "EGL devices" not in checks(Case("rlbench"))
    assert {"Xvfb", "Qt libraries", "CoppeliaSim"} <= checks(Case("rlbench"))


def test_rlbench_is_one_line_where_nobody_asked_for_it_and_it_is_not_there():
    section = next(one for one in examination.sections(Case()) if one.title == "RLBench")
    assert list(section.checks) == ["CoppeliaSim"]


def test_an_unknown_suite_names_the_closest():
    with pytest.raises(UnknownName, match="rlbench"):
        Case("rlbnch")


def test_a_case_plans_a_worker_per_core_unless_told(monkeypatch):
    monkeypatch.setattr("polyarm.vector.host.cores", lambda: 6)
    assert Case().num_envs == 6
    assert Case(num_envs=3).num_envs == 3


@pytest.mark.parametrize("num_envs", [0, -3])
def test_no_workers_cannot_be_planned(num_envs):
    with pytest.raises(InvalidCall, match="at least 1"):
        Case(num_envs=num_envs)


def test_the_ranks_of_a_host_count_together(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Case(num_envs=3).workers == 12


def test_a_typical_env_of_a_suite_has_its_usual_cameras():
    spec = Case("metaworld").spec()
    assert spec is not None
    assert spec.cameras == ("corner2",)
    assert Case().spec() is None


def test_packages_are_installed_with_sudo_unless_root(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert install(["a", "b", "a"]) == "sudo apt-get install -y a b"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert install(["a"]) == "apt-get install -y a"


def test_long_lists_are_counted():
    assert listed("abc", most=2) == "a, b, c"
    assert listed("abcd", most=2) == "a, b and 2 more"
