"""Checkpoints: one file that is whole or not there, read without running code in it."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from polyarm.errors import PolicyError, RunConflict, StorageError
from polyarm.training.options import TrainOptions
from polyarm.vector.tensors import import_torch

NAME = "checkpoint.pt"
_FORMAT = 2


def write_checkpoint(path: Path, saved: dict[str, Any]) -> None:
    """Write a checkpoint beside the old one, and put it in its place in one step.

    Raises:
        StorageError: It could not be written; the old one is as it was.
    """
    torch = import_torch()
    # A full disk is an OSError of the file; PyTorch's own writer would hide it behind another.
    content = io.BytesIO()
    torch.save({"format": _FORMAT, **_plain(saved)}, content)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise StorageError(f"the checkpoint {path} could not be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `write_checkpoint` has written.

    Raises:
        PolicyError: There is no such file, or it is something else.
    """
    torch = import_torch()
    if not path.is_file():
        raise PolicyError(f"there is no checkpoint {path} in {Path.cwd()}")
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(saved, dict) or saved.get("format") != _FORMAT:
            raise ValueError("it has another format")
    except Exception as error:  # the many ways in which a file can be no checkpoint
        said = str(error).partition("\n")[0]
        raise PolicyError(f"{path} is no checkpoint of `polyarm train`: {said}") from error
    return saved


def was_written_by(path: Path, job: str) -> bool:
    """Whether a checkpoint is one that this job has written; "" is no job."""
    try:
        return bool(job) and read_checkpoint(path).get("job") == job
    except PolicyError:
        return False


def require_same(saved: dict[str, Any], options: TrainOptions, path: Path) -> None:
    """Refuse to go on from a checkpoint with options that shape the training otherwise.

    Raises:
        RunConflict: With what differs.
    """
    now = _plain(options.shaping())
    different = {
        name: (before, now[name])
        for name, before in saved["options"].items()
        if name in now and now[name] != before
    }
    if different:
        said = ", ".join(
            f"{name} was {before!r} and is {new!r}" for name, (before, new) in different.items()
        )
        raise RunConflict(
            f"{path.parent} holds a training with other options: {said}. Give the same ones,"
            f" another --out, or --fresh to start over"
        )


def _plain(value: Any) -> Any:
    """Only what can be read back without trusting the file: tensors, numbers, text and the like."""
    torch = import_torch()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value).copy())
    return value
