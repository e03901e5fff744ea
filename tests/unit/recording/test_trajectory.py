"""What is loaded is what was saved: structure, dtypes, shapes and bytes."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from polyarm.recording.trajectory import load_trajectory, save_trajectory

DTYPES = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?"),
    arrays.complex_number_dtypes(),
    arrays.unicode_string_dtypes(),
    arrays.byte_string_dtypes(),
    arrays.datetime64_dtypes(),
)
LEAVES = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
KEYS = st.text(st.sampled_from("ab/.n\\é\0 ~"), max_size=5) | st.text(max_size=5)
TREES = st.dictionaries(
    KEYS, st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3)), max_size=4
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(TREES)
def test_any_nested_arrays_come_back_exactly(tmp_path: Path, trajectory: dict[str, Any]):
    path = tmp_path / "t.npz"
    with reject_if_ambiguous():
        save_trajectory(path, trajectory)
    assert_same(load_trajectory(path), trajectory)


@contextlib.contextmanager
def reject_if_ambiguous() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        assume("would be called" not in str(error))
        raise


def assert_same(loaded: Any, saved: Any) -> None:
    if isinstance(saved, dict):
        assert isinstance(loaded, dict)
        assert list(loaded) == list(saved)
        for key, value in saved.items():
            assert_same(loaded[key], value)
    else:
        assert loaded.dtype == saved.dtype
        assert loaded.dtype.byteorder == saved.dtype.byteorder
        assert loaded.shape == saved.shape
        assert loaded.tobytes() == saved.tobytes()


def test_names_are_those_that_numpy_shows(tmp_path: Path):
    path = tmp_path / "deep" / "t.npz"
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    saved = {"obs": {"pixels/corner": frames, "state": np.ones(3)}, "file": 1, "task": "reach-v3"}
    save_trajectory(path, saved)
    with np.load(path, allow_pickle=False) as archive:
        assert archive.files == ["obs/pixels/corner", "obs/state", "file", "task"]
        assert archive["task"] == "reach-v3"
    loaded = load_trajectory(path)
    assert list(loaded["obs"]) == ["pixels/corner", "state"]
    assert loaded["task"].dtype.kind == "U"
    assert loaded["task"].shape == ()


def test_an_archive_written_by_numpy_is_loaded_too(tmp_path: Path):
    path = tmp_path / "t.npz"
    np.savez_compressed(path, **{"obs/state": np.arange(3), "reward": np.float32(1.5)})
    loaded = load_trajectory(path)
    assert loaded["obs"]["state"].tolist() == [0, 1, 2]
    assert loaded["reward"] == 1.5


def test_lists_of_strings_and_other_mappings_are_welcome(tmp_path: Path):
    path = tmp_path / "t.npz"
    save_trajectory(path, OrderedDict(words=["reach", "grasp"], none_yet={}, flag=True))
    loaded = load_trajectory(path)
    assert loaded["words"].tolist() == ["reach", "grasp"]
    assert loaded["none_yet"] == {}
    assert loaded["flag"].dtype == bool


@pytest.mark.parametrize("leaf", [None, object(), [np.zeros(2), np.zeros(3)], [None, 1]])
def test_what_would_need_pickling_is_refused_by_name(tmp_path: Path, leaf: Any):
    with pytest.raises(TypeError, match=r"\['obs', 'odd'\]"):
        save_trajectory(tmp_path / "t.npz", {"obs": {"odd": leaf}})
    assert list(tmp_path.iterdir()) == []


def test_keys_are_strings_and_names_unique(tmp_path: Path):
    with pytest.raises(TypeError, match="3"):
        save_trajectory(tmp_path / "t.npz", {"obs": {3: np.zeros(2)}})
    with pytest.raises(ValueError, match="'a/b'"):
        save_trajectory(tmp_path / "t.npz", {"a/b": 1, "a": {"b": 2}})
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_is_never_loaded(tmp_path: Path):
    path = tmp_path / "t.npz"
    np.savez_compressed(path, evil=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        load_trajectory(path)


def test_equal_trajectories_make_equal_files(tmp_path: Path):
    for name in ("a.npz", "b.npz"):
        save_trajectory(tmp_path / name, {"obs": {"state": np.arange(1000.0)}, "task": "t"})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]
