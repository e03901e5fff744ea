"""LIBERO's initial states, read without torch and without trusting the files."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyarm.errors import StorageError
from polyarm.suites.libero import catalogue, init_states
from polyarm.suites.libero.assets import package_folder

FOLDER = package_folder() / "init_files"
REPAIR = "polyarm setup libero --force"


@pytest.mark.parametrize("suite", catalogue.HORIZONS)
def test_states_are_those_that_torch_reads(suite: str) -> None:
    tasks = [task for task in catalogue.tasks().values() if task.suite == suite]
    for task in tasks:
        states = init_states.read(FOLDER / task.init_states_file)
        expected = torch.load(FOLDER / task.init_states_file, weights_only=False)
        assert states.dtype == np.float64
        assert len(states) >= 50
        np.testing.assert_array_equal(states, expected)


def saved(file: Path, pickled: bytes, name: str = "archive/data.pkl") -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, pickled)
    return file


class Runs:
    """Something whose unpickling calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def refused(file: Path) -> str:
    with pytest.raises(StorageError) as raised:
        init_states.read(file)
    message = str(raised.value)
    assert str(file) in message
    assert REPAIR in message
    return message


@pytest.mark.parametrize("protocol", range(6))
def test_a_file_cannot_run_code(protocol: int, tmp_path: Path) -> None:
    import os

    victim = tmp_path / "victim"
    victim.touch()
    attack = Runs(os.system, f"rm {victim}")
    message = refused(saved(tmp_path / "states", pickle.dumps(attack, protocol)))
    assert "posix.system" in message
    assert victim.exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"cbuiltins\neval\n(S'1/0'\ntR.",
        b"cnumpy\nload\n(S'/etc/passwd'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        pickle.dumps(Runs(getattr, np.ndarray, "dump")),
        pickle.dumps(np.array([print], dtype=object)),
    ],
    ids=["eval", "numpy.load", "globals", "getattr", "object array"],
)
def test_only_what_an_array_needs_is_admitted(pickled: bytes, tmp_path: Path) -> None:
    refused(saved(tmp_path / "states", pickled))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent")


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_refused(kept: float, tmp_path: Path) -> None:
    whole = (FOLDER / catalogue.find("libero_goal/0").init_states_file).read_bytes()
    file = tmp_path / "states"
    file.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    refused(file)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    whole = bytearray((FOLDER / catalogue.find("libero_goal/0").init_states_file).read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    file = tmp_path / "states"
    file.write_bytes(whole)
    refused(file)


@pytest.mark.parametrize(
    "held",
    [
        [[1.0, 2.0]],
        {"states": np.zeros((2, 3))},
        np.zeros(3),
        np.zeros((2, 3), np.float32),
        np.zeros((2, 3, 4)),
        None,
    ],
    ids=["list", "dict", "vector", "float32", "3-D", "None"],
)
def test_anything_but_an_array_of_states_is_refused(held: Any, tmp_path: Path) -> None:
    assert "array of states" in refused(saved(tmp_path / "states", pickle.dumps(held)))


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b"garbage",
        b"\x80\x04.",
        b"cnumpy\ndtype\n(S'nonsense'\ntR.",
        b"c_codecs\nencode\n(Vtext\nVnonsense\ntR.",
        b"cnumpy\nndarray\n(K\x01K\x02e.",
    ],
    ids=["none", "garbage", "stop", "dtype", "encoding", "no list"],
)
def test_a_broken_pickle_is_refused(pickled: bytes, tmp_path: Path) -> None:
    refused(saved(tmp_path / "states", pickled))


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.zeros((2, 3)))
    assert "torch" in refused(saved(tmp_path / "states", array.getvalue(), "states.npy"))


@pytest.mark.parametrize("protocol", [2, 4])
def test_arrays_saved_by_this_numpy_are_read(protocol: int, tmp_path: Path) -> None:
    states = np.arange(12.0).reshape(3, 4)
    pickled = pickle.dumps(states, protocol)
    file = saved(tmp_path / "states", pickled)
    np.testing.assert_array_equal(init_states.read(file), states)
