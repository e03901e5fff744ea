"""Ways to get a wrong score, or to lose a right one, that were found once."""

from __future__ import annotations

import functools
import json

import gymnasium
import numpy as np
import pytest
import torch

import polyarm
from polyarm import (
    EvalOptions,
    Evaluator,
    InvalidCall,
    PolicyError,
    PolicyOutput,
    RunConflict,
    registry,
)
from polyarm.contracts import EpisodeKey
from polyarm.policies import History, TorchPolicy
from polyarm.rollout.runner import RunnerOptions
from polyarm.testing import CountingEnv, CountingPolicy

TOY = "toy/count-10"


def evaluate(policy, tasks=TOY, **options):
    options = {"episodes": 2, "num_envs": 2, "num_workers": 0, **options}
    return polyarm.evaluate(policy, tasks, **options)


def hashes(results):
    return [episode.action_hash for episode in results.episodes]


class Const:
    def __init__(self, value):
        self.value = value

    def begin(self, episodes):
        pass

    def act(self, batch):
        return np.full((len(batch), 2), self.value, np.float32)


def constant(batch, value):
    return np.full((len(batch), 2), value, np.float32)


def make_function(value):
    return lambda batch: np.full((len(batch), 2), value, np.float32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Const(0.1), Const(0.9)),
        (make_function(0.1), make_function(0.9)),
        (functools.partial(constant, value=0.1), functools.partial(constant, value=0.9)),
        (History(Const(0.1), 2), History(Const(0.9), 2)),
    ],
    ids=["object", "closure", "partial", "wrapped"],
)
def test_results_of_one_policy_are_not_given_for_another(tmp_path, one, other):
    first = evaluate(one, out=tmp_path)
    assert hashes(evaluate(one, out=tmp_path)) == hashes(first)
    with pytest.raises(RunConflict, match="policies"):
        evaluate(other, out=tmp_path)


def test_a_torch_policy_that_was_trained_is_another(tmp_path):
    net = torch.nn.Linear(4, 2)
    policy = TorchPolicy(net)
    evaluate(policy, out=tmp_path)
    with torch.no_grad():
        net.weight += 1
    with pytest.raises(RunConflict, match="weights"):
        evaluate(policy, out=tmp_path)


def test_an_edited_module_and_a_changed_checkpoint_are_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = (
        "import numpy as np\nfrom pathlib import Path\n"
        "def load(path):\n"
        "    value = float(Path(path, 'weights.txt').read_text())\n"
        "    return lambda batch: np.full((len(batch), 2), value, np.float32)\n"
    )
    (tmp_path / "edited_policy.py").write_text(source)
    folder = tmp_path / "checkpoint@1"
    folder.mkdir()
    (folder / "weights.txt").write_text("0.1")
    name = "edited_policy:load@checkpoint@1"
    first = evaluate(name, out="a")
    (folder / "weights.txt").write_text("0.2")
    with pytest.raises(RunConflict, match="checkpoint"):
        evaluate(name, out="a")
    assert hashes(evaluate(name, out="b")) != hashes(first)
    (tmp_path / "edited_policy.py").write_text(source + "# changed\n")
    with pytest.raises(RunConflict, match="source"):
        evaluate(name, out="b")


def test_a_checkpoint_that_is_overwritten_is_loaded_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "reloaded_policy.py").write_text(
        "import numpy as np\nfrom pathlib import Path\n"
        "def load(path):\n"
        "    value = float(Path(path).read_text())\n"
        "    return lambda batch: np.full((len(batch), 2), value, np.float32)\n"
    )
    last = tmp_path / "last.txt"
    last.write_text("0.1")
    with Evaluator([TOY], EvalOptions(episodes=1, num_workers=0)) as evaluator:
        first = evaluator.run({"": f"reloaded_policy:load@{last}"})
        last.write_text("0.2")
        again = evaluator.run({"": f"reloaded_policy:load@{last}"})
    assert hashes(first) != hashes(again)


def test_starting_over_is_done_once_and_only_in_the_folder_of_a_run(tmp_path):
    mine = tmp_path / "videos" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    (tmp_path / "episodes_of_mine.jsonl").write_text("mine")
    options = EvalOptions(episodes=1, num_workers=0, fresh=True)
    with Evaluator([TOY], options, tmp_path) as evaluator:
        evaluator.run({"a": Const(0.1)})
        evaluator.run({"b": Const(0.2)})
        with pytest.raises(RunConflict):
            evaluator.run({"a": Const(0.3)})
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["policy"] for line in lines] == ["a", "b"]
    assert mine.read_text() == (tmp_path / "episodes_of_mine.jsonl").read_text() == "mine"


class Sees(CountingPolicy):
    needs_frames = True

    def act(self, batch):
        self.keys_seen = sorted(batch.obs)
        return super().act(batch)


def test_recording_changes_nothing_that_a_policy_sees(tmp_path):
    plain, filmed = Sees(), Sees()
    evaluate(plain)
    evaluate(filmed, out=tmp_path, record="all", image_size=(16, 16))
    assert plain.keys_seen == filmed.keys_seen == ["state"]
    evaluate(filmed, out=tmp_path, record="none", episodes=3)  # and may be left off later


def test_a_module_whose_name_begins_like_a_built_in_policy_sees_frames(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "zero_shot.py").write_text(
        "import numpy as np\n"
        "def act(batch):\n"
        "    assert 'pixels/front' in batch.obs\n"
        "    return np.zeros((len(batch), 2), np.float32)\n"
    )
    assert evaluate("zero_shot:act", cameras=("front",)).success_rate == 1.0


def test_envs_serve_every_policy_of_a_run(tmp_path):
    options = EvalOptions(episodes=4, num_envs=4, num_workers=0, cameras=("front",))
    with Evaluator([TOY], options, tmp_path) as evaluator:
        evaluator.run({"blind": "zero"})
        looking = Sees()
        evaluator.run({"looking": looking})
        assert looking.keys_seen == ["pixels/front", "state"]
    (tmp_path / "episodes.jsonl").write_text(
        "\n".join((tmp_path / "episodes.jsonl").read_text().splitlines()[:3]) + "\n"
    )
    with Evaluator([TOY], options, tmp_path) as evaluator:
        policy = Sees()
        evaluator.run({"blind": "zero", "other": policy})
        assert max(policy.batch_sizes) > 1  # although the first had one episode left


DEADLY = """
import os, signal
from pathlib import Path
from polyarm.testing import ToySuite

class DeadlySuite(ToySuite):
    '''Envs of count-10 raise in their first step, and take their process along when built again.'''
    name = "deadly"
    fork = "imports"

    def make(self, spec):
        flag = Path(__file__).with_name("flag")
        if spec.task == "count-10" and flag.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        env = super().make(spec)
        if spec.task == "count-10":
            def step(action):
                flag.touch()
                raise RuntimeError("broken")
            env.step = step
        return env
"""


def test_a_neighbour_that_cannot_be_built_costs_a_task_nothing(play, tmp_path, monkeypatch):
    (tmp_path / "deadly_suite.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry._UNLISTED, "deadly", "deadly_suite:DeadlySuite")
    healthy = [EpisodeKey("deadly", "count-50", index) for index in range(3)]
    deadly = EpisodeKey("deadly", "count-10", 0)
    tasks = ["deadly/count-50", "deadly/count-10"]
    episodes = play(CountingPolicy(), [*healthy, deadly], tasks=tasks, num_envs=2, num_workers=1)
    outcomes = {key: episode.result.outcome for key, episode in episodes.items()}
    assert outcomes == {**dict.fromkeys(healthy, "success"), deadly: "error"}
    assert max(episodes[key].attempt for key in healthy) > 1  # it was hit


def test_the_protocol_tells_gymnasium_options_and_edited_envs_apart(tmp_path):
    evaluate("random", "gym/CartPole-v1", out=tmp_path, suite_options={"max_episode_steps": 3})
    with pytest.raises(RunConflict, match="max_episode_steps"):
        evaluate("random", "gym/CartPole-v1", out=tmp_path)

    def env_maker(length):
        def make_env():
            return CountingEnv(length=length)

        return make_env

    evaluate(Const(0), env_maker(3), out=tmp_path / "b")
    with pytest.raises(RunConflict, match="env"):
        evaluate(Const(0), env_maker(4), out=tmp_path / "b")


def test_an_env_that_never_speaks_of_success_is_noted():
    results = evaluate("random", "gym/CartPole-v1")
    assert any("does not say whether an episode succeeded" in note for note in results.notes)

    class Lerobot(CountingEnv):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, {"success": np.array([info["is_success"]])}

        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], {}

    results = evaluate(Const(0), Lerobot)
    assert results.success_rate == 1.0
    assert not any("does not say" in note for note in results.notes)


def test_running_out_of_memory_leaves_histories_alone(play, toy_keys):
    class OutOfMemoryError(RuntimeError):
        pass

    class Hungry(CountingPolicy):
        def act(self, batch):
            if len(batch) > 2:
                raise OutOfMemoryError("CUDA out of memory")
            super().act(batch)
            return (batch.obs["state"][:, :, 1] / 100)[:, :, None].repeat(2, 2)[:, :1]

    options = RunnerOptions(max_wait_s=5.0)
    many = play(History(Hungry(), 3), toy_keys, num_envs=8, options=options)
    one = play(History(Hungry(), 3), toy_keys, num_envs=1)
    assert {k: e.result.action_hash for k, e in many.items()} == {
        k: e.result.action_hash for k, e in one.items()
    }


def test_a_seed_whose_episodes_would_not_fit_is_refused():
    with pytest.raises(InvalidCall, match="seed must be at most"):
        EvalOptions(seed=2**31)
    assert evaluate("zero", seed=2**29).success_rate == 1.0


def test_an_initial_state_that_is_drawn_twice_makes_two_groups():
    class Noisy(CountingPolicy):
        def act(self, batch):
            return np.tanh(batch.noise(4, 2))

    keys = [EpisodeKey("toy", "count-10", 5)] * 6
    groups = list(polyarm.collect(Noisy(), keys, group_size=2, num_envs=5, num_workers=0))
    assert len(groups) == 6
    assert len({r.result.action_hash for g in groups for r in g.rollouts}) == 12


def test_leaving_a_collection_early_leaves_the_env_usable():
    keys = [EpisodeKey("toy", "count-10", index) for index in range(20)]
    with polyarm.make_vec(TOY, num_envs=3, num_workers=0, autoreset="disabled") as env:
        for _ in polyarm.collect(CountingPolicy(), keys, group_size=2, env=env):
            break
        assert len(list(polyarm.collect(CountingPolicy(), keys[:2], group_size=2, env=env))) == 2


def test_extras_that_change_their_shape_are_told(play):
    class Ragged(CountingPolicy):
        def act(self, batch):
            actions = super().act(batch)
            return PolicyOutput(actions, {"tokens": np.zeros((len(batch), 1 + batch.steps[0]))})

    keys = [EpisodeKey("toy", "count-10", 0)]
    with pytest.raises(PolicyError, match=r"one shape at all decisions.*step 1 of toy/count-10#0"):
        list(polyarm.collect(Ragged(), keys, group_size=1, num_envs=1, num_workers=0))


def test_stopping_one_run_does_not_stop_the_next():
    with Evaluator([TOY], EvalOptions(episodes=3, num_workers=0)) as evaluator:
        stopped = evaluator.run({"": "zero"}, lambda now: evaluator.stop())
        assert stopped.missing
        assert evaluator.run({"": "zero"}).missing == 0


def test_a_finished_run_keeps_its_times_and_notes(tmp_path):
    first = evaluate(Const(0.5), out=tmp_path)
    again = evaluate(Const(0.5), out=tmp_path)
    assert first.notes == again.notes != ()
    assert again.wall["total"] >= first.wall["total"] > 0
    assert again.wall["startup"] == first.wall["startup"]


def test_modules_are_policies_and_what_cannot_be_kept_is_refused():
    results = evaluate(torch.nn.Linear(4, 2))
    assert results.success_rate == 1.0
    assert results.notes  # rows may depend on the batch
    with pytest.raises(InvalidCall, match="need a folder"):
        evaluate("zero", record="all")
    with pytest.raises(InvalidCall, match="need a folder"):
        evaluate("zero", save_trajectories=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 2.5}, "whole number"),
        ({"policy_timeout": 0}, "a duration"),
        ({"image_size": (0, 5)}, "at least 1"),
        ({"image_size": 64}, "height and a width"),
        ({"suite_options": ("display=none",)}, "not of a suite"),
        ({"record": "all", "fps": 0.0, "out": "x"}, "fps"),
    ],
)
def test_wrong_options_are_told_before_a_folder_is_made(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidCall, match=message):
        evaluate("zero", **options)
    assert list(tmp_path.iterdir()) == []


def test_options_may_be_given_as_people_write_them():
    options = EvalOptions(cameras="front", image_size=[8, 8], policy_timeout=60, stop_after=3600)
    assert options.cameras == ("front",)
    assert hash(options) == hash(EvalOptions(cameras=["front"], image_size=(8, 8),
                                             policy_timeout=60, stop_after=3600))  # fmt: skip


def test_gymnasium_is_the_version_in_the_protocol(tmp_path):
    evaluate("random", "gym/CartPole-v1", out=tmp_path)
    protocol = json.loads((tmp_path / "run.json").read_text())["protocol"]
    assert protocol["tasks"]["gym/CartPole-v1"]["gymnasium"] == gymnasium.__version__
