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
from polyarm.suites.rlbench.options import SetupOptions as RLBenchOptions
from polyarm.suites.rlbench.options import Step

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


def test_rlbench_and_xorg_teach_their_own_options(capsys: Any) -> None:
    overview = polyarm("setup", "--help", capsys=capsys)[1]
    assert "polyarm setup rlbench --help" in overview
    assert "polyarm setup xorg --help" in overview
    assert "--venv" not in overview
    for words in (("rlbench", "--help"), ("--help", "rlbench")):
        code, out, _ = polyarm("setup", *words, capsys=capsys)
        assert code == 0
        for text in ("--venv", "--accept-licences", "--dry-run", "COPPELIASIM_ROOT", "examples:"):
            assert text in out
        assert "--assets" not in out
    code, out, _ = polyarm("setup", "xorg", "--help", capsys=capsys)
    assert code == 0
    for text in ("--headless-gpu", "--max-clients", "--write", "/etc/X11", "xvfb"):
        assert text in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def rlbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RLBenchOptions]:
    """What RLBench's set-up was asked for; it does nothing, and packages are missing."""
    from polyarm.suites.rlbench import setup as rlbench_setup

    asked: list[RLBenchOptions] = []

    def install(options: RLBenchOptions, progress: Progress) -> list[Step]:
        asked.append(options)
        progress("unpacking", 1, 2)
        state: Any = "missing" if options.skip_test else "done"
        return [Step("system packages", state, "sudo apt-get install xvfb")]

    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path))
    monkeypatch.setattr(rlbench_setup, "setup", install)
    return asked


def test_rlbench_is_set_up_and_its_exit_code_tells_what_is_missing(
    rlbench: list[RLBenchOptions], capsys: Any
) -> None:
    words = ("setup", "rlbench", "--accept-licences")
    code, out, err = polyarm(*words, "--venv", "env", capsys=capsys)
    assert code == 0
    assert rlbench == [RLBenchOptions(accept_licences=True, venv=Path("env"))]
    assert "system packages: sudo apt-get install xvfb (done now)" in out
    assert "rlbench is ready" in out
    assert "unpacking" in err
    code, out, _ = polyarm(*words, "--skip-test", capsys=capsys)
    assert code == 1
    assert "system packages: MISSING: sudo apt-get install xvfb" in out
    assert "not ready yet: system packages" in out


def test_a_dry_run_of_rlbench_asks_nothing_and_says_that_it_changed_nothing(
    rlbench: list[RLBenchOptions], capsys: Any
) -> None:
    code, out, _ = polyarm("setup", "rlbench", "--dry-run", capsys=capsys)
    assert code == 0
    assert "Nothing was changed" in out
    assert rlbench[0].dry_run


@pytest.mark.parametrize(("answer", "goes_on"), [("yes\n", True), ("no\n", False), ("", False)])
def test_licences_are_asked_for_on_a_terminal(
    answer: str,
    goes_on: bool,
    rlbench: list[RLBenchOptions],
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    code, out, _ = polyarm("setup", "rlbench", capsys=capsys)
    for words in ("educat", "non-commercial", "Do you accept"):
        assert words in out
    assert code == (0 if goes_on else 2)
    assert [options.accept_licences for options in rlbench] == [True] * goes_on


def test_without_a_terminal_the_flag_for_the_licences_is_named(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    code, _, err = polyarm("setup", "rlbench", capsys=capsys)
    assert code == 2
    assert "polyarm setup rlbench --accept-licences" in err
    assert not (tmp_path / "cache").exists()


def test_a_check_of_rlbench_installs_nothing(
    tmp_path: Path, rlbench: list[RLBenchOptions], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COPPELIASIM_ROOT", raising=False)
    code, out, _ = polyarm("setup", "rlbench", "--check", capsys=capsys)
    assert code == 1
    assert "CoppeliaSim 4.1.0, PyRep and RLBench: missing. polyarm setup rlbench" in out
    assert not rlbench
    assert not list(tmp_path.iterdir())


def test_xorg_shows_its_files_and_writes_them_only_when_asked(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyarm.display.xorg.gpu_addresses", lambda: ["00000000:1B:00.0"])
    monkeypatch.setattr("polyarm.display.xorg.in_container", lambda: True)
    words = ("setup", "xorg", "--folder", str(tmp_path / "X11"))
    code, out, _ = polyarm(*words, capsys=capsys)
    assert code == 0
    for text in ("PCI:27:0:0", "MaxClients", "X :99", "Xwrapper.config", "anybody", "Nothing was"):
        assert text in out
    for text in ("container", "/tmp/.X11-unix", "xvfb"):
        assert text in out
    assert not (tmp_path / "X11").exists()
    code, out, _ = polyarm(*words, "--write", capsys=capsys)
    assert code == 0
    assert f"{tmp_path}/X11/polyarm-xorg.conf: written" in out
    assert "PCI:27:0:0" in (tmp_path / "X11" / "polyarm-xorg.conf").read_text()
    assert [path.name for path in (tmp_path / "X11").iterdir()] == ["polyarm-xorg.conf"]


def test_a_container_without_a_gpu_is_explained_as_well(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("polyarm.display.xorg.in_container", lambda: True)
    code, out, err = polyarm("setup", "xorg", capsys=capsys)
    assert code == 2
    assert "no NVIDIA GPU is found" in err
    for text in ("This is a container", "/tmp/.X11-unix", "X :99 -config polyarm-xorg.conf"):
        assert text in out


@pytest.mark.parametrize(
    "words",
    [
        ("--venv", "x", "rlbench"),
        ("--accept-licences", "rlbench", "--venv", "x"),
        ("--venv", "xorg", "rlbench", "--venv", "x"),
        ("--venv=x", "rlbench"),
    ],
)
def test_options_may_stand_before_the_name(
    words: tuple[str, ...], rlbench: list[RLBenchOptions], capsys: Any
) -> None:
    polyarm("setup", "--dry-run", *words, capsys=capsys)
    (options,) = rlbench
    assert options.venv == Path("x")


def test_a_value_that_is_called_rlbench_names_no_set_up(robots: Robots, capsys: Any) -> None:
    polyarm("setup", "--assets", "rlbench", "robots", capsys=capsys)
    polyarm("setup", "robots", "--assets", "xorg", capsys=capsys)
    assert robots.calls == [(Path("rlbench"), False), (Path("xorg"), False)]


def test_help_says_that_no_checksum_verifies_the_download(capsys: Any) -> None:
    _, out, _ = polyarm("setup", "rlbench", "--help", capsys=capsys)
    assert "download is not verified" in " ".join(out.replace("│", " ").split())


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
