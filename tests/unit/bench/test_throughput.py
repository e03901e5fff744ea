"""The benchmark counts what happened and accounts for every nanosecond of its wall time."""

import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from polyarm import make_vec
from polyarm.bench.profile import CallClock
from polyarm.bench.throughput import BenchOptions, run_bench
from polyarm.errors import InvalidCall, UnknownName
from polyarm.testing import CountingEnv, SlowEnv
from polyarm.testing.toy_suite import ToySuite

ENGINES = pytest.mark.parametrize("num_workers", [0, 2, None], ids=["serial", "shared", "full"])
WORKER_PARTS = ("sim", "frames", "obs", "video", "toggle", "other")


def toy(**options):
    return BenchOptions(
        **{"task": "toy/count-10", "num_envs": 4, "image_size": (8, 8), "max_steps": 100, **options}
    )


@ENGINES
def test_steps_episodes_and_returns_are_counted(num_workers):
    result = run_bench(toy(num_workers=num_workers))
    assert result.env_steps == 400
    assert result.episodes == 40
    assert result.success_rate == 1.0
    assert result.average_return == sum(range(1, 11))
    assert result.running_return == 0.0
    # Ten steps and the call that resets, but for the last episode's.
    assert result.calls == 10 * 11 - 1
    assert (result.frames, result.errors, result.interrupted) == (0, 0, False)
    assert result.num_workers == {0: 0, 2: 2, None: 4}[num_workers]


@ENGINES
def test_chunks_are_cut_so_that_a_run_stops_at_its_steps(num_workers):
    result = run_bench(toy(num_workers=num_workers, max_steps=19, action_chunk=8))
    assert result.env_steps == 4 * 19
    assert result.calls == 5  # 8, 2, reset, 8, 1
    assert result.episodes == 4
    assert result.running_return == sum(range(1, 10))


def test_only_frames_that_were_delivered_are_counted():
    cameras = ("front", "wrist")
    every_call = run_bench(toy(cameras=cameras))
    assert every_call.frames == every_call.calls * 4 * 2
    chunked = run_bench(toy(cameras=cameras, action_chunk=5))
    assert chunked.frames == chunked.calls * 4 * 2 < every_call.frames


@pytest.mark.parametrize("preset", [{"no_rgb": True}, {"fast": True}])
def test_presets_without_frames_deliver_none(preset):
    assert run_bench(toy(cameras=("front",), **preset)).frames == 0


def test_an_env_that_tells_no_success_has_no_success_rate():
    result = run_bench(toy(task="gym/CartPole-v1", max_steps=60))
    assert result.episodes > 0
    assert result.success_rate is None


def test_tasks_are_dealt_from_lists_and_sets():
    result = run_bench(toy(task="toy/count-3, toy/short", max_steps=30))
    assert result.env_steps >= 120
    assert result.average_return not in (6.0, 55.0)


@pytest.mark.parametrize("num_workers", [0, 1, 3, None])
@pytest.mark.parametrize("action_chunk", [1, 8])
def test_the_timing_split_sums_to_the_wall_time(num_workers, action_chunk):
    options = toy(num_workers=num_workers, action_chunk=action_chunk, cameras=("front",))
    result = run_bench(BenchOptions(**{**as_dict(options), "profile_timing": True}))
    split = result.profile
    assert split.build + split.env_call == pytest.approx(result.wall_s, abs=1e-6)
    parts = sum(getattr(split, part) for part in WORKER_PARTS)
    assert split.build + parts + split.ipc == pytest.approx(result.wall_s, abs=1e-6)
    spent = {part: getattr(split, part) for part in (*WORKER_PARTS, "build", "ipc")}
    assert {part: seconds for part, seconds in spent.items() if seconds < 0} == {}
    assert min(split.sim, split.frames, split.obs) > 0
    assert split.video == 0


@pytest.mark.parametrize("num_workers", [0, 1])
def test_rendering_after_an_early_end_is_rendering_and_no_simulation(num_workers):
    early = partial(SlowEnv, step_s=0.01, frame_s=0.03, length=3)
    with make_vec(early, num_envs=1, num_workers=num_workers) as envs:
        envs.reset()
        envs.step_chunk(np.zeros((1, 8, 2), np.float32))
        spent = {name: int(value[0]) / 1e9 for name, value in envs.timings_ns().items()}
    total = spent.pop("total")
    assert 0.03 <= spent["sim"] < 0.06
    assert 0.03 <= spent["frames"] < 0.06
    assert 0.9 * total < sum(spent.values()) <= total


def test_without_profile_timing_there_is_no_split():
    assert run_bench(toy()).profile is None


def test_progress_follows_every_call():
    seen = []
    result = run_bench(toy(action_chunk=4), seen.append)
    assert [now.call for now in seen] == list(range(1, result.calls + 1))
    assert seen[-1].steps == seen[-1].total_steps == 400
    assert seen[-1].done == result.episodes
    assert seen[0].average_return is None
    assert seen[0].running_return == 1 + 2 + 3 + 4
    calls_s = sum(now.exec_s + now.ipc_s for now in seen)
    assert 0 < calls_s <= result.wall_s


def test_an_interrupt_ends_the_run_with_what_was_measured():
    def interrupt_at_ten(now):
        if now.call == 10:
            os.kill(os.getpid(), signal.SIGINT)

    result = run_bench(toy(max_steps=10**6), interrupt_at_ten)
    assert result.interrupted
    assert 40 <= result.env_steps < 4 * 10**6


def test_a_failing_env_is_an_error_and_no_episode(caplog):
    killed = []

    def kill_a_worker(now):
        if now.call == 3:
            killed.append(worker_below_this_process())
            os.kill(killed[0], signal.SIGKILL)

    result = run_bench(toy(), kill_a_worker)
    assert killed
    assert result.errors == 1
    assert result.success_rate == 1.0
    assert result.average_return == 55.0
    assert "SIGKILL" in caplog.text


def test_the_critical_worker_is_the_one_with_the_largest_sum_of_its_slots():
    clock = CallClock(num_envs=4, num_workers=2)
    timings = {
        "total": np.array([50, 60, 100, 1]),
        "sim": np.array([40, 50, 90, 1]),
        "frames": np.array([5, 6, 0, 0]),
        "obs": np.array([1, 1, 2, 0]),
        "toggle": np.array([0, 0, 3, 0]),
        "video": np.array([2, 1, 0, 0]),
    }
    nobody = np.zeros(4, np.bool_)
    assert clock.add(7, 200, timings, nobody) == 110
    split = clock.split()
    assert (split.sim, split.frames, split.obs, split.toggle) == (90e-9, 11e-9, 2e-9, 0)
    assert (split.video, split.other, split.ipc) == (3e-9, 4e-9, 90e-9)
    assert clock.wall_ns == 207


def test_a_failed_slot_has_no_timings_of_this_call():
    clock = CallClock(num_envs=2, num_workers=2)
    parts = ("total", "sim", "frames", "obs", "toggle", "video")
    timings = dict.fromkeys(parts, np.array([500, 20]))
    assert clock.add(0, 100, timings, np.array([True, False])) == 20


def test_a_result_is_plain_json():
    result = run_bench(toy(cameras=("front",), profile_timing=True))
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["options"]["task"] == "toy/count-10"
    assert plain["machine"]["cores"] >= 1
    assert plain["pss_nbytes_per_env"] > 0
    assert plain["latency_p50_s"] <= plain["latency_p99_s"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"task": "toy/count-11"}, UnknownName),
        ({"task": " , "}, InvalidCall),
        ({"max_steps": 0}, InvalidCall),
        ({"action_chunk": 0}, InvalidCall),
        ({"display": "window"}, UnknownName),
    ],
)
def test_what_makes_no_sense_is_refused(options, error):
    with pytest.raises(error):
        run_bench(toy(**options))


def as_dict(options):
    return {name: getattr(options, name) for name in options.__slots__}


def worker_below_this_process():
    """Pid of a worker that the fork server of this very process has started."""
    (server,) = [pid for pid in children(os.getpid()) if name_of(pid) == "polyarm-server"]
    return next(pid for pid in children(server) if name_of(pid) == "polyarm-w0")


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def name_of(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_what_json_lacks_in_rewards_and_provenance_does_not_cost_the_result(monkeypatch):
    plain = ToySuite.describe

    def describe(self, spec):
        described = plain(self, spec)
        odd = {"gains": np.zeros(2), "gain": np.float32(0.5), "file": Path("a")}
        return replace(described, provenance={**described.provenance, **odd})

    monkeypatch.setattr(ToySuite, "describe", describe)
    monkeypatch.setattr(CountingEnv, "step", worthless)
    done = run_bench(BenchOptions(task="toy/count-3", num_envs=2, num_workers=0, max_steps=6))
    data = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert data["average_return"] == "nan"
    assert data["provenance"][0]["gain"] == 0.5
    assert len(data["provenance"]) == 1


def worthless(self, action, step=CountingEnv.step):
    obs, _, *rest = step(self, action)
    return obs, float("nan"), *rest
