"""LIBERO through the vector engine: the same bits however it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from libero_play import DRAWER, STOVE, long_plan
from libero_reference import ACTIONS, CAMERAS

import polyarm
from polyarm.display import select

pytestmark = [pytest.mark.simulator, pytest.mark.frames]

TASK, OTHER = f"libero/{DRAWER.task}", f"libero/{STOVE.task}"
RULES: dict[str, Any] = {"protocol": "oft", "gripper": "as_is", "orientation": "raw"}

Batch = dict[str, Any]


def roll(envs: Any, episodes: Sequence[int], steps: int) -> list[Batch]:
    """The first observation and that after a chunk of actions, with simulator states."""
    obs, _ = envs.reset(options={"episodes": list(episodes)})
    seen = [batch(envs, obs)]
    actions = np.repeat(ACTIONS[None, :steps], envs.num_envs, axis=0)
    obs, *_ = envs.step_chunk(actions)
    return [*seen, batch(envs, obs)]


def batch(envs: Any, obs: Any) -> Batch:
    states = {"states": list(envs.call("sim_state"))}
    return {**{key: np.array(value) for key, value in obs.items()}, **states}


def check(seen: list[Batch], slot: int, reference: Any, episode: int, steps: int) -> None:
    """Compare one slot with LIBERO's own episode."""
    for found, row in zip(seen, (0, steps), strict=True):
        np.testing.assert_array_equal(found["states"][slot], reference[f"{episode}/states"][row])
        for camera in CAMERAS:
            if f"{episode}/frames/{camera}" in reference:
                expected = reference[f"{episode}/frames/{camera}"][row]
                np.testing.assert_array_equal(found[f"pixels/{camera}"][slot], expected)


@pytest.mark.parametrize("reference", [DRAWER], indirect=True, ids=[""])
@pytest.mark.parametrize("start", ["built", "imports", "fresh"])
def test_workers_may_come_to_life_in_any_way(start: Any, reference: Any) -> None:
    with polyarm.make_vec(TASK, num_envs=1, cameras=CAMERAS, start=start, **RULES) as envs:
        check(roll(envs, [1], 4), 0, reference, 1, 4)


@pytest.mark.parametrize("reference", [DRAWER], indirect=True, ids=[""])
def test_osmesa_gives_the_frames_of_egl(reference: Any) -> None:
    renderer = select("egl", frames=True).description
    if "llvmpipe" not in renderer:
        pytest.skip(f"EGL is {renderer} here; only Mesa's software devices draw as OSMesa does")
    with polyarm.make_vec(TASK, num_envs=1, cameras=CAMERAS, display="osmesa", **RULES) as envs:
        check(roll(envs, [1], 1), 0, reference, 1, 1)


@pytest.fixture(scope="module")
def first_rolls() -> dict[int, list[Batch]]:
    """What the first number of workers delivered."""
    return {}


@pytest.mark.parametrize("reference", [long_plan(DRAWER.task)], indirect=True, ids=[""])
@pytest.mark.parametrize("num_workers", [4, 2, 1])
def test_episodes_do_not_depend_on_the_number_of_workers(
    num_workers: int, reference: Any, first_rolls: dict[int, list[Batch]]
) -> None:
    episodes = [1, 0, 3, 1]
    with polyarm.make_vec(
        TASK, num_envs=4, num_workers=num_workers, cameras=CAMERAS[:1], **RULES
    ) as envs:
        seen = roll(envs, episodes, 2)
    for slot, episode in enumerate(episodes):
        check(seen, slot, reference, episode, 2)
    for found, first in zip(seen, first_rolls.setdefault(0, seen), strict=True):
        for key in ("state", "pixels/agentview"):
            np.testing.assert_array_equal(found[key], first[key])
        frames = found["pixels/agentview"]
        np.testing.assert_array_equal(frames[0], frames[3])
        assert not np.array_equal(frames[0], frames[1])


@pytest.mark.parametrize(
    ("reference", "other_reference"), [(DRAWER, STOVE)], indirect=True, ids=[""]
)
def test_two_tasks_share_a_worker_and_change_places(reference: Any, other_reference: Any) -> None:
    with polyarm.make_vec(
        [TASK, OTHER], num_envs=2, num_workers=1, cameras=CAMERAS, **RULES
    ) as envs:
        seen = roll(envs, [1, 1], 1)
        check(seen, 0, reference, 1, 1)
        check(seen, 1, other_reference, 1, 1)
        envs.send_reset([0], task=OTHER, options={"episodes": [1]})
        envs.send_reset([1], task=TASK, options={"episodes": [1]})
        envs.recv(min_slots=2, timeout_s=60)
        assert envs.tasks == (OTHER, TASK)
        seen = roll(envs, [1, 1], 1)
        check(seen, 0, other_reference, 1, 1)
        check(seen, 1, reference, 1, 1)
