"""What a LeRobot policy wants to see, what an env shows, and what to say where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from polyarm.contracts import EnvSpec
from polyarm.errors import PolicyError
from polyarm.policies.lerobot_observations import image_keys

RENAMING = (
    "a rename map gives what the env shows the policy's names: a file that holds"
    ' {"observation.image": "observation.images.top"}, say, and @FILE.json after the policy\'s name'
)
_EMPTY_CAMERA = "empty_camera"


def check_libero(spec: EnvSpec, config: Any) -> None:
    """Refuse LIBERO as others show it: LeRobot's processor turns frames and builds the state.

    Raises:
        PolicyError: With the option that helps.
    """
    orientation, state = spec.options.get("orientation"), spec.options.get("robot_state")
    if orientation != "raw" or not state:
        raise PolicyError(
            f"{spec.name} delivers frames with orientation={orientation} and robot_state={state};"
            f" LeRobot's policies take raw frames and the robot's state: use protocol='lerobot'"
            f" (--protocol lerobot)"
        )
    if config.type == "xvla" and spec.options.get("control") != "absolute":
        raise PolicyError(
            f"X-VLA's actions are poses, and {spec.name} would take them for displacements:"
            f" use suite_options={{'control': 'absolute'}} (--suite-options control=absolute)"
        )


def check_cameras(spec: EnvSpec, config: Any, rename_map: Mapping[str, str]) -> None:
    """Refuse an env whose cameras are others than the policy's, as LeRobot does.

    Some cameras too few are left to the policy: LeRobot's vision-language-action models mask those
    that are missing.

    Raises:
        PolicyError: With the keys on both sides.
    """
    wanted = {key for key in config.image_features if _EMPTY_CAMERA not in key}
    if not wanted:
        return
    if not spec.cameras:
        raise PolicyError(
            f"the policy looks at {_listed(wanted)}, but {spec.name} has no cameras on:"
            f" name them with cameras=… (--cameras)"
        )
    given = {rename_map.get(key, key) for key in image_keys(spec.cameras, spec.suite)}
    if not (wanted <= given or given <= wanted):
        raise PolicyError(
            f"the policy looks at {_listed(wanted)}, but {spec.name} with cameras"
            f" {', '.join(spec.cameras)} shows {_listed(given)}; {RENAMING}"
        )


def other_sizes(spec: EnvSpec, config: Any) -> str:
    """What to say of frames that are larger or smaller than those of the training, or "".

    It is no error: many models resize what they see. For others all things have another size.
    """
    trained = {tuple(feature.shape[-2:]) for feature in config.image_features.values()}
    if not trained or tuple(spec.image_size) in trained:
        return ""
    sizes = ", ".join("x".join(map(str, size)) for size in sorted(trained))
    found = "x".join(map(str, spec.image_size))
    return (
        f"the policy was trained on frames of {sizes}, the env delivers {found}; unless the model"
        f" resizes them, use image_size=… (--image-size {sizes.split(',')[0].replace('x', ' ')})"
    )


@contextmanager
def explained(
    config: Any, given: Mapping[str, Any], rename_map: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Say what the env does not show where a policy fails for it; other failures pass.

    Args:
        config: The policy's configuration.
        given: What it sees, leaves ``(B, …)``.
        rename_map: New names by old ones, where they are not given yet.

    Raises:
        PolicyError: With the keys and shapes on both sides.
    """
    try:
        yield
    except (KeyError, RuntimeError, ValueError) as error:
        renamed = {(rename_map or {}).get(key, key): value for key, value in given.items()}
        missing = _difference(config, renamed)
        if not missing or type(error).__name__ == "OutOfMemoryError":
            raise
        shown = {key for key, value in renamed.items() if hasattr(value, "shape")}
        raise PolicyError(
            f"the policy does not fit this env: {missing}; the env shows {_listed(shown)};"
            f" {RENAMING} ({type(error).__name__}: {error})"
        ) from error


def _difference(config: Any, given: Mapping[str, Any]) -> str:
    """How a batch differs from what the policy wants: missing keys and other sizes, or ""."""
    found = []
    for key, feature in (config.input_features or {}).items():
        if _EMPTY_CAMERA in key:
            continue
        value, shape = given.get(key), tuple(feature.shape)
        if value is None:
            found.append(f"{key} {shape} is missing")
        elif len(shape) == 1 and tuple(value.shape[1:]) != shape:
            found.append(f"{key} has shape {tuple(value.shape[1:])} instead of {shape}")
    return "; ".join(found)


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys))
