"""Policies of LeRobot's kind with random weights, for the benchmarks: small, ACT, and large.

They decide on one 256² frame and four numbers, as LeRobot's Meta-World envs deliver them, and
predict chunks. Scores of random weights mean nothing; that both sides play the same episodes shows
in their equal returns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor, nn

CHUNK = 8
SIZE = 256
IMAGE, STATE, ACTION = "observation.image", "observation.state", "action"
INPUTS = {
    IMAGE: PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE)),
    STATE: PolicyFeature(FeatureType.STATE, (4,)),
}
OUTPUTS = {ACTION: PolicyFeature(FeatureType.ACTION, (4,))}


@PreTrainedConfig.register_subclass("benchmark_chunks")
@dataclass
class ChunkConfig(PreTrainedConfig):
    """As little as LeRobot asks of a config."""

    chunk_size: int = CHUNK
    n_action_steps: int = CHUNK
    observation_delta_indices: None = None
    action_delta_indices: None = None
    reward_delta_indices: None = None

    def get_optimizer_preset(self) -> Any:
        raise NotImplementedError("it is not trained")

    def get_scheduler_preset(self) -> None:
        return None

    def validate_features(self) -> None:
        pass


class ChunkPolicy(PreTrainedPolicy):
    """A network that maps frames and states to chunks, with LeRobot's queue for a whole batch."""

    config_class = ChunkConfig
    name = "benchmark_chunks"

    def __init__(self, network: nn.Module, device: str) -> None:
        super().__init__(ChunkConfig(input_features=INPUTS, output_features=OUTPUTS, device=device))
        self.network = network.to(device)
        self.eval()
        self.reset()

    def reset(self) -> None:
        self._queue: deque[Tensor] = deque()

    def predict_action_chunk(self, batch: dict[str, Tensor], **_: Any) -> Tensor:
        return self.network(batch[IMAGE], batch[STATE])

    def select_action(self, batch: dict[str, Tensor], **_: Any) -> Tensor:
        if not self._queue:
            self._queue.extend(self.predict_action_chunk(batch).unbind(1))
        return self._queue.popleft()

    def forward(self, batch: dict[str, Tensor]) -> Any:
        raise NotImplementedError("it is not trained")

    def get_optim_params(self) -> Any:
        raise NotImplementedError("it is not trained")


class SmallCNN(nn.Module):
    """Four strided convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in ((3, 16), (16, 32), (32, 32), (32, 32)):
            layers += [nn.Conv2d(inner, outer, 4, stride=4 if inner == 3 else 2), nn.ReLU()]
        self.frames = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(32 * 16 + 4, CHUNK * 4)

    def forward(self, image: Tensor, state: Tensor) -> Tensor:
        features = torch.cat([self.frames(image), state], 1)
        return torch.tanh(self.head(features)).reshape(-1, CHUNK, 4)


class VLASized(nn.Module):
    """About 450 million parameters and ten denoising steps: the work of SmolVLA, not its skill.

    Frames become 64 tokens for a 32-layer encoder, whose output a 16-layer decoder attends to at
    every one of ten steps from a fixed start towards a chunk.
    """

    def __init__(self) -> None:
        super().__init__()
        width, inner = 960, 720
        self.patches = nn.Conv2d(3, width, 32, stride=32)
        block = nn.TransformerEncoderLayer(width, 15, 4096, batch_first=True, norm_first=True)
        self.sees = nn.TransformerEncoder(block, 32, enable_nested_tensor=False)
        self.tells = nn.Linear(width, inner)
        turn = nn.TransformerDecoderLayer(inner, 12, 2048, batch_first=True, norm_first=True)
        self.acts = nn.TransformerDecoder(turn, 16)
        self.enters = nn.Linear(4 + 4, inner)
        self.leaves = nn.Linear(inner, 4)

    def forward(self, image: Tensor, state: Tensor) -> Tensor:
        seen = self.tells(self.sees(self.patches(image).flatten(2).transpose(1, 2)))
        chunk = image.new_zeros(len(image), CHUNK, 4)
        told = state[:, None].expand(-1, CHUNK, -1)
        for _ in range(10):
            chunk = chunk + 0.1 * self.leaves(
                self.acts(self.enters(torch.cat([chunk, told], 2)), seen)
            )
        return torch.tanh(chunk)


def make_policy(name: str, device: str = "cpu") -> PreTrainedPolicy:
    """``cnn``, ``act`` or ``vla``, with the same random weights every time."""
    torch.manual_seed(0)
    if name == "act":
        config = ACTConfig(
            input_features=INPUTS,
            output_features=OUTPUTS,
            device=device,
            chunk_size=CHUNK,
            n_action_steps=CHUNK,
            pretrained_backbone_weights=None,
        )
        return ACTPolicy(config).to(device).eval()
    return ChunkPolicy({"cnn": SmallCNN, "vla": VLASized}[name](), device)
