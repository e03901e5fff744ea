from __future__ import annotations

import json
import re

import numpy as np
import pytest

import polyarm
from polyarm import EvalOptions, Evaluator, InvalidCall, PolicyError, RunConflict, UnknownName
from polyarm.contracts import Footprint
from polyarm.policies import RandomPolicy
from polyarm.recording.trajectory import load_trajectory
from polyarm.rollout.evaluate import close_kept_envs
from polyarm.rollout.live_envs import LiveEnvs
from polyarm.rollout.options import options_from, seconds
from polyarm.testing import CountingEnv, CountingPolicy, RaisingPolicy
from polyarm.testing.toy_suite import ToySuite

TOYS = ["toy/count-3", "toy/count-10"]


def evaluate(policy="random", tasks=TOYS, **options):
    return polyarm.evaluate(
        policy, tasks, **{"episodes": 3, "num_envs": 2, "num_workers": 0, **options}
    )


def facts(results):
    return {e.key: (e.outcome, e.steps, e.action_hash, e.total_reward) for e in results.episodes}


def test_results_say_what_happened():
    results = evaluate()
    assert results.success_rate == 1.0
    assert len(results.episodes) == results.planned == 6
    assert [task.name for task in results.tasks] == TOYS
    assert results.tasks[0].mean_steps == 3
    assert results.errors == results.missing == 0
    assert results.wall["total"] > 0


def test_a_seed_selects_other_episodes_and_repeats_other_noise():
    first, other = evaluate(), evaluate(seed=1)
    assert not set(facts(first)) & set(facts(other))
    repeated = evaluate(repeats=2, episodes=1, tasks=TOYS[1])
    one, two = repeated.episodes
    assert one.key.index == two.key.index
    assert one.action_hash != two.action_hash


def test_a_suite_says_how_many_episodes_and_pixels_are_usual(monkeypatch):
    def usual(self, options):
        return {"episodes": 5 if options.get("binding") else 4, "image_size": (8, 6)}

    monkeypatch.setattr(ToySuite, "defaults", usual, raising=False)
    shapes = set()

    def policy(batch):
        shapes.add(batch.obs["pixels/front"].shape[1:])
        return np.zeros((len(batch), 2), np.float32)

    options = {"cameras": ("front",), "episodes": None, "tasks": "toy/count-3"}
    assert len(evaluate(policy, **options).episodes) == 4
    assert len(evaluate(policy, **options, suite_options={"binding": True}).episodes) == 5
    assert len(evaluate(policy, **{**options, "episodes": 1}).episodes) == 1
    assert shapes == {(8, 6, 3)}
    evaluate(policy, **{**options, "image_size": (4, 4)})
    assert (4, 4, 3) in shapes


def test_a_protocol_is_an_option_of_the_suite():
    assert EvalOptions(protocol="openpi").suite_settings() == {"protocol": "openpi"}
    with pytest.raises(UnknownName, match="option 'protocol'"):
        evaluate(protocol="openpi")


def test_no_more_envs_run_than_fit_and_it_is_said(monkeypatch, caplog):
    batches = []

    def policy(batch):
        batches.append(len(batch))
        return np.zeros((len(batch), 2), np.float32)

    monkeypatch.setattr(ToySuite, "footprint", lambda self, spec: Footprint(2**50), raising=False)
    evaluate(policy, num_envs=4)
    assert max(batches) == 1
    assert "1 envs at once instead of 4: no more fit into main memory" in caplog.text
    batches.clear()
    evaluate(policy, num_envs=4, max_envs=2, max_wait_ms=1000)
    assert max(batches) == 2
    with pytest.raises(InvalidCall, match="max-envs must be at least 1"):
        EvalOptions(max_envs=0)


@pytest.mark.parametrize("num_envs", [1, 2, 8, 16])
def test_the_number_of_envs_changes_nothing(num_envs):
    workers = 2 if num_envs > 2 else 0
    results = evaluate(num_envs=num_envs, num_workers=workers, chunk=4)
    assert facts(results) == facts(evaluate(num_envs=3, chunk=4))


def test_the_same_call_again_runs_only_what_is_missing(tmp_path):
    policy = CountingPolicy()
    full = evaluate(policy, episodes=4)
    evaluate(policy, out=tmp_path, episodes=2)
    policy = CountingPolicy()
    results = evaluate(policy, out=tmp_path, episodes=4)
    assert sorted(key.index for key in policy.begun) == [2, 2, 3, 3]
    assert facts(results) == facts(full)
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 8
    assert (tmp_path / "report.html").exists()
    assert json.loads((tmp_path / "results.json").read_text())["schema"] == 1


def test_a_policy_that_fails_leaves_the_journal_intact_and_the_run_goes_on(tmp_path):
    class Flaky(RaisingPolicy):
        fingerprint = {"name": "flaky"}

    with pytest.raises(PolicyError, match="the policy raised"):
        evaluate(Flaky(after=20), out=tmp_path, episodes=4)
    before = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert 0 < len(before) < 8
    results = evaluate(Flaky(after=10_000), out=tmp_path, episodes=4)
    assert results.missing == 0
    assert (tmp_path / "episodes.jsonl").read_text().splitlines()[: len(before)] == before


def test_a_policy_may_refuse_envs_that_it_was_not_made_for():
    class Particular(CountingPolicy):
        def check_spec(self, spec):
            if spec.task == "count-10":
                raise PolicyError(f"not {spec.name}")

    assert evaluate(Particular(), "toy/count-3").success_rate == 1.0
    with pytest.raises(PolicyError, match="not toy/count-10"):
        evaluate(Particular())


def test_a_refusal_comes_before_envs_are_built(monkeypatch):
    class Particular(CountingPolicy):
        def check_spec(self, spec):
            raise PolicyError("not these")

    built = []
    monkeypatch.setattr(LiveEnvs, "get", lambda *_: built.append(True))
    with pytest.raises(PolicyError, match="not these"):
        evaluate(Particular(), "metaworld/reach-v3")
    assert not built


def test_another_policy_in_the_same_folder_is_refused(tmp_path):
    evaluate("random", out=tmp_path)
    with pytest.raises(RunConflict, match="policies"):
        evaluate("zero", out=tmp_path)
    assert evaluate("zero", out=tmp_path, fresh=True).missing == 0


def test_several_policies_are_evaluated_on_the_same_envs(tmp_path):
    options = EvalOptions(episodes=2, num_envs=2, num_workers=1)
    with Evaluator(TOYS, options, tmp_path) as evaluator:
        results = evaluator.run({"step_1": CountingPolicy(), "step_2": CountingPolicy()})
        pids = {pid for env in evaluator._player.envs._envs.values() for pid in env.worker_pids}
        again = evaluator.run({"step_3": CountingPolicy()})
        assert pids == {
            pid for env in evaluator._player.envs._envs.values() for pid in env.worker_pids
        }
    assert list(results.by_policy()) == ["step_1", "step_2"]
    assert len(results.episodes) == 8
    assert len(again.episodes) == 4


def test_evaluating_stops_when_it_is_told_to(tmp_path):
    options = EvalOptions(episodes=50, num_envs=2, num_workers=0)
    with Evaluator(TOYS, options, tmp_path) as evaluator:
        results = evaluator.run(
            {"": "random"}, lambda now: evaluator.stop() if now.made == 5 else None
        )
    assert 5 <= len(results.episodes) <= 8
    assert results.missing == 100 - len(results.episodes)


def test_trajectories_are_saved_and_can_be_replayed(tmp_path):
    results = evaluate(out=tmp_path / "a", save_trajectories=True, chunk=2)
    kept = load_trajectory(tmp_path / "a" / results.episodes[3].trajectory)
    assert kept["actions"].shape == (10, 2)
    assert kept["obs"]["state"].shape == (5, 4)
    replayed = evaluate(f"replay:{tmp_path / 'a'}", out=tmp_path / "b")
    assert facts(replayed) == facts(results)


def test_videos_do_not_change_an_outcome_and_are_where_the_results_say(tmp_path):
    plain = evaluate("expert")
    filmed = evaluate(
        "expert", out=tmp_path, record="all", video_stride=2, image_size=(16, 16), num_workers=2
    )
    assert facts(filmed) == facts(plain)
    for episode in filmed.episodes:
        assert len(episode.videos) == 1
        assert (tmp_path / episode.videos[0]).stat().st_size > 0


def test_a_function_is_a_policy_and_a_callable_is_a_task():
    results = polyarm.evaluate(
        lambda batch: np.zeros((len(batch), 2), np.float32),
        CountingEnv,
        episodes=3,
        num_envs=2,
        num_workers=0,
    )
    assert [e.steps for e in results.episodes] == [10, 10, 10]
    assert results.success_rate == 1.0


def test_gymnasium_tasks_of_different_spaces_are_evaluated_one_after_the_other():
    results = evaluate("random", ["gym/CartPole-v1", "gym/Pendulum-v1"], episodes=2)
    assert [task.name for task in results.tasks] == ["gym/CartPole-v1", "gym/Pendulum-v1"]
    assert results.tasks[1].mean_steps == 200


def test_a_policy_of_the_hub_is_loaded_once_and_known_by_its_weights(monkeypatch):
    loaded = []

    class Checkpoint:
        fingerprint = {"weights": "0af3"}
        needs_frames = False

        def begin(self, episodes):
            pass

        def act(self, batch):
            continuous = batch.keys[0].task == "Pendulum-v1"
            return np.zeros((len(batch), 1), np.float32) if continuous else [0] * len(batch)

    monkeypatch.setattr(
        "polyarm.policies.loading.lerobot_policy", lambda name: loaded.append(name) or Checkpoint()
    )
    # The spaces of Gymnasium's envs are known only when they are built.
    results = evaluate("lerobot:org/name", ["gym/CartPole-v1", "gym/Pendulum-v1"], episodes=1)
    assert loaded == ["org/name"]
    assert results.provenance["policies"][""]["policy"] == Checkpoint.fingerprint


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tasks": "toy/count-4"}, UnknownName, "toy/count-3|count-3"),
        ({"policy": "expart"}, UnknownName, "expert"),
        ({"cameras": ("fornt",)}, UnknownName, "front"),
        ({"policy": 3}, PolicyError, "is no policy"),
        ({"tasks": []}, InvalidCall, "no tasks"),
        ({"tasks": ["toy/count-3", "toy/count-3"]}, InvalidCall, "named twice"),
        ({"suite_options": ("binding",)}, InvalidCall, "NAME=VALUE"),
        ({"policy_timeout": "soon"}, InvalidCall, "a duration is written"),
        (
            {"tasks": "gym/CartPole-v1", "record": "all", "out": "x"},
            InvalidCall,
            "cannot be filmed",
        ),
    ],
)
def test_wrong_input_is_told_before_anything_runs(options, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        evaluate(**options)


def test_random_episodes_depend_on_their_keys_alone():
    class Named(RandomPolicy):
        def __init__(self, chunk):
            super().__init__(CountingEnv().action_space, chunk)

    one = evaluate(Named(1))
    five = evaluate(Named(5))
    assert {k: v[2] for k, v in facts(one).items()} == {k: v[2] for k, v in facts(five).items()}


def test_durations_are_read_as_people_write_them():
    assert seconds("3h50m") == 13_800
    assert seconds("90s") == seconds("1m30s") == seconds("90") == 90
    assert seconds(None) is None
    with pytest.raises(InvalidCall):
        seconds("3 hours")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"execute": 2}, []),
        ({"execute": 3}, ["predicts no more actions than 2"]),
        ({"ensemble": 0.1}, []),
        ({"ensemble": 0.1, "execute": 2}, ["averaged nothing: .*at a time \\(2\\)"]),
        ({"ensemble": 0.1, "chunk": 1}, ["averaged nothing: .*at a time \\(1\\)"]),
    ],
)
def test_what_was_asked_for_and_had_no_effect_is_noted(options, said):
    notes = evaluate(tasks=TOYS[1], **{"chunk": 2, **options}).notes
    assert len(notes) == len(said)
    assert all(re.search(words, note) for words, note in zip(said, notes, strict=True))


def test_options_from_a_file_are_checked():
    given = options_from({"num-envs": 3, "cameras": ["a"], "task": ["x/y", "x/z"]})
    assert EvalOptions(**given) == EvalOptions(num_envs=3, cameras=("a",), task="x/y,x/z")
    with pytest.raises(UnknownName, match="episodes"):
        options_from({"episode": 3})


def test_envs_can_be_kept_for_the_next_call():
    class Looking(CountingPolicy):
        needs_frames = True  # if there were any

    first = evaluate(Looking(), num_workers=1, keep_envs=True)
    policy = Looking()
    again = evaluate(policy, num_workers=1, keep_envs=True)
    try:
        assert len(policy.begun) == 6  # results are not kept
        assert facts(again) == facts(first)
        assert again.wall["startup"] < first.wall["startup"] / 10  # nothing was started again
    finally:
        close_kept_envs()
    with pytest.raises(InvalidCall, match="keep_envs"):
        evaluate(keep_envs=True, out="x")


def test_slots_are_dealt_only_tasks_that_are_needed(tmp_path):
    evaluate(out=tmp_path, tasks=TOYS[0], episodes=2)
    options = EvalOptions(episodes=2, num_envs=4, num_workers=0)
    with Evaluator(TOYS, options, tmp_path) as evaluator:
        evaluator.run({"": "random"})
        assert [set(env.tasks) for env in evaluator._player.envs._envs.values()] == [{TOYS[1]}]


@pytest.mark.parametrize(
    "option",
    [{"num_envs_total": 4}, {"ddp_bind_gpu": True}, {"policy_gpus": "0"}, {"render_gpus": "1"}],
    ids=lambda option: next(iter(option)),
)
def test_what_only_ranks_of_a_command_follow_is_refused_in_python(option):
    with pytest.raises(InvalidCall, match=f"{next(iter(option))} is for the command line"):
        evaluate(**option)
