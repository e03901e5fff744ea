from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from polyarm.contracts import Batch, EpisodeKey, PolicyOutput
from polyarm.errors import InvalidCall, MissingExtra, PolicyError
from polyarm.policies import History, TorchPolicy
from polyarm.testing.policies import check_policy

torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")

BOX = spaces.Box(-1, 1, (4,))
OBS = spaces.Dict(state=spaces.Box(-1, 1, (39,)))


def perceptron(seed=0, outputs=4):
    torch.manual_seed(seed)
    layers = torch.nn
    return layers.Sequential(
        layers.Linear(39, 256),
        layers.ReLU(),
        layers.Linear(256, 256),
        layers.ReLU(),
        layers.Linear(256, outputs),
    )


def invariant(module):
    """A batch-invariant policy, of a size that this machine computes evenly; 1 always is."""
    batch = batch_of_states(8)
    for size in (16, 32, 48, 1):
        policy = TorchPolicy(module, device="cpu", batch_size=size, batch_invariant=True)
        with contextlib.suppress(PolicyError):
            policy.act(batch)
            return policy
    raise AssertionError("a size of 1 is uneven")


def batch_of_states(rows):
    keys = tuple(EpisodeKey("toy", "count", index) for index in range(rows))
    steps = np.zeros(rows, np.int64)
    generators = tuple(key.generator() for key in keys)
    return Batch(states(rows), keys, ("",) * rows, steps, generators)


def states(rows, seed=0):
    random = np.random.default_rng(seed)
    return {"state": random.standard_normal((rows, 39)).astype(np.float32)}


def differing_sizes(policy, make_batch):
    """The sizes 1 … 16 at which some row's actions are not those it gets in a batch of 16."""
    obs = states(16)["state"]
    whole = policy.act(make_batch(range(16), {"state": obs}))
    found = set()
    for size in range(1, 17):
        part = policy.act(make_batch(range(size), {"state": obs[:size]}))
        if part.tobytes() != whole[:size].tobytes():
            found.add(size)
    return found


def test_padded_rows_are_bit_equal_at_every_batch_size(make_batch):
    policy = invariant(perceptron())
    assert policy.row_independent
    assert differing_sizes(policy, make_batch) == set()


def test_rows_that_are_not_padded_differ_and_the_policy_says_so(make_batch):
    policy = TorchPolicy(perceptron(), device="cpu")
    assert not policy.row_independent
    if not differing_sizes(policy, make_batch):
        pytest.skip("this machine's matrix products do not depend on the size of the batch")


def test_a_batch_invariant_policy_keeps_the_contract():
    policy = invariant(perceptron())
    check_policy(policy, BOX, OBS)
    check_policy(TorchPolicy(perceptron(), device="cpu"), BOX, OBS)


def test_actions_do_not_depend_on_where_the_observations_lie_in_memory(make_batch):
    policy = invariant(perceptron())
    obs = states(16)["state"]
    expected = policy.act(make_batch(range(16), {"state": obs}))
    for offset in range(1, 17):
        block = np.zeros(obs.size + offset, np.float32)
        moved = block[offset:].reshape(obs.shape)
        moved[...] = obs
        found = policy.act(make_batch(range(16), {"state": moved}))
        assert found.tobytes() == expected.tobytes()


def test_every_pass_of_a_batch_invariant_policy_has_the_same_size(make_batch):
    sizes = []

    def module(state):
        sizes.append(len(state))
        return state[:, :4] * 2

    policy = TorchPolicy(module, device="cpu", batch_size=8, batch_invariant=True)
    for rows in (1, 5, 8, 9, 24, 30):
        obs = states(rows)
        actions = policy.act(make_batch(range(rows), obs))
        assert actions.tolist() == (obs["state"][:, :4] * 2).tolist()
    assert set(sizes) == {8}


def test_without_invariance_batches_are_only_split(make_batch):
    sizes = []

    def module(state):
        sizes.append(len(state))
        return state[:, :4]

    policy = TorchPolicy(module, device="cpu", batch_size=8)
    obs = states(19)
    assert policy.act(make_batch(range(19), obs)).tolist() == obs["state"][:, :4].tolist()
    assert sizes == [8, 8, 3]
    assert not policy.row_independent


def test_a_module_whose_rows_influence_one_another_cannot_be_batch_invariant(make_batch):
    policy = TorchPolicy(
        lambda state: state - state.mean(dim=0), device="cpu", batch_size=4, batch_invariant=True
    )
    with pytest.raises(PolicyError, match="rows influence one another"):
        policy.act(make_batch(range(3), states(3)))


def test_a_module_that_treats_places_differently_cannot_be_batch_invariant(make_batch):
    def module(state):
        return state * (1 + 1e-6 * torch.arange(len(state))[:, None])

    policy = TorchPolicy(module, device="cpu", batch_size=4, batch_invariant=True)
    for _ in range(2):
        with pytest.raises(PolicyError, match="other actions at place 1 of batch_size=4 rows"):
            policy.act(make_batch([0], states(1)))


def test_a_module_that_draws_noise_of_its_own_cannot_be_batch_invariant(make_batch):
    policy = TorchPolicy(
        lambda state: state + torch.randn(state.shape),
        device="cpu",
        batch_size=4,
        batch_invariant=True,
    )
    with pytest.raises(PolicyError, match=r"draw it with batch\.noise"):
        policy.act(make_batch([0], states(1)))


def test_noise_comes_from_the_episodes_and_padding_uses_none_of_it(make_batch):
    def to_inputs(batch):
        return {"state": batch.obs["state"], "noise": batch.noise(4)}

    def policy(**options):
        return TorchPolicy(
            lambda inputs: inputs["state"][:, :4] + inputs["noise"],
            device="cpu",
            to_inputs=to_inputs,
            **options,
        )

    check_policy(policy(batch_size=8, batch_invariant=True), BOX, OBS)
    plain, padded = policy(), policy(batch_size=8, batch_invariant=True)
    first, second = make_batch([0, 1], states(2)), make_batch([0, 1], states(2))
    for _ in range(3):
        assert plain.act(first).tolist() == padded.act(second).tolist()


def test_only_the_state_is_a_tensor_and_more_is_a_dict(make_batch):
    seen = []

    def module(inputs):
        seen.append(inputs)
        return torch.zeros((2, 4))

    policy = TorchPolicy(module, device="cpu")
    policy.act(make_batch([0, 1], states(2)))
    frames = {"pixels/front": np.zeros((2, 8, 8, 3), np.uint8)}
    policy.act(make_batch([0, 1], {**states(2), **frames}))
    policy.act(make_batch([0, 1], frames))
    policy.act(make_batch([0, 1], np.zeros((2, 3))))
    assert seen[0].shape == (2, 39)
    assert {key: value.dtype for key, value in seen[1].items()} == {
        "state": torch.float32,
        "pixels/front": torch.uint8,
    }
    assert set(seen[2]) == {"pixels/front"}
    assert seen[3].shape == (2, 3)


def test_inputs_of_any_nesting_become_tensors_and_texts_stay_texts(make_batch):
    seen = []

    def module(inputs):
        seen.append(inputs)
        return torch.zeros((2, 4))

    def to_inputs(batch):
        return {"images": [batch.obs["state"]], "texts": batch.instructions, "scale": 2.0}

    TorchPolicy(module, device="cpu", to_inputs=to_inputs).act(make_batch([0, 1], states(2)))
    assert isinstance(seen[0]["images"][0], torch.Tensor)
    assert seen[0]["texts"] == ("do count", "do count")
    assert seen[0]["scale"] == 2.0


def test_observations_that_cannot_be_written_or_lie_backwards_are_taken_too(make_batch):
    obs = states(3)["state"]
    frozen = obs.copy()
    frozen.flags.writeable = False
    policy = TorchPolicy(lambda state: state, device="cpu")
    assert policy.act(make_batch(range(3), {"state": frozen})).tolist() == obs.tolist()
    backwards = policy.act(make_batch(range(3), {"state": obs[::-1]}))
    assert backwards.tolist() == obs[::-1].tolist()


def test_the_actions_are_no_view_of_the_observations(make_batch):
    obs = states(2)
    actions = TorchPolicy(lambda state: state, device="cpu").act(make_batch([0, 1], obs))
    assert not np.shares_memory(actions, obs["state"])


@pytest.mark.parametrize("batch_size", [None, 2])
def test_extras_come_back_row_by_row(make_batch, batch_size):
    def module(state):
        return state[:, None, :4], {"value": state[:, 0] * 2}

    obs = states(5)
    policy = TorchPolicy(
        module, device="cpu", batch_size=batch_size, batch_invariant=batch_size is not None
    )
    output = policy.act(make_batch(range(5), obs))
    assert isinstance(output, PolicyOutput)
    assert output.actions.shape == (5, 1, 4)
    assert output.extras["value"].tolist() == (obs["state"][:, 0] * 2).tolist()


def test_what_a_module_returns_can_be_turned_into_actions(make_batch):
    policy = TorchPolicy(
        lambda state: {"logits": state},
        device="cpu",
        to_actions=lambda out: out["logits"].argmax(1),
    )
    obs = states(3)
    assert policy.act(make_batch(range(3), obs)).tolist() == obs["state"].argmax(axis=1).tolist()


def test_half_precision_actions_are_returned(make_batch):
    policy = TorchPolicy(lambda state: state.bfloat16(), device="cpu")
    assert policy.act(make_batch([0], {"state": np.full((1, 2), 0.5)})).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_another_number_of_rows_than_asked_for_is_an_error(make_batch, batch_invariant):
    policy = TorchPolicy(
        lambda state: state[:2], device="cpu", batch_size=3, batch_invariant=batch_invariant
    )
    with pytest.raises(PolicyError, match=r"got 3 rows, but its actions have shape \(2, 39\)"):
        policy.act(make_batch(range(3), states(3)))


def test_a_module_decides_in_eval_mode_and_without_gradients(make_batch):
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(39, 4))
    policy = TorchPolicy(module, device="cpu")
    first = policy.act(make_batch(range(8), states(8)))
    module.train()
    assert policy.act(make_batch(range(8), states(8))).tolist() == first.tolist()
    assert not module.training


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 16])
def test_a_size_that_this_machine_computes_unevenly_is_refused(make_batch, size):
    obs = states(64)["state"]
    policy = TorchPolicy(perceptron(), device="cpu", batch_size=size, batch_invariant=True)
    try:
        whole = policy.act(make_batch(range(64), {"state": obs}))
    except PolicyError:
        assert size > 1
        return
    for row in range(64):
        alone = policy.act(make_batch([row], {"state": obs[row : row + 1]}))
        assert alone.tobytes() == whole[row].tobytes()


def test_later_rows_are_tried_out_until_there_were_enough(make_batch):
    calls = []

    def module(state):
        calls.append(len(state))
        return state[:, :4]

    policy = TorchPolicy(module, device="cpu", batch_size=3, batch_invariant=True)
    passes = []
    for rows in (1, 3, 3, 3, 3):
        calls.clear()
        policy.act(make_batch(range(rows), states(rows)))
        passes.append(len(calls))
    assert passes == [3, 5, 5, 3, 1]


def test_a_module_can_have_a_history():
    policy = TorchPolicy(
        lambda state: (state[:, 1] - state[:, 0])[:, :4],
        device="cpu",
        batch_size=16,
        batch_invariant=True,
    )
    check_policy(History(policy, 2), BOX, OBS)


def test_the_fingerprint_tells_weights_apart():
    fingerprint = TorchPolicy(perceptron(), device="cpu").fingerprint
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    assert fingerprint["module"] == "Sequential"
    assert fingerprint["parameters"] == sum(p.numel() for p in perceptron().parameters())
    assert fingerprint["weights"] == TorchPolicy(perceptron(), device="cpu").fingerprint["weights"]
    other = TorchPolicy(perceptron(seed=1), device="cpu").fingerprint
    assert fingerprint["weights"] != other["weights"]
    half = TorchPolicy(perceptron().bfloat16(), device="cpu").fingerprint
    assert fingerprint["weights"] != half["weights"]


def test_weights_of_any_order_shape_and_dtype_have_a_digest():
    def module(names):
        made = torch.nn.Module()
        for name in names:
            made.register_buffer(name, torch.tensor(len(name), dtype=torch.int64))
        return made

    first = TorchPolicy(module(["a", "bb"]), device="cpu").fingerprint
    assert first == TorchPolicy(module(["bb", "a"]), device="cpu").fingerprint
    assert first != TorchPolicy(module(["a", "cc"]), device="cpu").fingerprint


def test_a_callable_has_a_fingerprint_too():
    fingerprint = TorchPolicy(perceptron, device="cpu").fingerprint
    assert (fingerprint["module"], fingerprint["parameters"]) == ("perceptron", 0)


def test_invariance_needs_a_size():
    with pytest.raises(InvalidCall, match="needs batch_size"):
        TorchPolicy(perceptron(), batch_invariant=True)
    with pytest.raises(InvalidCall, match="at least 1 row"):
        TorchPolicy(perceptron(), batch_size=0)


def test_the_module_is_moved_to_the_device(make_batch):
    policy = TorchPolicy(perceptron())
    assert policy.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert policy.act(make_batch([0], states(1))).shape == (1, 4)


def test_importing_the_room_does_not_import_torch():
    code = "import sys, polyarm.policies; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_torch_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match="pip install"):
        TorchPolicy(lambda state: state)
