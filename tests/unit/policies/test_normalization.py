"""States and actions get the bits that openpi, OpenVLA and LeRobot would give them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm.contracts import EpisodeKey, PolicyOutput
from polyarm.errors import InvalidCall, PolicyError
from polyarm.policies import (
    ExpertPolicy,
    FunctionPolicy,
    History,
    Normalized,
    ZeroPolicy,
)
from polyarm.policies.transforms import (
    Chain,
    LerobotMeanStd,
    LerobotRange,
    LiberoGripper,
    OpenpiQuantiles,
    OpenpiZScore,
    OpenvlaBounds,
)
from polyarm.testing.policies import CountingPolicy, check_policy

RANDOM = np.random.default_rng(6)
DIMS = 7
LOW = np.sort(RANDOM.normal(size=(2, DIMS)), axis=0)[0]
HIGH = np.sort(RANDOM.normal(size=(2, DIMS)), axis=0)[1] + 2
MEAN, STD = RANDOM.normal(size=DIMS), RANDOM.uniform(0.01, 2, DIMS)
STD[2] = 0  # a dimension that never moved
HIGH[3] = LOW[3]
X = RANDOM.normal(size=(50, 4, DIMS)).astype(np.float32)
MASK = np.array([True] * (DIMS - 1) + [False])


def same_bits(found, expected):
    expected = np.asarray(expected).astype(np.float32)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def test_openpi_z_scores_have_its_bits():
    z = OpenpiZScore(MEAN, STD)
    same_bits(z.forward(X), (X - MEAN) / (STD + 1e-6))
    same_bits(z.inverse(X), X * (STD + 1e-6) + MEAN)


def test_openpi_quantiles_have_its_bits():
    quantiles = OpenpiQuantiles(LOW, HIGH)
    same_bits(quantiles.forward(X), (X - LOW) / (HIGH - LOW + 1e-6) * 2.0 - 1.0)
    same_bits(quantiles.inverse(X), (X + 1.0) / 2.0 * (HIGH - LOW + 1e-6) + LOW)


def test_openpi_actions_beyond_the_statistics_pass_as_they_do_there():
    wide = RANDOM.normal(size=(5, 32)).astype(np.float32)
    z, quantiles = OpenpiZScore(MEAN, STD), OpenpiQuantiles(LOW, HIGH)
    same_bits(z.inverse(wide)[:, :DIMS], z.inverse(wide[:, :DIMS]))
    same_bits(z.inverse(wide)[:, DIMS:], wide[:, DIMS:] * np.float64(1.0 + 1e-6))
    same_bits(quantiles.inverse(wide)[:, :DIMS], quantiles.inverse(wide[:, :DIMS]))
    same_bits(quantiles.inverse(wide)[:, DIMS:], wide[:, DIMS:])


@pytest.mark.parametrize("transform", [OpenpiZScore(MEAN, STD), OpenpiQuantiles(LOW, HIGH)])
def test_openpi_states_may_be_shorter_than_the_statistics_and_never_longer(transform):
    same_bits(transform.forward(X[..., :3]), transform.forward(X)[..., :3])
    with pytest.raises(PolicyError, match="takes at most 7; found 8"):
        transform.forward(np.zeros((2, 8), np.float32))
    with pytest.raises(PolicyError, match="takes at least 7; found 6"):
        transform.inverse(np.zeros((2, 6), np.float32))


@pytest.mark.parametrize(("oft", "epsilon"), [(True, 1e-8), (False, 0.0)])
def test_openvla_actions_have_its_bits(oft, epsilon):
    bounds = OpenvlaBounds(LOW, HIGH, MASK, oft=oft)
    scaled = 0.5 * (X + 1) * (HIGH - LOW + epsilon) + LOW
    same_bits(bounds.inverse(X), np.where(MASK, scaled, X))


def test_openvla_actions_from_tokens_are_computed_in_float64():
    centers = np.linspace(-1, 1, 256)
    centers = ((centers[:-1] + centers[1:]) / 2.0)[RANDOM.integers(0, 255, (20, DIMS))]
    bounds = OpenvlaBounds(LOW, HIGH, oft=False)
    same_bits(bounds.inverse(centers), 0.5 * (centers + 1) * (HIGH - LOW) + LOW)


def test_openvla_states_have_its_bits_and_are_clipped_outside_of_the_mask_too():
    scaled = 2 * (X - LOW) / (HIGH - LOW + 1e-8) - 1
    expected = np.clip(np.where(MASK, scaled, X), a_min=-1.0, a_max=1.0)
    same_bits(OpenvlaBounds(LOW, HIGH, MASK).forward(X), expected)
    assert np.abs(X[..., -1]).max() > 1 == np.abs(expected[..., -1]).max()


def test_the_gripper_is_made_binary_and_inverted_as_in_openvla_oft():
    actions = np.zeros((6, DIMS), np.float32)
    actions[:, -1] = [0, 0.49999997, 0.5, 0.50000006, 1, 0.9]
    actions[:, 0] = 0.25
    found = LiberoGripper().inverse(actions)
    upstream = actions.copy()
    upstream[..., -1] = np.sign(2 * (upstream[..., -1] - 0.0) / (1.0 - 0.0) - 1)
    upstream[..., -1] *= -1.0
    same_bits(found, upstream)
    assert found[:, -1].tolist() == [1, 1, 0, -1, -1, -1]
    assert actions[0, -1] == 0, "the policy's own array is left alone"


def test_the_gripper_is_decided_on_before_anything_is_rounded():
    just_open = np.array([[0.0, 1e-12]])  # in float32 the gripper would stand at exactly 0.5
    actions = Chain((LiberoGripper(), OpenvlaBounds([0, 0], [1, 1], oft=False)))
    assert actions.inverse(just_open)[0, -1] == -1


def tensors(*arrays):
    """As LeRobot has them; it computes in PyTorch."""
    torch = pytest.importorskip("torch", reason="not installed: pip install torch")
    return [torch.as_tensor(array, dtype=torch.float32) for array in arrays]


def test_lerobot_mean_std_has_its_bits():
    transform = LerobotMeanStd(MEAN, STD)
    x, mean, std = tensors(X, MEAN, STD)
    same_bits(transform.forward(X), (x - mean) / (std + 1e-8))
    same_bits(transform.inverse(X), x * std + mean)


def test_lerobot_ranges_have_its_bits():
    x, low, high, epsilon = tensors(X, LOW, HIGH, 1e-8)
    width = (high - low).where(high - low != 0, epsilon)
    for kind in ("MIN_MAX", "QUANTILES", "QUANTILE10"):
        transform = LerobotRange(LOW, HIGH, kind)
        same_bits(transform.forward(X), 2.0 * (x - low) / width - 1.0)
    same_bits(LerobotRange(LOW, HIGH).inverse(X), (x + 1) / 2 * width + low)
    same_bits(LerobotRange(LOW, HIGH, "QUANTILES").inverse(X), (x + 1.0) * width / 2.0 + low)


def test_a_lerobot_dimension_that_never_moved_comes_back_as_its_mean():
    transform = LerobotMeanStd([0.5, 0.5], [0, 1])
    there = transform.forward(np.array([0.75, 0.75], np.float32))
    assert there[0] == np.float32(0.25) / np.float32(1e-8)
    assert transform.inverse(there).tolist() == [0.5, 0.75]


number = st.floats(-10, 10, width=32)
spread = st.one_of(st.just(0.0), st.floats(1e-3, 10))
dimension = st.tuples(number, spread, st.booleans(), number)


def columns(drawn):
    middle, width, mask, x = (np.array(column) for column in zip(*drawn, strict=True))
    return middle, width, mask.astype(bool), x.astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(st.lists(dimension, min_size=1, max_size=8), st.integers(0, 4))
def test_what_is_normalised_comes_back(drawn, padding):
    middle, width, _, x = columns(drawn)
    # Float32 rounds x, the normalised number and the result, by at most 6e-8 of each.
    tolerance = 4e-7 * (np.abs(x) + np.abs(middle) + width + 1)
    for transform in (
        OpenpiZScore(middle, width),
        OpenpiQuantiles(middle, middle + width),
        LerobotRange(middle, middle + width),
        LerobotRange(middle, middle + width, "QUANTILES"),
    ):
        there = transform.forward(x)
        if transform.mode.startswith("openpi"):  # the model pads what was normalised
            there = np.pad(there, (0, padding))
        back = transform.inverse(there)
        assert np.all(np.abs(back[: len(x)] - x) <= tolerance), transform
        assert not back[len(x) :].any()


@settings(max_examples=150, deadline=None)
@given(st.lists(dimension, min_size=1, max_size=8))
def test_what_lerobot_normalises_by_mean_and_std_comes_back_but_for_its_epsilon(drawn):
    mean, std, _, x = columns(drawn)
    transform = LerobotMeanStd(mean, std)
    back = transform.inverse(transform.forward(x))
    expected = np.where(std == 0, mean, x)
    lost = np.abs(x - mean) * 1e-8 / (std + 1e-8)  # the way back has no epsilon
    assert np.all(np.abs(back - expected) <= 4e-7 * (np.abs(x) + np.abs(mean) + 1) + lost)


@settings(max_examples=150, deadline=None)
@given(st.lists(dimension, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_what_lies_inside_openvlas_bounds_comes_back(drawn, oft, gripper):
    low, width, mask, share = columns(drawn)
    high = low + width
    share = (share + 10) / 20  # inside of the bounds, or of [0, 1] where nothing is scaled
    x = np.where(mask, low + share * width, share).astype(np.float32)
    transform = OpenvlaBounds(low, high, mask, oft=oft)
    if gripper:
        low[-1], high[-1], x[-1] = 0, 1, np.sign(x[-1] - 0.25) or 1
        transform = Chain((LiberoGripper(), OpenvlaBounds(low, high, mask, oft=oft)))
    back = transform.inverse(transform.forward(x))
    # Clipping moves what rounding to float32 has put outside of the bounds; without epsilon on the
    # way back OpenVLA loses 1e-8.
    assert np.all(np.abs(back - x) <= 4e-7 * (np.abs(low) + width + 1) + 1e-8)
    assert not gripper or back[-1] == x[-1]


def test_what_lies_outside_of_openvlas_bounds_comes_back_as_the_bound():
    transform = OpenvlaBounds([0, 0], [1, 1], [True, False])
    back = transform.inverse(transform.forward(np.array([5, 5], np.float32)))
    np.testing.assert_allclose(back, [1, 1], rtol=1e-6)


def test_openvlas_equal_bounds_come_back_as_that_bound():
    for oft in (True, False):
        transform = OpenvlaBounds([0.5], [0.5], oft=oft)
        assert transform.forward(np.array([0.5], np.float32)) == -1
        assert transform.forward(np.array([0.6], np.float32)) == 1
        assert transform.inverse(np.array([1], np.float32)) == np.float32(0.5)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, None])
def test_statistics_that_are_no_numbers_are_refused(wrong):
    with pytest.raises(PolicyError, match=r"std of openpi z-score is (nan|inf) in dimension 1"):
        OpenpiZScore([0, 0], [1, wrong])


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        ([0, 0, 0], "differ in length: mean 3, std 2"),
        ([[0, 0]], r"has shape \(1, 2\), expected \(n,\)"),
        ([], r"has shape \(0,\)"),
        (["a", "b"], "is no list of numbers"),
    ],
)
def test_statistics_of_another_shape_are_refused(mean, message):
    with pytest.raises(PolicyError, match=message):
        OpenpiZScore(mean, [1, 1])


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(PolicyError, match=r"mask has shape \(3,\), the bounds have 2"):
        OpenvlaBounds([0, 0], [1, 1], [True] * 3)


@pytest.mark.parametrize(
    "transform",
    [OpenvlaBounds(LOW, HIGH), LerobotMeanStd(MEAN, STD), LerobotRange(LOW, HIGH)],
)
@pytest.mark.parametrize("dims", [6, 8, 1])
def test_other_dimensions_than_those_of_the_statistics_are_refused(transform, dims):
    for function in (transform.forward, transform.inverse):
        with pytest.raises(PolicyError, match=f"takes 7; found {dims}"):
            function(np.zeros((3, dims), np.float32))


@pytest.mark.parametrize("wrong", [1.0, np.array(["a"]), np.array([1j])])
def test_what_is_no_array_of_numbers_is_refused(wrong):
    with pytest.raises(PolicyError, match="takes arrays"):
        LerobotMeanStd([0], [1]).forward(wrong)


def test_statistics_cannot_be_changed_afterwards():
    mean = np.zeros(2)
    transform = OpenpiZScore(mean, np.ones(2))
    mean[:] = 5
    assert not transform.mean.any()
    with pytest.raises(ValueError, match="read-only"):
        transform.mean[0] = 1


def double(obs):
    return obs["state"] * 2


STATE, ACTIONS = OpenpiZScore([1, 2], [3, 4]), OpenpiQuantiles([0, 0], [1, 2])


def test_a_normalized_policy_sees_normalised_states_and_acts_in_the_envs_numbers(make_batch):
    obs = {"state": np.array([[4, 6], [1, 2]], np.float32), "goal": np.ones(2)}
    before = obs["state"].copy()
    seen = {}

    def act(batch):
        seen.update(batch.obs)
        return batch.obs["state"] * 2

    found = Normalized(FunctionPolicy(act), state=STATE, actions=ACTIONS).act(
        make_batch([0, 1], obs)
    )
    same_bits(seen["state"], STATE.forward(before))
    assert seen["goal"] is obs["goal"]
    same_bits(found, ACTIONS.inverse(STATE.forward(before) * 2))
    assert (obs["state"] == before).all(), "what the env wrote is left alone"


def test_chunks_histories_tensors_and_extras_pass(make_batch):
    def act(obs):
        return PolicyOutput(tensors(obs["state"])[0].bfloat16(), {"value": np.ones(1)})

    batch = make_batch([0], {"state": np.array([[4, 6]], np.float32)})
    output = History(Normalized(FunctionPolicy(act), actions=ACTIONS), 3).act(batch)
    assert output.actions.shape == (1, 3, 2)
    assert output.extras["value"].tolist() == [1]
    only_state = Normalized(FunctionPolicy(double), state=STATE).act(batch)
    same_bits(only_state, STATE.forward(batch.obs["state"]) * 2)


def test_what_does_not_fit_says_whether_it_is_the_state_or_the_actions(make_batch):
    policy = Normalized(
        FunctionPolicy(lambda batch: np.zeros((1, 1))), state=STATE, actions=ACTIONS
    )
    with pytest.raises(PolicyError, match=r"the state cannot be normalised: .* takes at most 2"):
        policy.act(make_batch([0]))
    with pytest.raises(PolicyError, match=r"the actions cannot be normalised: .* at least 2"):
        policy.act(make_batch([0], {"state": np.zeros((1, 2), np.float32)}))
    with pytest.raises(PolicyError, match=r"no 'state' to normalise; the observation has \['goal'"):
        policy.act(make_batch([0], {"goal": np.zeros((1, 2))}))


def test_a_normalized_policy_keeps_the_contract_of_policies():
    inner = FunctionPolicy(double, row_independent=True, needs_frames=False)
    policy = Normalized(inner, state=STATE, actions=ACTIONS)
    assert policy.row_independent
    assert not policy.needs_frames
    space = spaces.Box(-1, 1, (2,))
    check_policy(policy, space, spaces.Dict(state=spaces.Box(-1, 1, (2,))))


def test_begin_end_and_device_are_passed_on():
    keys = [EpisodeKey("toy", "count", 0)]
    policy = CountingPolicy()
    policy.device = "cuda:1"
    normalized = Normalized(policy, actions=ACTIONS)
    normalized.begin(keys)
    normalized.end(keys)
    assert (policy.begun, policy.ended, normalized.device) == (keys, keys, "cuda:1")
    Normalized(ZeroPolicy(spaces.Box(-1, 1, (2,))), actions=ACTIONS).end(keys)


def test_the_fingerprint_tells_statistics_modes_and_policies_apart():
    policy = FunctionPolicy(double)
    transforms = [
        OpenpiZScore([0, 1], [1, 2]),
        OpenpiZScore([0, 1], [1, 2.5]),
        OpenpiQuantiles([0, 1], [1, 2]),
        OpenvlaBounds([0, 1], [1, 2]),
        OpenvlaBounds([0, 1], [1, 2], [True, False]),
        OpenvlaBounds([0, 1], [1, 2], oft=False),
        LerobotRange([0, 1], [1, 2]),
        LerobotRange([0, 1], [1, 2], "QUANTILES"),
        Chain((LiberoGripper(), OpenvlaBounds([0, 1], [1, 2]))),
    ]
    prints = [Normalized(policy, actions=one).fingerprint for one in transforms]
    prints += [Normalized(policy, state=transforms[0]).fingerprint]
    assert len({json.dumps(each) for each in prints}) == len(prints)
    assert prints[0]["of"] == policy.fingerprint
    assert prints[0]["actions"]["mode"] == "openpi z-score"
    again = Normalized(policy, actions=OpenpiZScore([0, 1], [1, 2])).fingerprint
    assert again == prints[0]


def test_nothing_to_normalise_and_experts_are_refused():
    with pytest.raises(InvalidCall, match="for the state, the actions, or both"):
        Normalized(FunctionPolicy(double))
    with pytest.raises(InvalidCall, match="inside the worker"):
        Normalized(ExpertPolicy(), actions=ACTIONS)
