"""Small LeRobot policies with random weights, their processors, and LeRobot's own loop."""

import contextlib
import warnings
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.utils import preprocess_observation
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.pretrained import PreTrainedPolicy

from polyarm.contracts import Batch, EpisodeKey
from polyarm.policies.lerobot_noise import episode_noise
from polyarm.policies.lerobot_observations import to_lerobot

SIZE = 64
STATE = PolicyFeature(FeatureType.STATE, (4,))
IMAGE = PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE))
ACTION = PolicyFeature(FeatureType.ACTION, (4,))
FEATURES = {
    "input_features": {"observation.state": STATE, "observation.image": IMAGE},
    "output_features": {"action": ACTION},
    "device": "cpu",
}


def act_policy(**options):
    """ACT with one layer of 32 numbers; another seed gives other weights."""
    torch.manual_seed(options.pop("seed", 0))
    sizes = {"dim_model": 32, "n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1}
    options = {"chunk_size": 6, "n_action_steps": 3, "use_vae": False, **options}
    options = {**FEATURES, "pretrained_backbone_weights": None, **options}
    config = ACTConfig(**sizes, n_decoder_layers=1, **options)
    return ACTPolicy(config).eval()


def diffusion_policy(**options):
    """Diffusion with two observations and three actions per plan."""
    torch.manual_seed(options.pop("seed", 0))
    sizes = {"down_dims": (16, 32), "n_groups": 4, "diffusion_step_embed_dim": 16}
    steps = {"n_obs_steps": 2, "horizon": 8, "n_action_steps": 3, "num_inference_steps": 3}
    options = {"pretrained_backbone_weights": None, "crop_shape": None, **steps, **options}
    config = DiffusionConfig(**FEATURES, **sizes, **options)
    return DiffusionPolicy(config).eval()


def vqbet_policy():
    """VQ-BeT with three observations, which chooses bins at random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of its own imports
        from lerobot.policies.vqbet.configuration_vqbet import VQBeTConfig
        from lerobot.policies.vqbet.modeling_vqbet import VQBeTPolicy
    torch.manual_seed(0)
    gpt = {"gpt_input_dim": 32, "gpt_output_dim": 32, "gpt_n_layer": 1, "gpt_n_head": 2}
    vae = {"vqvae_n_embed": 4, "vqvae_embedding_dim": 16, "vqvae_enc_hidden_dim": 16}
    sizes = {"n_obs_steps": 3, "n_action_pred_token": 2, "action_chunk_size": 2}
    seen = {"crop_shape": None, "pretrained_backbone_weights": None}
    config = VQBeTConfig(
        **FEATURES, **gpt, **vae, **sizes, **seen, gpt_hidden_dim=32, gpt_block_size=64
    )
    policy = VQBeTPolicy(config).eval()
    policy.vqbet.action_head.vqvae_model.discretized = torch.tensor(True)  # else it warns
    return policy


@PreTrainedConfig.register_subclass("tiny_vla")
@dataclass
class TinyVLAConfig(PreTrainedConfig):
    """Settings of a stand-in for the models that need the transformers library."""

    n_action_steps: int = 2
    chunk_size: int = 4
    max_action_dim: int = 4
    compile_model: bool = False

    observation_delta_indices = action_delta_indices = reward_delta_indices = None

    def get_optimizer_preset(self):
        raise NotImplementedError

    def get_scheduler_preset(self):
        return None

    def validate_features(self):
        pass


class TinyVLAPolicy(PreTrainedPolicy):
    """Told apart by words, driven by noise: like SmolVLA or pi0, without their libraries."""

    config_class = TinyVLAConfig
    name = "tiny_vla"

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
        self.told = []
        self.reset()

    def reset(self):
        self._queues = {"action": deque(maxlen=self.config.n_action_steps)}

    def get_optim_params(self):
        return self.parameters()

    def forward(self, batch):
        raise NotImplementedError

    def select_action(self, batch):
        raise AssertionError("its queue is one for the whole batch")

    def predict_action_chunk(self, batch, noise=None):
        self.told.append(list(batch["task"]))
        words = torch.tensor([[float(len(task))] for task in batch["task"]])
        if noise is None:
            shape = (len(words), self.config.chunk_size, 4)
            noise = torch.normal(mean=0.0, std=1.0, size=shape, dtype=torch.float32)
        return self.layer(batch["observation.state"] + words)[:, None] + noise


def tiny_vla(**options):
    torch.manual_seed(0)
    features = {**FEATURES, "input_features": {"observation.state": STATE}}
    return TinyVLAPolicy(TinyVLAConfig(**features, **options)).eval()


def processors(policy):
    """The policy's processors with statistics that change every number."""
    stats = {}
    for key, feature in {**policy.config.input_features, **policy.config.output_features}.items():
        size = feature.shape[0]
        numbers = torch.arange(1, size + 1, dtype=torch.float32)
        if feature.type is FeatureType.VISUAL:
            numbers = numbers.reshape(size, 1, 1)
        mean, std = numbers / (7 * size), numbers / size
        stats[key] = {"mean": mean, "std": std, "min": mean - std, "max": mean + std}
    return make_pre_post_processors(policy.config, dataset_stats=stats)


def episode(index, steps, task="reach-v3"):
    """An episode's key and observations, as Meta-World shows them."""
    random = np.random.default_rng(index)
    observations = [
        {
            "state": random.normal(size=39).astype(np.float32),
            "pixels/corner2": random.integers(0, 256, (SIZE, SIZE, 3), np.uint8),
        }
        for _ in range(steps)
    ]
    return EpisodeKey("metaworld", task, index), observations


class Generators(dict):
    """Each episode's generator, going on from step to step."""

    def __missing__(self, key):
        self[key] = key.generator()
        return self[key]


def batch_of(rows, step, generators):
    """One step of some episodes."""
    keys = tuple(key for key, _ in rows)
    seen = [observations[step] for _, observations in rows]
    return Batch(
        {name: np.stack([obs[name] for obs in seen]) for name in seen[0]},
        keys,
        tuple(f"do {key.task}" for key in keys),
        np.full(len(rows), step, np.int64),
        tuple(generators[key] for key in keys),
    )


@contextlib.contextmanager
def drawing_from(policy, generator):
    """The policy's noise is the episode's, as in our runner."""
    predict = policy.predict_action_chunk

    def predict_alone(*args, **kwargs):
        with episode_noise([generator], torch.device("cpu")):
            return predict(*args, **kwargs)

    policy.predict_action_chunk = predict_alone
    yield
    del policy.predict_action_chunk


def upstream_actions(policy, pipelines, row):
    """LeRobot's own loop over one episode, in a batch of one, with the episode's noise."""
    key, observations = row
    with drawing_from(policy, key.generator()):
        return _upstream_loop(policy, pipelines, key, observations)


def _upstream_loop(policy, pipelines, key, observations):
    before, after = pipelines
    policy.reset()
    actions = []
    for step in range(len(observations)):
        single = {name: value[np.newaxis] for name, value in observations[step].items()}
        observed = preprocess_observation(to_lerobot(single, key.suite))
        observed["task"] = [f"do {key.task}"]
        with torch.inference_mode():
            actions.append(after(policy.select_action(before(observed))).numpy()[0])
    policy.reset()
    return np.stack(actions)


def run_rows(policy, rows, batches=None, generators=None):
    """Actions of every row at every step, each executed as often as the policy says."""
    generators = Generators() if generators is None else generators
    steps = len(rows[0][1])
    queues = {key: deque() for key, _ in rows}
    taken = {key: [] for key, _ in rows}
    policy.begin([key for key, _ in rows])
    for step in range(steps):
        ready = [row for row in rows if not queues[row[0]]]
        for group in batches(ready) if batches else [ready]:
            if group:
                chunk = policy.act(batch_of(group, step, generators))
                for (key, _), actions in zip(group, chunk, strict=True):
                    queues[key].extend(actions[: policy.execute])
        for key, _ in rows:
            taken[key].append(queues[key].popleft())
    policy.end([key for key, _ in rows])
    return [np.stack(taken[key]) for key, _ in rows]
