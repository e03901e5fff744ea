"""RIPT-VLA's surface on real LIBERO: the episodes of `polyarm.evaluate`, written down its way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from libero_play import make

import polyarm
from polyarm import InvalidCall, PolicyError, PolicyOutput
from polyarm.compat.ript import LiberoRunner, PI0LiberoRunner
from polyarm.compat.ript.benchmark import Benchmark
from polyarm.compat.ript.episodes import problems

pytestmark = [pytest.mark.simulator, pytest.mark.frames]

SMALL = (32, 32)
STEPS = 5
CHUNK = 2
SETTLE = 2


class Noisy:
    """Moves by chance, by each episode's own noise, and says how likely that was."""

    row_independent = True

    def begin(self, episodes: Any) -> None:
        pass

    def act(self, batch: Any) -> PolicyOutput:
        noise = batch.noise(CHUNK, 7)
        extras = {"actions_normalized": noise, "log_prob": -np.abs(noise)}
        return PolicyOutput(np.tanh(noise), extras)


def make_runner(rollouts_per_env: int) -> LiberoRunner:
    """Two small envs."""
    options = {"settle_steps": SETTLE}
    return LiberoRunner(
        "libero_object", rollouts_per_env, 2, STEPS, image_size=SMALL, suite_options=options
    )


@pytest.fixture(scope="module")
def runner() -> Iterator[LiberoRunner]:
    """Its envs stay alive for all tests that leave them as they are."""
    with make_runner(3) as runner:
        # All that they hold is there from now on. No test plays these episodes.
        unused = runner.benchmark.get_task_init_states(0)[20:23]
        list(runner.run_policy_in_env(0, Noisy(), unused))
        yield runner


@pytest.fixture
def task(runner: LiberoRunner) -> str:
    return runner.env_names[0]


def test_outcomes_are_those_of_evaluate_successes_and_failures() -> None:
    # The expert needs 102 steps for some of these episodes, and 103 for the others.
    name = "libero_object"
    scored = polyarm.evaluate(
        "expert",
        f"libero/{name}/0",
        episodes=2,
        num_envs=2,
        protocol="openpi",
        suite_options=["max_steps=102"],
    )
    expected = [episode.outcome == "success" for episode in scored.episodes]
    assert {*expected} == {True, False}
    runner = PI0LiberoRunner("expert", name, 2, 2, max_episode_length=102)
    task = runner.env_names[0]
    with runner:
        output = runner.run(run_env_names=[task])
    assert output["rollout_success_rate"] == {task: pytest.approx(np.mean(expected))}
    assert output["rollout"] == {
        "overall_success_rate": pytest.approx(np.mean(expected)),
        "overall_average_reward": pytest.approx(np.mean([e.total_reward for e in scored.episodes])),
        "environments_solved": 1,
        "rollout_count": 2,
        "rollout_errors": 0,
    }


def test_every_inference_is_that_of_evaluate_to_the_bit(
    runner: LiberoRunner, task: str, tmp_path: Path
) -> None:
    polyarm.evaluate(
        Noisy(),
        "libero/libero_object/0",
        episodes=3,
        num_envs=1,
        protocol="ript-oft",
        cameras=["agentview", "wrist"],
        image_size=SMALL,
        suite_options=[f"max_steps={STEPS}", f"settle_steps={SETTLE}"],
        save_trajectories=True,
        out=str(tmp_path),
    )
    files = sorted(tmp_path.rglob("*.npz"))
    rollouts = list(runner.run_policy_in_env(task, Noisy()))
    assert len(files) == len(rollouts) == 3
    for file, (success, reward, episode) in zip(files, rollouts, strict=True):
        assert (success, reward) == (False, 0.0)
        assert not problems(episode)
        with np.load(file) as saved:
            steps = saved["decision_steps"]
            assert len(episode["actions"]) == len(steps) == 3
            actions, motions = saved["actions"][steps], np.array(episode["actions"], np.float32)
            np.testing.assert_array_equal(motions[:, :6], actions[:, :6])
            np.testing.assert_array_equal(motions[:, 6], -np.sign(2 * actions[:, 6] - 1))
            for name in ("log_prob", "actions_normalized"):
                np.testing.assert_array_equal(episode[name], saved[f"extras/{name}"])
            for name, key in (
                ("state", "state"),
                ("full_image", "pixels/agentview"),
                ("wrist_image", "pixels/robot0_eye_in_hand"),
            ):
                seen = [row[name] for row in episode["observations"]]
                np.testing.assert_array_equal(seen, saved[f"obs/{key}"])


class Killing(Noisy):
    """Kills a worker when it is asked for the third time."""

    def __init__(self, runner: LiberoRunner) -> None:
        self._runner, self._asked = runner, 0

    def act(self, batch: Any) -> PolicyOutput:
        self._asked += 1
        if self._asked == 3:
            (env,) = self._runner._pool._envs._envs.values()
            os.kill(env.worker_pids[0], signal.SIGKILL)
        return super().act(batch)


def first_image(rollout: Any) -> Any:
    return rollout[2]["observations"][0]["full_image"].astype(int)


def test_given_initial_states_are_where_episodes_begin(runner: LiberoRunner, task: str) -> None:
    table = runner.benchmark.get_task_init_states(0)
    known = list(runner.run_policy_in_env(task, Noisy(), table[[7, 2, 7]]))
    # As a trainer's data loader rounds them: none of the table's any more.
    rounded = table[[7, 2, 7]].astype(np.float32)
    foreign = list(runner.run_policy_in_env(task, Noisy(), rounded))
    assert np.abs(first_image(known[0]) - first_image(known[1])).mean() > 1
    np.testing.assert_array_equal(first_image(known[0]), first_image(known[2]))
    for ours, theirs in zip(known, foreign, strict=True):
        assert np.abs(first_image(ours) - first_image(theirs)).mean() < 0.1
    actions = [tuple(rollout[2]["actions"][0]) for rollout in (*known, *foreign)]
    assert len({*actions}) == 6


def test_an_env_begins_where_its_reset_says_and_nowhere_else() -> None:
    env = make("libero_object/0", settle_steps=0)
    table = Benchmark("libero_object").get_task_init_states(0)

    def begun(**options: Any) -> Any:
        env.reset(options={"episode": 4, **options})
        return env.sim_state()

    np.testing.assert_array_equal(begun(), table[4])
    np.testing.assert_array_equal(begun(init_state=table[9].tolist()), table[9])
    np.testing.assert_array_equal(begun(), table[4])
    for wrong, told in ((table[:2], "found shape"), (table[0] * np.nan, "NaN or infinity")):
        with pytest.raises(InvalidCall, match=told):
            begun(init_state=wrong)


def test_tasks_share_one_pool_that_lives_as_long_as_somebody_holds_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And in which an episode whose worker dies begins again in its own initial state."""
    runner = make_runner(2)
    names = runner.env_names[:2]
    created = [runner.create_env(name) for name in names]
    assert [(env_id, env_num) for _, env_id, env_num in created] == [(0, 2), (1, 2)]
    (env,) = runner._pool._envs._envs.values()
    films: dict[tuple[str, int], Any] = {}

    def save(film: Any, name: str, number: int) -> None:
        films[name, number] = film

    output = runner.run(Noisy(), 1, save_video_fn=save, run_env_names=names, created_envs=created)
    assert output["rollout"]["rollout_count"] == 4
    assert list(output["rollout_success_rate"]) == names
    assert {*films} == {(name, 0) for name in names}
    assert all(film.shape == (3, 3, *SMALL) for film in films.values())
    foreign = np.tile(runner.benchmark.get_task_init_states(1)[7].astype(np.float32), (2, 1))
    acting = Killing(runner)
    one, other = runner.run_policy_in_env(names[1], acting, foreign, created_env=created[1])
    assert "died of SIGKILL" in caplog.text
    np.testing.assert_array_equal(first_image(one), first_image(other))
    assert one[2]["task_description"][0] == runner.benchmark.get_task(1).language
    created[0][0].close()
    created[0][0].close()
    assert not env.closed
    created[1][0].close()
    assert env.closed


def test_whatever_cuts_rollouts_short_the_envs_stay_usable(runner: LiberoRunner, task: str) -> None:
    def nonsense(batch: Any) -> Any:
        return np.full((len(batch), 7), np.nan, np.float32)

    with pytest.raises(PolicyError, match="is not finite; episode libero/libero_object/0"):
        list(runner.run_policy_in_env(task, nonsense))
    with pytest.raises(ZeroDivisionError):
        runner.run(Noisy(), 1, save_video_fn=lambda *film: 1 // 0, run_env_names=[task])
    rollouts = runner.run_policy_in_env(task, Noisy())
    next(rollouts)
    with pytest.raises(InvalidCall, match="exhaust or close"):
        runner.run(Noisy(), run_env_names=[task])
    rollouts.close()
    assert len(list(runner.run_policy_in_env(task, Noisy()))) == 3


def test_the_check_of_the_shipped_configuration_passes() -> None:
    command = [sys.executable, "-m", "polyarm", "check", "ript", "--max-steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 8
    assert "✗" not in done.stdout
