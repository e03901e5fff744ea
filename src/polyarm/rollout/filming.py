"""What is filmed of envs, with which cameras; checked before anything is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyarm import registry
from polyarm.contracts import EnvSpec
from polyarm.errors import InvalidCall, UnknownName
from polyarm.recording.encoder import require_video_extra
from polyarm.recording.options import VideoOptions


@dataclass(frozen=True, slots=True)
class Film:
    """What is filmed of the envs of a batch.

    Attributes:
        folder: Gets the folder ``videos``.
        cameras: Whose frames are filmed.
        slots: Envs that are filmed; None for all.
        video: Keyword arguments of `VideoOptions`.
    """

    folder: Path
    cameras: tuple[str, ...]
    slots: Sequence[int] | None
    video: Mapping[str, Any]

    def make_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `make_vec`, beside the cameras."""
        return {
            "observer": "polyarm.recording.video:video_recorder",
            "observer_options": self.video,
            "observed_slots": self.slots,
        }


def cameras_to_film(named: tuple[str, ...], suite: str) -> tuple[str, ...]:
    """Those that are named, or the suite's own choice; none where it has no choice."""
    return named or tuple(getattr(registry.load(suite), "default_cameras", ()))


def plan_film(
    built: Sequence[EnvSpec],
    named: tuple[str, ...],
    folder: Path,
    slots: Sequence[int] | None,
    **how: Any,
) -> Film:
    """What is filmed of envs that share a batch.

    Args:
        built: The envs.
        named: Cameras that are asked for.
        folder: Gets the folder ``videos``.
        slots: Envs that are filmed; None for all.
        **how: Further keyword arguments of `VideoOptions`.

    Raises:
        InvalidCall: There is no camera, or an option is wrong.
        MissingExtra: What encodes videos is not installed.
    """
    require_video_extra()
    cameras = named
    for spec in built:
        cameras = cameras_to_film(cameras, spec.suite)
        if not cameras:
            raise InvalidCall(_why_no_camera(spec))
    description = registry.load(built[0].suite).describe(built[0])
    metadata = description.metadata if description is not None else {}
    folder = folder.absolute()
    video = {
        "folder": str(folder / "videos"),
        "cameras": cameras,
        "env_fps": float(metadata.get("render_fps", 0) or 0),
        **how,
    }
    try:
        VideoOptions(**video)
    except ValueError as error:
        raise InvalidCall(str(error)) from error
    return Film(folder, cameras, slots, video)


def _why_no_camera(spec: EnvSpec) -> str:
    try:
        registry.load(spec.suite).check(replace(spec, cameras=("any",)))
    except UnknownName as error:
        if not error.valid:
            return f"{spec.name} cannot be filmed: envs of {spec.suite} have no cameras"
    return f"filming needs a camera; name one with --cameras, {spec.suite} has no default"
