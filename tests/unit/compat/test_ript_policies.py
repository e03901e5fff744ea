"""Policies that RIPT-VLA's scripts hold are asked in one batch, with their own functions."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from polyarm.compat.ript import LiberoRunner, PI0LiberoRunner
from polyarm.compat.ript.policies import OFTPolicy, PI0Policy, as_ript_policy, find_pi0
from polyarm.contracts import EpisodeKey
from polyarm.errors import InvalidCall, MissingExtra, PolicyError
from polyarm.policies.statistics import load_openpi

MEAN = {"use_laplace_sampling": False, "scale_factor": 1.0}


@pytest.fixture
def batch(make_batch):
    """Four rows of two tasks, mixed."""
    rng = np.random.default_rng(0)
    keys = [EpisodeKey("libero", f"libero_goal/{row % 2}", row) for row in range(4)]
    obs = {
        "state": rng.normal(size=(4, 8)).astype(np.float32),
        "pixels/agentview": rng.integers(0, 255, (4, 8, 8, 3), np.uint8),
        "pixels/robot0_eye_in_hand": rng.integers(0, 255, (4, 8, 8, 3), np.uint8),
    }
    return make_batch(keys, obs)


class OFT:
    """Has what RIPT-VLA's runner uses of an OpenVLA_OFT_Policy."""

    def __init__(self, wrapped=False):
        self.cfg = SimpleNamespace(use_film=False)
        self.processor = "processor"
        parts = ("model", "action_head", "scale_head", "proprio_projector")
        for part in parts:
            setattr(self, part, SimpleNamespace(module=part) if wrapped else part)


@pytest.fixture
def ript(monkeypatch):
    """Stands in for the installed package: its real one needs TensorFlow and a GPU's model."""
    asked = []

    def get_vla_action_batch(
        cfg,
        vla,
        processor,
        obs_batch,
        task_label,
        action_head=None,
        proprio_projector=None,
        noisy_action_projector=None,
        scale_head=None,
        use_film=False,
        use_laplace_sampling=False,
        scale_factor=1.0,
    ):
        asked.append({**locals(), "grad": torch.is_grad_enabled()})
        states = np.stack([obs["state"] for obs in obs_batch])
        normalized = torch.tensor(states[:, None, :7].repeat(8, 1), dtype=torch.bfloat16)
        log_prob = torch.full((len(obs_batch), 8, 7), float(len(task_label)))
        return normalized.float().numpy() * 2, normalized, log_prob, None, None

    module = ModuleType("ript.env_runner.openvla_oft_libero_runner")
    module.get_vla_action_batch = get_vla_action_batch
    module.resize_image_for_policy = lambda image, size: np.full((size, size, 3), image[0, 0, 0])
    for name in ("ript", "ript.env_runner", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    return asked


def test_oft_rows_are_asked_by_instruction_and_come_back_in_their_order(ript, batch):
    policy = as_ript_policy(OFT(), sampling=MEAN)
    output = policy.act(batch)
    assert [call["task_label"] for call in ript] == ["do libero_goal/0", "do libero_goal/1"]
    assert [len(call["obs_batch"]) for call in ript] == [2, 2]
    expected = torch.tensor(batch.obs["state"][:, :7]).bfloat16().float().numpy()
    np.testing.assert_array_equal(output.actions[:, 0], expected * 2)
    np.testing.assert_array_equal(output.extras["actions_normalized"][:, 7], expected)
    assert output.extras["log_prob"].shape == (4, 8, 7)
    assert output.actions.dtype == np.float32


def test_oft_sees_resized_images_and_hands_them_to_the_trainer(ript, batch):
    output = OFTPolicy(OFT()).act(batch)
    for name, key in (("full_image", "agentview"), ("wrist_image", "robot0_eye_in_hand")):
        assert output.extras[name].shape == (4, 224, 224, 3)
        corner = batch.obs[f"pixels/{key}"][:, 0, 0, 0]
        np.testing.assert_array_equal(output.extras[name][:, 0, 0, 0], corner)
    seen = ript[1]["obs_batch"][1]
    assert {*seen} == {"full_image", "wrist_image", "state"}
    np.testing.assert_array_equal(seen["full_image"], output.extras["full_image"][3])


def test_oft_is_asked_as_the_runner_was_told_and_without_gradients(ript, batch):
    sampling = {"use_laplace_sampling": True, "scale_factor": 5.0}
    as_ript_policy(OFT(wrapped=True), sampling=sampling).act(batch)
    call = ript[0]
    assert (call["use_laplace_sampling"], call["scale_factor"]) == (True, 5.0)
    assert (call["vla"], call["scale_head"], call["grad"]) == ("model", "scale_head", False)


def test_without_ript_vla_its_policy_is_refused_with_the_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "ript", None)
    with pytest.raises(MissingExtra, match=r"INSTALL\.md"):
        as_ript_policy(OFT(), sampling=MEAN)


class PI0(torch.nn.Module):
    """The contract of a PI0 model: normalised numbers in and out, nothing kept."""

    config = SimpleNamespace(n_action_steps=5, max_action_dim=32)

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.asked = []

    def select_action(self, observation, noise=None, cfg_scale=1.0):
        self.asked.append(observation)
        actions = noise.clone()
        actions[:, :, :7] += observation["state"][:, None, :7]
        return actions * self.weight


def write_stats(folder, **means):
    file = folder / "norm_stats.json"
    groups = {name: {"mean": mean, "std": [2.0] * len(mean)} for name, mean in means.items()}
    file.write_text(json.dumps({"norm_stats": groups}))
    return file


@pytest.fixture
def norm_stats(tmp_path):
    return write_stats(tmp_path, state=[0.5] * 8, actions=[0.5] * 7)


def test_pi0_is_asked_about_all_rows_at_once_in_its_own_numbers(batch, norm_stats):
    model = PI0()
    output = PI0Policy(model, load_openpi(norm_stats, model="pi0")).act(batch)
    (asked,) = model.asked
    assert asked["prompt"] == list(batch.instructions)
    images = asked["image"]
    for name, camera in (("base_0_rgb", "agentview"), ("left_wrist_0_rgb", "robot0_eye_in_hand")):
        expected = batch.obs[f"pixels/{camera}"].transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(images[name], expected)
    state = (batch.obs["state"] - 0.5) / (2 + 1e-6)
    np.testing.assert_allclose(asked["state"].numpy(), state, rtol=1e-6)
    normalized = output.extras["actions_normalized"]
    assert output.actions.shape == normalized.shape == (4, 5, 7)
    np.testing.assert_allclose(output.actions, normalized * (2 + 1e-6) + 0.5, rtol=1e-5, atol=1e-6)


def test_the_pose_is_added_where_pi0_has_learned_motions_less_the_pose(batch, tmp_path):
    """As openpi's pi0_libero: about 0 less a pose of a hand that points down."""
    pose = [-0.05, 0.03, 0.76, 2.97, -0.22, -0.13]
    mean = [*(-np.array(pose)), -0.1]
    padding = [0.0] * 25  # as openpi's files have it
    file = write_stats(tmp_path, state=[*pose, 0, 0, *padding[1:]], actions=[*mean, *padding])
    stats = load_openpi(file, model="pi0")
    output = PI0Policy(PI0(), stats).act(batch)
    expected = output.extras["actions_normalized"] * (2 + 1e-6) + np.float32(mean)
    expected[:, :, :6] += batch.obs["state"][:, np.newaxis, :6]
    np.testing.assert_allclose(output.actions, expected, rtol=1e-5, atol=1e-5)


def test_the_noise_of_pi0_is_the_episodes_own(batch, norm_stats, make_batch):
    policy = PI0Policy(PI0(), load_openpi(norm_stats, model="pi0"))
    together = policy.act(batch).actions
    keys, obs = batch.keys[2:3], {name: values[2:3] for name, values in batch.obs.items()}
    np.testing.assert_array_equal(policy.act(make_batch(keys, obs)).actions[0], together[2])


def test_a_pi0_model_without_statistics_is_refused(norm_stats):
    runner = PI0LiberoRunner(PI0(), "libero_goal", 1, 1)
    with pytest.raises(InvalidCall, match="norm_stats_path or policy_path"):
        runner.run()
    nowhere = norm_stats.parent / "nowhere"
    with pytest.raises(PolicyError, match="looked for"):
        PI0LiberoRunner(PI0(), "libero_goal", 1, 1, norm_stats=nowhere).run()
    PI0LiberoRunner("zero", "libero_goal", 1, 1, norm_stats=nowhere).acting()  # has no use for them
    with pytest.raises(PolicyError, match="PI0LiberoRunner drives it"):
        LiberoRunner("libero_goal", 1, 1).run(PI0())


def test_a_pi0_model_is_found_in_what_a_distributed_trainer_wraps_it_with():
    model = PI0()
    assert find_pi0(model) is model
    assert find_pi0(SimpleNamespace(module=model)) is model
    assert find_pi0(SimpleNamespace(module=model, act=print, begin=print)) is None
    assert find_pi0("random") is None


class LeRobotLike(torch.nn.Module):
    def select_action(self, batch):
        raise AssertionError("never asked")


class QueSTLike:
    def get_action(self, obs, task_id, task_emb):
        raise AssertionError("never asked")


@pytest.mark.parametrize(
    ("policy", "told"),
    [(LeRobotLike(), "lerobot:<path>"), (QueSTLike(), "sample_actions"), (3, "is no policy")],
)
def test_policies_with_one_queue_for_all_are_refused_with_what_to_do(policy, told):
    for runner in (
        LiberoRunner("libero_goal", 1, 1),
        PI0LiberoRunner(policy, "libero_goal", 1, 1),
    ):
        with pytest.raises(PolicyError, match=told):
            runner.run(policy)


def test_sampling_is_refused_where_the_policy_samples_by_itself():
    runner = LiberoRunner("libero_goal", 1, 1, use_laplace_sampling=True)
    with pytest.raises(InvalidCall, match="OpenVLA_OFT_Policy"):
        runner.run("random")


def test_policies_of_ours_functions_and_modules_are_taken_as_they_are():
    class Ours:
        def act(self, batch): ...

        def begin(self, episodes): ...

    policy = Ours()
    assert as_ript_policy(policy, sampling=MEAN) is policy
    assert callable(as_ript_policy(lambda batch: batch.noise(7), sampling=MEAN).act)
    assert callable(as_ript_policy(torch.nn.Linear(8, 7), sampling=MEAN).act)
