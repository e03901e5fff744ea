from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from polyarm.contracts import EpisodeKey, PolicyOutput
from polyarm.errors import InvalidCall, PolicyError, UnsupportedSpace
from polyarm.policies import (
    ExpertPolicy,
    FunctionPolicy,
    RandomPolicy,
    ReplayPolicy,
    ZeroPolicy,
)
from polyarm.testing.policies import check_policy

INF = np.inf
SPACES = {
    "bounded": spaces.Box(np.array([-1, 2], np.float32), np.array([1, 5], np.float32)),
    "mixed": spaces.Box(
        np.array([-1, -INF, 3, -INF], np.float32), np.array([1, INF, INF, -2], np.float32)
    ),
    "double": spaces.Box(-1e308, 1e308, (3,), np.float64),
    "bytes": spaces.Box(0, 255, (3,), np.uint8),
    "longs": spaces.Box(0, 2**64 - 1, (2,), np.uint64),
    "scalar": spaces.Box(-1, 1, ()),
    "discrete": spaces.Discrete(3, start=5),
    "multi-discrete": spaces.MultiDiscrete([2, 5, 9]),
    "grid": spaces.MultiDiscrete([[2, 5], [3, 4]], start=[[1, 0], [0, -4]]),
    "binary": spaces.MultiBinary(4),
}


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]


def draw(policy, keys, batch, chunks):
    generators = [key.generator() for key in keys]
    parts = [policy.act(batch(keys, generators=generators)) for _ in range(chunks)]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("policy", [ZeroPolicy, RandomPolicy])
def test_zero_and_random_keep_the_contract_in_every_space(policy, space):
    for chunk in (1, 3):
        check_policy(policy(space, chunk), space)


@pytest.mark.parametrize("policy", [ZeroPolicy, RandomPolicy])
def test_zero_and_random_stay_inside_the_space(policy, space, make_batch):
    actions = policy(space, 4).act(make_batch(range(50)))
    assert actions.shape == (50, 4, *space.shape)
    assert actions.dtype == space.dtype
    assert all(space.contains(np.asarray(action)) for row in actions for action in row)


def test_zero_is_zero_or_the_nearest_value_there_is(make_batch):
    batch = make_batch([0])
    assert ZeroPolicy(SPACES["bounded"]).act(batch).tolist() == [[[0.0, 2.0]]]
    assert ZeroPolicy(SPACES["discrete"], 2).act(batch).tolist() == [[5, 5]]
    assert ZeroPolicy(SPACES["mixed"]).act(batch).tolist() == [[[0.0, 0.0, 3.0, -2.0]]]


def test_random_actions_do_not_depend_on_the_length_of_the_chunk(space, make_batch):
    keys = [EpisodeKey("toy", "count", index) for index in (0, 7)]
    single = draw(RandomPolicy(space, 1), keys, make_batch, 12)
    chunked = draw(RandomPolicy(space, 4), keys, make_batch, 3)
    assert single.tobytes() == chunked.tobytes()


def test_random_actions_depend_on_task_index_and_repeat(make_batch):
    keys = [
        EpisodeKey("toy", "count", 1),
        EpisodeKey("toy", "count", 2),
        EpisodeKey("toy", "count", 1, 1),
        EpisodeKey("toy", "other", 1),
    ]
    actions = RandomPolicy(SPACES["bounded"]).act(make_batch(keys))
    assert len({row.tobytes() for row in actions}) == 4


def test_random_actions_fill_the_space(make_batch):
    batch = make_batch(range(2000))
    values = RandomPolicy(SPACES["mixed"]).act(batch)[:, 0]
    assert values[:, 0].min() < -0.99
    assert values[:, 0].max() > 0.99
    assert abs(values[:, 0].mean()) < 0.1
    assert abs(values[:, 1].mean()) < 0.1
    assert abs(values[:, 1].std() - 1) < 0.1
    assert abs(values[:, 2].mean() - 4) < 0.2
    assert abs(values[:, 3].mean() + 3) < 0.2
    counts = np.bincount(RandomPolicy(SPACES["discrete"]).act(make_batch(range(3000)))[:, 0])
    assert counts[:5].sum() == 0
    assert counts[5:].min() > 900
    assert len(counts) == 8


def test_a_space_of_several_parts_is_refused():
    for policy in (ZeroPolicy, RandomPolicy):
        with pytest.raises(UnsupportedSpace, match="Dict"):
            policy(spaces.Dict(arm=SPACES["bounded"]))


def test_a_decision_of_no_actions_is_refused(tmp_path):
    record(tmp_path / "a.npz", EpisodeKey("toy", "count", 0), [[0.0]])
    for make in (
        lambda: ZeroPolicy(SPACES["bounded"], 0),
        lambda: RandomPolicy(SPACES["bounded"], 0),
        lambda: ExpertPolicy(0),
        lambda: ReplayPolicy(tmp_path, 0),
    ):
        with pytest.raises(InvalidCall, match="at least 1"):
            make()


def test_the_expert_is_run_by_the_worker(make_batch):
    expert = ExpertPolicy(steps=5)
    assert expert.expert_steps == 5
    assert not expert.needs_frames
    check_policy(expert, SPACES["bounded"])
    with pytest.raises(InvalidCall, match="inside the worker"):
        expert.act(make_batch([0]))


def record(path, key, actions, **changes):
    """Write a trajectory; a changed array of None is left out."""
    arrays = {
        "actions": np.asarray(actions, np.float32),
        "suite": key.suite,
        "task": key.task,
        "index": key.index,
        "repeat": key.repeat,
        "rewards": np.zeros(len(actions)),
    } | changes
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


@pytest.fixture
def recordings(tmp_path):
    """Two recorded episodes of 8 and 5 steps, in files of different depth."""
    random = np.random.default_rng(0)
    found = {}
    for key, length, file in (
        (EpisodeKey("toy", "count", 3), 8, "a.npz"),
        (EpisodeKey("toy", "count", 3, 1), 5, "deep/b.npz"),
    ):
        found[key] = random.standard_normal((length, 2)).astype(np.float32)
        record(tmp_path / file, key, found[key])
    return found


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_a_replay_executes_exactly_the_recorded_actions(tmp_path, recordings, make_batch, chunk):
    policy = ReplayPolicy(tmp_path, chunk)
    assert policy.episodes == sorted(recordings)
    steps = dict.fromkeys(recordings, 0)
    executed = {key: [] for key in recordings}
    policy.begin(list(recordings))
    while running := [key for key in recordings if steps[key] < len(recordings[key])]:
        actions = policy.act(make_batch(running, steps=[steps[key] for key in running]))
        assert 1 <= actions.shape[1] <= chunk
        for key, row in zip(running, actions, strict=True):
            executed[key].extend(row.tolist())
            steps[key] += len(row)
    assert executed == {key: actions.tolist() for key, actions in recordings.items()}
    policy.end(list(recordings))


def test_a_replay_keeps_the_contract(tmp_path):
    keys = [EpisodeKey("toy", "count", index) for index in range(3)]
    for key in keys:
        record(tmp_path / f"{key.index}.npz", key, np.full((8, 2), key.index))
    check_policy(ReplayPolicy(tmp_path, 2), spaces.Box(-1, 1, (2,)), keys=keys)


def test_a_replay_takes_up_an_episode_that_begins_again(tmp_path, recordings, make_batch):
    key = EpisodeKey("toy", "count", 3)
    policy = ReplayPolicy(tmp_path / "a.npz", 2)
    first = policy.act(make_batch([key]))
    policy.act(make_batch([key], steps=[2]))
    policy.begin([key])
    assert policy.act(make_batch([key])).tolist() == first.tolist()


def test_an_episode_that_was_not_recorded_is_named_with_what_there_is(
    tmp_path, recordings, make_batch
):
    known, unknown = EpisodeKey("toy", "count", 3), EpisodeKey("toy", "count", 4)
    with pytest.raises(
        PolicyError, match=r"no recorded actions of toy/count#4 .*2 episodes"
    ) as caught:
        ReplayPolicy(tmp_path).act(make_batch([known, unknown]))
    assert "toy/count#3, toy/count#3.1" in str(caught.value)
    assert caught.value.row == 1


def test_an_episode_that_outlasts_its_recording_is_an_error(tmp_path, recordings, make_batch):
    keys = sorted(recordings)
    with pytest.raises(PolicyError, match=r"count#3.1 has made 5 steps, but only 5") as caught:
        ReplayPolicy(tmp_path).act(make_batch(keys, steps=[5, 5]))
    assert caught.value.row == 1


def test_keys_may_be_recorded_as_arrays_of_one_string(tmp_path, make_batch):
    key = EpisodeKey("toy", "count", 12)
    changes = {"suite": ["toy"], "task": ["count"], "index": ["12"], "repeat": None}
    record(tmp_path / "a.npz", key, [[0.5, 0.25]], **changes)
    assert ReplayPolicy(tmp_path).act(make_batch([key])).tolist() == [[[0.5, 0.25]]]


def test_what_cannot_be_replayed_is_named(tmp_path):
    key = EpisodeKey("toy", "count", 0)
    with pytest.raises(PolicyError, match=r"nowhere: no such file"):
        ReplayPolicy(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolicyError, match=r"no \.npz file"):
        ReplayPolicy(tmp_path / "empty")
    record(tmp_path / "bare.npz", key, [[0.0]], task=None)
    with pytest.raises(PolicyError, match=r"bare\.npz is no trajectory: it lacks task and holds"):
        ReplayPolicy(tmp_path / "bare.npz")
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "bare.npz").read_bytes()[:200])
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name in ("text.npz", "torn.npz", "one.npy"):
        with pytest.raises(PolicyError, match=f"{name} is no trajectory"):
            ReplayPolicy(tmp_path / name)
    record(tmp_path / "twice/a.npz", key, [[0.0]])
    record(tmp_path / "twice/b.npz", key, [[1.0]])
    with pytest.raises(PolicyError, match=r"two recordings of toy/count#0: .*a\.npz and .*b\.npz"):
        ReplayPolicy(tmp_path / "twice")


def test_a_function_of_a_batch_is_a_policy(make_batch):
    def follow(batch):
        return PolicyOutput(batch.obs["state"][:, :2], {"steps": batch.steps})

    policy = FunctionPolicy(follow, row_independent=True)
    check_policy(policy, spaces.Box(-1, 1, (2,)))
    output = policy.act(make_batch([0, 1], steps=[4, 5]))
    assert output.extras["steps"].tolist() == [4, 5]


def test_a_function_of_obs_gets_the_observations(make_batch):
    policy = FunctionPolicy(lambda obs: obs["state"][:, :2] + 1)
    assert policy.act(make_batch([0, 1])).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_function_promises_nothing_about_its_rows():
    def act(batch):
        return batch.obs["state"][:, :2].mean(axis=0, keepdims=True).repeat(len(batch), axis=0)

    assert not FunctionPolicy(act).row_independent
    assert FunctionPolicy(act).needs_frames
    check_policy(FunctionPolicy(act), spaces.Box(-1, 1, (2,)))
    with pytest.raises(AssertionError, match="in a batch of one"):
        check_policy(FunctionPolicy(act, row_independent=True), spaces.Box(-1, 1, (2,)))


def test_fingerprints_are_json_and_tell_policies_apart(tmp_path, recordings):
    box = SPACES["bounded"]
    policies = [
        ZeroPolicy(box),
        RandomPolicy(box),
        RandomPolicy(box, 2),
        ExpertPolicy(),
        ReplayPolicy(tmp_path),
        ReplayPolicy(tmp_path / "a.npz"),
        FunctionPolicy(record),
        FunctionPolicy(record, "mine"),
    ]
    assert len({json.dumps(policy.fingerprint, sort_keys=True) for policy in policies}) == 8
    assert FunctionPolicy(record).fingerprint["name"].endswith(":record")
