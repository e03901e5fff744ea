"""Displays are chosen and proven in a child process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from polyarm.display import select as public_select
from polyarm.display.select import Display, _proven_backend
from polyarm.errors import DisplayError, UnknownName

select_module = sys.modules["polyarm.display.select"]

WORKS = "import sys; sys.stdout.write('toy GL')"
FAILS = "import sys; sys.exit('the toy driver is missing')"
CRASHES = "import os; os.abort()"
HANGS = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID"):
        monkeypatch.delenv(variable, raising=False)
    _proven_backend.cache_clear()
    yield
    _proven_backend.cache_clear()


@pytest.fixture
def backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Sources of the probes of ``egl`` and ``osmesa``, read when they run."""
    sources: dict[str, str] = {}

    def importer(name: str) -> ModuleType:
        module = ModuleType(name)
        module.__file__ = str(tmp_path / f"{name}.py")
        module.ENV = {"TOY": name}  # type: ignore[attr-defined]
        Path(module.__file__).write_text(sources[name])
        return module

    table = {name: lambda name=name: importer(name) for name in ("egl", "osmesa")}
    monkeypatch.setattr(select_module, "_BACKENDS", table)
    return sources


def test_without_frames_nothing_is_probed(backends: dict[str, str]) -> None:
    for name in ("auto", "none"):
        display = public_select(name, frames=False)
        assert display.name == "none"
        assert display.env == {"MUJOCO_GL": "disable"}


def test_auto_takes_the_first_backend_that_works(backends: dict[str, str]) -> None:
    backends.update(egl=WORKS, osmesa=FAILS)
    assert public_select("auto", frames=True) == Display("egl", {"TOY": "egl"}, "toy GL")


def test_auto_goes_on_when_a_driver_crashes(backends: dict[str, str]) -> None:
    backends.update(egl=CRASHES, osmesa=WORKS)
    assert public_select("auto", frames=True).name == "osmesa"


def test_when_nothing_works_the_error_names_every_reason_and_the_packages(
    backends: dict[str, str],
) -> None:
    backends.update(egl=FAILS, osmesa=CRASHES)
    with pytest.raises(DisplayError) as caught:
        public_select("auto", frames=True)
    for words in ("the toy driver is missing", "code -6", "libegl1", "libosmesa6"):
        assert words in str(caught.value)


def test_a_backend_that_was_asked_for_is_never_replaced(backends: dict[str, str]) -> None:
    backends.update(egl=FAILS, osmesa=WORKS)
    with pytest.raises(DisplayError, match="'egl' does not work: the toy driver is missing"):
        public_select("egl", frames=True)


def test_auto_respects_the_backend_in_the_environment(
    backends: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backends.update(egl=WORKS, osmesa=WORKS)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert public_select("auto", frames=True).name == "osmesa"


def test_a_probe_that_hangs_is_given_up(
    backends: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backends.update(egl=HANGS)
    monkeypatch.setattr(select_module, "PROBE_TIMEOUT_S", 0.2)
    with pytest.raises(DisplayError, match=r"did not answer within 0.2 s"):
        public_select("egl", frames=True)


def test_a_backend_is_probed_once_per_device(
    backends: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backends.update(egl=WORKS)
    first = public_select("egl", frames=True)
    backends.update(egl=FAILS)
    assert public_select("egl", frames=True) is first
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "7")
    with pytest.raises(DisplayError):
        public_select("egl", frames=True)


def test_frames_without_a_display_are_refused() -> None:
    with pytest.raises(DisplayError, match="display='none'"):
        public_select("none", frames=True)


def test_an_unknown_display_is_answered_with_the_closest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'egl'"):
        public_select("elg", frames=True)


@pytest.mark.parametrize("name", ["egl", "osmesa"])
def test_a_real_probe_names_its_renderer_or_what_is_missing(name: str) -> None:
    try:
        description = public_select(name, frames=True).description
    except DisplayError as error:
        description = str(error)
    assert " on " in description or f"display {name!r} does not work" in description


def test_choosing_a_display_loads_no_graphics_library_here() -> None:
    script = (
        "from pathlib import Path\n"
        "from polyarm.display import select\n"
        "from polyarm.errors import DisplayError\n"
        "try: select('auto', frames=True)\n"
        "except DisplayError: pass\n"
        "maps = Path('/proc/self/maps').read_text()\n"
        "assert not any(name in maps for name in ('libEGL', 'libOSMesa', 'libGL', 'libmujoco'))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
