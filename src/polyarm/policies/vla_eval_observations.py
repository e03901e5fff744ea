"""What vla-eval's benchmarks send to a model server, made of our observations.

A server says in its greeting what it wants, in the words of the benchmark's parameters:
``send_wrist_image``, ``send_state``, ``absolute_action`` … Envs that would give it something else
are refused, because a model cannot tell, and would merely score less.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EnvSpec, EpisodeKey
from polyarm.errors import PolicyError, UnknownName

log = logging.getLogger("polyarm")

Array = NDArray[Any]

LIBERO = "libero"
_WRIST = "robot0_eye_in_hand"
_PIXELS = "pixels/"

SWITCHES = ("absolute_action", "quat_no_antipodal", "send_state", "send_wrist_image")
"""Parameters that say what is sent, and how actions are understood."""

_LIBERO_OPTIONS = {"num_steps_wait": "settle_steps", "max_steps": "max_steps"}
"""Parameters that are options of our suite, and their names there."""

_LIBERO_SEEDS = {"vla-eval": 7, "openpi": 7, "oft": 0, "ript-oft": 0}
"""Env seeds of those protocols that seed once per task, as vla-eval does."""

_LIBERO_ACTIONS = {
    "position": "delta_xyz",
    "rotation": "axis_angle",
    "gripper": "binary_close_positive",
}
"""What vla-eval's LIBERO takes, by the names of its specs."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a model server wants.

    Attributes:
        address: Whose wishes these are, for messages.
        params: Parameters of vla-eval's benchmarks.
        action_spec: What it says of its actions: by part, a map with ``format``.
    """

    address: str
    params: Mapping[str, Any]
    action_spec: Mapping[str, Any]

    @classmethod
    def of(
        cls, address: str, metadata: Mapping[str, Any] | None, given: Mapping[str, bool]
    ) -> Wishes:
        """What a server's greeting says; what the user has given wins, as in vla-eval."""
        told = metadata or {}
        params, actions = told.get("observation_params"), told.get("action_spec")
        return cls(
            address,
            {**(params if isinstance(params, Mapping) else {}), **given},
            actions if isinstance(actions, Mapping) else {},
        )

    def wants(self, name: str) -> bool:
        """Whether a switch is on."""
        return bool(self.params.get(name))

    @property
    def absolute(self) -> bool:
        """Whether its actions are poses.

        The parameter counts before the spec: X-VLA's server asks for absolute control, and says of
        its positions that they are displacements.
        """
        if "absolute_action" in self.params:
            return self.wants("absolute_action")
        return bool(self.action_format("position") == "absolute_xyz")

    def action_format(self, part: str) -> Any:
        """What it says of a part of its actions, or None."""
        spec = self.action_spec.get(part)
        return spec.get("format") if isinstance(spec, Mapping) else None


def given_params(text: str) -> dict[str, bool]:
    """Switches as the command line has them: ``"send_state=true,send_wrist_image=false"``.

    Raises:
        PolicyError: A value is neither true nor false.
    """
    pairs = (part.strip().partition("=") for part in text.split(",") if part.strip())
    values = {"true": True, "false": False}
    params = {}
    for name, _, value in pairs:
        if value not in values:
            raise PolicyError(f"a parameter is given as {name}=true or {name}=false, not {value!r}")
        params[name] = values[value]
    return params


def checked_params(params: Mapping[str, bool]) -> dict[str, bool]:
    """Switches, all of them known.

    Raises:
        UnknownName: There is no such switch.
    """
    for name in params:
        if name not in SWITCHES:
            hint = "Horizons, seeds and the like are options of the suite."
            raise UnknownName("parameter of a vla-eval benchmark", name, SWITCHES, hint)
    return dict(params)


def observation(batch: Batch, row: int, wishes: Wishes) -> dict[str, Any]:
    """What a server is sent about one row of a batch.

    Raises:
        PolicyError: The observation lacks something that it wants.
    """
    if batch.keys[row].suite == LIBERO:
        images = {"agentview": _part(batch, f"{_PIXELS}agentview", row)}
        if wishes.wants("send_wrist_image"):
            images["wrist"] = _part(batch, _PIXELS + _WRIST, row)
        states = _libero_states(batch, row, wishes) if wishes.wants("send_state") else {}
    else:
        images = {
            key.removeprefix(_PIXELS): value[row]
            for key, value in (batch.obs.items() if isinstance(batch.obs, Mapping) else ())
            if key.startswith(_PIXELS)
        }
        states = {"state": _part(batch, "state", row)} if wishes.wants("send_state") else {}
    return {"images": images, "task_description": batch.instructions[row], **states}


def task_info(key: EpisodeKey, instruction: str) -> dict[str, Any]:
    """What a server is told when an episode begins."""
    if key.suite == LIBERO:
        suite, _, number = key.task.partition("/")
        place = int(number) if number.isdecimal() else number
        about: dict[str, Any] = {"name": instruction, "suite": suite, "task_id": place}
    else:
        about = {"name": key.task, "suite": key.suite}
    return {**about, "episode_idx": key.index}


def check_libero(spec: EnvSpec, wishes: Wishes) -> None:
    """Refuse a LIBERO env that vla-eval would not have given to this server.

    Raises:
        PolicyError: With the options that make it fit.
    """
    wanted: dict[str, Any] = {
        "control": "absolute" if wishes.absolute else "relative",
        "gripper": "sign",
        "orientation": "rot180",
        "resize": None,
    }
    if wishes.wants("send_state"):
        wanted["robot_state"] = True
    wanted |= {
        option: wishes.params[name]
        for name, option in _LIBERO_OPTIONS.items()
        if wishes.params.get(name) is not None
    }
    wrong = {name: value for name, value in wanted.items() if spec.options.get(name) != value}
    found = [_option(name, spec.options.get(name)) for name in wrong]
    options = " ".join(_option(*each) for each in wrong.items())
    fixes = [f"--suite-options {options}"] if wrong else []
    cameras = {"agentview": "agentview"}
    if wishes.wants("send_wrist_image"):
        cameras[_WRIST] = "wrist"
    if not cameras.keys() <= {*spec.cameras}:
        found.append(f"cameras {', '.join(spec.cameras) or 'none'}")
        fixes.append(f"--cameras {' '.join(cameras.values())}")
    if spec.image_size != (256, 256):
        found.append("frames of {}x{}".format(*spec.image_size))
        fixes.append("--image-size 256 256")
    if fixes:
        raise PolicyError(
            f"{spec.name} with {', '.join(found)} is not what vla-eval gives to the model at"
            f" {wishes.address}: add {' '.join(fixes)}"
        )


def warn(spec: EnvSpec, wishes: Wishes) -> None:
    """Say which of a server's wishes are not granted, and what may not be meant so."""
    known = {"send_state", "send_wrist_image"}
    if spec.suite == LIBERO:
        known.update(SWITCHES, _LIBERO_OPTIONS, ("seed", "env_seed"))
    if ignored := sorted(set(wishes.params) - known):
        log.warning(
            "%s asks for %s, which %s does not have", wishes.address, ", ".join(ignored), spec.suite
        )
    if spec.suite == LIBERO:
        _warn_of_actions(wishes)
        _warn_of_seeds(spec, wishes)


def _warn_of_actions(wishes: Wishes) -> None:
    for part, taken in _LIBERO_ACTIONS.items():
        made = wishes.action_format(part)
        if made in (None, "raw", taken) or (part == "position" and wishes.absolute):
            continue
        log.warning(
            "%s says that its actions' %s is %s, and LIBERO takes %s",
            wishes.address,
            part,
            made,
            taken,
        )


def _warn_of_seeds(spec: EnvSpec, wishes: Wishes) -> None:
    seed = wishes.params.get("env_seed", wishes.params.get("seed"))
    protocol = spec.options.get("protocol")
    if seed is not None and _LIBERO_SEEDS.get(str(protocol)) != seed:
        log.warning(
            "%s asks for the env seed %s, which protocol %s does not use: fixtures stand elsewhere"
            " than they would in vla-eval. Seed 0 is --protocol oft --suite-options gripper=sign"
            " robot_state=true, seed 7 is --protocol vla-eval",
            wishes.address,
            seed,
            protocol,
        )


def axis_angle(quat: Array, *, canonical: bool) -> NDArray[np.float32]:
    """An orientation (x, y, z, w) as an axis times an angle in radians, (3,).

    Args:
        quat: (4,), of unit length.
        canonical: Take the smaller of the two possible angles.
    """
    if canonical and quat[3] < 0:
        quat = -quat
    w = np.clip(quat[3], -1.0, 1.0)
    length = np.sqrt(1.0 - w * w)
    if length < (1e-8 if canonical else np.finfo(np.float64).tiny):
        return np.zeros(3, np.float32)
    turned: Array = quat[:3] / length * (2.0 * np.arccos(w))
    return turned.astype(np.float32)


def quaternion(matrix: Array) -> Array:
    """A rotation matrix (3, 3) as a unit quaternion (x, y, z, w), of either sign.

    The eigenvector of Bar-Itzhack's matrix: it is exact near half turns as well, which is where a
    hand that points down is.
    """
    m = np.asarray(matrix, np.float64)
    vector = np.array([m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])
    trace = np.trace(m)
    k = np.empty((4, 4))
    k[:3, :3] = m + m.T - trace * np.eye(3)
    k[3, :3] = k[:3, 3] = vector
    k[3, 3] = trace
    _, vectors = np.linalg.eigh(k)
    return np.asarray(vectors[:, -1])


def _libero_states(batch: Batch, row: int, wishes: Wishes) -> dict[str, Array]:
    """The hand as observations and as the controller have it, (8,) each.

    Their orientations differ by a fixed turn; most models want the first, X-VLA the second.
    """
    names = ("eef_pos", "eef_quat", "eef_mat", "gripper_qpos")
    felt = {name: _part(batch, f"robot_state/{name}", row) for name in names}
    canonical = not wishes.wants("quat_no_antipodal")
    position, fingers = felt["eef_pos"], felt["gripper_qpos"]
    mat = felt["eef_mat"].reshape(3, 3)
    own = [position, axis_angle(felt["eef_quat"], canonical=canonical), fingers]
    controller = [position, axis_angle(quaternion(mat), canonical=True), fingers]
    return {
        "states": np.concatenate(own),
        "controller_states": np.concatenate(controller).astype(np.float32),
    }


def _part(batch: Batch, key: str, row: int) -> Array:
    if not isinstance(batch.obs, Mapping):
        if key == "state":
            return np.asarray(batch.obs[row])
        raise PolicyError(f"the model server wants {key!r}, the observation is an array", row=row)
    if key not in batch.obs:
        hint = "--cameras agentview wrist" if key.startswith(_PIXELS) else ""
        hint = "--suite-options robot_state=true" if key.startswith("robot_state/") else hint
        raise PolicyError(
            f"the model server wants {key!r}, but the observation has {', '.join(batch.obs)}"
            + (f"; add {hint}" if hint else ""),
            row=row,
        )
    return np.asarray(batch.obs[key][row])


def _option(name: str, value: Any) -> str:
    """As the command line has it."""
    text = str(value).lower() if value is None or isinstance(value, bool) else value
    return f"{name}={text}"
