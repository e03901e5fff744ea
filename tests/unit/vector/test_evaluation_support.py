"""What evaluation asks of the engine: observers, experts in workers, switches in the background."""

from __future__ import annotations

import json

import numpy as np
import pytest

from polyarm import InvalidCall, UnknownName
from polyarm.contracts import EpisodeKey, ObservedEpisode
from polyarm.testing import CountingEnv, NoisyEnv

WATCHER = """
import json

class Watcher:
    def __init__(self, path, every):
        self.path, self.every, self.seen = path, every, []

    def begin(self, episode):
        self.seen = [["begin", str(episode.key), episode.attempt]]

    def wants_frames(self, step):
        return self.every > 0 and step % self.every == 0

    def observe(self, step, obs, reward, *, success):
        pixels = {key: int(obs[key].sum()) for key in obs if key.startswith("pixels/")}
        self.seen.append(["observe", step, pixels, reward, success])

    def end(self, *, success):
        self.seen.append(["end", success])
        with open(self.path, "a") as file:
            file.write(json.dumps(self.seen) + "\\n")
        return [f"{len(self.seen)}.mp4"]

    def close(self):
        with open(self.path, "a") as file:
            file.write("closed\\n")
"""


@pytest.fixture
def watcher(tmp_path, monkeypatch):
    """Options of `make_vec` for an observer in a module that workers can import."""
    (tmp_path / "watching_module.py").write_text(WATCHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    log = tmp_path / "seen.txt"
    options = {"path": str(log), "every": 2}
    return log, {"observer": "watching_module:Watcher", "observer_options": options}


def episodes(log):
    return [json.loads(line) for line in log.read_text().splitlines() if line != "closed"]


def play(env, slots, length, chunk):
    """One episode in each slot; returns the last batch."""
    env.send_reset(slots, options={"episodes": [7 + slot for slot in slots]})
    env.recv(len(slots))
    for _ in range(-(-length // chunk)):
        env.send(np.zeros((len(slots), chunk, 2), np.float32), slots)
        ready = env.recv(len(slots))
    return ready


@pytest.mark.parametrize("frames", ["last", "none", "every"])
@pytest.mark.parametrize("binding", [False, True])
def test_an_observer_sees_every_step_and_the_frames_it_wants(make, watcher, frames, binding):
    log, options = watcher
    env = make(
        "toy/count-3", cameras=["front"], image_size=(4, 4), frames=frames, binding=binding,
        autoreset="disabled", **options,
    )  # fmt: skip
    ready = play(env, [1], 3, 8)
    assert ready.info["observed_files"][0] == ["6.mp4"]
    (seen,) = episodes(log)
    assert seen[0] == ["begin", "toy/count-3#8", 1]
    assert seen[-1] == ["end", True]
    assert [(step, reward, success) for _, step, _, reward, success in seen[1:-1]] == [
        (0, 0.0, False), (1, 1.0, False), (2, 2.0, False), (3, 3.0, True),
    ]  # fmt: skip
    pattern = np.arange(48) + 31 * 8 + sum(b"front")
    for _, step, pixels, _, _ in seen[1:-1]:
        if step in (0, 2, 3):  # every second, and the last
            assert pixels == {"pixels/front": int((pattern + 7 * step).astype(np.uint8).sum())}
        elif frames == "none":
            assert pixels == {}


def test_an_observer_is_told_which_episode_it_watches(make, watcher):
    log, options = watcher
    env = make("toy/count-3", autoreset="disabled", cameras=["front"], **options)
    key = EpisodeKey("toy", "count-3", 5, repeat=2)
    told = ObservedEpisode(key, "count", 3, attempt=4)
    env.send_reset([2], options={"episodes": [5], "observed": [told]})
    env.recv(1)
    env.send(np.zeros((1, 3, 2), np.float32), [2])
    env.recv(1)
    assert episodes(log)[0][0] == ["begin", "toy/count-3#5.2", 4]


def test_an_observer_changes_nothing_that_is_delivered(make, watcher):
    _, options = watcher
    watched = make("toy/count-10", cameras=["front"], image_size=(4, 4), **options)
    plain = make("toy/count-10", cameras=["front"], image_size=(4, 4))
    watched.reset(seed=0), plain.reset(seed=0)
    for _ in range(6):
        actions = np.full((4, 4, 2), 0.5, np.float32)
        ours, theirs = watched.step_chunk(actions), plain.step_chunk(actions)
        for key in ("state", "pixels/front"):
            np.testing.assert_array_equal(ours[0][key], theirs[0][key])
        for mine, other in zip(ours[1:4], theirs[1:4], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_only_observed_slots_have_an_observer_and_it_is_closed_with_its_env(make, watcher):
    log, options = watcher
    env = make("toy/count-3", autoreset="disabled", observed_slots=[0], **options)
    play(env, [0, 1, 2, 3], 3, 3)
    env.close()
    assert [seen[0][1] for seen in episodes(log)] == ["toy/count-3#7"]
    assert log.read_text().count("closed") == 1


def test_an_observer_that_does_not_exist_is_named(make_any):
    with pytest.raises(Exception, match="no_such_thing") as caught:
        make_any("toy/count-3", observer="polyarm.testing:no_such_thing")
    assert isinstance(caught.value, UnknownName) or "UnknownName" in str(caught.value)


def test_experts_act_in_their_workers_and_their_actions_come_back(make):
    env = make("toy/count-10", autoreset="disabled")
    env.send_reset(options={"episodes": [1, 2, 3, 4]})
    env.recv(4)
    taken = {slot: [] for slot in range(4)}
    for steps in (3, 4, 8):
        env.send_expert(steps, [3, 0, 1, 2])
        ready = env.recv(4)
        for place, slot in enumerate(ready.slots.tolist()):
            made = int(ready.info["steps"][place])
            taken[slot].append(env.executed_actions(slot, made))
    assert ready.terminated.all()
    for slot, chunks in taken.items():
        expected = [[(slot + 1) / 1000, step / 10] for step in range(10)]
        np.testing.assert_array_equal(np.concatenate(chunks), np.array(expected, np.float32))


def test_an_env_without_an_expert_says_so(make):
    env = make(NoisyEnv, autoreset="disabled")
    env.reset(seed=0)
    env.send_expert(2, [0])
    assert "has no expert_action()" in str(env.recv(1).info["error"][0])
    for steps in (0, -1, 4.0, True, "4", None):
        with pytest.raises(InvalidCall, match="a number of steps from 1 on"):
            env.send_expert(steps, [1])
    env.send(np.zeros((1, 2), np.float32), [1])
    assert env.recv(1).slots.tolist() == [1]


def test_a_slot_takes_another_task_while_the_others_go_on(make):
    env = make("toy/count-10", autoreset="disabled")
    env.reset(options={"episodes": [0, 1, 2, 3]})
    env.send_reset([2], task="toy/count-3", options={"episodes": [20]})
    env.send(np.zeros((3, 2), np.float32), [0, 1, 3])
    answered = {}
    while len(answered) < 4:
        ready = env.recv(1)
        for place, slot in enumerate(ready.slots.tolist()):
            assert slot not in answered
            answered[slot] = ready.obs["state"][place, :2].tolist()
    assert answered == {0: [0, 1], 1: [1, 1], 3: [3, 1], 2: [20, 0]}
    assert env.tasks[2] == "toy/count-3"
    env.send(np.zeros((1, 8, 2), np.float32), [2])
    assert env.recv(1).info["steps"].tolist() == [3]


def test_slots_that_switch_together_get_an_episode_each(make):
    env = make("toy/count-10", autoreset="disabled")
    env.reset()
    env.send_reset([3, 1], task="toy/count-3", options={"episodes": [30, 10]})
    ready = env.recv(2)
    found = dict(zip(ready.slots.tolist(), ready.obs["state"][:, 0].tolist(), strict=True))
    assert found == {3: 30, 1: 10}
    with pytest.raises(InvalidCall, match="2 slots, found 3"):
        env.send_reset([3, 1], task="toy/count-10", options={"episodes": [1, 2, 3]})
    env.send_reset([3, 1], task="toy/count-10", options={"episodes": 7})
    assert env.recv(2).obs["state"][:, 0].tolist() == [7, 7]


def test_a_switch_in_the_background_cannot_be_sent_to_twice(make):
    env = make("toy/count-10", autoreset="disabled")
    env.reset()
    env.send_reset([0], task="toy/count-3")
    with pytest.raises(InvalidCall, match="not been received"):
        env.send(np.zeros((1, 2), np.float32), [0])
    env.recv(1)


def test_a_switch_to_envs_that_do_not_fit_is_delivered_as_an_error(make):
    env = make(CountingEnv, autoreset="disabled")
    env.reset()
    env.send_reset([1], task="gym/CartPole-v1")
    ready = env.recv(1)
    assert ready.slots.tolist() == [1]
    assert "its spaces differ from the batch's" in str(ready.info["error"][0])
    env.send_reset([1], seed=[None, 9, None, None])
    assert env.recv(1).obs["state"][0, :2].tolist() == [9, 0]


@pytest.mark.parametrize("wrong", ["gym/CartPole-v1", "no.such.module:env", "raising"])
def test_a_slot_whose_switch_failed_goes_on_with_the_env_it_had(make, wrong):
    """It had stayed with the other task, whose failures ended the whole vector env."""

    def raising():
        raise ValueError("no such luck")

    env = make(CountingEnv, autoreset="disabled")
    before = env.tasks
    for _ in range(5):  # more often than a slot may fail
        env.reset(seed=0)
        env.send(np.zeros((2, 2), np.float32), [0, 3])
        env.send_reset([1, 2], task=raising if wrong == "raising" else wrong)
        errors = {}
        for _ in range(4):
            ready = env.recv(1)
            for slot, error in zip(ready.slots.tolist(), ready.info.get("error", ()), strict=False):
                errors[slot] = error
            if not env._ledger.pending:
                break
        assert {slot for slot, error in errors.items() if error} == {1, 2}
        assert env.tasks == before
    obs, _ = env.reset(seed=0)
    assert obs["state"][:, 0].tolist() == [0, 1, 2, 3]
    assert env.step(np.zeros((4, 2), np.float32))[0]["state"][:, 1].tolist() == [1] * 4


def test_slots_have_one_task_and_one_kind_of_episodes(make_any):
    env = make_any("toy/count-10")
    with pytest.raises(InvalidCall, match="'toy/short' is a set of tasks"):
        env.switch_task([0], "toy/short")
    with pytest.raises(InvalidCall, match=r"CountingEnv cannot share a batch .* have seeds"):
        env.switch_task([0], CountingEnv)
    with pytest.raises(InvalidCall, match="cannot share a batch with callable/Counting"):
        make_any(["toy/count-3", CountingEnv])
    assert env.tasks == ("toy/count-10",) * 4


def test_observations_can_be_gathered_later_and_for_any_slots(make):
    env = make("toy/count-10", autoreset="disabled", cameras=["front"], image_size=(4, 4))
    env.reset(options={"episodes": [4, 5, 6, 7]})
    env.send(np.zeros((2, 2), np.float32), [2, 0])
    assert env.recv(2, observe=False).obs is None
    assert env.observe([3, 2, 0])["state"][:, :2].tolist() == [[7, 0], [6, 1], [4, 1]]
    env.send(np.zeros((1, 2), np.float32), [2])
    with pytest.raises(InvalidCall, match="not been received"):
        env.observe([2])
    env.recv(1)
