"""A small Gaussian policy in PyTorch, which is imported when one is made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from polyarm.errors import MissingExtra

_TURN = slice(3, 7)
_NO_TURN = (0.0, 0.0, 0.0, 1.0)
_FIRST_LOG_STD = -0.5
_ENTROPY_BONUS = 1e-3  # keeps a gradient flowing while all rewards are alike


class GaussianPolicy:
    """Actions around the output of a network of two hidden layers, squashed to their bounds.

    Args:
        state_size: Numbers of a state, n.
        actions: Action space of a single env.
        hidden: Width of the hidden layers.
        seed: Of the first weights and of the noise.
        device: ``"auto"`` (CUDA where there is any), or what ``torch.device`` understands.
        poses: Whether actions are displacements of a hand; the quaternion in them stays as it is.

    Raises:
        MissingExtra: PyTorch is not installed.
    """

    def __init__(
        self, *, state_size: int, actions: Box, hidden: int, seed: int, device: str, poses: bool
    ) -> None:
        torch = import_torch()
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self._box, self._poses = actions, poses
        self._noise = torch.Generator().manual_seed(seed)
        size = math.prod(actions.shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network = torch.nn.Sequential(
                torch.nn.Linear(state_size, hidden),
                torch.nn.Tanh(),
                torch.nn.Linear(hidden, hidden),
                torch.nn.Tanh(),
                torch.nn.Linear(hidden, size),
            ).to(self.device)
        self._log_std = torch.nn.Parameter(torch.full((size,), _FIRST_LOG_STD, device=self.device))

    def parameters(self) -> Iterator[Any]:
        """What is learnt."""
        yield from self._network.parameters()
        yield self._log_std

    def distribution(self, state: NDArray[np.float32]) -> Any:
        """The Gaussian at each of the states ``(N, n)``: a mean ``(N, 1, A)``, a deviation."""
        torch = import_torch()
        mean = self._network(torch.from_numpy(state).to(self.device))[:, None]
        return torch.distributions.Normal(mean, self._log_std.exp().expand_as(mean))

    def sample(self, distribution: Any, steps: int) -> Any:
        """Draw ``(N, steps, A)`` numbers, the same for the same seed on any device."""
        torch = import_torch()
        mean = distribution.loc.detach()
        shape = (len(mean), steps, mean.shape[-1])
        noise = torch.randn(shape, generator=self._noise).to(self.device)
        return mean + distribution.scale.detach() * noise

    def loss(self, distribution: Any, sampled: Any, weights: NDArray[np.float32]) -> Any:
        """Minus the weighted log-probabilities; ``weights`` ``(N, steps)`` are 0 off the data."""
        torch = import_torch()
        log_prob = distribution.log_prob(sampled).sum(-1)
        gain = (log_prob * torch.from_numpy(weights).to(self.device)).mean()
        return -gain - _ENTROPY_BONUS * distribution.entropy().sum(-1).mean()

    def actions(self, sampled: Any) -> NDArray[Any]:
        """What the envs are given: within the bounds, where there are any."""
        raw = sampled.cpu().numpy()
        raw = raw.reshape(*raw.shape[:2], *self._box.shape)
        bounded = np.isfinite(self._box.low) & np.isfinite(self._box.high)
        low, high = np.where(bounded, self._box.low, -1), np.where(bounded, self._box.high, 1)
        squashed = low + (high - low) * (np.tanh(raw) + 1) / 2
        actions: NDArray[Any] = np.where(bounded, squashed, raw).astype(self._box.dtype)
        if self._poses:
            actions[..., _TURN] = _NO_TURN
        return actions


def import_torch() -> Any:
    """PyTorch.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(
            "train needs PyTorch: pip install 'polyarm[torch]', or see pytorch.org"
        ) from error
    return torch
