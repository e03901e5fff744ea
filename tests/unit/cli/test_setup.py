"""`polyarm setup` installs or checks, and says what it did; a suite brings the how."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyarm import registry
from polyarm.cli import setup
from polyarm.cli.main import main
from polyarm.contracts import Requirement
from polyarm.errors import StorageError

Progress = Callable[[str, int, int], None]


class Robots:
    """A suite with assets."""

    name = "robots"

    def __init__(self) -> None:
        self.calls: list[tuple[Path | None, bool]] = []
        self.error: BaseException | None = None
        self.found: str | None = "/assets"

    def requirements(self) -> list[Requirement]:
        return [Requirement("robots", "1.0", "pip install robots")]

    def setup(self, assets: Path | None, progress: Progress, *, force: bool) -> list[str]:
        self.calls.append((assets, force))
        for done in range(100):
            progress("unpacking [bold]", done, 100)
        if self.error is not None:
            raise self.error
        return ["assets: 3 files (installed now)"]

    def check_setup(self, progress: Progress) -> list[Requirement]:
        progress("checking", 1, 2)
        fix = "robots/arm.stl is missing. polyarm setup robots"
        return [*self.requirements(), Requirement("assets", self.found, fix)]


@pytest.fixture
def robots(monkeypatch: pytest.MonkeyPatch) -> Robots:
    suite, load = Robots(), registry.load
    monkeypatch.setitem(registry._BUILT_IN, "robots", "robots:Robots")
    monkeypatch.setattr(registry, "load", lambda name: suite if "robots" in name else load(name))
    return suite


def polyarm(*arguments: str, capsys: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return leaving.value.code, *capsys.readouterr()  # type: ignore[return-value]


def test_help_teaches(capsys: Any) -> None:
    code, out, _ = polyarm("setup", "--help", capsys=capsys)
    assert code == 0
    for words in ("--assets", "--force", "--check", "examples:", "POLYARM_CACHE", "HF_ENDPOINT"):
        assert words in out
    assert "setup" in polyarm("--help", capsys=capsys)[1]


def test_a_suite_is_set_up_and_says_what_there_is_now(robots: Robots, capsys: Any) -> None:
    code, out, err = polyarm("setup", "robots", capsys=capsys)
    assert code == 0
    assert robots.calls == [(None, False)]
    assert "assets: 3 files (installed now)" in out
    assert "robots is ready" in out
    assert err.splitlines() == ["unpacking [bold] …"]


def test_options_reach_the_suite(robots: Robots, capsys: Any) -> None:
    polyarm("setup", "robots", "--assets", "a.tar.xz", "--force", capsys=capsys)
    assert robots.calls == [(Path("a.tar.xz"), True)]


def test_a_check_installs_nothing_and_its_exit_code_tells(robots: Robots, capsys: Any) -> None:
    code, out, _ = polyarm("setup", "robots", "--check", capsys=capsys)
    assert code == 0
    assert "robots has all it needs" in out
    robots.found = None
    code, out, _ = polyarm("setup", "robots", "--check", capsys=capsys)
    assert code == 1
    assert "assets: missing. robots/arm.stl is missing. polyarm setup robots" in out
    assert not robots.calls


def test_a_failure_is_one_message(robots: Robots, capsys: Any) -> None:
    robots.error = StorageError("the disk is full")
    code, _, err = polyarm("setup", "robots", capsys=capsys)
    assert code == 2
    assert err.splitlines()[-1] == "polyarm: the disk is full"


def test_ctrl_c_is_no_traceback(robots: Robots, capsys: Any) -> None:
    robots.error = KeyboardInterrupt()
    code, _, err = polyarm("setup", "robots", capsys=capsys)
    assert code == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def test_an_unknown_suite_names_the_closest_one(capsys: Any) -> None:
    code, _, err = polyarm("setup", "metawrld", capsys=capsys)
    assert code == 2
    assert "did you mean 'metaworld'" in err


def test_a_suite_without_a_setup_names_its_packages(capsys: Any) -> None:
    _, out, _ = polyarm("setup", "metaworld", capsys=capsys)
    assert "nothing to set up beyond its packages: pip install 'polyarm[metaworld]'" in out


def test_on_a_terminal_there_is_a_bar() -> None:
    screen = io.StringIO()
    with setup.shown_progress(Console(file=screen, force_terminal=True, width=80)) as progress:
        progress("unpacking", 1, 2)
        progress("waiting", 0, 0)
    assert "waiting" in screen.getvalue()


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    screen = io.StringIO()
    with setup.shown_progress(Console(file=screen, width=200)) as progress:
        for done in range(20):
            progress("downloading", done, 20)
            now += 1.0
        progress("verifying", 1, 2)
        for _ in range(20):
            progress("waiting", 0, 0)
            now += 1.0
    lines = [f"downloading {share}% …" for share in (25, 50, 75)]
    assert screen.getvalue().splitlines() == ["downloading …", *lines, "verifying …", "waiting …"]
