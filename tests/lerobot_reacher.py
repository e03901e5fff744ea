"""A LeRobot policy that reaches some goals and misses others, so that outcomes can be compared.

It also makes the plugin ``lerobot_env_polyarm`` importable.
"""

import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.processor import PolicyProcessorPipeline

PLUGIN = Path(__file__).parents[1] / "plugins" / "lerobot_env_polyarm"
sys.path.append(str(PLUGIN))

FEATURES = {
    "input_features": {"observation.state": PolicyFeature(FeatureType.STATE, (4,))},
    "output_features": {"action": PolicyFeature(FeatureType.ACTION, (4,))},
    "device": "cpu",
}


@PreTrainedConfig.register_subclass("polyarm_test_reacher")
@dataclass
class ReacherConfig(PreTrainedConfig):
    n_action_steps: int = 4
    normalization_mapping: dict[str, NormalizationMode] = field(default_factory=dict)

    observation_delta_indices = action_delta_indices = reward_delta_indices = None

    def get_optimizer_preset(self):
        raise NotImplementedError

    def get_scheduler_preset(self):
        return None

    def validate_features(self):
        pass


class Reacher(PreTrainedPolicy):
    """Goes forward to where Meta-World's goals are, then down, swaying; sees only the hand."""

    config_class = ReacherConfig
    name = "polyarm_test_reacher"

    def __init__(self, **options):
        super().__init__(ReacherConfig(**FEATURES, **options))
        self.gain = torch.nn.Parameter(torch.tensor(15.0))
        self.reset()

    def reset(self):
        self._action_queue = deque(maxlen=self.config.n_action_steps)

    def predict_action_chunk(self, batch, **_):
        x, y, z = batch["observation.state"][:, :3].T
        arrived = y > 0.78
        aim_x = torch.where(arrived, 0.05 * torch.sin(40 * z), torch.zeros_like(x))
        aim_z = torch.where(arrived, z - 0.03, torch.full_like(z, 0.28))
        aim_y = torch.full_like(y, 0.84)
        move = torch.stack([aim_x - x, aim_y - y, aim_z - z, torch.zeros_like(x)], dim=-1)
        action = (move * self.gain).clamp(-1, 1)
        return action[:, None].repeat(1, self.config.n_action_steps, 1)

    def select_action(self, batch, **_):
        if not self._action_queue:
            self._action_queue.extend(self.predict_action_chunk(batch).transpose(0, 1))
        return self._action_queue.popleft()

    def forward(self, batch):
        raise NotImplementedError

    def get_optim_params(self):
        return self.parameters()


def no_processors():
    """LeRobot's four, doing nothing."""
    names = ("env_preprocessor", "env_postprocessor", "preprocessor")
    pipelines = {name: PolicyProcessorPipeline(steps=[]) for name in names}
    return {**pipelines, "postprocessor": lambda action: action}
