import pytest

from polyarm import registry
from polyarm.contracts import Requirement
from polyarm.doctor import Case, suites
from polyarm.errors import MissingExtra

PIP = "pip install 'polyarm[metaworld]'"


@pytest.fixture
def needs(monkeypatch):
    """Replaces what Meta-World needs."""

    def replace(*requirements):
        suite = registry.load("metaworld")
        monkeypatch.setattr(type(suite), "requirements", lambda _: list(requirements))

    return replace


def test_what_is_there_is_one_line(needs):
    needs(Requirement("metaworld", "3.1.1", PIP), Requirement("mujoco 3.3.0", "3.3.0", PIP))
    [finding] = suites.check(Case("metaworld"))
    assert (finding.status, finding.text) == ("ok", "metaworld 3.1.1, mujoco 3.3.0")


def test_what_is_missing_is_a_line_for_each_fix(needs):
    needs(
        Requirement("metaworld", None, PIP),
        Requirement("mujoco", None, PIP),
        Requirement("assets", None, "polyarm setup metaworld"),
    )
    packages, assets = suites.check(Case("metaworld"))
    assert (packages.status, packages.text, packages.fix) == ("missing", "metaworld, mujoco", PIP)
    assert assets.fix == "polyarm setup metaworld"


def test_what_nobody_asked_for_is_one_hint_with_all_commands(needs):
    needs(
        Requirement("assets", None, "The assets are missing. Install them with: polyarm setup x"),
        Requirement("mujoco", None, "polyarm setup metaworld"),
        Requirement("metaworld", None, PIP),
        Requirement("numpy", "2.0", PIP),
    )
    found = {one.name: one for one in suites.check(Case())}
    assert found["gym"].status == "ok"
    finding = found["metaworld"]
    assert (finding.status, finding.text) == ("hint", "without assets, mujoco, metaworld")
    assert finding.fix == f"{PIP} && polyarm setup metaworld"


def test_a_suite_that_cannot_be_imported_is_broken_where_it_was_asked_for(monkeypatch):
    def load(name):
        raise MissingExtra("the suite cannot be imported: no module named 'x'")

    monkeypatch.setattr(registry, "load", load)
    [finding] = suites.check(Case("metaworld"))
    assert finding.status == "broken"
    assert "no module named 'x'" in finding.text
    assert {one.status for one in suites.check(Case())} == {"warning"}


def test_a_suite_without_needs_says_so(needs):
    needs()
    [finding] = suites.check(Case("metaworld"))
    assert finding.text == "needs nothing"


def test_rlbench_has_a_section_of_its_own():
    assert list(suites.check(Case("rlbench"))) == []
