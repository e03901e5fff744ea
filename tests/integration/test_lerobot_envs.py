"""Our envs in real LeRobot: same episodes, same outcomes, whoever drives them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.configs import LiberoEnv
from lerobot.envs.factory import make_env_pre_post_processors
from lerobot.envs.utils import close_envs
from lerobot.scripts import lerobot_eval
from lerobot_models import act_policy, processors
from lerobot_reacher import PLUGIN, Reacher, no_processors

import polyarm
from polyarm.compat.lerobot import eval_policy_all, make_env
from polyarm.policies.lerobot import LeRobotPolicy

from lerobot_env_polyarm import PolyarmMetaworld  # isort: skip  lerobot_reacher makes it importable

pytestmark = pytest.mark.simulator

TASKS = ("reach-v3", "reach-wall-v3")
EPISODES = 6
SEED = 1000
STEPS = 100


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """LeRobot draws no progress bars on clusters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lerobot_eval, "inside_slurm", lambda: True)
        yield


def config(**fields):
    known = {"task": ",".join(TASKS), "obs_type": "state", "episode_length": STEPS}
    return PolyarmMetaworld(**{**known, **fields})


def play(cfg, n_envs, evaluation=eval_policy_all, policy=None, **options):
    """Outcomes of an evaluation by task; the last bits of a sum hang on its order."""
    envs = make_env(cfg, n_envs)
    arguments = {"n_episodes": EPISODES, "start_seed": SEED, **no_processors(), **options}
    result = evaluation(envs, policy or Reacher(), **arguments)
    close_envs(envs)
    return {task["task_group"]: facts(task["metrics"]) for task in result["per_task"]}


def facts(metrics):
    return [
        (success, round(total, 9), best)
        for success, total, best in zip(
            metrics["successes"], metrics["sum_rewards"], metrics["max_rewards"], strict=True
        )
    ]


@pytest.fixture(scope="module")
def lerobots():
    """What LeRobot's own loop gets in our envs, two at once."""
    return play(config(), 2, lerobot_eval.eval_policy_all)


def test_outcomes_are_mixed(lerobots):
    for task in TASKS:
        assert {success for success, _, _ in lerobots[task]} == {True, False}


def test_our_own_evaluation_of_the_same_episodes_has_the_same_outcomes(lerobots):
    results = polyarm.evaluate(
        LeRobotPolicy(Reacher()),
        [f"metaworld/{task}" for task in TASKS],
        episodes=EPISODES,
        start=SEED,
        num_envs=4,
        suite_options=(f"max_steps={STEPS}",),
    )
    for task in TASKS:
        played = sorted((e for e in results.episodes if e.key.task == task), key=lambda e: e.key)
        assert [(e.outcome == "success", round(e.total_reward, 9)) for e in played] == [
            (success, total) for success, total, _ in lerobots[task]
        ]


@pytest.mark.parametrize(("n_envs", "max_parallel_tasks"), [(1, 1), (2, 1), (2, 4)])
def test_eval_policy_all_has_the_same_outcomes_however_much_runs_at_once(
    lerobots, n_envs, max_parallel_tasks
):
    assert play(config(), n_envs, max_parallel_tasks=max_parallel_tasks) == lerobots


def test_lerobots_own_loop_has_the_same_outcomes_in_one_env(lerobots):
    assert play(config(), 1, lerobot_eval.eval_policy_all) == lerobots


def test_a_task_that_is_named_twice_is_played_once_and_told_twice(lerobots):
    played = play(config(task="reach-v3,metaworld-reach-v3"), 2)
    assert played == {"reach-v3": lerobots["reach-v3"], "metaworld-reach-v3": lerobots["reach-v3"]}


def test_a_killed_simulator_changes_no_outcome(lerobots):
    class Killing(Reacher):
        decisions = 0

        def select_action(self, batch, **options):
            self.decisions += 1
            if self.decisions in (10, 120):
                os.kill(env._vec.worker_pids[1], signal.SIGKILL)
            return super().select_action(batch, **options)

    env = make_env(config(task="reach-v3"), 2)["reach-v3"][0]
    policy = Killing()
    result = lerobot_eval.eval_policy_all(
        {"reach-v3": {0: env}}, policy, n_episodes=EPISODES, start_seed=SEED, **no_processors()
    )
    env.close()
    assert policy.decisions > 120
    assert facts(result["per_task"][0]["metrics"]) == lerobots["reach-v3"]


# Frames.


@pytest.mark.frames
def test_a_policy_that_sees_frames_has_the_same_outcomes_and_videos(tmp_path):
    cfg = config(
        task="push-v3",
        obs_type="pixels_agent_pos",
        episode_length=5,
        observation_height=64,
        observation_width=64,
    )
    policy = act_policy()
    before, after = processors(policy)
    played = {}
    for evaluation in (eval_policy_all, lerobot_eval.eval_policy_all):
        folder = tmp_path / str(len(played))
        played[folder] = play(
            cfg,
            2,
            evaluation,
            policy,
            n_episodes=2,
            preprocessor=before,
            postprocessor=after,
            max_episodes_rendered=1,
            videos_dir=folder,
        )
    # Sums of a network may differ in their last bits with the size of the batch.
    ours, theirs = (
        [(success, round(total, 4)) for success, total, _ in each["push-v3"]]
        for each in played.values()
    )
    assert ours == theirs
    for folder in played:
        files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        assert files == [Path("push-v3_0", "eval_episode_0.mp4")]
        with av.open(folder / files[0]) as video:
            stream = video.streams.video[0]
            assert (stream.height, stream.width, stream.average_rate) == (64, 64, 80)


class Watching(Reacher):
    """Remembers what it was shown."""

    def __init__(self, *cameras):
        super().__init__()
        frame = PolicyFeature(FeatureType.VISUAL, (3, 64, 64))
        images = {f"observation.images.{camera}": frame for camera in cameras}
        self.config.input_features = {**self.config.input_features, **images}
        self.seen = []

    def predict_action_chunk(self, batch, **_):
        self.seen.append({key: batch[key].clone() for key in batch if key.startswith("observ")})
        return torch.zeros(len(self.seen[-1]["observation.state"]), 4, 7)


@pytest.mark.frames
def test_a_libero_policy_is_shown_the_same_by_our_runner_and_by_lerobots_loop():
    cfg = LiberoEnv(
        task="libero_goal",
        task_ids=[3],
        episode_length=4,
        observation_height=64,
        observation_width=64,
        camera_name_mapping={"agentview_image": "image", "robot0_eye_in_hand_image": "wrist"},
    )
    policies = [Watching("image", "wrist"), Watching("image", "wrist")]
    env_before, env_after = make_env_pre_post_processors(cfg, policies[0].config)
    for policy, evaluation in zip(
        policies, (eval_policy_all, lerobot_eval.eval_policy_all), strict=True
    ):
        play(
            cfg,
            1,
            evaluation,
            policy,
            n_episodes=1,
            env_preprocessor=env_before,
            env_postprocessor=env_after,
        )
    ours, theirs = (policy.seen[0] for policy in policies)
    names = {"observation.images.image", "observation.images.wrist", "observation.state"}
    assert set(ours) == set(theirs) == names
    for name in names:
        assert torch.equal(ours[name], theirs[name])


LIBERO_REFERENCE = """
import json, sys
import numpy as np
from polyarm.suites.libero.assets import checked_folder, prepare_libero_config

prepare_libero_config()
import libero.libero

libero.libero._assets_path_cache = str(checked_folder())
from lerobot.envs import libero as lerobot_libero

seed, place, n_envs, actions = json.loads(sys.argv[1])
env = lerobot_libero.LiberoEnv(
    lerobot_libero._get_suite("libero_goal"), 3, "libero_goal", episode_index=place, n_envs=n_envs,
    obs_type="pixels_agent_pos", observation_width=64, observation_height=64,
)
found = {}

def note(tree, name):
    for key, value in tree.items():
        if isinstance(value, dict):
            note(value, f"{name}/{key}")
        else:
            found[f"{name}/{key}"] = np.array(value)

note(env.reset(seed=seed)[0], "0")
for step, action in enumerate(actions):
    note(env.step(np.array(action, np.float32))[0], str(step + 1))
env.close()
np.savez(sys.argv[2], **found)
"""


@pytest.mark.frames
@pytest.mark.slow
def test_libero_shows_what_lerobots_own_env_shows_bit_for_bit(tmp_path):
    """The second of two envs, with a start seed that is not the usual one."""
    actions = np.random.default_rng(0).uniform(-1, 1, (2, 7)).round(3).tolist()
    plan, file = json.dumps([8, 1, 2, actions]), tmp_path / "reference.npz"
    script = [sys.executable, "-c", LIBERO_REFERENCE, plan, str(file)]
    reference = subprocess.Popen(script, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    cfg = LiberoEnv(task="libero_goal", task_ids=[3], observation_height=64, observation_width=64)
    env = make_env(cfg, n_envs=2)["libero_goal"][3]
    shown = [env.reset(seed=[7, 8])[0]]
    for action in actions:
        shown.append(env.step(np.array([action, action], np.float32))[0])
    env.close()
    _, errors = reference.communicate(timeout=110)
    assert reference.returncode == 0, errors.decode()
    expected = np.load(file)
    assert len(expected.files) == 3 * 9
    for name in expected.files:
        step, *keys = name.split("/")
        value = shown[int(step)]
        for key in keys:
            value = value[key]
        assert np.array_equal(value[1], expected[name]), name


# LeRobot's commands.


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    policy = act_policy()
    for part in (policy, *processors(policy)):
        part.save_pretrained(folder)
    return folder


def run_lerobot(command, *arguments, timeout=110):
    """One of LeRobot's commands as a user types it, with the plugin installed."""
    source = Path(polyarm.__file__).parents[1]
    path = os.pathsep.join([str(source), str(PLUGIN)])
    done = subprocess.run(
        [str(Path(sys.executable).with_name(command)), *arguments],
        env={**os.environ, "PYTHONPATH": path, "SLURM_JOB_ID": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


ENV_ARGUMENTS = (
    "--env.discover_packages_path=lerobot_env_polyarm",  # newer versions find it by themselves
    "--env.type=polyarm_metaworld",
    "--env.episode_length=4",
    "--env.observation_height=64",
    "--env.observation_width=64",
)


EVAL_EVERY = "eval_freq" if version("lerobot").startswith("0.4.") else "env_eval_freq"


@pytest.mark.frames
@pytest.mark.slow
def test_lerobot_eval_runs_unchanged_on_our_envs(checkpoint, tmp_path):
    run_lerobot(
        "lerobot-eval",
        *ENV_ARGUMENTS,
        "--env.task=reach-v3,push-v3",
        f"--policy.path={checkpoint}",
        "--eval.batch_size=2",
        "--eval.n_episodes=2",
        f"--output_dir={tmp_path}",
    )
    found = json.loads((tmp_path / "eval_info.json").read_text())
    assert found["overall"]["n_episodes"] == 4
    assert [task["task_group"] for task in found["per_task"]] == ["reach-v3", "push-v3"]
    videos = sorted((tmp_path / "videos").rglob("*.mp4"))
    assert [str(path) for path in videos] == sorted(found["overall"]["video_paths"])
    assert len(videos) == 4


@pytest.fixture
def dataset(tmp_path):
    """One short episode of noise, in LeRobot's own format."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    vector = {"dtype": "float32", "shape": (4,), "names": None}
    image = {"dtype": "image", "shape": (64, 64, 3), "names": ["height", "width", "channel"]}
    features = {"observation.state": vector, "action": vector, "observation.image": image}
    folder = tmp_path / "dataset"
    made = LeRobotDataset.create("me/noise", 80, features, root=folder, use_videos=False)
    random = np.random.default_rng(0)
    for _ in range(8):
        frame = {
            "observation.state": random.normal(size=4).astype(np.float32),
            "observation.image": random.integers(0, 256, (64, 64, 3), np.uint8),
            "action": random.normal(size=4).astype(np.float32),
            "task": "reach",
        }
        made.add_frame(frame)
    made.save_episode()
    made.finalize()
    return folder


@pytest.mark.frames
@pytest.mark.slow
def test_lerobot_train_evaluates_on_our_envs(checkpoint, dataset, tmp_path):
    told = run_lerobot(
        "lerobot-train",
        *ENV_ARGUMENTS,
        "--env.task=reach-v3",
        "--dataset.repo_id=me/noise",
        f"--dataset.root={dataset}",
        "--dataset.use_imagenet_stats=false",
        f"--policy.path={checkpoint}",
        "--policy.push_to_hub=false",
        "--eval.batch_size=2",
        "--eval.n_episodes=2",
        *("--steps=1", f"--{EVAL_EVERY}=1", "--batch_size=2", "--num_workers=0"),
        "--save_checkpoint=false",
        f"--output_dir={tmp_path / 'run'}",
    )
    assert "'n_episodes': 2" in told
    videos = sorted((tmp_path / "run" / "eval").rglob("*.mp4"))
    assert [path.parent.name for path in videos] == ["reach-v3_0"] * 2
