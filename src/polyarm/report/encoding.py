"""Episodes as JSON, and files that are written whole or not at all.

Numbers that JSON lacks are written as the strings ``"nan"``, ``"inf"`` and ``"-inf"``.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from polyarm.contracts import EpisodeKey, EpisodeResult, Outcome
from polyarm.errors import InvalidCall

EPISODE_VERSION = 1


def encode_episode(episode: EpisodeResult) -> dict[str, Any]:
    """An episode as plain JSON values, one line of the journal; floats round-trip exactly."""
    key = episode.key
    return {
        "v": EPISODE_VERSION,
        "suite": key.suite,
        "task": key.task,
        "index": int(key.index),
        "repeat": int(key.repeat),
        "policy": episode.policy,
        "outcome": episode.outcome,
        "steps": int(episode.steps),
        "total_reward": _number(episode.total_reward),
        "seconds": _number(episode.seconds),
        "timings": {name: _number(value) for name, value in episode.timings.items()},
        "action_hash": episode.action_hash,
        "invalid_actions": int(episode.invalid_actions),
        "attempts": int(episode.attempts),
        "error": {name: str(value) for name, value in episode.error.items()},
        "videos": list(episode.videos),
        "trajectory": episode.trajectory,
        "finished_at": _number(episode.finished_at),
    }


def decode_episode(data: Mapping[str, Any]) -> EpisodeResult:
    """What `encode_episode` gave; keys that are not known are ignored.

    Raises:
        InvalidCall: If the data is of another version or damaged.
    """
    if data.get("v") != EPISODE_VERSION:
        raise InvalidCall(
            f"an episode of version {data.get('v')!r} cannot be read; this version of polyarm"
            f" reads version {EPISODE_VERSION}"
        )
    try:
        if data["outcome"] not in get_args(Outcome):
            raise ValueError(f"outcome {data['outcome']!r}")
        return EpisodeResult(
            key=EpisodeKey(data["suite"], data["task"], data["index"], data["repeat"]),
            outcome=data["outcome"],
            steps=data["steps"],
            total_reward=float(data["total_reward"]),
            seconds=float(data["seconds"]),
            timings={name: float(value) for name, value in data["timings"].items()},
            action_hash=data["action_hash"],
            invalid_actions=int(data.get("invalid_actions", 0)),
            attempts=data["attempts"],
            error=dict(data["error"]),
            videos=tuple(data["videos"]),
            trajectory=data["trajectory"],
            policy=data["policy"],
            finished_at=float(data["finished_at"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidCall(
            f"a damaged episode ({type(error).__name__}: {error}): {dict(data)}"
        ) from error


def plain(value: Any) -> Any:
    """The value with nothing in it but what JSON knows; what JSON lacks becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return _number(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    return plain(value.item()) if isinstance(value, np.generic) else str(value)


def write_atomically(path: Path, text: str) -> Path:
    """Write a file so that a reader finds the old one or the new one, whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.part")
    try:
        # What a crashed simulator wrote need not be text; it must not keep us from writing.
        with part.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return path


def _number(value: float) -> float | str:
    value = float(value)
    return value if math.isfinite(value) else repr(value)
