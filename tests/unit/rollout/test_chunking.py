from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from polyarm.contracts import PolicyOutput
from polyarm.errors import InvalidCall, PolicyError, UnsupportedSpace
from polyarm.rollout.chunking import ActionQueue, as_chunks

BOX = spaces.Box(-1, 1, (2,), np.float32)


def executed(queue, decisions):
    """What the queue executes when it is offered these decisions one after the other."""
    taken = []
    for actions in decisions:
        queue.offer(actions)
        taken.append(queue.take())
    return np.concatenate(taken)


@st.composite
def decisions(draw):
    seed = draw(st.integers(0, 2**31))
    random = np.random.default_rng(seed)
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    return [random.standard_normal((size, 3)).astype(np.float32) for size in sizes]


@given(decisions())
def test_without_a_limit_the_executed_sequence_is_the_predicted_one(predicted):
    assert (
        executed(ActionQueue(None, None), predicted).tolist() == np.concatenate(predicted).tolist()
    )


@given(decisions(), st.integers(1, 6))
def test_only_the_first_actions_of_a_decision_are_executed(predicted, execute):
    expected = np.concatenate([actions[:execute] for actions in predicted])
    assert executed(ActionQueue(execute, None), predicted).tolist() == expected.tolist()


@given(decisions(), st.floats(-2, 2))
def test_ensembling_a_single_prediction_is_the_identity(predicted, weight):
    queue = ActionQueue(None, weight)
    assert executed(queue, predicted).tobytes() == np.concatenate(predicted).tobytes()


@given(decisions(), st.integers(1, 3), st.floats(-1, 1))
def test_an_ensemble_is_the_weighted_average_over_all_predictions_of_a_step(
    predicted, execute, weight
):
    tables = {}  # time step -> predictions, oldest first
    start, expected = 0, []
    for actions in predicted:
        for offset, action in enumerate(actions):
            tables.setdefault(start + offset, []).append(action.astype(np.float64))
        for step in range(start, start + min(execute, len(actions))):
            weights = [math.exp(-weight * i) for i in range(len(tables[step]))]
            total = sum(w * action for w, action in zip(weights, tables[step], strict=True))
            expected.append(total / sum(weights))
        start += min(execute, len(actions))
    found = executed(ActionQueue(execute, weight), predicted)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-6, atol=1e-7)


def test_the_weights_are_those_of_act_by_hand():
    queue = ActionQueue(1, 0.5)
    first = np.array([[10.0], [20.0], [30.0]], np.float32)
    second = np.array([[200.0], [300.0], [400.0]], np.float32)
    third = np.array([[3000.0], [4000.0], [5000.0]], np.float32)
    found = executed(queue, [first, second, third])[:, 0]
    newer, newest = math.exp(-0.5), math.exp(-1.0)
    assert found[0] == 10
    assert found[1] == pytest.approx((20 + newer * 200) / (1 + newer), rel=1e-6)
    total = 30 + newer * 300 + newest * 3000
    assert found[2] == pytest.approx(total / (1 + newer + newest), rel=1e-6)


def test_a_prediction_no_longer_counts_once_it_ends():
    queue = ActionQueue(1, 0.0)
    found = executed(queue, [np.full((2, 1), value, np.float32) for value in (1.0, 2.0, 3.0, 4.0)])
    assert found[:, 0].tolist() == [1.0, 1.5, 2.5, 3.5]


def test_a_very_large_weight_does_not_overflow():
    for weight, expected in ((1e6, 1.0), (-1e6, 2.0)):
        queue = ActionQueue(1, weight)
        found = executed(queue, [np.full((2, 1), value, np.float32) for value in (1.0, 2.0)])
        assert found[1, 0] == expected


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_actions_keep_their_dtype(dtype):
    for ensemble in (None, 0.01):
        queue = ActionQueue(1, ensemble)
        assert executed(queue, [np.ones((3, 2), dtype)] * 2).dtype == dtype


def test_integer_actions_are_executed_but_not_averaged():
    assert executed(ActionQueue(2, None), [np.array([3, 1, 2])]).tolist() == [3, 1]
    with pytest.raises(InvalidCall, match="int64"):
        ActionQueue(1, 0.01).offer(np.array([3, 1, 2]))


def test_a_buffer_that_the_policy_reuses_does_not_change_what_was_offered():
    for ensemble in (None, 0.01):
        queue, buffer = ActionQueue(1, ensemble), np.ones((2, 1), np.float32)
        queue.offer(buffer)
        buffer[:] = 7
        assert queue.take().tolist() == [[1.0]]


def test_queues_share_nothing():
    first, second = ActionQueue(1, 0.0), ActionQueue(1, 0.0)
    executed(first, [np.zeros((3, 1), np.float32)] * 2)
    assert executed(second, [np.ones((3, 1), np.float32)] * 2).tolist() == [[1.0], [1.0]]


def test_taking_and_offering_alternate():
    queue = ActionQueue(2, None)
    assert not queue.ready
    with pytest.raises(InvalidCall, match="no decision"):
        queue.take()
    queue.offer(np.zeros((3, 1)))
    assert queue.ready
    with pytest.raises(InvalidCall, match="before the last one was taken"):
        queue.offer(np.zeros((3, 1)))
    queue.take()
    assert queue.taken == 2
    with pytest.raises(InvalidCall, match="no decision"):
        queue.take()


def test_senseless_settings_and_decisions_are_refused():
    for settings in ((0, None), (-1, None), (1, math.nan), (1, math.inf)):
        with pytest.raises(InvalidCall):
            ActionQueue(*settings)
    for actions in (np.zeros((0, 2)), np.float64(1.0)):
        with pytest.raises(InvalidCall, match="at least 1 action"):
            ActionQueue().offer(actions)
    queue = ActionQueue(1, 0.0)
    executed(queue, [np.zeros((3, 2))])
    with pytest.raises(InvalidCall, match=r"\(3,\) were offered after \(2,\)"):
        queue.offer(np.zeros((3, 3)))


@pytest.mark.parametrize(
    ("space", "actions", "shape"),
    [
        (BOX, np.zeros((3, 2), np.float32), (3, 1, 2)),
        (BOX, np.zeros((3, 5, 2), np.float64), (3, 5, 2)),
        (BOX, [[0, 1], [1, 0], [1, 1]], (3, 1, 2)),
        (spaces.Discrete(4), np.array([0, 3, 1], np.int32), (3, 1)),
        (spaces.Discrete(4, start=-1), np.array([[-1, 2]] * 3), (3, 2)),
        (spaces.MultiDiscrete([2, 5]), np.array([[1, 4]] * 3), (3, 1, 2)),
        (spaces.MultiBinary(2), np.array([[True, False]] * 3), (3, 1, 2)),
        (spaces.Box(-1, 1, (2, 2)), np.zeros((3, 4, 2, 2)), (3, 4, 2, 2)),
        (spaces.Box(-1, 1, ()), np.zeros(3), (3, 1)),
    ],
)
def test_actions_become_chunks_in_the_dtype_of_the_space(space, actions, shape):
    chunks, extras = as_chunks(actions, 3, space)
    assert chunks.shape == shape
    assert chunks.dtype == space.dtype
    assert np.array_equal(chunks.reshape(np.shape(actions)), actions)
    assert extras == {}


@pytest.mark.parametrize(
    "shape", [(), (3,), (2, 2), (4, 2), (3, 3), (3, 1, 3), (3, 1, 1, 2), (2, 1, 2)]
)
def test_a_wrong_shape_is_an_error_that_says_what_was_expected(shape):
    with pytest.raises(PolicyError) as caught:
        as_chunks(np.zeros(shape, np.float32), 3, BOX)
    assert f"have shape {shape}, expected (3, K, 2) or (3, 2)" in str(caught.value)
    assert caught.value.row is None


def test_a_chunk_of_no_actions_is_an_error():
    with pytest.raises(PolicyError, match="at least 1"):
        as_chunks(np.zeros((3, 0, 2)), 3, BOX)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_value_that_is_not_finite_is_named_with_its_row(value):
    actions = np.zeros((3, 4, 2))
    actions[1, 2, 0] = value
    with pytest.raises(PolicyError, match=r"row 1: .*action\[0\] = .* at step 2") as caught:
        as_chunks(actions, 3, BOX)
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("space", "bad"),
    [
        (spaces.Discrete(4), 4),
        (spaces.Discrete(4), -1),
        (spaces.Discrete(4, start=2), 1),
        (spaces.MultiDiscrete([4, 9]), 4),
        (spaces.MultiBinary(2), 2),
        (spaces.MultiBinary(2), 256),
        (spaces.Box(-5, 5, (2,), np.int8), 300),
    ],
)
def test_an_integer_outside_of_the_space_is_named_with_its_row(space, bad):
    actions = np.full((3, *space.shape), space.sample())
    actions = actions.astype(np.int64)
    actions[2] = bad
    with pytest.raises(PolicyError, match=f"row 2: .* = {bad} ") as caught:
        as_chunks(actions, 3, space)
    assert caught.value.row == 2


def test_box_actions_outside_of_the_bounds_are_left_alone():
    assert as_chunks(np.full((1, 2), 3.0), 1, BOX)[0].tolist() == [[[3.0, 3.0]]]


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (spaces.Discrete(4), np.zeros(3), "dtype float64, the space says int64"),
        (BOX, np.zeros((3, 2), complex), "dtype complex128"),
        (BOX, [["a", "b"]] * 3, "dtype <U1"),
        (BOX, None, "NoneType"),
        (BOX, (np.zeros((3, 2)), {"value": np.zeros(3)}), "not an array"),
        (BOX, [[0.0, 1.0], [0.0], [1.0]], "not an array"),
    ],
)
def test_what_is_no_array_of_the_right_kind_is_an_error(space, actions, message):
    with pytest.raises(PolicyError, match=message):
        as_chunks(actions, 3, space)


def test_extras_are_kept_row_by_row():
    extras = {"value": [1.0, 2.0, 3.0], "tokens": np.zeros((3, 7), np.int64)}
    _, found = as_chunks(PolicyOutput(np.zeros((3, 2)), extras), 3, BOX)
    assert found["value"].tolist() == [1.0, 2.0, 3.0]
    assert found["tokens"].shape == (3, 7)


@pytest.mark.parametrize("extra", [1.0, np.zeros(2), np.zeros((1, 3))])
def test_extras_without_an_entry_per_row_are_an_error(extra):
    with pytest.raises(PolicyError, match=r"'value'.*one entry per row"):
        as_chunks(PolicyOutput(np.zeros((3, 2)), {"value": extra}), 3, BOX)


def test_a_space_of_several_parts_is_refused():
    with pytest.raises(UnsupportedSpace, match="Dict"):
        as_chunks(np.zeros((3, 2)), 3, spaces.Dict(arm=BOX))


def test_tensors_are_actions_and_extras_of_any_precision():
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")
    actions = torch.full((3, 4, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    output = PolicyOutput(actions, {"value": torch.ones(3, requires_grad=True)})
    chunks, extras = as_chunks(output, 3, BOX)
    assert type(chunks) is np.ndarray
    assert chunks.dtype == np.float32
    assert (chunks == 0.5).all()
    assert extras["value"].tolist() == [1.0, 1.0, 1.0]


def test_the_module_does_without_torch():
    code = "import sys, polyarm.rollout.chunking; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
