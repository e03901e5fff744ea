"""Names become suites and tasks; nothing is imported before it is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from polyarm import registry
from polyarm.cli import suites
from polyarm.errors import BrokenSuite, MissingExtra, UnknownName
from polyarm.suites.gymnasium import CallableSuite, GymnasiumSuite
from polyarm.testing.toy_suite import ToySuite


class Toy(ToySuite):
    """A suite of a plug-in; each of the others is wrong in its own way."""

    name = "whole"


class Unlisted(Toy):
    name = "unlisted"

    def tasks(self):
        return None


def raising() -> None:
    raise ValueError("no such luck")


PLUG_IN = SimpleNamespace(
    whole=Toy(),
    renamed=Toy(),
    unlisted=Unlisted(),
    incomplete=SimpleNamespace(name="incomplete", fork="never", episodic=True),
    unmade=type("Unmade", (Toy,), {"__init__": lambda self: raising()}),
)


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = [
        EntryPoint("plugged", "polyarm.suites.gymnasium:GymnasiumSuite", registry.GROUP),
        EntryPoint("broken", "no_such_module:Suite", registry.GROUP),
        EntryPoint("nowhere", "toy_plug_in", registry.GROUP),
        *(EntryPoint(name, f"toy_plug_in:{name}", registry.GROUP) for name in vars(PLUG_IN)),
    ]
    monkeypatch.setitem(sys.modules, "toy_plug_in", PLUG_IN)
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry._announced.cache_clear()
    yield
    registry._announced.cache_clear()
    registry.load.cache_clear()


def test_built_in_suites_are_known_without_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_announced", dict)
    assert registry.suite_names() == ["gym", "libero", "metaworld", "rlbench"]
    assert registry.locate("metaworld") == "polyarm.suites.metaworld:MetaWorld"
    assert registry.locate("callable") == "polyarm.suites.gymnasium:CallableSuite"


@pytest.mark.usefixtures("plug_in")
def test_an_entry_point_announces_a_suite() -> None:
    assert "plugged" in registry.suite_names()
    location = registry.locate("plugged")
    assert location == "polyarm.suites.gymnasium:GymnasiumSuite"
    assert isinstance(registry.load(location), GymnasiumSuite)


@pytest.mark.usefixtures("plug_in")
def test_a_suite_that_cannot_be_imported_says_what_is_missing() -> None:
    with pytest.raises(MissingExtra, match="no_such_module"):
        registry.load("broken")


def test_a_suite_is_loaded_once_by_name_and_by_location() -> None:
    suite = registry.load("gym")
    assert registry.load("gym") is suite
    assert registry.load(registry.locate("gym")) is suite
    assert isinstance(registry.load("callable"), CallableSuite)


def test_a_location_without_the_attribute_is_an_unknown_name() -> None:
    with pytest.raises(UnknownName, match="did you mean 'GymnasiumSuite'"):
        registry.load("polyarm.suites.gymnasium:GymnasiumSuit")


def test_a_task_resolves_to_itself() -> None:
    assert registry.resolve("metaworld/reach-v3") == [("metaworld", "reach-v3")]
    assert registry.resolve("gym/CartPole-v1") == [("gym", "CartPole-v1")]
    assert registry.resolve("gym/phys2d/CartPole-v1") == [("gym", "phys2d/CartPole-v1")]


def test_a_set_resolves_to_its_members_in_order() -> None:
    pairs = registry.resolve("metaworld/mt10")
    assert len(pairs) == 10
    assert pairs[0] == ("metaworld", "reach-v3")
    assert len(registry.resolve("metaworld/ml10-test")) == 5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("metawrld/reach-v3", "unknown suite 'metawrld'; did you mean 'metaworld'"),
        ("metaworld/reach-v4", "did you mean 'metaworld/reach-v3'"),
        ("metaworld/mt11", "did you mean 'metaworld/mt10'"),
        ("gym/CartPol-v1", "did you mean 'gym/CartPole-v1'"),
        ("reach-v3", "did you mean 'metaworld/reach-v3'.*starts with its suite"),
        ("gym/mt10", "did you mean 'metaworld/mt10'"),
        ("metaworld/OpenDrawer", "did you mean 'rlbench/OpenDrawer'"),
        ("metaworld/", "starts with its suite"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_the_closest(name: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        registry.resolve(name)


def test_importing_the_registry_imports_no_suite_and_no_simulator() -> None:
    script = (
        "import sys; import polyarm.registry as registry\n"
        "assert not any(name.startswith('polyarm.suites.') for name in sys.modules)\n"
        "suite = registry.load('metaworld')\n"
        "suite.tasks(), suite.requirements(), registry.resolve('metaworld/mt50')\n"
        "from polyarm.contracts import EnvSpec\n"
        "suite.describe(EnvSpec('metaworld', 'reach-v3', ('corner2',)))\n"
        "registry.load('gym').tasks()\n"
        "found = {'metaworld', 'mujoco', 'pygame', 'scipy'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", "announces 'toy_plug_in', expected 'module:attribute'"),
        ("renamed", "a suite that calls itself 'whole'"),
        ("incomplete", "lacks tasks, sets, check"),
        ("unmade", "cannot be made: ValueError: no such luck"),
    ],
)
def test_a_broken_plug_in_is_named_with_the_reason(name: str, said: str) -> None:
    with pytest.raises(BrokenSuite, match=said):
        registry.load(name)


@pytest.mark.usefixtures("plug_in")
def test_a_plug_in_that_cannot_be_imported_for_any_reason_is_named(monkeypatch, tmp_path) -> None:
    (tmp_path / "misspelt_plug_in.py").write_text("def")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BrokenSuite, match="'misspelt_plug_in:Suite' cannot be imported: SyntaxErr"):
        registry.load("misspelt_plug_in:Suite")


@pytest.mark.usefixtures("plug_in")
def test_broken_plug_ins_spoil_no_other_suite(capsys) -> None:
    assert suites.run(None) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    for name in ("broken", "nowhere", "renamed", "incomplete", "unmade", "unlisted"):
        assert "cannot be used" in rows[name]
    assert "cannot be used" not in rows["metaworld"] + rows["whole"] + rows["gym"]
    with pytest.raises(UnknownName, match="did you mean 'metaworld/reach-v3'"):
        registry.resolve("reach-v3")
