"""Copies of a policy for threads share weights, and nothing that changes while they run."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from lerobot.processor import ProcessorStep, TransitionKey
from lerobot_models import act_policy, diffusion_policy, episode, processors, upstream_actions

from polyarm.compat import policy_copies
from polyarm.errors import InvalidCall

pytestmark = pytest.mark.usefixtures("one_torch_thread")

STEPS = 5
ENSEMBLE = {"n_action_steps": 1, "temporal_ensemble_coeff": 0.1}


def in_threads(policies, rows, *, in_turns):
    """LeRobot's loop in one thread per policy: step for step in turns, or all at once."""
    batons = [threading.Semaphore(int(turn == 0)) for turn in range(len(policies))]

    def run(turn):
        before, after = processors(policies[turn])

        def take(observed):
            assert not in_turns or batons[turn].acquire(timeout=60)
            return before(observed)

        def give(action):
            batons[(turn + 1) % len(batons)].release()
            return after(action)

        return upstream_actions(policies[turn], (take, give), rows[turn])

    with ThreadPoolExecutor(len(policies)) as threads:
        return list(threads.map(run, range(len(policies))))


@pytest.fixture
def rows():
    return [episode(index, STEPS) for index in range(2)]


def test_a_shallow_copy_mixes_the_ensembles_of_two_threads(rows):
    policy = act_policy(**ENSEMBLE)
    expected = [upstream_actions(policy, processors(policy), row) for row in rows]
    shallow = [copy.copy(policy) for _ in rows]
    assert shallow[0].temporal_ensembler is shallow[1].temporal_ensembler
    mixed = in_threads(shallow, rows, in_turns=True)
    assert np.abs(np.subtract(mixed, expected)).max() > 1e-4


@pytest.mark.parametrize(
    "make",
    [lambda: act_policy(**ENSEMBLE), act_policy, diffusion_policy],
    ids=["act, ensembling", "act", "diffusion"],
)
def test_threads_with_copies_get_what_each_would_get_alone(make, rows):
    policy = make()
    expected = [upstream_actions(policy, processors(policy), row) for row in rows]
    for in_turns in (True, False):
        together = in_threads(policy_copies(policy, 2), rows, in_turns=in_turns)
        np.testing.assert_array_equal(together, expected)


def test_copies_hold_the_same_weights_once():
    policy = act_policy(**ENSEMBLE)
    first, second = policy_copies(policy, 2)
    tensors = [policy.state_dict(keep_vars=True), first.state_dict(keep_vars=True)]
    assert tensors[0].keys() == tensors[1].keys()
    for name, tensor in tensors[0].items():
        assert tensors[1][name].data_ptr() == tensor.data_ptr(), name
        assert tensors[1][name] is tensor, name
    assert first.temporal_ensembler is not second.temporal_ensembler
    assert first.model is not second.model


def test_an_update_of_weights_is_seen_by_copies(rows):
    policy = act_policy()
    (one,) = policy_copies(policy, 1)
    before = upstream_actions(one, processors(policy), rows[0])
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    after = upstream_actions(one, processors(policy), rows[0])
    assert np.abs(after - before).max() > 1e-4
    np.testing.assert_array_equal(after, upstream_actions(policy, processors(policy), rows[0]))


def test_copies_of_a_policy_in_mid_episode_begin_anew_and_leave_it_alone(rows):
    policy = act_policy(**ENSEMBLE)
    expected = upstream_actions(policy, processors(policy), rows[0])
    inputs = {
        "observation.state": torch.zeros(1, 4),
        "observation.image": torch.zeros(1, 3, 64, 64),
    }
    with torch.inference_mode():
        policy.select_action(inputs)
    kept = policy.temporal_ensembler.ensembled_actions
    (one,) = policy_copies(policy, 1)
    assert policy.temporal_ensembler.ensembled_actions is kept
    assert one.temporal_ensembler.ensembled_actions is None
    np.testing.assert_array_equal(upstream_actions(one, processors(policy), rows[0]), expected)


def test_processors_are_copied_with_their_statistics():
    before, _ = processors(act_policy())
    first, second = policy_copies(before, 2)
    observed = {
        "observation.state": torch.ones(1, 4),
        "observation.image": torch.ones(1, 3, 64, 64),
    }
    for one in (first, second):
        assert torch.equal(
            one(observed)["observation.state"], before(observed)["observation.state"]
        )
    assert all(a is not b for a, b in zip(first.steps, second.steps, strict=True))


class Sees(ProcessorStep):
    """Keeps the state that it saw last, as LeRobot's processor of relative actions does."""

    seen = None

    def __call__(self, transition):
        self.seen = transition[TransitionKey.OBSERVATION]["observation.state"]
        return transition

    def transform_features(self, features):
        return features


class AddsWhatWasSeen(Sees):
    def __init__(self, sees):
        self.sees = sees

    def __call__(self, transition):
        action = transition[TransitionKey.ACTION] + self.sees.seen
        return {**transition, TransitionKey.ACTION: action}


def test_processors_that_look_into_one_another_are_copied_together():
    policy, (before, after) = act_policy(), processors(act_policy())
    sees = Sees()
    before.steps, after.steps = [*before.steps[:-1], sees], [AddsWhatWasSeen(sees)]
    copies = policy_copies((policy, before, after), 2)
    observed = {"observation.image": torch.zeros(1, 3, 64, 64)}
    for number, (_, first, _) in enumerate(copies):
        first({**observed, "observation.state": torch.full((1, 4), float(number))})
    for number, (one, _, last) in enumerate(copies):
        assert torch.equal(last(torch.zeros(1, 4)), torch.full((1, 4), float(number)))
        assert next(one.parameters()) is next(policy.parameters())
    assert sees.seen is None


def test_no_copies_are_no_request():
    with pytest.raises(InvalidCall, match="at least 1 copy"):
        policy_copies(act_policy(), 0)
