"""What a failure looks like to the trainer: what the slot delivers, and what its neighbours see."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import polyarm
from polyarm.errors import BuildError, InvalidCall, WorkerDied
from polyarm.testing import CountingEnv, CrashingEnv, HangingEnv, NoisyEnv, SegfaultingEnv
from polyarm.vector.board import Phase

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def counting():
    return CountingEnv(length=10)


def noisy():
    return NoisyEnv(end_probability=0.05)


class RaisingNoisyEnv(NoisyEnv):
    """Raises in one step of its life."""

    def __init__(self, at, once):
        super().__init__(end_probability=0.05)
        self.at, self.once, self.steps = at, once, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.at and not Path(self.once).exists():
            Path(self.once).touch()
            self.fail()
        return super().step(action)

    def fail(self):
        raise RuntimeError("raised on purpose")


class DyingNoisyEnv(RaisingNoisyEnv):
    """Kills its own process in one step of its life."""

    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)


class SlowlyBuiltEnv(CrashingEnv):
    """Raises in step 2; every build but the first takes 30 s."""

    def __init__(self, marker):
        super().__init__(at=2, only_first=marker + ".failed")
        if Path(marker).exists():
            time.sleep(30)
        Path(marker).touch()


class LoudEnv(CountingEnv):
    """Writes a line to descriptor 2 and raises."""

    def step(self, action):
        os.write(2, b"last words from C\n")
        raise RuntimeError("loud")


def record(envs, steps, chunk=None):
    """All that is delivered, copied."""
    shape = (envs.num_envs, 2) if chunk is None else (envs.num_envs, chunk, 2)
    step = envs.step if chunk is None else envs.step_chunk
    rows = []
    obs, _ = envs.reset(seed=11)
    rows.append(np.array(obs))
    for number in range(steps):
        actions = np.full(shape, 0.01 * number, np.float32)
        obs, rewards, terminated, truncated, _ = step(actions)
        flat = rewards.reshape(envs.num_envs, -1)
        rows.append(np.column_stack([obs, flat, terminated, truncated]))
    return rows


@pytest.mark.parametrize("failing", [RaisingNoisyEnv, DyingNoisyEnv])
@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_other_workers_run_bit_for_bit_as_if_nothing_had_happened(
    tmp_path, failing, chunk, autoreset
):
    once = str(tmp_path / "once")
    tasks = [noisy, lambda: failing(13, once), noisy]
    options = {"num_envs": 3, "autoreset": autoreset}
    with polyarm.make_vec(noisy, **options) as envs:
        expected = record(envs, 40, chunk)
    with polyarm.make_vec(tasks, **options) as envs:
        found = record(envs, 40, chunk)
    assert Path(once).exists()
    for left, right in zip(expected, found, strict=True):
        assert left[[0, 2]].tobytes() == right[[0, 2]].tobytes()


@pytest.mark.parametrize("chunk", [None, 4])
def test_an_exception_leaves_the_neighbours_in_its_worker_untouched(tmp_path, chunk):
    once = str(tmp_path / "once")
    tasks = [noisy, lambda: RaisingNoisyEnv(13, once), noisy, noisy]
    with polyarm.make_vec(noisy, num_envs=4, num_workers=1) as envs:
        expected = record(envs, 40, chunk)
    with polyarm.make_vec(tasks, num_envs=4, num_workers=1) as envs:
        pids = envs.worker_pids
        found = record(envs, 40, chunk)
        assert envs.worker_pids == pids
    assert Path(once).exists()
    for left, right in zip(expected, found, strict=True):
        assert left[[0, 2, 3]].tobytes() == right[[0, 2, 3]].tobytes()


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("way", ["step", "step_chunk", "send"])
def test_a_failed_slot_delivers_its_last_complete_observation(
    probe, tmp_path, workers, autoreset, way
):
    once = str(tmp_path / "once")
    tasks = [lambda: CrashingEnv(at=5, only_first=once), counting]
    with polyarm.make_vec(tasks, num_envs=2, num_workers=workers, autoreset=autoreset) as envs:
        look = probe(envs)
        envs.reset(seed=3)
        chunk = () if way == "step" else (3,)

        def step():
            if way == "step":
                return envs.step(look.actions())
            if way == "step_chunk":
                return envs.step_chunk(look.actions(3))
            envs.send(look.actions(3))
            ready = envs.recv(2)
            order = np.argsort(ready.slots)
            obs = {key: value[order] for key, value in ready.obs.items()}
            info = {k: v[order] for k, v in ready.info.items() if isinstance(v, np.ndarray)}
            flags = (ready.terminated[order], ready.truncated[order])
            return obs, ready.rewards[order], *flags, info

        for _ in range(4 if way == "step" else 1):
            obs, *_ = step()
        last = {key: value[0].copy() for key, value in obs.items()}
        assert last["state"].tolist() == [3, 4 if way == "step" else 3, 0, 0]
        obs, rewards, terminated, truncated, info = step()
        for key, value in last.items():
            assert np.array_equal(obs[key][0], value), key
        assert not np.any(rewards[0])
        assert rewards[1].ravel()[-1] == (5 if way == "step" else 6)
        assert terminated.tolist() == [False, False]
        assert truncated.tolist() == [True, False]
        assert info["steps"].tolist() == [0, 1 if way == "step" else 3]
        error = info["error"][0]
        assert (error.kind, error.error_class, error.phase) == ("exception", "RuntimeError", "step")
        assert (error.slot, error.step) == (0, 0 if way == "step" else 1)
        assert "as it was asked to" in error.message
        assert "Traceback" in error.stack
        assert "failing.py" in error.stack
        assert info["error"][1] is None
        if autoreset == "disabled":
            with pytest.raises(InvalidCall, match="disabled"):
                step()
            mask = np.array([True, False])
            obs, _ = envs.reset(options={"reset_mask": mask})
            assert obs["state"][0, 1] == 0
        else:
            obs, rewards, _, truncated, info = step()
            assert info["steps"][0] == 0
            assert obs["state"][0, 1] == 0
            assert not np.any(rewards[0])
            assert not truncated[0]
        obs, rewards, *_ = step()
        assert obs["state"][0, 1] == (1 if chunk == () else 3)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_reset_that_raises_inside_a_step_is_reported_in_phase_reset(probe, tmp_path, workers):
    once = str(tmp_path / "once")
    tasks = [lambda: CrashingEnv(where="reset", at=2, length=2, only_first=once), counting]
    with polyarm.make_vec(tasks, num_envs=2, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset()
        error = look.step_until(lambda r: r[-1]["error"][0] if "error" in r[-1] else None, steps=3)
        assert error.phase == "reset"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rebuild_that_raises_is_reported_in_phase_build(probe, tmp_path, workers):
    marker = tmp_path / "built"
    once = str(tmp_path / "once")

    def build():
        if Path(once).exists() and not Path(marker).exists():
            raise OSError("cannot be built again")
        return CrashingEnv(at=1, only_first=once)

    with polyarm.make_vec([build, counting], num_envs=2, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset()
        error = envs.step(look.actions())[-1]["error"][0]
        assert error.phase == "step"
        error = envs.step(look.actions())[-1]["error"][0]
        assert (error.kind, error.phase, error.error_class) == ("exception", "build", "OSError")
        marker.touch()
        look.step_until(lambda r: r[1][0] == 1, steps=10)


def test_the_last_stderr_lines_come_with_an_exception(probe):
    with polyarm.make_vec(LoudEnv, num_envs=2, max_restarts=100) as envs:
        look = probe(envs)
        envs.reset()
        missing = 0
        for _ in range(20):
            info = envs.step(look.actions())[-1]
            missing += sum("last words from C" not in error.stderr for error in info["error"])
            envs.step(look.actions())
        assert missing == 0


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("start", ["imports", "fresh"])
def test_a_step_does_not_wait_for_the_restart(probe, tmp_path, workers, start):
    marker = str(tmp_path / "built")
    tasks = [lambda: SlowlyBuiltEnv(marker), counting]
    with polyarm.make_vec(tasks, num_envs=2, num_workers=workers, start=start) as envs:
        look = probe(envs)
        envs.reset()
        envs.step(look.actions())
        began = time.monotonic()
        info = envs.step(look.actions())[-1]
        assert info["error"][0].kind == "exception"
        assert time.monotonic() - began < 10
        if workers == 2:
            for _ in range(5):
                envs.send(look.actions()[1:], [1])
                assert envs.recv(1, timeout_s=10).slots.tolist() == [1]
            assert time.monotonic() - began < 15


def test_a_killed_worker_does_not_hold_up_the_step_either(probe, tmp_path):
    marker = str(tmp_path / "built")
    with polyarm.make_vec(
        [lambda: SlowlyBuiltEnv(marker), counting], num_envs=2, start="imports"
    ) as envs:
        look = probe(envs)
        envs.reset()
        os.kill(look.pid(0), signal.SIGKILL)
        began = time.monotonic()
        info = envs.step(look.actions())[-1]
        assert info["error"][0].signal == "SIGKILL"
        assert time.monotonic() - began < 10


def test_the_slot_in_its_call_is_the_cause_and_neighbours_are_not_charged(probe, tmp_path):
    once = [str(tmp_path / f"{n}") for n in range(12)]

    def failing():
        done = sum(Path(path).exists() for path in once)
        at = 2 if done < len(once) else 10**6
        return SegfaultingEnv(at=at, only_first=once[min(done, 11)], length=4)

    tasks = [counting, failing, counting]
    with polyarm.make_vec(
        tasks, num_envs=3, num_workers=1, max_restarts=20, start="imports"
    ) as envs:
        look = probe(envs)
        envs.reset()
        seen = 0
        for _ in range(60):
            info = envs.step(look.actions())[-1]
            if "error" in info:
                kinds = [error.kind for error in info["error"]]
                assert kinds == ["collateral", "died", "collateral"]
                assert all(error.signal == "SIGSEGV" for error in info["error"])
                assert info["error"][0].slot == 0
                assert "slot 1" in info["error"][0].message
                seen += 1
        assert seen == 12
        assert look.engine._supervisor._strikes[::2] == [0, 0]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("failing", [CrashingEnv, SegfaultingEnv])
def test_too_many_failures_in_a_row_raise_worker_died(probe, workers, failing):
    tasks = [counting, counting, lambda: failing(at=2)]
    with polyarm.make_vec(tasks, num_envs=3, num_workers=workers, max_restarts=2) as envs:
        look = probe(envs)
        envs.reset()
        errors = []

        def steps():
            while True:
                info = envs.step(look.actions())[-1]
                if "error" in info:
                    errors.append(info["error"][2])

        with pytest.raises(WorkerDied) as caught:
            steps()
        text = str(caught.value)
        for part in ("slot 2", "pid ", "callable/", "phase step", "max_restarts=2"):
            assert part in text
        if failing is SegfaultingEnv:
            assert "SIGSEGV" in text
        assert len(errors) == 2, "the same number of errors whatever the order of answers"
        with pytest.raises(WorkerDied):
            envs.step(look.actions())


def test_too_many_failures_raise_for_a_single_slot_too(probe):
    with polyarm.make_vec(lambda: CrashingEnv(at=1), num_envs=1, max_restarts=2) as envs:
        look = probe(envs)
        envs.reset()
        errors = 0

        def steps():
            nonlocal errors
            while True:
                errors += "error" in envs.step(look.actions())[-1]

        with pytest.raises(WorkerDied):
            steps()
        assert errors == 2


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_finished_episode_forgives_earlier_failures(probe, autoreset, workers, tmp_path):
    counter = tmp_path / "resets"

    class FailsEverySecondEpisode(CountingEnv):
        def __init__(self):
            super().__init__(length=2)

        def reset(self, **options):
            with open(counter, "a") as file:
                file.write("x")
            return super().reset(**options)

        def step(self, action):
            if len(counter.read_text()) % 2:
                raise RuntimeError("odd")
            return super().step(action)

    with polyarm.make_vec(
        [FailsEverySecondEpisode, lambda: CountingEnv(length=10**6)],
        num_envs=2,
        num_workers=workers,
        max_restarts=1,
        autoreset=autoreset,
    ) as envs:
        look = probe(envs)
        envs.reset()
        errors = finished = 0
        for _ in range(40):
            _, _, terminated, truncated, info = envs.step(look.actions())
            errors += "error" in info
            finished += int(terminated[0])
            if autoreset == "disabled" and (terminated | truncated)[0]:
                envs.reset(options={"reset_mask": np.array([True, False])})
        assert errors > 4
        assert finished > 4


def test_a_failing_reset_is_given_up_after_max_restarts(probe):
    tasks = [counting, lambda: CrashingEnv(where="reset")]
    with (
        polyarm.make_vec(tasks, num_envs=2, max_restarts=2) as envs,
        pytest.raises(WorkerDied, match="phase reset"),
    ):
        envs.reset()


@pytest.mark.parametrize("start", ["built", "imports", "fresh"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_raising_constructor_is_a_build_error_with_its_traceback(start, workers):
    tasks = [counting, counting, lambda: CrashingEnv(where="constructor")]
    with pytest.raises(BuildError) as caught:
        polyarm.make_vec(tasks, num_envs=3, num_workers=workers, start=start)
    text = str(caught.value)
    for part in ("slot 2", "RuntimeError", "as it was asked to", "Traceback", "failing.py"):
        assert part in text


def test_an_env_that_raises_in_close_still_closes(tmp_path):
    envs = polyarm.make_vec(lambda: CrashingEnv(where="close"), num_envs=3, num_workers=2)
    envs.reset()
    began = time.monotonic()
    envs.close(timeout_s=30)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("workers", [1, 2])
def test_a_neighbour_that_is_idle_hears_of_the_loss_at_its_next_send(probe, tmp_path, workers):
    once = str(tmp_path / "once")
    tasks = [lambda: HangingEnv(at=1, only_first=once), counting]
    with polyarm.make_vec(tasks, num_envs=2, num_workers=workers) as envs:
        look = probe(envs)
        envs.reset(seed=1)
        envs.send(look.actions()[:1], [0])
        look.wait_for_phase(0, Phase.STEP)
        os.kill(look.pid(0), signal.SIGKILL)
        ready = envs.recv(1)
        assert ready.info["error"][0].kind == "died"
        envs.send(look.actions()[1:], [1])
        ready = envs.recv(1)
        if workers == 1:
            assert ready.info["error"][0].kind == "collateral"
            assert ready.truncated.tolist() == [True]
            assert ready.obs["state"][0].tolist() == [2, 0, 0, 0]
        else:
            assert ready.rewards.tolist() == [1]


def test_a_single_step_that_fails_beside_a_chunk_is_delivered(probe, tmp_path):
    once = str(tmp_path / "once")
    tasks = [lambda: CrashingEnv(at=1, only_first=once), counting]
    for frames in ("last", "every"):
        Path(once).unlink(missing_ok=True)
        with polyarm.make_vec(tasks, num_envs=2, frames=frames) as envs:
            look = probe(envs)
            envs.reset(seed=4)
            envs.send(look.actions()[:1], [0])
            envs.send(look.actions(6)[1:], [1])
            ready = envs.recv(2)
            place = int(np.flatnonzero(ready.slots == 0)[0])
            assert ready.info["error"][place].kind == "exception"
            assert ready.rewards.shape == (2, 6)
            assert not ready.rewards[place].any()
            assert ready.rewards[1 - place].tolist() == [1, 2, 3, 4, 5, 6]
            state = ready.obs["state"][place]
            assert (state[0] if frames == "every" else state).tolist() == [4, 0, 0, 0]


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("not even a text")


class WrongText(Exception):
    def __str__(self):
        return 5  # noqa: PLE0307  which is what it is for


def huge():
    return ValueError("x" * 5_000_000)


class OddlyRaisingEnv(CountingEnv):
    """Slot 0 raises what it is told, in its second step and in calls."""

    def __init__(self, error):
        super().__init__(length=10)
        self.error = error

    def step(self, action):
        if action[0] > 0:
            raise self.error()
        return super().step(action)

    def complain(self):
        raise self.error()


@pytest.mark.parametrize("error", [NoText, WrongText, huge])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_an_exception_without_a_decent_text_costs_its_own_slot_only(error, num_workers):
    with polyarm.make_vec(
        partial(OddlyRaisingEnv, error), num_envs=2, num_workers=num_workers
    ) as envs:
        envs.reset()
        actions = np.zeros((2, 2), np.float32)
        actions[0] = 1
        *_, info = envs.step(actions)
        failure, none = info["error"]
        assert none is None
        assert info["steps"].tolist() == [0, 1]
        assert failure.kind == "exception"
        assert failure.error_class in ("NoText", "WrongText", "ValueError")
        assert "step" in failure.stack
        assert len(failure.message) < 20_000
        assert len(failure.stack) < 200_000
        with pytest.raises(polyarm.WorkerError):
            envs.call("complain")
        envs.step(0 * actions)
        assert envs.step(0 * actions)[-1]["steps"].all()
