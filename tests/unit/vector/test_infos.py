from __future__ import annotations

import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import SyncVectorEnv

from polyarm.testing import CountingEnv, InfoEnv
from polyarm.vector.board import Result
from polyarm.vector.infos import (
    InfoReader,
    InfoWriter,
    info_segment,
    learn_schema,
    numeric_key,
)

STEP = np.zeros(4, np.int64)
NUMERIC = {"count", "ratio", "flag", "small", "vector"}
OTHERS = {"label", "nothing", "nested", "ragged"}
OURS = {"steps", "frame_valid", "final_frame_valid", "_final_frame_valid"}


def keys(info):
    return {key for key in info if not key.startswith("_")} - OURS


def test_full_infos_are_gymnasiums(make):
    reference, env = SyncVectorEnv([InfoEnv] * 4), make(InfoEnv, infos="full")
    results = [(env.reset(), reference.reset())]
    results += [(env.step(STEP), reference.step(STEP)) for _ in range(13)]
    for found, expected in results:
        info = {key: value for key, value in found[-1].items() if key not in OURS}
        assert data_equivalence(info, expected[-1], exact=True)


@pytest.mark.filterwarnings("ignore:info keys:UserWarning")
def test_numbers_travel_at_every_step_and_the_rest_at_resets_and_ends(make):
    env = make(partial(InfoEnv, length=5))
    _, info = env.reset()
    assert keys(info) == {"count", "label", "began"}
    for episode in range(3):
        for step in range(1, 6):
            *_, info = env.step(STEP)
            assert info["count"].tolist() == [step] * 4
            assert info["_count"].all()
            assert info["ratio"].tolist() == [step / 5] * 4
            assert info["flag"].tolist() == [step % 2 == 0] * 4
            assert info["flag"].dtype == np.bool_
            assert info["small"].dtype == np.float32
            assert info["vector"].tolist() == [[step] * 3] * 4
            if (episode, step) == (0, 1):
                assert keys(info) == NUMERIC | OTHERS
            elif step == 1:  # an array of one number, as it was at the first step
                assert keys(info) == NUMERIC | {"ragged"}
            elif step < 5:
                assert keys(info) == NUMERIC
            else:
                assert keys(info) == NUMERIC | OTHERS | {"late", "summary"}
                assert info["label"].tolist() == ["step 5"] * 4
                assert info["summary"].tolist() == ["5 steps"] * 4
                assert info["late"].tolist() == [50.0] * 4
        _, _, _, _, info = env.step(STEP)
        assert keys(info) == {"count", "label", "began"}
        assert info["label"].tolist() == ["reset"] * 4
        assert info["count"].tolist() == [0] * 4


def letters(env):
    """Bytes that came by mail with the last answers."""
    return env._engine.board.results[:, Result.LETTER].tolist()


def test_nothing_is_pickled_between_a_reset_and_an_episodes_end(make):
    env = make(partial(CountingEnv, length=10))
    actions = np.zeros((4, 2), np.float32)
    env.reset()
    env.step(actions)
    assert all(letters(env))  # what the keys are is learnt from these
    for step in range(2, 10):
        *_, info = env.step(actions)
        assert info["step"].tolist() == [step] * 4
        assert letters(env) == [0] * 4
    env.step(actions)
    assert all(letters(env))


def test_a_slot_that_never_steps_does_not_have_the_others_pickle_for_ever(make):
    env = make(partial(CountingEnv, length=1000))
    env.reset()
    actions = np.zeros((3, 2), np.float32)
    for step in range(1, 50):
        env.send(actions, [0, 1, 2])
        assert env.recv(3).info["step"].tolist() == [step] * 3
    assert letters(env)[:3] == [0] * 3
    env.send(actions[:1], [3])
    assert env.recv(1).info["step"].tolist() == [1]
    assert letters(env)[3] == 0


@pytest.mark.filterwarnings("ignore:info keys:UserWarning")
def test_resets_alone_do_not_decide_what_travels_at_steps(make):
    env = make(partial(InfoEnv, length=1000))
    for _ in range(40):
        env.reset()
    for _ in range(3):
        *_, info = env.step(STEP)
    assert keys(info) >= NUMERIC


def test_a_dropped_key_is_named_once(make):
    env = make(partial(InfoEnv, length=5))
    named = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env.reset()
        for _ in range(20):
            env.step(STEP)
        env.reset()
        env.step(STEP)
    for warning in caught:
        assert issubclass(warning.category, UserWarning)
        assert "infos='full'" in str(warning.message)
        named += [key for key in OTHERS | {"late"} if f"'{key}'" in str(warning.message)]
    assert sorted(named) == sorted(OTHERS | {"late"})


def test_a_warning_points_at_the_line_that_stepped(make_any):
    env = make_any(InfoEnv)
    env.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            env.step(STEP)
    assert caught[0].filename == __file__


def test_a_key_that_only_some_slots_have_is_masked(make):
    def sometimes(which):
        class SometimesEnv(InfoEnv):
            def step(self, action):
                *result, _ = super().step(action)
                info = {"always": 1.5}
                return *result, {**info, "sometimes": 7} if self._step % 2 == which else info

        return partial(SometimesEnv, length=100)

    env = make([sometimes(0), sometimes(1)])
    env.reset()
    for step in range(1, 6):
        *_, info = env.step(STEP)
        has = [step % 2 == slot % 2 for slot in range(4)]
        assert info["_sometimes"].tolist() == has
        assert info["sometimes"].tolist() == [7 * one for one in has]
        assert info["always"].tolist() == [1.5] * 4


def test_a_value_that_changes_its_shape_is_dropped_not_bent(make_any):
    class BendingEnv(InfoEnv):
        def step(self, action):
            *result, _ = super().step(action)
            values = {1: np.zeros(3), 2: np.ones(3), 3: np.ones(4), 4: np.full(3, 2.0)}
            return *result, {"value": values[self._step]}

    env = make_any(partial(BendingEnv, length=9))
    env.reset()
    assert env.step(STEP)[4]["value"].tolist() == [[0] * 3] * 4
    assert env.step(STEP)[4]["value"].tolist() == [[1] * 3] * 4
    with pytest.warns(UserWarning, match="'value'"):
        assert "value" not in env.step(STEP)[4]
    assert env.step(STEP)[4]["value"].tolist() == [[2] * 3] * 4


@pytest.mark.filterwarnings("ignore:info keys:UserWarning")
@pytest.mark.parametrize("infos", ["auto", "full"])
def test_values_of_different_shapes_in_one_batch_are_delivered_as_they_are(make_any, infos):
    env = make_any([partial(InfoEnv, length=n) for n in (3, 7)], infos=infos)
    env.reset()
    for _ in range(7):
        _, _, terminated, _, info = env.step(STEP)
    assert terminated.all()
    assert [len(ragged) for ragged in info["ragged"]] == [3, 7, 3, 7]
    assert info["label"].tolist() == ["step 3", "step 7"] * 2


@pytest.mark.filterwarnings("ignore:info keys:UserWarning")
def test_received_infos_are_in_the_order_of_the_batch(make):
    class PlainEnv(InfoEnv):
        def step(self, action):
            *result, info = super().step(action)
            return *result, {"count": info["count"], "label": info["label"]}

    env = make(partial(PlainEnv, length=50))
    env.reset()
    for slots in ([2], [2, 3], [1, 2], [0, 1, 2, 3], [2]):
        env.send(STEP[: len(slots)], slots)
        env.recv(len(slots))
    env.send(STEP)
    ready = env.recv(4)
    counts = np.array([2, 3, 6, 3])
    assert ready.info["count"].tolist() == counts[ready.slots].tolist()


def test_an_info_that_only_cloudpickle_can_carry_arrives(make_any):
    class ClosureEnv(InfoEnv):
        def reset(self, *, seed=None, options=None):
            obs, _ = super().reset(seed=seed)
            return obs, {"function": lambda: 42}

    _, info = make_any(ClosureEnv, num_workers=2).reset()
    assert [function() for function in info["function"]] == [42] * 4


def test_a_large_info_arrives_whole_every_time(make_any):
    class LargeEnv(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 0, {"text": "x" * 3_000_000}

    env = make_any(LargeEnv, num_workers=2)
    for _ in range(3):
        _, info = env.reset()
        assert [len(text) for text in info["text"]] == [3_000_000] * 4


def test_the_schema_holds_what_is_numeric_and_of_one_shape():
    infos = [
        {"a": 1, "b": 2.0, "c": True, "d": "text", "e": np.zeros(2), "f": np.float32(1)},
        {"a": 3, "e": np.zeros(3), "g": None, "h": [1, 2], "i": np.array("x")},
    ]
    assert [key.name for key in learn_schema(infos)] == ["a", "b", "c", "f"]
    assert numeric_key("x", np.array(1 + 2j)) is None


VALUES = {"a": 1, "b": 2.5, "c": True, "e": np.arange(6).reshape(2, 3), "f": np.float32(0.1)}
SCALARS = {"n": np.int64(-3), "yes": np.True_, "x": np.float64(0.1), "y": 7.5, "z": np.uint8(200)}


@pytest.mark.parametrize("values", [VALUES, SCALARS], ids=["mixed", "scalars"])
def test_values_come_back_from_the_block_as_they_went_in(values):
    schema = learn_schema([values])
    views = info_segment(schema, 3).views(bytearray(info_segment(schema, 3).nbytes))
    writer, reader = InfoWriter(schema, views, 1), InfoReader(schema, views)
    assert writer.write({**values, "stranger": 1}) == ["stranger"]
    for change in (0, 1, 2):  # the second and third time scalars are packed at once
        current = {name: value if change == 0 else value * 0 for name, value in values.items()}
        current = {name: type(values[name])(value) if np.isscalar(value) else value
                   for name, value in current.items()}  # fmt: skip
        assert writer.write(current) == []
        infos = reader.read(None)
        for name, value in current.items():
            assert infos[name].dtype == np.asarray(value).dtype
            assert infos[name].flags.aligned
            np.testing.assert_array_equal(infos[name][1], value)
            assert infos[f"_{name}"].tolist() == [False, True, False]
            assert torch_takes(infos[name])


def torch_takes(array):
    return torch.from_numpy(array).numpy().tolist() == array.tolist()


def test_what_does_not_fit_is_dropped_and_said_not_to_be_there():
    schema = learn_schema([VALUES])
    views = info_segment(schema, 3).views(bytearray(info_segment(schema, 3).nbytes))
    writer, reader = InfoWriter(schema, views, 1), InfoReader(schema, views)
    assert writer.write(VALUES) == []
    assert writer.write({"a": 2.5, "e": np.zeros((3, 2), int)}) == ["a", "e"]
    assert reader.read(None) == {}


def test_packing_stops_where_a_type_or_a_key_changes():
    schema = learn_schema([SCALARS])
    views = info_segment(schema, 1).views(bytearray(info_segment(schema, 1).nbytes))
    writer, reader = InfoWriter(schema, views, 0), InfoReader(schema, views)
    for _ in range(2):
        assert writer.write(SCALARS) == []
    assert writer.write({**SCALARS, "n": 0.5}) == ["n"]
    assert "n" not in reader.read(None)
    without = {name: value for name, value in SCALARS.items() if name != "y"}
    for _ in range(2):
        assert writer.write(without) == []
        assert "y" not in reader.read(None)
    for _ in range(2):
        assert writer.write(dict(reversed(SCALARS.items()))) == []
        assert {k: v[0] for k, v in reader.read(None).items() if k[0] != "_"} == SCALARS


def test_infos_that_were_read_are_nobody_elses():
    schema = learn_schema([SCALARS])
    views = info_segment(schema, 1).views(bytearray(info_segment(schema, 1).nbytes))
    writer, reader = InfoWriter(schema, views, 0), InfoReader(schema, views)
    writer.write(SCALARS)
    first = reader.read(None)
    writer.write({**SCALARS, "y": 8.5})
    assert first["y"][0] == 7.5
