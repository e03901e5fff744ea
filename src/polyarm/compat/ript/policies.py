"""Policies that RIPT-VLA's scripts hold, as polyarm asks them: one batch, whoever is ready.

Inference stays in the trainer's process. An adapter calls the functions of the user's own
installation, so that a model computes here what it computes there.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyarm.compat.ript.episodes import FULL, WRIST
from polyarm.contracts import Batch, EpisodeKey, Policy, PolicyOutput, to_host
from polyarm.errors import InvalidCall, MissingExtra, PolicyError
from polyarm.policies.loading import as_policy
from polyarm.policies.statistics import Normalization

_OFT_PARTS = ("cfg", "processor", "model", "action_head", "scale_head", "proprio_projector")
_OFT_MODULE = "ript.env_runner.openvla_oft_libero_runner"
_OFT_SIDE = 224
_ACTION_DIM, _POSE_DIM = 7, 6


def is_oft(policy: Any) -> bool:
    """Whether an object is RIPT-VLA's ``OpenVLA_OFT_Policy``, by what its runner uses of it."""
    return all(hasattr(policy, part) for part in _OFT_PARTS)


def find_pi0(policy: Any) -> Any:
    """The PI0 model that an object is or wraps, or None.

    It is known by its ``select_action(observation, noise)``, which keeps nothing.
    """
    if hasattr(policy, "act"):
        return None
    model = _bare(policy)
    select = getattr(model, "select_action", None)
    if not callable(select):
        return None
    return model if {"observation", "noise"} <= {*inspect.signature(select).parameters} else None


def as_ript_policy(policy: Any, *, sampling: Mapping[str, Any]) -> Policy:
    """A policy from what a script of RIPT-VLA holds.

    Args:
        policy: One of polyarm's, a function of a batch, an ``nn.Module``, or an
            ``OpenVLA_OFT_Policy``.
        sampling: ``use_laplace_sampling`` and ``scale_factor``, which the latter is asked with.

    Raises:
        PolicyError: It is none of these, or one whose calls cannot be batched.
        InvalidCall: Sampling is asked for, of a policy that samples by itself.
    """
    if is_oft(policy):
        return OFTPolicy(policy, **sampling)
    if sampling["use_laplace_sampling"] or sampling["scale_factor"] != 1.0:
        raise InvalidCall(
            f"use_laplace_sampling and scale_factor are for RIPT-VLA's OpenVLA_OFT_Policy;"
            f" {type(policy).__qualname__} samples in its own act(), so leave them out"
        )
    if not hasattr(policy, "act"):
        _refuse_stateful(policy)
    return as_policy(policy)


def _refuse_stateful(policy: Any) -> None:
    """Refuse objects that keep one action queue for a whole batch.

    Raises:
        PolicyError: With what to do instead.
    """
    name = type(policy).__qualname__
    if find_pi0(policy) is not None:
        raise PolicyError(
            f"{name} is a PI0 model: PI0LiberoRunner drives it, with norm_stats for its numbers"
        )
    for method, instead in {
        "select_action": "load it with --policy lerobot:<path>, or PI0LiberoRunner for PI0 models",
        "get_action": "wrap what it infers with, such as QueST's sample_actions, in act(batch)",
    }.items():
        if callable(getattr(policy, method, None)):
            raise PolicyError(
                f"{name}.{method}() keeps one queue of actions for its whole batch, but episodes"
                f" here begin and end one by one; {instead}. docs/ript.md shows how"
            )


class OFTPolicy:
    """RIPT-VLA's OpenVLA-OFT policy, asked with the functions of the installed ``ript`` package.

    Rows are asked about by instruction, since one call has one prompt. Extras are what the
    optimizer needs: ``actions_normalized`` and ``log_prob`` ``(B, 8, 7)``, and the resized
    ``full_image`` and ``wrist_image`` that the model looked at. Sampling draws from torch's global
    generator, so it is not fixed by an episode's key.

    Args:
        policy: An ``OpenVLA_OFT_Policy``.
        use_laplace_sampling: Sample, as in training, instead of taking the mean.
        scale_factor: Of the sampled noise.

    Raises:
        MissingExtra: RIPT-VLA is not installed.
    """

    needs_frames = True

    def __init__(
        self, policy: Any, *, use_laplace_sampling: bool = False, scale_factor: float = 1.0
    ) -> None:
        self._policy = policy
        self._sampling = {
            "use_laplace_sampling": use_laplace_sampling,
            "scale_factor": scale_factor,
        }
        self._ript = _oft_functions()

    @property
    def device(self) -> Any:
        """Where the model is."""
        return getattr(self._policy, "device", "")

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """Nothing is kept for an episode."""

    def act(self, batch: Batch) -> PolicyOutput:
        """A chunk of actions for every row, and what the optimizer needs to know of them."""
        images = {
            "full_image": self._resized(batch.obs[FULL]),
            "wrist_image": self._resized(batch.obs[WRIST]),
        }
        rows_by_prompt: dict[str, list[int]] = {}
        for row, instruction in enumerate(batch.instructions):
            rows_by_prompt.setdefault(instruction, []).append(row)
        order: list[int] = []
        parts: list[tuple[Any, Any, Any]] = []
        for instruction, rows in rows_by_prompt.items():
            seen = [
                {
                    "full_image": images["full_image"][row],
                    "wrist_image": images["wrist_image"][row],
                    "state": batch.obs["state"][row].astype(np.float64),
                }
                for row in rows
            ]
            parts.append(self._ask(seen, instruction))
            order += rows
        back = np.argsort(order)
        actions, normalized, log_prob = (
            np.concatenate([np.asarray(to_host(part[which])) for part in parts])[back]
            for which in range(3)
        )
        extras = {"actions_normalized": normalized, "log_prob": log_prob, **images}
        return PolicyOutput(actions.astype(np.float32), extras)

    def _ask(self, seen: list[dict[str, Any]], instruction: str) -> tuple[Any, Any, Any]:
        import torch

        policy = self._policy
        with torch.inference_mode():
            actions, normalized, log_prob, *_ = self._ript.get_vla_action_batch(
                policy.cfg,
                vla=_bare(policy.model),
                processor=policy.processor,
                obs_batch=seen,
                task_label=instruction,
                action_head=_bare(policy.action_head),
                proprio_projector=_bare(policy.proprio_projector),
                noisy_action_projector=None,
                scale_head=_bare(policy.scale_head),
                use_film=policy.cfg.use_film,
                **self._sampling,
            )
        return actions, normalized, log_prob

    def _resized(self, frames: Any) -> Any:
        # In memory of its own: frames are views of what the envs wrote.
        resize = self._ript.resize_image_for_policy
        return np.stack([np.asarray(resize(frame.copy(), _OFT_SIDE)) for frame in frames])


class PI0Policy:
    """A PI0 model with ``select_action(observation, noise)``, asked about many rows at once.

    The noise of its flow comes from each episode's key. Extras: ``actions_normalized``, the
    model's own numbers ``(B, K, 7)``.

    openpi's ``pi0_libero`` has learned motions less the hand's pose (``extra_delta_transform``).
    The pose is added where the statistics show that it was taken away.

    Args:
        policy: The model; its ``config`` has ``n_action_steps`` and ``max_action_dim``.
        stats: Of openpi's ``norm_stats.json``.
    """

    needs_frames = True

    def __init__(self, policy: Any, stats: Normalization) -> None:
        if stats.state is None or stats.actions is None:
            raise InvalidCall("PI0 needs statistics of states and of actions")
        self._policy = policy
        self._state, self._actions = stats.state, stats.actions
        # LIBERO's motions lie within 1, and the axis-angle of a hand that points down is about π.
        mean = self._actions.inverse(np.zeros(policy.config.max_action_dim, np.float32))
        self._less_pose = bool(np.abs(mean[:_POSE_DIM]).max() > 1.0)

    @property
    def device(self) -> Any:
        """Where the model is."""
        return next(self._policy.parameters()).device

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """Nothing is kept for an episode."""

    def act(self, batch: Batch) -> PolicyOutput:
        """A chunk of actions for every row, in LIBERO's numbers."""
        import torch

        device, config = self.device, self._policy.config
        noise = batch.noise(config.n_action_steps, config.max_action_dim)

        def tensor(array: Any) -> Any:
            return torch.from_numpy(np.array(array)).to(device)

        state = batch.obs["state"]
        observation = {
            "image": {  # (B, 3, H, W)
                "base_0_rgb": tensor(batch.obs[FULL]).permute(0, 3, 1, 2),
                "left_wrist_0_rgb": tensor(batch.obs[WRIST]).permute(0, 3, 1, 2),
            },
            "state": tensor(self._state.forward(state)),
            "prompt": list(batch.instructions),
        }
        with torch.inference_mode():
            chosen = self._policy.select_action(observation, noise=tensor(noise))
        normalized = np.asarray(to_host(chosen), np.float32)
        actions = self._actions.inverse(normalized)[..., :_ACTION_DIM]
        if self._less_pose:
            actions[..., :_POSE_DIM] += state[:, np.newaxis, :_POSE_DIM]
        return PolicyOutput(actions, {"actions_normalized": normalized[..., :_ACTION_DIM]})


def _bare(module: Any) -> Any:
    """What DistributedDataParallel wraps, if it does."""
    return getattr(module, "module", module)


def _oft_functions() -> Any:
    from importlib import import_module

    try:
        return import_module(_OFT_MODULE)
    except ImportError as error:
        raise MissingExtra(
            f"an OpenVLA_OFT_Policy is asked with functions of {_OFT_MODULE}, which cannot be"
            f" imported ({error}). Install RIPT-VLA with its OpenVLA-OFT extras, as its INSTALL.md"
            f" says"
        ) from error
