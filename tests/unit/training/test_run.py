"""A training learns from what it plays, says what it did, and goes on exactly where it stopped."""

import io
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyarm.cli import train as command
from polyarm.contracts import Batch, EnvSpec, EpisodeKey
from polyarm.distributed.ranks import Rank, Share
from polyarm.distributed.torchrun import ProcessGroup
from polyarm.errors import (
    InvalidCall,
    MissingExtra,
    PolicyError,
    RunConflict,
    StorageError,
    UnknownName,
)
from polyarm.report.results import Results
from polyarm.rollout.evaluator import Evaluator
from polyarm.testing import CountingEnv
from polyarm.training import load, ppo, run
from polyarm.training.checkpoints import read_checkpoint, write_checkpoint
from polyarm.training.held_out import Score
from polyarm.training.logbook import read_metrics
from polyarm.training.options import TrainOptions, scheduled
from polyarm.training.policy import meaning_of
from polyarm.training.run import Stop, train
from polyarm.vector.make import specify

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")


def toy(**options):
    return TrainOptions(
        **{
            "task": "toy/count-10",
            "num_envs": 3,
            "num_workers": 0,
            "train_updates": 4,
            "train_hidden": 8,
            "horizon": 7,  # so that episodes go on over the ends of rollouts
            "epochs": 2,
            "minibatches": 2,
            "eval_every": 0,
            **options,
        }
    )


def weights(training):
    return training.policy._agent.weights


def test_every_update_has_a_gradient_and_is_told():
    seen = []
    training = train(toy(task="gym/Pendulum-v1", num_workers=2), seen.append)
    assert tuple(seen) == training.updates
    assert [update.number for update in seen] == [1, 2, 3, 4]
    assert [update.steps for update in seen] == [21, 42, 63, 84]
    assert all(np.isfinite(update.loss) and update.grad_norm > 0 for update in seen)
    assert all(update.reward < 0 < update.steps_per_s for update in seen)
    assert (training.device, training.stopped, training.resumed) == ("cpu", False, 0)


def test_a_seed_gives_the_same_training_again():
    first, again, other = (weights(train(toy(seed=seed))) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_tasks_of_a_list_are_dealt_to_the_envs():
    training = train(toy(task="toy/count-3,toy/count-10", train_updates=1, num_envs=2))
    # Of 7 decisions each, one env spent one on a reset, the other none.
    assert training.steps == 6 + 7


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_training_cut_in_two_gives_the_weights_of_one_that_was_not(tmp_path, chunk, num_workers):
    options = {"action_chunk": chunk, "num_workers": num_workers, "train_updates": 5}
    whole = train(toy(**options))
    stop = Stop()

    def stop_at_two(update):
        if update.number == 2:
            stop()

    first = train(toy(**options, out=str(tmp_path)), stop_at_two, stop=stop)
    assert (first.stopped, len(first.updates)) == (True, 2)
    second = train(toy(**options, out=str(tmp_path)))
    assert (second.resumed, second.exact, second.stopped) == (2, True, False)
    assert torch.equal(weights(second), weights(whole))
    assert [update.mean_return for update in first.updates + second.updates] == [
        update.mean_return for update in whole.updates
    ]
    assert second.steps == whole.steps
    assert [one["number"] for one in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
    done = train(toy(**options, out=str(tmp_path)))
    assert (done.resumed, done.updates, done.stopped) == (5, (), False)
    assert (done.steps, done.errors) == (whole.steps, 0)
    assert torch.equal(weights(done), weights(whole))


def stopped_after(number, options):
    """A training that is stopped after this update."""
    stop = Stop()
    return train(options, lambda update: update.number == number and stop(), stop=stop)


@pytest.mark.parametrize("horizon", [10, 11])
def test_what_follows_an_end_or_a_reset_that_was_the_last_decision_goes_on_exactly(
    tmp_path, horizon
):
    whole = train(toy(horizon=horizon))
    stopped_after(1, toy(horizon=horizon, out=str(tmp_path)))
    second = train(toy(horizon=horizon, out=str(tmp_path)))
    assert (second.resumed, second.exact) == (1, True)
    assert torch.equal(weights(second), weights(whole))


def test_an_env_that_failed_in_the_last_decision_does_not_go_on_exactly(tmp_path, monkeypatch):
    """It has seen its first observation only, as if it were about to begin."""
    from polyarm.testing.counting import CountingEnv

    usual, calls = CountingEnv.step, []

    def step(self, action):
        calls.append(self)
        if len(calls) == 1:
            raise RuntimeError("once")
        return usual(self, action)

    monkeypatch.setattr(CountingEnv, "step", step)
    first = stopped_after(1, toy(num_envs=2, horizon=1, out=str(tmp_path)))
    assert first.errors == 1
    second = train(toy(num_envs=2, horizon=1, out=str(tmp_path)))
    assert (second.resumed, second.exact) == (1, False)


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(tmp_path):
    whole = train(toy(train_updates=5))

    def die_at_four(update):
        if update.number == 4:
            raise SystemExit("killed")

    options = toy(train_updates=5, checkpoint_every=2, out=str(tmp_path))
    with pytest.raises(SystemExit):
        train(options, die_at_four)
    assert [one["number"] for one in read_metrics(tmp_path)] == [1, 2, 3, 4]
    second = train(options)
    assert (second.resumed, second.exact) == (2, True)
    assert torch.equal(weights(second), weights(whole))
    assert [one["number"] for one in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]


def test_an_evaluation_changes_nothing_in_the_training(tmp_path):
    alone = train(toy())
    examined = train(toy(eval_every=2, eval_episodes=5))
    assert torch.equal(weights(alone), weights(examined))
    assert [update.eval_success for update in examined.updates] == [None, 1.0, None, 1.0]
    assert [update.eval_return for update in examined.updates] == [None, 55.0, None, 55.0]


def test_evaluations_play_other_episodes_than_any_training(monkeypatch):
    played = []
    usual = run.HeldOutEvaluation.score

    def score(self, policy, group):
        act = policy.act

        def watched(batch):
            played.extend(batch.keys)
            return act(batch)

        monkeypatch.setattr(policy, "act", watched, raising=False)
        return usual(self, policy, group)

    monkeypatch.setattr(run.HeldOutEvaluation, "score", score)
    train(toy(train_updates=1, eval_every=1, eval_episodes=3))
    assert {key.index for key in played} == {2**61, 2**61 + 1, 2**61 + 2}


def test_workers_are_there_before_anything_asks_for_a_gpu(monkeypatch):
    plays, there = [], []
    usual = run.chosen_device

    class Watched(run.Play):
        def __init__(self, *given):
            super().__init__(*given)
            plays.append(self)

    def chosen_device(name):
        there.extend(Path(f"/proc/{pid}").exists() for pid in plays[0].envs.worker_pids)
        return usual(name)

    monkeypatch.setattr(run, "Play", Watched)
    monkeypatch.setattr(run, "chosen_device", chosen_device)
    train(toy(num_workers=2, train_updates=1))
    assert there == [True, True]


def test_a_stop_cuts_an_evaluation_short_and_what_it_has_found_does_not_count(monkeypatch):
    """Those who ask may not wait long: torchrun kills ranks after 30 s."""
    stop, decisions = Stop(), []
    usual = run.TrainedPolicy.act

    def act(self, batch):
        decisions.append(batch)
        if len(decisions) == 3:
            stop()
        return usual(self, batch)

    monkeypatch.setattr(run.TrainedPolicy, "act", act)
    training = train(toy(eval_every=1, eval_episodes=3000), stop=stop)
    assert len(decisions) < 100
    (update,) = training.updates
    assert (update.eval_success, update.eval_return) == (None, None)
    assert (training.stopped, training.asked) == (True, True)


def test_who_was_asked_already_begins_no_evaluation():
    stop = Stop()
    held_out = run.HeldOutEvaluation(toy(), Share(Rank(0, 1), (3,)), lambda: stop.asked)
    stop()
    assert held_out.score(None, ProcessGroup(Rank(0, 1))) == Score(None, None)


def test_evaluations_keep_the_suite_s_own_end_of_episodes():
    options = TrainOptions(
        task="metaworld/reach-v3", max_steps=40, suite_options=("reward_version=v1",)
    )
    held_out = run.HeldOutEvaluation(options, Share(Rank(0, 1), (1,)), lambda: False)
    (group,) = held_out._begin().groups
    assert group.specs == (specify("metaworld/reach-v3", (), None, {"reward_version": "v1"}),)


def test_envs_without_episode_indices_go_on_with_new_episodes(tmp_path):
    options = {"task": "gym/CartPole-v1", "out": str(tmp_path)}
    train(toy(**options, train_updates=2))
    second = train(toy(**options, train_updates=4))
    assert (second.resumed, second.exact, len(second.updates)) == (2, False, 2)


def test_an_env_that_does_not_repeat_itself_is_found_out(tmp_path):
    train(toy(train_updates=2, out=str(tmp_path)))
    path = tmp_path / "checkpoint.pt"
    saved = read_checkpoint(path)
    played = saved["ranks"][0]["play"]
    played["newest"]["state"][0, 2] += 1
    write_checkpoint(path, saved)
    begun = []
    second = train(toy(out=str(tmp_path)), lambda update: begun.append(update.number))
    assert (second.exact, begun) == (False, [3, 4])


def test_another_number_of_ranks_goes_on_with_new_episodes(tmp_path):
    first = train(toy(train_updates=2, out=str(tmp_path)))
    path = tmp_path / "checkpoint.pt"
    saved = read_checkpoint(path)
    saved["ranks"] *= 2  # as if two had written it
    write_checkpoint(path, saved)
    second = train(toy(out=str(tmp_path)))
    assert (second.resumed, second.exact, len(second.updates)) == (2, False, 2)
    assert second.steps > first.steps
    assert not torch.equal(weights(second), weights(train(toy())))


def test_other_options_are_refused_but_more_updates_are_not(tmp_path):
    train(toy(train_updates=1, out=str(tmp_path)))
    with pytest.raises(RunConflict, match=r"train_lr was 0.001 and is 0.1.*--fresh"):
        train(toy(train_lr=0.1, out=str(tmp_path)))
    anew = train(toy(train_lr=0.1, fresh=True, train_updates=1, out=str(tmp_path)))
    assert anew.resumed == 0
    assert train(toy(train_lr=0.1, train_updates=2, out=str(tmp_path))).resumed == 1


def test_a_job_that_is_started_several_times_starts_over_once(tmp_path, monkeypatch):
    """As tasks of an array, one after the other; ranks that torchrun restarts have a job, too."""

    def resumed(updates):
        return train(toy(fresh=True, train_updates=updates, out=str(tmp_path))).resumed

    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    for job in ("7", "8"):
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", job)
        assert [resumed(1), resumed(2)] == [0, 1]
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID")
    assert [resumed(1), resumed(1)] == [0, 0]


def test_a_checkpoint_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, {"agent": {}, "number": 1})

    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", full)
        with pytest.raises(StorageError, match="No space left"):
            write_checkpoint(path, {"agent": {}, "number": 2})
    assert read_checkpoint(path)["number"] == 1
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


class FullDisk(io.RawIOBase):
    """A file that has no room for more than a header."""

    room = 5000

    def writable(self):
        return True

    def fileno(self):
        raise AssertionError("nothing was written that could be synced")

    def write(self, content):
        self.room -= len(content)
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return len(content)


def test_a_full_disk_is_told_as_such(tmp_path, monkeypatch):
    state = {"weights": torch.zeros(4000)}
    monkeypatch.setattr("pathlib.Path.open", lambda self, mode: FullDisk())
    with pytest.raises(StorageError, match=r"checkpoint.pt could not be.*No space left"):
        write_checkpoint(tmp_path / "checkpoint.pt", state)


def test_metrics_that_cannot_be_written_are_told_as_such(tmp_path):
    def spoil(update):
        (tmp_path / "metrics.jsonl").unlink()
        (tmp_path / "metrics.jsonl").mkdir()

    with pytest.raises(StorageError, match=r"cannot be written to: .*metrics.jsonl"):
        train(toy(out=str(tmp_path)), spoil)


def test_gradients_that_are_no_numbers_stop_it_before_the_weights_are_spoiled(monkeypatch):
    usual, agents = ppo.losses, []

    def spoiled(agent, samples, clip):
        agents.append(agent)
        policy, *rest = usual(agent, samples, clip)
        return policy * float("nan"), *rest

    monkeypatch.setattr(ppo, "losses", spoiled)
    with pytest.raises(PolicyError, match="gradients of update 1 are no finite numbers"):
        train(toy())
    assert torch.isfinite(agents[0].weights).all()


@pytest.mark.usefixtures("failing")
def test_episodes_that_fail_are_counted_and_the_others_go_on():
    """The first of three envs to step fails, once, and is reset by its next step."""
    training = train(toy(task="failing:once", train_updates=3))
    assert [update.errors for update in training.updates] == [1, 1, 1]
    assert training.updates[0].steps == 3 * 7 - 2
    assert "as it was asked to" in training.last_error


@pytest.mark.usefixtures("failing")
def test_steps_that_all_fail_are_no_steps_and_change_no_weight():
    training = train(toy(task="failing:always", train_updates=1, horizon=1))
    assert (training.steps, training.errors) == (0, 3)
    assert np.isfinite(training.updates[0].loss)
    assert torch.isfinite(weights(training)).all()


def test_frames_and_choices_are_learnt_from(tmp_path):
    training = train(
        toy(cameras=("front",), image_size=(16, 16), train_updates=2, eval_every=2, eval_episodes=2)
    )
    assert training.policy.needs_frames
    assert training.updates[-1].eval_success == 1.0
    chosen = train(toy(task="gym/CartPole-v1", action_chunk=2, train_updates=2))
    assert chosen.updates[-1].entropy == pytest.approx(2 * np.log(2), rel=0.05)


# What was learnt, as a policy.


def batch(state):
    keys = tuple(EpisodeKey("toy", "count-10", index) for index in range(len(state)))
    noise = tuple(key.generator() for key in keys)
    return Batch({"state": state}, keys, ("",) * len(keys), np.zeros(len(keys), np.int64), noise)


def test_a_checkpoint_is_a_policy_with_its_normalisation(tmp_path):
    training = train(toy(action_chunk=3, out=str(tmp_path)))
    state = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    for path in (tmp_path, tmp_path / "checkpoint.pt"):
        policy = load(str(path))
        actions = policy.act(batch(state))
        assert actions.shape == (4, 3, 2)
        assert np.array_equal(actions, training.policy.act(batch(state)))
        assert policy.fingerprint == training.policy.fingerprint
    assert (policy.execute, policy.needs_frames) == (3, False)
    moved = policy._agent.states.mean
    assert float(moved.abs().sum()) > 0


def test_a_policy_refuses_what_it_was_not_trained_on(tmp_path):
    policy = train(toy()).policy
    with pytest.raises(PolicyError, match="states of 4 numbers, found 5"):
        policy.act(batch(np.zeros((2, 5), np.float32)))
    told = run.TrainedPolicy(policy._agent, {"control": "delta"})
    told.check_spec(EnvSpec("rlbench", "reach_target", options={"control": "delta"}))
    with pytest.raises(PolicyError, match="give --suite-options control=delta"):
        told.check_spec(EnvSpec("rlbench", "reach_target", options={"control": "absolute"}))


def test_a_policy_refuses_frames_of_another_size():
    """Its networks would take them, and do something else."""
    sizes = {"cameras": ("front",), "image_size": (8, 6)}
    policy = train(toy(**sizes, train_updates=1)).policy
    obs = {"state": np.zeros((1, 4), np.float32), "pixels/front": np.zeros((1, 8, 6, 3), np.uint8)}
    assert policy.act(replace(batch(obs["state"]), obs=obs)).shape == (1, 1, 2)
    obs["pixels/front"] = np.zeros((1, 6, 8, 3), np.uint8)
    with pytest.raises(PolicyError, match=r"8 x 6 pixels, found .*give --image-size 8 6"):
        policy.act(replace(batch(obs["state"]), obs=obs))


def test_a_policy_knows_whether_it_saw_the_goal():
    spec = EnvSpec("metaworld", "reach-v3", options={"goal": "hidden", "reward_version": "v2"})
    assert meaning_of([spec]) == {"goal": "hidden"}


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(InvalidCall, match=f"'{device}'"):
        train(toy(device=device))


def test_what_is_no_checkpoint_says_so(tmp_path):
    with pytest.raises(PolicyError, match="there is no checkpoint"):
        load(str(tmp_path))
    (tmp_path / "checkpoint.pt").write_bytes(b"something else")
    with pytest.raises(PolicyError, match="is no checkpoint of `polyarm train`"):
        load(str(tmp_path))


# What people look at.


def test_curves_and_dashboards_have_every_update_once(tmp_path):
    pytest.importorskip("tensorboard", reason="pip install 'polyarm[train]'")
    pytest.importorskip("matplotlib", reason="pip install 'polyarm[train]'")
    options = toy(out=str(tmp_path), report_to="tensorboard", eval_every=2, eval_episodes=1)
    training = train(options)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [update.loss for update in training.updates]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(next((tmp_path / "tensorboard").iterdir())))
    found.Reload()
    points = {one.step: make_ndarray(one.tensor_proto) for one in found.Tensors("train/reward")}
    expected = {update.steps: update.reward for update in training.updates}
    assert points == pytest.approx(expected)
    assert len(found.Tensors("train/eval_success")) == 2


def test_numbers_go_from_their_start_to_their_end_in_a_straight_line():
    assert [scheduled(0.2, 0.1, way) for way in (0, 0.5, 1)] == pytest.approx([0.2, 0.15, 0.1])
    assert [scheduled(0.2, None, way) for way in (0, 1)] == [0.2, 0.2]


def test_schedules_reach_the_optimizer_and_the_loss(monkeypatch):
    usual, seen = ppo.Learner._learn, []

    def learn(self, samples, number):
        found = usual(self, samples, number)
        seen.append(self.optimizer.param_groups[0]["lr"])
        return found

    clips = []
    losses = ppo.losses
    monkeypatch.setattr(ppo.Learner, "_learn", learn)
    monkeypatch.setattr(
        ppo, "losses", lambda agent, some, clip: (clips.append(clip), losses(agent, some, clip))[1]
    )
    train(toy(train_updates=3, train_lr=1e-3, train_lr_end=0.0, clip=0.3, clip_end=0.1))
    assert seen == pytest.approx([1e-3, 5e-4, 0.0])
    assert sorted(set(np.round(clips, 6)), reverse=True) == pytest.approx([0.3, 0.2, 0.1])
    seen.clear()
    train(toy(train_updates=3, train_lr=3e-5))
    assert seen == pytest.approx([3e-5] * 3)  # it does not rise to where others go


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"task": " "}, "no task was given"),
        ({"train_updates": 0}, "train_updates must be at least 1"),
        ({"action_chunk": 0}, "action_chunk must be at least 1"),
        ({"minibatches": 0}, "minibatches must be at least 1"),
        ({"train_lr": float("nan")}, "train_lr must be above 0"),
        ({"clip_end": -0.1}, "clip_end must not be below 0"),
        ({"gamma": 1.5}, "gamma must be between 0 and 1"),
        ({"seed": 2**29}, "seed must be below"),
        ({"eval_every": 1, "eval_episodes": 0}, "eval_episodes must be at least 1"),
        ({"suite_options": ("num_envs=3",)}, "'num_envs' is an option of the command"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, complaint):
    with pytest.raises(InvalidCall, match=complaint):
        train(toy(**options))


def test_names_that_do_not_exist_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="unknown option of gym 'arm_mode'"):
        train(toy(task="gym/Pendulum-v1", arm_mode="ik"))
    with pytest.raises(UnknownName, match="did you mean 'wandb'"):
        train(toy(out=str(tmp_path), report_to="wand"))


def test_without_pytorch_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'polyarm\[torch\]'"):
        train(toy())


def test_more_tasks_than_envs_are_refused_before_anything_is_made(tmp_path):
    tasks = "toy/count-3,toy/count-10,toy/count-50"
    with pytest.raises(InvalidCall, match="has 3 tasks, and 2 envs can play 2 of them"):
        run.train(toy(task=tasks, num_envs=2, out=str(tmp_path / "run")))
    with pytest.raises(UnknownName, match="no-such"):
        run.train(toy(task="toy/no-such", out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_what_was_learnt_is_saved_before_an_evaluation_and_survives_it(
    tmp_path, monkeypatch, caplog
):
    def failing(*_):
        assert read_checkpoint(tmp_path / "checkpoint.pt")["progress"]["update"] in (2, 4)
        raise PolicyError("no licence for more envs")

    monkeypatch.setattr(Evaluator, "run", failing)
    done = train(toy(eval_every=2, checkpoint_every=2, out=str(tmp_path)))
    assert [update.eval_return for update in done.updates] == [None] * 4
    said = "held-out episodes cannot be played: no licence for more envs"
    assert [record.getMessage() for record in caplog.records].count(said) == 2


def test_held_out_episodes_that_fail_are_counted(monkeypatch):
    usual = Evaluator.run

    def run_some(self, *arguments):
        results = usual(self, *arguments)
        failed = [replace(one, outcome="error") for one in results.episodes[:2]]
        return Results([*failed, *results.episodes[2:]], results.planned)

    monkeypatch.setattr(Evaluator, "run", run_some)
    (update,) = train(toy(train_updates=1, eval_every=1, eval_episodes=5)).updates
    assert (update.eval_errors, update.eval_success) == (2, 1.0)
    assert "held-out episodes that failed: 2" in command._line(update, 1)


def test_time_that_is_up_cuts_an_evaluation_short():
    begun = time.monotonic()
    done = train(toy(eval_every=1, eval_episodes=10**5, stop_after="1s"))
    assert time.monotonic() - begun < 30
    assert done.stopped
    assert not done.asked
    assert done.updates[-1].eval_return is None


@pytest.mark.parametrize(
    ("wrong", "error"),
    [({"device": "cuda"}, InvalidCall), ({"cameras": ("no-such",)}, UnknownName)],
    ids=["device", "camera"],
)
def test_nothing_is_forgotten_for_a_training_that_cannot_begin(tmp_path, wrong, error, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    train(toy(out=str(tmp_path)))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(error):
        train(toy(out=str(tmp_path), fresh=True, **wrong))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert train(toy(out=str(tmp_path), fresh=True)).resumed == 0


def test_an_episode_that_cannot_begin_is_an_error_like_any_other(monkeypatch):
    """The first ones had been tried again and again, until the vector env gave up."""
    usual, begun = CountingEnv.reset, []

    def reset(self, **options):
        begun.append(options["options"]["episode"])
        if len(begun) == 1:
            raise ValueError("no such luck")
        return usual(self, **options)

    monkeypatch.setattr(CountingEnv, "reset", reset)
    done = train(toy(num_envs=1, train_updates=2))
    assert begun == [0, 1, 2]
    assert done.errors == 1
    assert "no such luck" in done.last_error
    assert done.steps == 2 * 7 - 2  # the reset that followed, and the one after an episode's end


def test_success_is_what_an_evaluation_takes_for_it(monkeypatch):
    info = CountingEnv._info
    monkeypatch.setattr(CountingEnv, "_info", lambda self: {"success": info(self)["is_success"]})
    done = train(toy(task="toy/count-3"))
    assert done.updates[-1].success_rate == 1.0


def test_dashboards_show_no_update_that_was_lost(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="pip install tensorboard"
    )
    shown = {"report_to": "tensorboard", "out": str(tmp_path), "checkpoint_every": 2}
    train(toy(**shown, train_updates=3))
    saved = read_checkpoint(tmp_path / "checkpoint.pt")
    saved["progress"]["update"] = 2  # as after a kill in the third
    write_checkpoint(tmp_path / "checkpoint.pt", saved)
    train(toy(**shown, train_updates=5))
    (folder,) = (tmp_path / "tensorboard").iterdir()
    found = events.EventAccumulator(str(folder)).Reload()
    (tag,) = [tag for tag in found.Tags()["tensors"] if tag == "train/number"]
    assert [one.tensor_proto.float_val[0] for one in found.Tensors(tag)] == [1, 2, 3, 4, 5]


def test_a_dashboard_on_a_full_disk_is_told_as_such(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polyarm.training.logbook._log_to", full)
    with pytest.raises(StorageError, match="No space left on device"):
        train(toy(report_to="tensorboard", out=str(tmp_path)))
