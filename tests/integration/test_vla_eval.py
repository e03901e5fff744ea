"""A model server of vla-eval in real simulators: as in vla-eval itself, and as a local policy."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from vla_eval_server import Serving, TinyModel

from polyarm.contracts import Batch
from polyarm.rollout.evaluate import evaluate

HARNESS = Path(__file__).with_name("vla_eval_reference.py")
STEPS = 4
PARAMS = {"send_state": True, "send_wrist_image": True, "absolute_action": True}
GRIPPERS = (0.0, -0.01, -0.0, 1.0)


def libero_model() -> TinyModel:
    """Answers what it sees with poses near LIBERO's hand, which pass for displacements as well."""
    poses = np.random.default_rng(0).uniform(-0.05, 0.05, (STEPS, 6))
    poses += [-0.1, 0.0, 1.0, 2.5, 0.3, -0.2]

    def predict(obs, ctx):
        return np.append(poses[ctx.step] + 0.1 * obs["states"][:6], GRIPPERS[ctx.step])

    return TinyModel(predict, params=PARAMS)


def played(model: TinyModel) -> list[list[dict]]:
    """The observations of each episode, in the order of their beginnings."""
    episodes: dict[tuple[str, int], list[dict]] = {}
    count: dict[str, int] = {}
    for session, step, obs in model.asked:
        count[session] = count.get(session, 0) + (step == 0)
        episodes.setdefault((session, count[session]), []).append(obs)
    return list(episodes.values())


def test_libero_episodes_are_those_of_vla_evals_own_harness_to_the_bit():
    """Frames, states, instructions, the gripper's sign and either control."""
    with Serving(libero_model()) as theirs, Serving(libero_model()) as ours:
        harness = subprocess.Popen(
            [sys.executable, str(HARNESS), theirs.address, str(STEPS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            play = partial(
                evaluate,
                tasks="libero/libero_goal/3",
                episodes=1,
                num_envs=1,
                protocol="vla-eval",
                cameras=("agentview", "wrist"),
            )
            options = (f"max_steps={STEPS}",)
            name = f"vla-eval:{ours.address}"
            play(f"{name}@absolute_action=false", suite_options=options)
            play(name, suite_options=(*options, "control=absolute"))
            said, _ = harness.communicate(timeout=240)
        finally:
            harness.kill()
            harness.communicate()
    assert harness.returncode == 0, said
    both = list(zip(played(theirs.model), played(ours.model), strict=True))
    assert [(len(one), len(other)) for one, other in both] == [(STEPS, STEPS)] * 2
    starts = [
        [event[2] for event in server.model.events if event[0] == "start"]
        for server in (theirs, ours)
    ]
    assert starts[0] == starts[1]
    for one, other in both:
        for step, (expected, found) in enumerate(zip(one, other, strict=True)):
            assert found.keys() == expected.keys()
            assert found["task_description"] == expected["task_description"]
            np.testing.assert_array_equal(found["states"], expected["states"])
            for name, image in expected["images"].items():
                np.testing.assert_array_equal(found["images"][name], image)
            # Ours has the hand's position of 2 ms earlier, where it moves.
            near = 2e-6 if step == 0 else 2e-3
            assert found["controller_states"].dtype == np.float32
            np.testing.assert_allclose(
                found["controller_states"], expected["controller_states"], atol=near
            )


def reaching(state: np.ndarray) -> np.ndarray:
    """Some deterministic way from a Meta-World state to a chunk of actions."""
    towards = np.clip(10 * (state[-3:] - state[:3]), -1, 1)
    return np.stack([np.append(towards * share, -1.0) for share in (1.0, 0.5)]).astype(np.float32)


class Reaching:
    """The model as a policy of ours."""

    def begin(self, episodes):
        pass

    def act(self, batch: Batch):
        return np.stack([reaching(state) for state in batch.obs["state"]])


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_model_server_drives_metaworld_as_the_same_model_does_in_process(chunk_size):
    model = TinyModel(
        lambda obs, ctx: reaching(obs["state"]), params={"send_state": True}, chunk_size=chunk_size
    )
    play = partial(evaluate, tasks="metaworld/reach-v3", episodes=4, num_envs=2)
    with Serving(model) as server:
        remote = play(f"vla-eval:{server.address}")
    local = play(Reaching())
    assert "success" in {episode.outcome for episode in remote.episodes}
    for one, other in zip(remote.episodes, local.episodes, strict=True):
        assert one.key == other.key
        assert one.outcome == other.outcome
        assert (one.steps, one.action_hash) == (other.steps, other.action_hash)
        assert one.total_reward == other.total_reward


@pytest.fixture(scope="module")
def act_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small ACT of LeRobot's, as it was initialised, with its processors."""
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    folder = str(tmp_path_factory.mktemp("act"))
    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (39,)),
            "observation.images.camera": PolicyFeature(FeatureType.VISUAL, (3, 64, 64)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (4,))},
        chunk_size=8,
        n_action_steps=8,
        dim_model=64,
        n_heads=2,
        dim_feedforward=64,
        n_encoder_layers=1,
        n_decoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=8,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    torch.manual_seed(0)
    ACTPolicy(config).save_pretrained(folder)
    for processor in make_pre_post_processors(config, dataset_stats=None):
        processor.save_pretrained(folder)
    return folder


class Alone:
    """A model of vla-eval's as a policy of ours, without its server."""

    fingerprint = {"policy": "alone"}

    def __init__(self, model):
        self._model = model

    def begin(self, episodes):
        pass

    def act(self, batch: Batch):
        rows = [
            {
                "images": {"corner2": batch.obs["pixels/corner2"][row]},
                "state": batch.obs["state"][row],
                "task_description": batch.instructions[row],
            }
            for row in range(len(batch))
        ]
        return np.stack([self._model.predict(row, None)["actions"] for row in rows])


def test_a_model_of_vla_evals_catalogue_acts_here_as_it_does_by_itself(act_checkpoint, monkeypatch):
    """Its LeRobot server, with a real policy: frames and state go in, actions come out."""
    import lerobot.policies
    from lerobot.policies import factory

    for name in ("get_policy_class", "make_pre_post_processors"):
        # Where the server looks for them, which is LeRobot 0.6.
        monkeypatch.setattr(lerobot.policies, name, getattr(factory, name), raising=False)
    from vla_eval.model_servers.lerobot import LeRobotModelServer

    model = LeRobotModelServer(
        policy_type="act",
        checkpoint=act_checkpoint,
        image_keys={"corner2": "camera"},
        state_key="observation.state",
        device="cpu",
    )

    play = partial(
        evaluate,
        tasks="metaworld/reach-v3",
        episodes=2,
        num_envs=2,
        cameras=("corner2",),
        image_size=(64, 64),
        suite_options=("max_steps=12",),
    )
    with Serving(model) as server:
        remote = play(f"vla-eval:{server.address}")
    local = play(Alone(model))
    played = [(episode.key, episode.steps, episode.action_hash) for episode in remote.episodes]
    assert played == [(each.key, each.steps, each.action_hash) for each in local.episodes]
    assert len({action_hash for *_, action_hash in played}) == 2
