"""Datasets of Meta-World, read by LeRobot itself; killed runs go on to the same dataset."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import av
import numpy as np
import pytest

import polyarm
from polyarm.policies.lerobot_observations import to_lerobot
from polyarm.suites.metaworld import action_space

pytestmark = [pytest.mark.simulator, pytest.mark.frames]

TASKS = ["metaworld/reach-v3", "metaworld/drawer-close-v3"]
CHEAP = ("shadow_size=256", "msaa=0")
QUICK = "metaworld/handle-press-v3"  # whose expert may succeed within so few steps
SHORT = (*CHEAP, "max_steps=24")
FILMED = {"cameras": ("corner2",), "image_size": (64, 64)}


class Watcher:
    """Acts at random, and remembers what it saw and did."""

    fingerprint = "watcher"
    row_independent = True

    def __init__(self):
        self.seen: dict = {}

    def begin(self, episodes):
        for key in episodes:
            self.seen[key] = []

    def act(self, batch):
        actions = np.clip(batch.noise(*action_space().shape), -1, 1)
        for row, key in enumerate(batch.keys):
            frame, state = batch.obs["pixels/corner2"][row], batch.obs["state"][row]
            self.seen[key].append((frame.copy(), state.copy(), actions[row].copy()))
        return actions


def facts(results):
    return {e.key: (e.outcome, e.steps, e.action_hash, e.total_reward) for e in results.episodes}


class VideoReader:
    """Stands in for torchvision's reader, which newer torchvision has not, older LeRobot uses."""

    def __init__(self, path, _stream):
        self.container = av.open(path)
        self._stream = self.container.streams.video[0]

    def seek(self, seconds, *, keyframes_only):
        assert keyframes_only
        self.container.seek(int(seconds / self._stream.time_base), stream=self._stream)

    def __iter__(self):
        import torch

        for frame in self.container.decode(self._stream):
            pixels = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
            yield {"pts": float(frame.pts * self._stream.time_base), "data": pixels}


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Opens a dataset with LeRobot, offline."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets
        import torchvision
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    if not hasattr(torchvision.io, "VideoReader"):
        monkeypatch.setattr(torchvision.io, "VideoReader", VideoReader, raising=False)
        monkeypatch.setattr(torchvision, "set_video_backend", lambda _: None, raising=False)

    def opened(root, **options):
        return LeRobotDataset("polyarm/test", root=root, video_backend="pyav", **options)

    return opened


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A dataset of two tasks, and what the policy saw of them."""
    folder = tmp_path_factory.mktemp("watched")
    policy = Watcher()
    results = polyarm.evaluate(
        policy, TASKS, episodes=2, num_envs=2, num_workers=0, out=folder / "run",
        save_dataset=folder / "data", suite_options=(*CHEAP, "max_steps=12"), **FILMED,
    )  # fmt: skip
    assert results.errors == results.missing == 0
    return folder / "data", [policy.seen[episode.key] for episode in results.episodes]


def test_lerobot_reads_what_was_delivered_and_executed(watched, read):
    root, episodes = watched
    dataset = read(root)
    assert len(dataset) == dataset.num_frames == sum(map(len, episodes)) == 48
    assert dataset.num_episodes == 4
    assert dataset.fps == 80
    assert dataset.meta.tasks.index.tolist() == [
        "Reach a goal position",
        "Push and close a drawer",
    ]
    index = 0
    for number, episode in enumerate(episodes):
        row = dataset.meta.episodes[number]
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (index, index + len(episode))
        for step, (frame, state, action) in enumerate(episode):
            item = dataset[index]
            assert item["episode_index"] == number
            assert item["frame_index"] == step
            assert item["timestamp"] == pytest.approx(step / 80)
            assert item["task"] == dataset.meta.tasks.index[number // 2]
            assert item["next.done"] == (step == len(episode) - 1)
            assert item["action"].numpy().tobytes() == action.tobytes()
            assert item["observation.state"].numpy().tobytes() == state[:4].tobytes()
            assert item["extra.state"].numpy().tobytes() == state.tobytes()
            shown = item["observation.image"].permute(1, 2, 0).numpy() * 255
            assert np.abs(shown - frame).mean() < 5
            index += 1


def test_decoded_frames_are_those_of_their_step_and_no_other(watched, read):
    root, episodes = watched
    dataset = read(root)
    for number, episode in enumerate(episodes):
        frames = np.stack([frame for frame, _, _ in episode]).astype(np.float32)
        items = [dataset[number * 12 + step]["observation.image"] for step in range(12)]
        shown = np.stack([item.permute(1, 2, 0).numpy() * 255 for item in items])
        own = np.abs(shown - frames).mean()
        assert own < np.abs(shown[1:] - frames[:-1]).mean()
        assert own < np.abs(shown[:-1] - frames[1:]).mean()


def test_statistics_are_those_of_all_that_was_delivered(watched, read):
    root, episodes = watched
    stats = read(root).meta.stats
    steps = [step for episode in episodes for step in episode]
    actions = np.stack([action for _, _, action in steps]).astype(np.float64)
    pixels = np.stack([frame for frame, _, _ in steps]).reshape(-1, 3) / 255
    for name, values in (("action", actions), ("observation.image", pixels)):
        shape = stats[name]["mean"].shape
        expected = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0)}
        expected |= {"std": values.std(0)}
        for place in (1, 10, 50, 90, 99):
            expected[f"q{place:02d}"] = np.quantile(values, place / 100, axis=0)
        for what, figure in expected.items():
            np.testing.assert_allclose(stats[name][what], figure.reshape(shape), atol=1e-9)
        assert stats[name]["count"] == [len(steps)]


def test_a_policy_of_lerobot_learns_from_it(watched, read):
    root, _ = watched
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from lerobot.configs.types import FeatureType
        from lerobot.policies.act.configuration_act import ACTConfig
        from lerobot.policies.act.modeling_act import ACTPolicy
        from lerobot.policies.act.processor_act import make_act_pre_post_processors
    try:
        from lerobot.utils.feature_utils import dataset_to_policy_features
    except ImportError:  # 0.4
        from lerobot.datasets.utils import dataset_to_policy_features
    dataset = read(root, delta_timestamps={"action": [step / 80 for step in range(4)]})
    features = dataset_to_policy_features(dataset.meta.features)
    assert {name: feature.shape for name, feature in features.items()} == {
        "observation.image": (3, 64, 64), "observation.state": (4,), "action": (4,),
    }  # fmt: skip
    config = ACTConfig(
        input_features={n: f for n, f in features.items() if f.type is not FeatureType.ACTION},
        output_features={"action": features["action"]},
        chunk_size=4, n_action_steps=4, dim_model=32, n_heads=2, dim_feedforward=32,
        n_encoder_layers=1, use_vae=False, pretrained_backbone_weights=None, device="cpu",
    )  # fmt: skip
    prepare, _ = make_act_pre_post_processors(config, dataset.meta.stats)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=False)
    loss, _ = ACTPolicy(config).forward(prepare(next(iter(loader))))
    loss.backward()
    assert torch.isfinite(loss)


class Chunked:
    """Acts at random, three steps at a time, and remembers what it saw."""

    fingerprint = "chunked"
    row_independent = True

    def __init__(self):
        self.seen: list = []

    def begin(self, episodes):
        pass

    def act(self, batch):
        self.seen.append({name: leaf.copy() for name, leaf in batch.obs.items()})
        return np.clip(0.3 * batch.noise(3, 7), -1, 1)


def test_libero_is_saved_as_lerobots_own_processor_shows_it(read, tmp_path):
    given = {
        "episodes": 1, "num_envs": 1, "num_workers": 0, "protocol": "lerobot",
        "cameras": ("agentview", "robot0_eye_in_hand"), "image_size": (64, 64),
        "suite_options": ("max_steps=6",),
    }  # fmt: skip
    plain, saved = Chunked(), Chunked()
    for policy, options in ((plain, {}), (saved, {"save_dataset": tmp_path / "data"})):
        results = polyarm.evaluate(
            policy, "libero/libero_spatial/0", out=tmp_path / f"{len(options)}", **options, **given
        )
        assert results.errors == results.missing == 0
    for one, other in zip(plain.seen, saved.seen, strict=True):  # although all frames were drawn
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lerobot.envs.utils import preprocess_observation
        from lerobot.processor.env_processor import LiberoProcessorStep
    dataset = read(tmp_path / "data")
    assert len(dataset) == 6
    for decision, obs in enumerate(saved.seen):
        step = LiberoProcessorStep()
        expected = step.observation(preprocess_observation(to_lerobot(obs, "libero")))
        item = dataset[3 * decision]
        for name in ("observation.images.image", "observation.images.image2"):
            difference = (item[name] - expected[name][0]).abs().mean()
            assert difference < 4 / 255
        np.testing.assert_allclose(
            item["observation.state"], expected["observation.state"][0], rtol=1e-5, atol=1e-6
        )


def contents(root: Path) -> tuple[dict[str, bytes], list]:
    files = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    return files, json.loads(files.pop("meta/polyarm.json"))["episodes"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Experts in one env in this process, saved."""
    folder = tmp_path_factory.mktemp("undisturbed")
    results = polyarm.evaluate(
        "expert", QUICK, episodes=3, num_envs=1, num_workers=0, out=folder / "run",
        save_dataset=folder / "data", suite_options=SHORT, **FILMED,
    )  # fmt: skip
    return facts(results), folder / "data"


def test_experts_play_the_same_episodes_unsaved(undisturbed):
    saved, root = undisturbed
    plain = polyarm.evaluate(
        "expert", QUICK, episodes=3, num_envs=2, num_workers=0, suite_options=SHORT
    )
    assert facts(plain) == saved
    outcomes = [each["outcome"] for each in contents(root)[1]]
    assert outcomes == [episode.outcome for episode in plain.episodes]
    assert set(outcomes) == {"success", "failure"}


def test_a_killed_run_goes_on_to_the_same_dataset(undisturbed, tmp_path):
    command = [
        sys.executable, "-m", "polyarm", "eval", "--policy", "expert", "--task", QUICK,
        "--episodes", "3", "--num-envs", "2", "--cameras", "corner2", "--image-size", "64", "64",
        "--suite-options", *SHORT, "--out", str(tmp_path / "run"),
        "--save-dataset", str(tmp_path / "data"),
    ]  # fmt: skip
    source = Path(polyarm.__file__).parents[1]
    given = {"env": {**os.environ, "PYTHONPATH": str(source)}, "cwd": tmp_path}
    journal = tmp_path / "run/episodes.jsonl"
    with subprocess.Popen(
        command, stderr=subprocess.DEVNULL, start_new_session=True, **given
    ) as run:
        deadline = time.monotonic() + 90
        while not (journal.exists() and journal.read_bytes()):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
    assert not (tmp_path / "data").exists()
    finished = journal.read_bytes().count(b"\n")
    assert 1 <= finished < 3
    done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
    assert done.returncode == 0, done.stderr
    assert f"dataset: {tmp_path / 'data'}" in done.stdout
    assert contents(tmp_path / "data") == contents(undisturbed[1])
    assert list((tmp_path / "run").rglob("*.part")) == []
