"""What was learnt, as a policy: the most likely actions, on normalised observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EnvSpec, EpisodeKey
from polyarm.errors import PolicyError
from polyarm.policies.torch import weights_digest
from polyarm.training.agent import Agent, AgentShape
from polyarm.training.checkpoints import read_checkpoint
from polyarm.training.devices import chosen_device
from polyarm.vector.tensors import import_torch

_ROWS = 16
"""Of every forward pass: a row's last bits depend on how many there are, and so would scores."""
_SHAPING = ("arm_mode", "control", "gripper", "robot_setup", "goal", "task_state")
"""Options of suites that change what an action or a state means."""


class TrainedPolicy:
    """An agent that acts without noise.

    Args:
        agent: What was learnt.
        meaning: Options of suites that say what its actions mean, as it was trained.
    """

    def __init__(self, agent: Agent, meaning: Mapping[str, Any] | None = None) -> None:
        self._agent = agent
        self.meaning = dict(meaning or {})
        self.execute = agent.chunk
        self.needs_frames = bool(agent.sight.pictures)
        self.row_independent = self._places_are_alike()

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """A digest of weights and normalisers."""
        state = self._agent.state_dict()
        states = {f"states/{key}": value for key, value in state["states"].items()}
        return {"policy": "ppo", "weights": weights_digest({**state["weights"], **states})}

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse envs whose actions mean something else than in training.

        Raises:
            PolicyError: With the option that would help.
        """
        for name, value in self.meaning.items():
            if name in spec.options and spec.options[name] != value:
                raise PolicyError(
                    f"this policy was trained with {name}={value}, but {spec.name} has"
                    f" {name}={spec.options[name]}: give --suite-options {name}={value}"
                )

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin; nothing is kept for them."""

    def act(self, batch: Batch) -> NDArray[Any]:
        """The likeliest actions, ``(B, K, …)``.

        Raises:
            PolicyError: The observation is not of the kind that it was trained on.
        """
        leaves = _leaves(self._agent, batch.obs)
        parts = [
            self._decide({key: leaf[start : start + _ROWS] for key, leaf in leaves.items()})
            for start in range(0, len(batch), _ROWS)
        ]
        return self._agent.acts.to_env(np.concatenate(parts))

    def _decide(self, leaves: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Choices for at most `_ROWS` rows, always beside so many: others round otherwise."""
        torch = import_torch()
        agent = self._agent
        count = len(next(iter(leaves.values())))
        rows = [*range(count), *[0] * (_ROWS - count)]
        with torch.inference_mode():
            seen = agent.inputs({key: torch.from_numpy(leaf[rows]) for key, leaf in leaves.items()})
            chosen: NDArray[Any] = agent.likeliest(agent.decide(seen)).cpu().numpy()
        return chosen[:count]

    def _places_are_alike(self) -> bool:
        """Whether this machine rounds a row in the same way at every place of a batch."""
        sight, random = self._agent.sight, np.random.default_rng(0)
        leaves: dict[str, NDArray[Any]] = {
            key: random.integers(0, 256, (_ROWS, *shape), np.uint8)
            for key, shape in zip(sight.pictures, sight.shapes, strict=True)
        }
        if sight.state_size:
            leaves["state"] = random.normal(size=(_ROWS, sight.state_size)).astype(np.float32)
        mixed = self._decide(leaves)
        return all(
            (self._decide({key: leaf[[row] * _ROWS] for key, leaf in leaves.items()}) == one).all()
            for row, one in enumerate(mixed)
        )


def _leaves(agent: Agent, obs: Any) -> dict[str, NDArray[Any]]:
    sight = agent.sight
    wanted = [*sight.pictures, *(["state"] if sight.state_size else [])]
    if sight.bare == isinstance(obs, Mapping):
        raise PolicyError(f"this policy was trained on {'an array' if sight.bare else wanted}")
    if missing := [key for key in wanted if not sight.bare and key not in obs]:
        raise PolicyError(f"this policy looks at {missing}, found {sorted(obs)}: give --cameras")
    leaves = {key: np.array(leaf) for key, leaf in sight.leaves(obs).items()}
    if sight.state_size and leaves["state"].shape[1] != sight.state_size:
        raise PolicyError(
            f"this policy was trained on states of {sight.state_size} numbers, found"
            f" {leaves['state'].shape[1]}"
        )
    for key, (height, width, _) in zip(sight.pictures, sight.shapes, strict=True):
        if leaves[key].shape[1:3] != (height, width):
            raise PolicyError(
                f"this policy was trained on frames of {height} x {width} pixels, found"
                f" {leaves[key].shape[1:3]}: give --image-size {height} {width}"
            )
    return leaves


def meaning_of(specs: Sequence[EnvSpec]) -> dict[str, Any]:
    """What a policy trained in these envs must find in others."""
    options = specs[0].options
    return {name: options[name] for name in _SHAPING if name in options}


def load(checkpoint: str | Path, *, device: str = "auto") -> TrainedPolicy:
    """The policy in a checkpoint of ``polyarm train``.

    Args:
        checkpoint: The file, or the folder it is in.
        device: Where it computes.

    Raises:
        PolicyError: There is no checkpoint, or the file is none.
    """
    path = Path(checkpoint)
    saved = read_checkpoint(path / "checkpoint.pt" if path.is_dir() else path)
    agent = Agent(AgentShape.from_dict(saved["agent"]), device=chosen_device(device))
    agent.load_state_dict(saved["learnt"])
    return TrainedPolicy(agent, saved["meaning"])
