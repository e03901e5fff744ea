"""RLBench's suite over its double: episodes, frames, actions, variations, experts, demonstrations.

The double follows RLBench's contract, opens real X connections and really reaches its targets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyarm import make_vec
from polyarm.display import xvfb
from polyarm.errors import BuildError, WorkerDied
from polyarm.suites.rlbench.environment import Environment

pytestmark = pytest.mark.usefixtures("rlbench")

SIDE = (24, 32)


def hold(obs: dict[str, Any], *, gripper: float = 1.0) -> np.ndarray:
    """An absolute pose action that stays where the hand is."""
    pose = obs["state"][:, 1:8]
    return np.concatenate([pose, np.full((len(pose), 1), gripper)], axis=1).astype(np.float32)


def test_the_suite_keeps_its_promises(tmp_path: Path, rlbench: Path):
    script = tmp_path / "check.py"
    script.write_text(
        "from polyarm.testing import check_suite\n"
        "from polyarm.suites.rlbench import RLBench\n"
        "check_suite(RLBench(), task='reach_target', cameras=('front', 'wrist'), steps=12,\n"
        "            options={'arm_mode': 'joint_velocity', 'depth': True, 'mask': True,\n"
        "                     'point_cloud': True, 'task_state': 5})\n"
    )
    server = xvfb.start()
    try:
        environment = {**os.environ, **Environment(rlbench, Path()).variables()}
        environment["DISPLAY"] = server.name
        done = subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        server.close()
    assert done.returncode == 0, done.stderr


def test_without_cameras_no_x_server_is_started():
    with make_vec("rlbench/reach_target", num_envs=2) as envs:
        obs, _ = envs.reset(seed=0)
        assert set(obs) == {"state"}
        assert obs["state"].shape == (2, 31)
        assert [xvfb.numbers_of(pid) for pid in envs.worker_pids] == [set(), set()]
        assert envs.provenance[0]["display"] == "none"
        obs, *_ = envs.step(hold(obs))
        assert np.isfinite(obs["state"]).all()


def test_each_worker_has_a_display_of_its_own():
    with make_vec("rlbench/reach_target", num_envs=3, cameras=("front",), image_size=SIDE) as envs:
        obs, _ = envs.reset(seed=0)
        assert obs["pixels/front"].shape == (3, *SIDE, 3)
        numbers = [x_servers(pid) for pid in envs.worker_pids]
        assert all(len(own) == 1 for own in numbers)
        assert len(set.union(*numbers)) == 3


def test_one_display_may_serve_all_workers():
    options = {"cameras": ("front",), "image_size": SIDE, "display": "xvfb-shared"}
    with make_vec("rlbench/reach_target", num_envs=3, **options) as envs:
        envs.reset(seed=0)
        assert not any(x_servers(pid) for pid in envs.worker_pids)
        assert len(x_servers(envs._engine._server._process.pid)) == 1


def x_servers(pid: int) -> set[int]:
    """Numbers of the displays that children of a process serve."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return set().union(*(xvfb.numbers_of(int(child)) for child in children))


def test_an_episode_depends_on_its_index_alone():
    options = {"cameras": ("front",), "image_size": SIDE, "arm_mode": "joint_velocity"}
    actions = np.random.default_rng(0).uniform(-1, 1, (6, 2, 8)).astype(np.float32)
    actions[..., -1] = 1.0
    seen = []
    for order in ([4, 9], [9, 4]):
        with make_vec("rlbench/push_button", num_envs=2, **options) as envs:
            envs.reset(options={"episodes": [1, 2]})
            obs, info = envs.reset(options={"episodes": order})
            told = dict(zip(order, info["instruction"], strict=True))
            track = {index: [] for index in order}
            for pair in actions:
                obs, *_ = envs.step(np.stack([pair[[4, 9].index(index)] for index in order]))
                for row, index in enumerate(order):
                    track[index].append((obs["state"][row].copy(), obs["pixels/front"][row].copy()))
            seen.append((told, track))
    assert seen[0][0] == seen[1][0]
    for index in (4, 9):
        for left, right in zip(seen[0][1][index], seen[1][1][index], strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_frames_on_demand_change_neither_physics_nor_pixels():
    cameras = ("front", "wrist")
    actions = np.random.default_rng(1).uniform(-1, 1, (1, 8, 8)).astype(np.float32)
    actions[..., -1] = np.array([0, 0, 0, 1, 1, 0, 0, 0])
    last = {}
    for frames in ("every", "last", "none"):
        with make_vec(
            "rlbench/open_drawer",
            num_envs=1,
            cameras=cameras,
            image_size=SIDE,
            frames=frames,
            arm_mode="joint_velocity",
            depth=True,
        ) as envs:
            envs.reset(seed=2)
            obs, *_ = envs.step_chunk(actions)
            row = -1 if frames == "every" else ...
            last[frames] = {key: value[0][row].copy() for key, value in obs.items()}
    assert set(last["none"]) == {"state"}
    for key, value in last["last"].items():
        assert np.array_equal(value, last["every"][key]), key
    assert np.array_equal(last["none"]["state"], last["every"]["state"])


def test_the_instruction_is_one_of_the_task_and_chosen_by_the_episode():
    with make_vec("rlbench/open_drawer", num_envs=1) as envs:
        told = []
        for index in (0, 3, 6, 9, 12, 0):
            _, info = envs.reset(options={"episodes": [index]})
            told.append(info["instruction"][0])
            assert info["variation"][0] == index % 3
            assert envs.get_attr("instruction") == (told[-1],)
    assert told[0] == told[-1]
    assert len(set(told)) > 1


@pytest.mark.parametrize(("name", "expected"), [("OpenDrawer:2", [2, 2]), ("open_drawer", [0, 1])])
def test_a_variation_is_fixed_by_name_or_goes_with_the_index(name: str, expected: list[int]):
    with make_vec(f"rlbench/{name}", num_envs=2) as envs:
        _, info = envs.reset(options={"episodes": [0, 1]})
        assert info["variation"].tolist() == expected


def test_the_end_of_an_episode_is_not_its_success():
    options = {"autoreset": "disabled", "task_state": 80}
    with make_vec("rlbench/pick_up_cup:0", num_envs=1, **options) as envs:
        obs, _ = envs.reset(seed=0)
        cup = 7  # where the other cup's pose is in the task's state
        for _ in range(150):
            action = hold(obs)
            way = obs["task_state"][0, cup : cup + 3] - action[0, :3]
            action[0, :3] += way * min(1.0, 0.03 / (np.linalg.norm(way) + 1e-9))
            obs, reward, terminated, truncated, info = envs.step(action)
            if terminated[0] or truncated[0]:
                break
        assert terminated[0]
        assert not info["is_success"][0]
        assert reward[0] == 0.0


@pytest.mark.parametrize(
    ("mode", "terminated", "truncated"),
    [("fail", True, False), ("end", False, True), ("skip", False, False)],
)
@pytest.mark.parametrize("fault", ["far", "quaternion"])
def test_an_invalid_action_does_what_the_option_says(
    mode: str, terminated: bool, truncated: bool, fault: str
):
    with make_vec(
        "rlbench/reach_target", num_envs=1, on_invalid_action=mode, autoreset="disabled"
    ) as envs:
        obs, _ = envs.reset(seed=0)
        action = hold(obs)
        if fault == "far":
            action[0, :3] += 5.0
        else:
            action[0, 3:7] *= 0.3
        before = obs["state"].copy()
        obs, reward, *ends, info = envs.step(action)
        assert [bool(end[0]) for end in ends] == [terminated, truncated]
        assert info["invalid_actions"][0] == 1
        assert not info["is_success"][0]
        assert reward[0] == 0.0
        if mode == "skip":
            assert np.array_equal(obs["state"][:, :8], before[:, :8])
            obs, _, _, _, info = envs.step(action)
            assert info["invalid_actions"][0] == 2


def test_a_quaternion_that_is_off_by_rounding_passes():
    with make_vec("rlbench/reach_target", num_envs=1) as envs:
        obs, _ = envs.reset(seed=0)
        action = hold(obs)
        action[0, 3:7] *= 1.009
        *_, info = envs.step(action)
        assert info["invalid_actions"][0] == 0


MODES = {
    "ik": (8, {}),
    "planning": (8, {}),
    "planning with collisions ignored": (9, {"arm_mode": "planning", "ignore_collision": True}),
    "joint_position": (8, {}),
    "joint_velocity": (8, {}),
    "joint_torque": (8, {}),
    "delta": (8, {"arm_mode": "ik", "control": "delta"}),
    "continuous gripper": (8, {"arm_mode": "ik", "gripper": "continuous"}),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_arm_mode_moves_the_arm(mode: str):
    size, options = MODES[mode]
    options = options or {"arm_mode": mode}
    with make_vec("rlbench/reach_target", num_envs=1, **options) as envs:
        obs, _ = envs.reset(seed=0)
        before = obs["state"].copy()
        assert envs.single_action_space.shape == (size,)
        action = np.zeros((1, size), np.float32)
        if options["arm_mode"] in ("ik", "planning"):
            action[0, 6] = 1.0
            if options.get("control") != "delta":
                action[:, :7] = before[:, 1:8]
            action[0, 2] -= 0.02
        elif options["arm_mode"] == "joint_position":
            action[0, :7] = before[0, 10:17] + 0.03
        else:
            action[0, :7] = 0.5
        obs, *_, info = envs.step(action)
        assert info["invalid_actions"][0] == 0
        assert not np.allclose(obs["state"][0, 10:17], before[0, 10:17], atol=1e-6)


def test_another_arm_has_other_joints():
    with make_vec("rlbench/reach_target", num_envs=1, robot_setup="jaco") as envs:
        obs, _ = envs.reset(seed=0)
        assert obs["state"].shape == (1, 1 + 7 + 3 + 18)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("reach_target", {}),
        ("reach_target", {"control": "delta"}),
        ("open_drawer", {"arm_mode": "planning"}),
        ("open_drawer", {"arm_mode": "planning", "ignore_collision": True}),
        ("push_button", {"arm_mode": "joint_position"}),
    ],
)
def test_the_tasks_own_waypoints_are_the_expert(task: str, options: dict[str, Any]):
    with make_vec(f"rlbench/{task}", num_envs=2, autoreset="disabled", **options) as envs:
        envs.reset(options={"episodes": [0, 1]})
        ended = np.zeros(2, bool)
        success = np.zeros(2, bool)
        while not ended.all():
            slots = np.flatnonzero(~ended).tolist()
            envs.send_expert(20, slots)
            ready = envs.recv(len(slots))
            for place, slot in enumerate(ready.slots):
                ended[slot] = ready.terminated[place] or ready.truncated[place]
                success[slot] = ready.info["is_success"][place]
        assert success.all()


def test_an_arm_mode_without_expert_says_which_have_one():
    with make_vec("rlbench/reach_target", num_envs=1, arm_mode="joint_torque") as envs:
        envs.reset(seed=0)
        envs.send_expert(1, [0])
        ready = envs.recv(1)
        assert "joint_position" in ready.info["error"][0].message


def test_a_demonstration_that_fails_at_first_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RLBENCH_DOUBLE", "loader,bad_demo=2")
    with make_vec("rlbench/reach_target", num_envs=1, autoreset="disabled") as envs:
        envs.reset(seed=0)
        envs.send_expert(400, [0])
        assert envs.recv(1).info["is_success"][0]


def test_planning_has_a_horizon_in_keyframes():
    with make_vec(
        "rlbench/open_drawer", num_envs=1, arm_mode="planning", autoreset="disabled"
    ) as envs:
        obs, _ = envs.reset(seed=0)
        for step in range(1, 26):
            obs, _, terminated, truncated, info = envs.step(hold(obs))
            assert bool(truncated[0]) is (step == 25)
        assert not terminated[0]
        assert not info["is_success"][0]


def test_shaped_rewards_come_from_the_task():
    with make_vec("rlbench/reach_target", num_envs=1, shaped_rewards=True) as envs:
        obs, _ = envs.reset(seed=0)
        _, reward, *_ = envs.step(hold(obs))
        assert reward[0] < 0


def test_a_task_without_shaped_reward_is_refused_when_it_is_built():
    with pytest.raises(BuildError, match="no shaped reward"):
        make_vec("rlbench/open_drawer", num_envs=1, shaped_rewards=True)


def test_the_tasks_own_state_is_padded_to_the_room_it_was_given():
    with make_vec("rlbench/reach_target", num_envs=1, task_state=6) as envs:
        obs, _ = envs.reset(seed=0)
        assert obs["task_state"].shape == (1, 6)
        assert obs["task_state"][0, :3].any()
        assert not obs["task_state"][0, 3:].any()


def test_too_little_room_for_the_tasks_state_says_how_much_it_takes():
    with pytest.raises(BuildError, match="give task_state=3 instead of 2"):
        make_vec("rlbench/reach_target", num_envs=1, task_state=2)


def test_static_positions_start_every_episode_alike():
    with make_vec(
        "rlbench/open_drawer:0", num_envs=1, static_positions=True, task_state=80
    ) as envs:
        first, _ = envs.reset(options={"episodes": [0]})
        first = first["task_state"].copy()
        second, _ = envs.reset(options={"episodes": [1]})
        assert np.array_equal(first, second["task_state"])


def test_episodes_may_start_from_stored_demonstrations(tmp_path: Path, rlbench: Path):
    root = tmp_path / "dataset"
    make_dataset(rlbench, root, "reach_target", "2:2", "5:1")
    options = {"episodes": f"demos:{root}", "task_state": 3, "max_restarts": 0}
    with make_vec("rlbench/reach_target", num_envs=1, **options) as envs:
        starts = {}
        for index in (0, 1, 2, 0):
            obs, info = envs.reset(options={"episodes": [index]})
            start = (int(info["variation"][0]), obs["task_state"][0].tobytes())
            assert starts.setdefault(index, start) == start
        assert [starts[index][0] for index in range(3)] == [2, 2, 5]
        assert len(set(starts.values())) == 3
        with pytest.raises(WorkerDied, match="3 stored demonstrations"):
            envs.reset(options={"episodes": [3]})
    with make_vec("rlbench/reach_target:5", num_envs=1, **options) as envs:
        obs, info = envs.reset(options={"episodes": [0]})
        assert (int(info["variation"][0]), obs["task_state"][0].tobytes()) == starts[2]


def test_a_dataset_without_the_task_is_refused_when_it_is_built(tmp_path: Path):
    with pytest.raises(BuildError, match="no demonstrations of open_drawer"):
        make_vec("rlbench/open_drawer", num_envs=1, episodes=f"demos:{tmp_path}")


def make_dataset(coppeliasim: Path, root: Path, task: str, *episodes: str) -> None:
    """Stored demonstrations of a task, made by a process of its own."""
    command = [sys.executable, "-m", "double_dataset", str(root), task, "--episodes", *episodes]
    environment = {**os.environ, **Environment(coppeliasim, Path()).variables()}
    environment["QT_QPA_PLATFORM"] = "offscreen"
    subprocess.run(command, env=environment, check=True, timeout=60, capture_output=True)
