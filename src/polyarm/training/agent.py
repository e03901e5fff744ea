"""Actor and critic: small networks over normalised states and, where there are any, frames.

All weights lie in one flat tensor, and so do their gradients: one optimizer step, one norm and one
sum over all ranks, whatever the number of layers.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from polyarm.training.moments import RunningMoments
from polyarm.training.spaces import Acts, Leaves, Sight
from polyarm.vector.tensors import import_torch

_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)
_FARTHEST = 10.0
"""Deviations from the mean at which states are cut off."""
_VALUES_FORGET = 0.05
_CAMERA_FEATURES = 128


@dataclass(frozen=True, slots=True)
class AgentShape:
    """How an agent is built.

    Attributes:
        sight: What is looked at.
        acts: What is done.
        chunk: Actions per decision, K.
        hidden: Width of the hidden layers.
        first_std: Deviation of real-valued actions at first.
    """

    sight: Sight
    acts: Acts
    chunk: int = 1
    hidden: int = 64
    first_std: float = 0.6

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a file."""
        rest = {"chunk": self.chunk, "hidden": self.hidden, "first_std": self.first_std}
        return {"sight": self.sight.as_dict(), "acts": self.acts.as_dict(), **rest}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> AgentShape:
        """What `as_dict` gave."""
        sight, acts = Sight.from_dict(saved["sight"]), Acts.from_dict(saved["acts"])
        return cls(sight, acts, saved["chunk"], saved["hidden"], saved["first_std"])


class Agent:
    """What is learnt.

    Args:
        shape: How it is built.
        seed: Of the first weights.
        device: ``torch.device`` to compute on.
        amp: Whether networks compute in bfloat16, on a GPU.
    """

    def __init__(
        self, shape: AgentShape, *, seed: int = 0, device: Any = "cpu", amp: bool = False
    ) -> None:
        torch = import_torch()
        self.shape = shape
        self.sight, self.acts, self.chunk = shape.sight, shape.acts, shape.chunk
        self.device = torch.device(device)
        self._amp = amp and self.device.type == "cuda"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = _networks(shape).to(self.device)
        self.weights, self.gradients = _flattened(self.module)
        self.states = RunningMoments(shape.sight.state_size, device=self.device)
        self.returns = RunningMoments(1, forget=_VALUES_FORGET, device=self.device)

    # What it sees.

    def inputs(self, leaves: Leaves) -> Leaves:
        """Leaves ``(B, …)`` on the device, states normalised; frames stay uint8."""
        found = {key: value.to(self.device) for key, value in leaves.items()}
        if "state" in found:
            found["state"] = self.states.normalise(found["state"]).clamp_(-_FARTHEST, _FARTHEST)
        return found

    def _features(self, inputs: Leaves) -> Any:
        torch = import_torch()
        seen = [inputs["state"]] if "state" in inputs else []
        for place, key in enumerate(self.sight.pictures):
            picture = inputs[key].movedim(-1, 1).float().div(127.5).sub(1.0)
            seen.append(self.module["eyes"][place](picture))
        return seen[0] if len(seen) == 1 else torch.cat(seen, -1)

    def decide(self, inputs: Leaves) -> Any:
        """What describes the choice of actions, ``(B, K, outputs)``: means, or logits."""
        with self._autocast():
            described = self.module["actor"](self._features(inputs)).float()
        return described.reshape(len(described), self.chunk, self.acts.outputs)

    def decide_and_judge(self, inputs: Leaves) -> tuple[Any, Any]:
        """As `decide`, and normalised values ``(B,)``."""
        with self._autocast():
            features = self._features(inputs)
            described = self.module["actor"](features).float()
            values = self.module["critic"](features).float()
        return described.reshape(len(described), self.chunk, self.acts.outputs), values[:, 0]

    def _autocast(self) -> Any:
        torch = import_torch()
        return torch.autocast(self.device.type, torch.bfloat16) if self._amp else nullcontext()

    # What it does.

    def noise(self, shape: tuple[int, ...], generator: Any) -> Any:
        """What `sample` needs for so many decisions, ``(*shape, K, outputs)``."""
        torch = import_torch()
        full = (*shape, self.chunk, self.acts.outputs)
        if self.acts.discrete:  # Gumbel's noise: the largest noisy logit is a fair draw
            tiny = torch.finfo(torch.float32).tiny
            return -(torch.empty(full).exponential_(generator=generator) + tiny).log()
        return torch.randn(full, generator=generator)

    def sample(self, described: Any, noise: Any) -> Any:
        """Choices ``(B, K)`` of an action, or ``(B, K, outputs)`` numbers."""
        if self.acts.discrete:
            return (described + noise).argmax(-1)
        return described + self.module["log_std"][0].exp() * noise

    def likeliest(self, described: Any) -> Any:
        """The choice without noise."""
        return described.argmax(-1) if self.acts.discrete else described

    def log_prob(self, described: Any, chosen: Any) -> Any:
        """Of each action of each chunk, ``(B, K)``."""
        if self.acts.discrete:
            logits = described.log_softmax(-1)
            return logits.gather(-1, chosen[..., None])[..., 0]
        log_std = self.module["log_std"][0]
        apart = (chosen - described) * (-log_std).exp()
        return -0.5 * apart.square().sum(-1) - (log_std + _LOG_ROOT_TAU).sum()

    def entropy(self, described: Any) -> Any:
        """Of each action of each chunk, ``(B, K)``."""
        if self.acts.discrete:
            logits = described.log_softmax(-1)
            return -(logits.exp() * logits).sum(-1)
        each = (self.module["log_std"][0] + 0.5 + _LOG_ROOT_TAU).sum()
        return each.expand(described.shape[:-1])

    # What it expects.

    def adapt_returns(self, returns: Any, group: Any) -> None:
        """Learn the scale of returns ``(n,)``; what the critic says stays what it was (PopArt)."""
        torch = import_torch()
        mean, std = self.returns.mean, self.returns.std
        self.returns.update(returns[:, None], group)
        head = self.module["critic"][-1]
        with torch.no_grad():
            head.weight.mul_(std / self.returns.std)
            head.bias.mul_(std).add_(mean - self.returns.mean).div_(self.returns.std)

    def to_returns(self, values: Any) -> Any:
        """Normalised values as expected returns."""
        return values * self.returns.std + self.returns.mean

    # What is kept of it.

    def state_dict(self) -> dict[str, Any]:
        """Weights and normalisers."""
        return {
            "weights": self.module.state_dict(),
            "states": self.states.state_dict(),
            "returns": self.returns.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.module.load_state_dict(state["weights"])
        self.states.load_state_dict(state["states"])
        self.returns.load_state_dict(state["returns"])


def _networks(shape: AgentShape) -> Any:
    torch = import_torch()
    sight, acts, hidden = shape.sight, shape.acts, shape.hidden
    size = sight.state_size + _CAMERA_FEATURES * len(sight.pictures)
    module = torch.nn.ModuleDict(
        {
            "eyes": torch.nn.ModuleList(_eye(channels) for *_, channels in sight.shapes),
            "actor": _tower(size, hidden, shape.chunk * acts.outputs, last_gain=0.01),
            "critic": _tower(size, hidden, 1, last_gain=1.0),
        }
    )
    if not acts.discrete:
        first = torch.full((acts.outputs,), math.log(shape.first_std))
        module["log_std"] = torch.nn.ParameterList([torch.nn.Parameter(first)])
    return module


def _tower(size: int, hidden: int, outputs: int, *, last_gain: float) -> Any:
    torch = import_torch()
    return torch.nn.Sequential(
        _linear(size, hidden, math.sqrt(2)),
        torch.nn.Tanh(),
        _linear(hidden, hidden, math.sqrt(2)),
        torch.nn.Tanh(),
        _linear(hidden, outputs, last_gain),
    )


def _linear(size: int, outputs: int, gain: float) -> Any:
    torch = import_torch()
    layer = torch.nn.Linear(size, outputs)
    torch.nn.init.orthogonal_(layer.weight, gain)
    torch.nn.init.zeros_(layer.bias)
    return layer


def _eye(channels: int) -> Any:
    """A small CNN for frames of any size."""
    nn = import_torch().nn
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        _linear(512, _CAMERA_FEATURES, math.sqrt(2)),
        nn.ReLU(),
    )


def _flattened(module: Any) -> tuple[Any, Any]:
    """One tensor that all weights are views of, and one for their gradients and a count."""
    torch = import_torch()
    parameters = list(module.parameters())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    gradients = torch.zeros(len(flat) + 1, device=flat.device)
    place = 0
    for parameter in parameters:
        size = parameter.numel()
        parameter.data = flat[place : place + size].view_as(parameter)
        parameter.grad = gradients[place : place + size].view_as(parameter)
        place += size
    return flat, gradients
