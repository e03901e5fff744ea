"""The same bits however the work is spread: workers, chunks, ways of starting, frames."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from polyarm.testing import CountingEnv, NoisyEnv

NUM_ENVS = 8
STEPS = 24

TASKS = {
    "noisy": (partial(NoisyEnv, end_probability=0.15), {}),
    "counting": (partial(CountingEnv, length=5), {}),
    "toy": ("toy/count-10", {"cameras": ("front", "wrist"), "image_size": (6, 4)}),
}


class Record:
    """Observation and reward of every step of every slot, by episode and step."""

    def __init__(self) -> None:
        self.seen = {}
        self._episode = [0] * NUM_ENVS
        self._step = [0] * NUM_ENVS

    def reset(self, obs):
        for slot in range(NUM_ENVS):
            self._keep(slot, obs, None)

    def chunk(self, obs, rewards, ended, steps):
        for slot in range(NUM_ENVS):
            if steps[slot] == 0:
                self._episode[slot] += 1
                self._step[slot] = 0
                self._keep(slot, obs, None)
                continue
            for k in range(steps[slot]):
                self._step[slot] += 1
                self.seen[slot, self._episode[slot], self._step[slot], "reward"] = rewards[slot, k]
            self._keep(slot, obs, bool(ended[slot]))

    def _keep(self, slot, obs, ended):
        leaves = obs if isinstance(obs, dict) else {"obs": obs}
        bits = {key: value[slot].tobytes() for key, value in leaves.items()}
        self.seen[slot, self._episode[slot], self._step[slot], "obs"] = (bits, ended)


def play(env, chunk):
    """Actions depend on slot, episode and step alone, so that chunks see the same ones."""
    record = Record()
    record.reset(env.reset(seed=4)[0])
    for _ in range(3 * STEPS // chunk):
        actions = np.zeros((NUM_ENVS, chunk, 2), np.float32)
        for slot in range(NUM_ENVS):
            for k in range(chunk):
                step = record._step[slot] + k
                rng = np.random.default_rng((slot, record._episode[slot], step))
                actions[slot, k] = rng.uniform(-1, 1, 2)
        if chunk == 1:
            obs, rewards, terminated, truncated, info = env.step(actions[:, 0])
            rewards = rewards[:, None]
        else:
            obs, rewards, terminated, truncated, info = env.step_chunk(actions)
            if env._settings.frames == "every":
                at = np.maximum(info["steps"] - 1, 0)
                obs = {key: value[np.arange(NUM_ENVS), at] for key, value in obs.items()}
        record.chunk(obs, rewards, terminated | truncated, info["steps"])
    return record.seen


def assert_same_bits(found, expected):
    """Wherever both delivered something, and that is at every chunk's end."""
    shared = found.keys() & expected.keys()
    assert len(shared) > NUM_ENVS * 10
    assert any(episode > 1 for _, episode, *_ in shared)
    for place in shared:
        assert found[place] == expected[place], place


WAYS = [
    {"num_workers": 0, "chunk": 8},
    {"num_workers": 1, "chunk": 1},
    {"num_workers": 2, "chunk": 8},
    {"num_workers": 8, "chunk": 1},
    {"num_workers": 8, "chunk": 8, "start": "built"},
    {"num_workers": 2, "chunk": 1, "start": "imports"},
    {"num_workers": 2, "chunk": 8, "start": "fresh"},
    {"num_workers": 2, "chunk": 8, "frames": "every"},
]


@pytest.mark.parametrize(
    ("options", "task"),
    [
        pytest.param(options, task, id="-".join(map(str, [*options.values(), task])))
        for options in WAYS
        for task in TASKS
        if task != "noisy" or "frames" not in options  # NoisyEnv has no frames
    ],
)
def test_trajectories_are_bit_identical(make_any, task, options):
    tasks, rest = TASKS[task]
    options = dict(options)
    expected = play(make_any(tasks, num_envs=NUM_ENVS, **rest), 1)
    chunk = options.pop("chunk")
    found = play(make_any(tasks, num_envs=NUM_ENVS, **{**rest, **options}), chunk)
    assert_same_bits(found, expected)


def test_sending_and_receiving_gives_the_same_bits(make_any):
    tasks, rest = TASKS["noisy"]
    reference = make_any(tasks, num_envs=NUM_ENVS, **rest)
    env = make_any(tasks, num_envs=NUM_ENVS, num_workers=3)
    actions = np.random.default_rng(0).uniform(-1, 1, (STEPS, NUM_ENVS, 2)).astype(np.float32)
    reference.reset(seed=1)
    expected = [[np.array(part) for part in reference.step(each)[:4]] for each in actions]
    env.reset(seed=1)
    done = np.zeros(NUM_ENVS, int)
    env.send(actions[0])
    while (done < STEPS).any():
        ready = env.recv(1)
        for place, slot in enumerate(ready.slots):
            for part, whole in zip(ready[1:5], expected[done[slot]], strict=True):
                np.testing.assert_array_equal(part[place], whole[slot])
        done[ready.slots] += 1
        again = ready.slots[done[ready.slots] < STEPS]
        if len(again):
            env.send(actions[done[again], again], again)
