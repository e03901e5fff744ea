"""Displays are chosen and proven in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from polyarm.display import offer, xvfb
from polyarm.display import select as public_select
from polyarm.display.select import Display, _off_screen, _probe
from polyarm.errors import DisplayError, UnknownName

select_module = sys.modules["polyarm.display.select"]

WORKS = "import sys; sys.stdout.write('toy GL')"
FAILS = "import sys; sys.exit('the toy driver is missing')"
CRASHES = "import os; os.abort()"
HANGS = "import time; time.sleep(60)"
VARIABLES = (
    "MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID", "DISPLAY", "LOCAL_RANK", "SLURM_LOCALID",
    "CUDA_VISIBLE_DEVICES", "POLYARM_BASE_DISPLAY", "RLBENCH_BASE_DISPLAY",
    "RLBENCH_PER_PROCESS_XVFB",
)  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    caches = (_probe, _off_screen)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


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


# Envs that render on their own account, if they ever do.


def test_envs_that_may_render_are_offered_the_first_backend_that_works(
    backends: dict[str, str],
) -> None:
    backends.update(egl=FAILS, osmesa=WORKS)
    assert offer(renders=True) == Display("osmesa", {"TOY": "osmesa"}, "toy GL")


def test_where_nothing_works_envs_that_may_render_keep_their_environment(
    backends: dict[str, str],
) -> None:
    backends.update(egl=FAILS, osmesa=FAILS)
    display = offer(renders=True)
    assert (display.name, display.env, display.x_server) == ("none", {}, "")
    assert "no display was found" in display.description
    backends.update(egl=WORKS)
    assert offer(renders=True) == display  # not asked again: a broken driver may take its time


def test_envs_that_never_render_are_offered_nothing_and_cost_no_probe(
    backends: dict[str, str],
) -> None:
    assert offer(renders=False).env == {"MUJOCO_GL": "disable"}


@pytest.mark.parametrize("renders", [True, False])
@pytest.mark.parametrize("chosen", ["glfw", "disable", "egl"])
def test_a_choice_of_the_user_is_never_overridden_for_envs_that_were_not_asked_for_frames(
    backends: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, chosen: str, renders: bool
) -> None:
    backends.update(egl=FAILS, osmesa=WORKS)
    monkeypatch.setenv("MUJOCO_GL", chosen)
    assert offer(renders=renders).env == {}


def test_the_users_backend_renders_on_the_gpu_of_this_rank(
    backends: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backends.update(egl="import sys; print('device', *sys.argv[1:])")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert offer(renders=True) == Display("egl", {"TOY": "egl"}, "device 3")


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
    assert public_select("egl", frames=True) == first
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


def test_a_probe_may_add_variables(backends: dict[str, str]) -> None:
    backends.update(egl="print('toy GL'); print('WHICH=2')")
    assert public_select("egl", frames=True).env == {"TOY": "egl", "WHICH": "2"}


def test_the_gpu_of_this_rank_is_what_a_backend_is_asked_for(
    backends: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backends.update(egl="import sys; print('device', *sys.argv[1:])")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert public_select("egl", frames=True).description == "device 6"
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert public_select("egl", frames=True).description == "device 4"


# Simulators that need an X server.


def test_without_frames_a_simulator_that_needs_x_needs_none() -> None:
    display = public_select("auto", frames=False, needs_x=True)
    assert (display.name, display.x_server) == ("none", "")
    assert display.env["QT_QPA_PLATFORM"] == "offscreen"


@pytest.mark.parametrize(("name", "server"), [("auto", "worker"), ("xvfb-shared", "shared")])
def test_xvfb_renders_and_says_who_starts_it(name: str, server: str) -> None:
    display = public_select(name, frames=True, needs_x=True)
    assert display.x_server == server
    assert display.description.startswith("Xvfb on ")
    assert display.env["QT_QPA_PLATFORM"] == "xcb"


def test_without_virtualgl_egl_names_the_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", without_program("vglrun"))
    with pytest.raises(DisplayError, match=r"VirtualGL is not installed.*'xvfb'.*'external'"):
        public_select("egl", frames=True, needs_x=True)


def test_osmesa_cannot_serve_a_simulator_that_needs_x() -> None:
    with pytest.raises(DisplayError, match="needs an X server"):
        public_select("osmesa", frames=True, needs_x=True)


def test_without_xvfb_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DisplayError, match=r"Xvfb is not installed.*apt-get install xvfb"):
        public_select("xvfb", frames=True)


def test_an_external_server_that_does_not_answer_is_refused() -> None:
    with pytest.raises(DisplayError, match=r"no X server answers at DISPLAY=':987.0'"):
        public_select("external:987", frames=True, needs_x=True)


def test_an_external_server_must_be_named() -> None:
    with pytest.raises(DisplayError, match="set DISPLAY"):
        public_select("external", frames=True)


def test_only_an_external_display_takes_a_number() -> None:
    with pytest.raises(UnknownName):
        public_select("egl:1", frames=True)


@pytest.mark.parametrize(
    ("environment", "rank", "name"),
    [
        ({"DISPLAY": ":5"}, "2", ":5"),
        ({"DISPLAY": ":5", "RLBENCH_BASE_DISPLAY": "{}"}, "0", "{}.0"),
        ({"RLBENCH_BASE_DISPLAY": "{}.0"}, "3", "{}.0"),
    ],
)
def test_rlbench_variables_choose_the_screen_of_a_rank(
    environment: dict[str, str], rank: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = xvfb.start()
    try:
        monkeypatch.setenv("RLBENCH_PER_PROCESS_XVFB", "0")
        monkeypatch.setenv("LOCAL_RANK", rank)
        for variable, value in environment.items():
            value = server.name if value == ":5" else value.format(server.name)
            monkeypatch.setenv(variable, value)
        expected = server.name if name == ":5" else name.format(server.name)
        display = public_select("auto", frames=True, needs_x=True)
        assert (display.name, display.env["DISPLAY"]) == ("external", expected)
        assert display.x_server == ""
    finally:
        server.close()


def without_program(name: str) -> str:
    """The PATH without the folders that hold a program."""
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(f for f in folders if not (Path(f) / name).exists())
