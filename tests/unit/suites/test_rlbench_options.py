"""RLBench's options: what holds by default, what is refused, and what they make of an env."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_coppeliasim import NEW_HEADER, unpacked

from polyarm import make_vec, registry
from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidCall, MissingExtra, StorageError, UnknownName
from polyarm.suites.rlbench import RLBench, catalogue
from polyarm.suites.rlbench.environment import Environment
from polyarm.suites.rlbench.suite import demo_root

SUITE = RLBench()
MODES = ("ik", "planning", "joint_velocity", "joint_position", "joint_torque")
CAMERAS = ("front", "wrist", "overhead", "left_shoulder", "right_shoulder")
ARMS = {"panda": (7, 2), "sawyer": (7, 2), "ur5": (6, 2), "jaco": (6, 3), "mico": (6, 2)}
HOST_ONLY = {
    "idle_fps": 5.0,
    "coppeliasim_root": "/opt/coppeliasim",
    "interpreter": "/opt/rlbench/bin/python",
}
SHAPING = {
    "arm_mode": "planning",
    "control": "delta",
    "gripper": "continuous",
    "ignore_collision": True,
    "collision_checking": True,
    "robot_setup": "ur5",
    "episodes": "demos:/data/rlbench",
    "static_positions": True,
    "shaped_rewards": True,
    "on_invalid_action": "skip",
    "max_steps": 31,
    "task_state": 5,
    "render_mode": "opengl",
    "depth": True,
    "point_cloud": True,
    "mask": True,
}
ROOTED = ("COPPELIASIM_ROOT", "LD_LIBRARY_PATH", "QT_QPA_PLATFORM_PLUGIN_PATH")
OTHER_PYTHON = Path("/opt/other/bin/python")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No CoppeliaSim, no RLBench, an empty cache; gives a folder."""
    for name in ROOTED:
        monkeypatch.setenv(name, "")  # so that what a test sets is gone after it
        monkeypatch.delenv(name)
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "rlbench", None)
    catalogue._installed.cache_clear()
    yield tmp_path
    catalogue._installed.cache_clear()


def spec(*cameras: str, task: str = "open_drawer", **options: Any) -> EnvSpec:
    return EnvSpec("rlbench", task, cameras, (32, 48), options)


def checked(*cameras: str, **options: Any) -> EnvSpec:
    return SUITE.check(spec(*cameras, **options))


def test_checking_fills_in_the_defaults() -> None:
    assert checked().options == {
        "arm_mode": "ik",
        "control": "absolute",
        "gripper": "discrete",
        "ignore_collision": False,
        "collision_checking": False,
        "robot_setup": "panda",
        "episodes": "random",
        "static_positions": False,
        "shaped_rewards": False,
        "on_invalid_action": "fail",
        "max_steps": 400,
        "task_state": 0,
        "render_mode": "opengl3",
        "depth": False,
        "point_cloud": False,
        "mask": False,
        "idle_fps": 0.0,
        "coppeliasim_root": None,
        "interpreter": None,
    }


def test_what_was_checked_stays_as_it_is_and_pickles() -> None:
    for one in (checked(), checked("front", **SHAPING, **HOST_ONLY)):
        assert SUITE.check(one) == one
        assert pickle.loads(pickle.dumps(one)) == one


def test_checking_leaves_the_callers_options_alone() -> None:
    given = spec(depth=True)
    SUITE.check(given)
    assert given.options == {"depth": True}


@pytest.mark.parametrize(
    ("mode", "steps"), [(mode, 25 if mode == "planning" else 400) for mode in MODES]
)
def test_the_horizon_goes_with_the_arm_mode_unless_it_is_given(mode: str, steps: int) -> None:
    assert checked(arm_mode=mode).options["max_steps"] == steps
    assert checked(arm_mode=mode, max_steps=None).options["max_steps"] == steps
    assert checked(arm_mode=mode, max_steps=7).options["max_steps"] == 7


def test_evaluations_have_25_episodes_with_frames_of_rlbenchs_size() -> None:
    assert registry.defaults("rlbench", {}) == {"episodes": 25, "image_size": (128, 128)}


def test_every_option_can_be_given() -> None:
    options = {**SHAPING, **HOST_ONLY}
    assert checked(**options).options == options
    assert options.keys() == checked().options.keys()


def test_a_rate_may_be_an_int() -> None:
    for fps in (0, 1, 0.5, 60.0):
        assert checked(idle_fps=fps).options["idle_fps"] == fps


BOOLEANS = ("ignore_collision", "collision_checking", "static_positions", "shaped_rewards")
WRONG: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys((*BOOLEANS, "depth", "point_cloud", "mask"), (1, 0, "True", None, np.True_)),
    "arm_mode": ("IK", "pose", None, 0, ["ik"]),
    "control": ("relative", None, True),
    "gripper": ("binary", None, 0.04),
    "robot_setup": ("Panda", "kuka", None),
    "on_invalid_action": ("ignore", None, False),
    "render_mode": ("opengl4", None, 3),
    "episodes": ("demo:/data", "/data", "Random", None, 25, Path("/data")),
    "max_steps": (0, -1, "3", 3.0, True, np.int64(3)),
    "task_state": (-1, "3", 3.0, True, None),
    "idle_fps": (-1, float("nan"), float("inf"), 10_000, True, "5", None, [5.0]),
    "coppeliasim_root": (3, True, b"/opt"),
    "interpreter": (3, True, b"/opt"),
}


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_is_refused(option: str) -> None:
    for value in WRONG[option]:
        with pytest.raises(UnknownName) as caught:
            checked(**{option: value})
        # A representation that has quotes of its own is shown with theirs.
        assert f"value of {option} {repr(value)!r}" in str(caught.value)


def test_every_option_has_wrong_values() -> None:
    assert WRONG.keys() == checked().options.keys()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (spec(arm_mode="planing"), "did you mean \"'planning'\""),
        (spec(robot_setup="sawer"), "did you mean \"'sawyer'\""),
        (spec(depth=1), "Valid: False, True"),
        (spec(episodes="demos/data"), "Valid: demos:<dataset_root>, random"),
        (spec(max_steps="3"), "Give an int of at least 1"),
        (spec(task_state=-1), "Give an int of at least 0"),
        (spec(idle_fps=float("nan")), "Give frames per second"),
        (spec(arm_modes="ik"), "option of rlbench 'arm_modes'; did you mean 'arm_mode'"),
        (spec("wirst"), "camera of rlbench 'wirst'; did you mean 'wrist'"),
        (spec("front_camera"), "camera of rlbench 'front_camera'; did you mean 'front'"),
    ],
)
def test_a_refusal_says_what_would_do(wrong: EnvSpec, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        SUITE.check(wrong)


def test_demonstrations_without_a_folder_are_refused() -> None:
    with pytest.raises(UnknownName, match="value of episodes"):
        checked(episodes="demos:")


@pytest.mark.parametrize("option", ["coppeliasim_root", "interpreter"])
def test_a_path_may_be_a_path_object(option: str) -> None:
    assert checked(**{option: Path("/opt/here")}).options[option] == "/opt/here"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"ignore_collision": True, "arm_mode": mode}, f"arm_mode='planning', found '{mode}'")
            for mode in MODES
            if mode != "planning"
        ),
        ({"gripper": "continuous", "robot_setup": "jaco"}, "jaco has three"),
        ({"control": "delta", "arm_mode": "joint_velocity"}, "arm_mode='joint_velocity'"),
        ({"control": "delta", "arm_mode": "joint_torque"}, "arm_mode='joint_torque'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCall, match=message):
        checked(**options)


def test_poses_and_joint_positions_have_deltas() -> None:
    for mode in ("ik", "planning", "joint_position"):
        assert checked(arm_mode=mode, control="delta").options["control"] == "delta"


def observation_space(*cameras: str, **options: Any) -> Any:
    return SUITE.describe(spec(*cameras, **options)).observation_space


def test_the_state_has_room_for_arm_and_gripper() -> None:
    for robot, (joints, fingers) in ARMS.items():
        space = observation_space(robot_setup=robot)
        assert list(space) == ["state"]
        assert space["state"].shape == (1 + 7 + fingers + 3 * joints,)
        assert space["state"].dtype == np.float32


def test_the_tasks_own_state_is_there_if_asked_for() -> None:
    space = observation_space(task_state=5)
    assert (space["task_state"].shape, space["task_state"].dtype) == ((5,), np.float32)


def test_every_camera_has_pixels() -> None:
    for camera in CAMERAS:
        space = observation_space(camera)
        assert set(space) == {"state", f"pixels/{camera}"}
        pixels = space[f"pixels/{camera}"]
        assert (pixels.shape, pixels.dtype) == ((32, 48, 3), np.uint8)
        assert (pixels.low.min(), pixels.high.max()) == (0, 255)


@pytest.mark.parametrize(
    ("channel", "shape"), [("depth", (32, 48)), ("point_cloud", (32, 48, 3)), ("mask", (32, 48))]
)
def test_every_camera_has_the_channels_that_were_asked_for(
    channel: str, shape: tuple[int, ...]
) -> None:
    space = observation_space("wrist", "front", **{channel: True})
    keys = {f"{prefix}/{camera}" for prefix in ("pixels", channel) for camera in ("wrist", "front")}
    assert set(space) == {"state", *keys}
    for camera in ("wrist", "front"):
        extra = space[f"{channel}/{camera}"]
        assert (extra.shape, extra.dtype) == (shape, np.float32)
    assert set(observation_space(**{channel: True})) == {"state"}


def test_all_tasks_of_an_arm_share_their_spaces() -> None:
    one, other = (
        SUITE.describe(spec("front", task=task)) for task in ("open_drawer", "turn_tap:1")
    )
    assert one.observation_space == other.observation_space
    assert one.action_space == other.action_space


def test_provenance_holds_everything_that_shapes_an_episode_and_nothing_of_the_host(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SUITE.describe(spec()).provenance["coppeliasim"] is None
    monkeypatch.setitem(HOST_ONLY, "coppeliasim_root", str(unpacked(machine / "option")))
    provenance = SUITE.describe(
        spec("front", "wrist", task="OpenDrawer:2", **SHAPING, **HOST_ONLY)
    ).provenance
    assert provenance.items() >= SHAPING.items()
    assert not HOST_ONLY.keys() & provenance.keys()
    assert provenance["task"] == "open_drawer:2"
    assert provenance["variation"] == 2
    assert provenance["cameras"] == ["front", "wrist"]
    assert provenance["image_size"] == [32, 48]
    assert provenance["coppeliasim"] == "4.1.0"
    assert {"rlbench", "pyrep", "not_reproducible"} <= provenance.keys()
    assert "in turn" in SUITE.describe(spec()).provenance["variation"]


def test_the_host_changes_no_provenance() -> None:
    elsewhere = SUITE.describe(spec("front", **HOST_ONLY))
    assert elsewhere == SUITE.describe(spec("front"))


def test_every_shaping_option_changes_the_provenance() -> None:
    usual = SUITE.describe(spec("front", arm_mode="planning")).provenance
    for option, value in SHAPING.items():
        other = SUITE.describe(spec("front", **{"arm_mode": "planning", option: value}))
        changed = {name for name in usual if usual[name] != other.provenance[name]}
        assert changed == {option} - {"arm_mode"}


@pytest.mark.parametrize(
    ("written", "task"),
    [
        ("OpenDrawer:2", "open_drawer:2"),
        ("OpenDrawer", "open_drawer"),
        ("open_drawer:02", "open_drawer:2"),
    ],
)
def test_a_task_goes_by_one_name_however_it_is_written(written: str, task: str) -> None:
    assert registry.resolve(f"rlbench/{written}") == [("rlbench", task)]
    assert SUITE.check(spec(task=written)) == SUITE.check(spec(task=task))


@pytest.mark.parametrize(
    ("episodes", "root"),
    [("random", None), ("demos:/a:b/c", Path("/a:b/c")), ("demos:d", Path("d"))],
)
def test_demonstrations_are_named_by_their_folder(episodes: str, root: Path | None) -> None:
    assert demo_root(checked(episodes=episodes)) == root


def test_frames_take_room_of_their_own() -> None:
    blind, seeing = SUITE.footprint(checked()), SUITE.footprint(checked("front"))
    assert blind.graphics == 0 < seeing.graphics
    assert blind.host == seeing.host > 0


@pytest.mark.usefixtures("machine")
def test_without_coppeliasim_workers_get_nothing() -> None:
    assert SUITE.environment(checked()) == {}
    assert SUITE.interpreter(checked()) is None


def test_coppeliasim_is_where_the_option_says_then_the_variable_then_the_set_up(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(**options: Any) -> tuple[Any, ...]:
        given = checked(**options)
        variables = SUITE.environment(given)
        assert set(variables.values()) == {variables["COPPELIASIM_ROOT"]}
        assert variables.keys() == set(ROOTED)
        return variables["COPPELIASIM_ROOT"], SUITE.interpreter(given)

    assert found(coppeliasim_root="/opt/option") == ("/opt/option", None)
    variable = str(unpacked(machine / "variable"))
    monkeypatch.setenv("COPPELIASIM_ROOT", variable)
    assert found() == (variable, None)
    assert found(coppeliasim_root="/opt/option") == ("/opt/option", None)
    Environment(machine / "written", OTHER_PYTHON).write()
    assert found() == (variable, str(OTHER_PYTHON))
    assert found(coppeliasim_root="/opt/option") == ("/opt/option", str(OTHER_PYTHON))
    monkeypatch.delenv("COPPELIASIM_ROOT")
    assert found() == (str(machine / "written"), str(OTHER_PYTHON))
    assert found(interpreter="/opt/mine") == (str(machine / "written"), "/opt/mine")


def test_libraries_that_were_there_come_after_coppeliasim_s(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda/lib")
    variables = SUITE.environment(checked(coppeliasim_root=str(machine)))
    assert variables["LD_LIBRARY_PATH"] == f"{machine}:/usr/local/cuda/lib"


def test_this_python_is_no_other(machine: Path) -> None:
    assert SUITE.interpreter(checked(interpreter=sys.executable)) is None
    Environment(machine, Path(sys.executable)).write()
    assert SUITE.interpreter(checked()) is None


def test_where_rlbench_is_importable_no_other_python_is_needed(rlbench: Path) -> None:
    Environment(rlbench, OTHER_PYTHON).write()
    assert SUITE.interpreter(checked()) is None
    assert SUITE.interpreter(checked(interpreter="/opt/mine")) == "/opt/mine"


@pytest.mark.usefixtures("machine")
def test_making_an_env_without_coppeliasim_names_the_set_up() -> None:
    with pytest.raises(MissingExtra, match=r"COPPELIASIM_ROOT is not set.*polyarm setup rlbench"):
        SUITE.make(spec())


def test_making_an_env_without_rlbench_names_the_set_up(machine: Path) -> None:
    with pytest.raises(MissingExtra, match=r"needs rlbench.*polyarm setup rlbench"):
        SUITE.make(spec(coppeliasim_root=str(unpacked(machine / "root"))))


def test_making_an_env_with_another_coppeliasim_names_its_version(machine: Path) -> None:
    root = unpacked(machine / "new", NEW_HEADER)
    with pytest.raises(StorageError, match=r"holds CoppeliaSim 4\.10\.0.*exactly 4\.1\.0"):
        SUITE.make(spec(coppeliasim_root=str(root)))
    assert SUITE.describe(spec(coppeliasim_root=str(root))).provenance["coppeliasim"] == "4.10.0"


def test_making_an_env_with_a_pyrep_that_lacks_its_library_names_both(
    rlbench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ROOTED[1:]:
        monkeypatch.setenv(name, "")
    with pytest.raises(MissingExtra, match=r"libcoppeliaSim\.so\.1.*polyarm setup rlbench"):
        SUITE.make(spec())


@pytest.mark.usefixtures("rlbench")
@pytest.mark.parametrize(("num_envs", "num_workers"), [(2, 0), (2, 1), (5, 4)])
def test_envs_cannot_share_a_process(num_envs: int, num_workers: int) -> None:
    with pytest.raises(InvalidCall, match=f"{num_envs} envs need {num_envs} workers, found"):
        make_vec("rlbench/reach_target", num_envs=num_envs, num_workers=num_workers)


@pytest.mark.usefixtures("machine")
def test_another_python_is_not_this_process() -> None:
    with pytest.raises(InvalidCall, match=f"they need {OTHER_PYTHON}"):
        make_vec("rlbench/turn_tap", num_envs=1, num_workers=0, interpreter=str(OTHER_PYTHON))
