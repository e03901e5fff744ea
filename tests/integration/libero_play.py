"""polyarm's LIBERO envs, played and recorded as `libero_reference` records LIBERO's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from libero_reference import ACTIONS, FEELINGS, Plan

from polyarm.contracts import EnvSpec
from polyarm.suites.libero import Libero

SUITE = Libero()

# The stove's knob is turned before the second step, its burner glows from the third on.
KNOB = (1, "flat_stove_1_button", (1.5,))
STOVE = Plan("oft", "libero_goal/7", (1,), 4, look="always", forced=(KNOB,))
DRAWER = Plan("oft", "libero_spatial/4", (1,), 4, look="always")


def long_plan(task: str) -> Plan:
    """Three episodes of a task in which nobody looks."""
    return Plan("oft", task, (0, 1, 3), 50)


def make(task: str, *cameras: str, image_size: tuple[int, int] = (256, 256), **options: Any) -> Any:
    """An env of the suite."""
    return SUITE.make(SUITE.check(EnvSpec("libero", task, cameras, image_size, options)))


def play(
    env: Any, episode: int, actions: Any = ACTIONS, forced: Any = (), look: str = "always"
) -> dict[str, Any]:
    """An episode; everything seen, with one row per observation.

    Args:
        env: Of the suite.
        episode: Its index.
        actions: Of the policy.
        forced: ``(step, joint, position)``: joints that are moved before a policy step.
        look: At frames, if the env has cameras: ``"never"``, ``"first"`` or ``"always"``.
    """
    env.frames_enabled = look != "never"
    obs, info = env.reset(options={"episode": episode})
    rows = [_row(env, obs, 0.0, info, ended=(False, False))]
    env.frames_enabled = look == "always"
    for step, action in enumerate(actions):
        for when, joint, position in forced:
            if when == step:
                value = position[0] if len(position) == 1 else np.array(position)
                env._sim.problem.sim.data.set_joint_qpos(joint, value)
        obs, reward, *ended, info = env.step(action)
        rows.append(_row(env, obs, reward, info, ended=ended))
    return {name: np.stack([row[name] for row in rows if name in row]) for name in rows[0]}


def _row(env: Any, obs: Any, reward: float, info: Any, *, ended: Any) -> dict[str, Any]:
    sim = env._sim
    return {
        "states": env.sim_state(),
        "body_pos": sim.model.body_pos.copy(),
        "body_quat": sim.model.body_quat.copy(),
        "reward": np.array(reward),
        "done": np.array(info["is_success"]),
        "terminated": np.array(ended[0]),
        "truncated": np.array(ended[1]),
        "eef_mat": sim.controller.ee_ori_mat.copy(),
        **{name: getattr(sim.sampler.felt, name).copy() for name in FEELINGS},
        **{key.replace("pixels/", "frames/"): value.copy() for key, value in obs.items()},
    }


def differences(ours: dict[str, Any], theirs: dict[str, Any], episode: int) -> dict[str, Any]:
    """What differs from LIBERO's own episode: the first differing row and the largest distance."""
    found = {}
    for key, value in theirs.items():
        number, _, name = key.partition("/")
        if number != str(episode):
            continue
        mine = ours[name]
        if mine.shape != value.shape:
            found[name] = f"shapes {mine.shape} and {value.shape}"
        elif not np.array_equal(mine, value):
            different = (mine != value).reshape(len(value), -1).any(axis=1)
            distance = np.abs(mine.astype(float) - value.astype(float)).max()
            found[name] = f"from row {int(different.argmax())} on, by up to {distance:.3g}"
    return found
