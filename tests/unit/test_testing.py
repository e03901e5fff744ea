import ctypes
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from polyarm.contracts import EnvSpec, SuiteEnv, Task
from polyarm.testing import (
    BindingEnv,
    BindingNullEnv,
    ChatteringEnv,
    CountingEnv,
    CrashingEnv,
    DictActionEnv,
    ForkingEnv,
    HangingEnv,
    InfoEnv,
    NoisyEnv,
    NullEnv,
    SegfaultingEnv,
    SlowEnv,
    ToySuite,
    check_suite,
)

NOTHING = np.zeros(2, np.float32)


@pytest.mark.parametrize("env_class", [CountingEnv, BindingEnv, SlowEnv])
def test_a_toy_is_a_sound_gymnasium_env(env_class):
    check_env(env_class(), skip_render_check=True)


@pytest.mark.parametrize("make", [NoisyEnv, DictActionEnv, InfoEnv, partial(CountingEnv, length=3)])
def test_a_toy_survives_pickling_and_stays_in_its_spaces(make):
    env = pickle.loads(pickle.dumps(make()))
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    ended = False
    while not ended:
        assert env.observation_space.contains(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        ended = terminated or truncated
    assert env.observation_space.contains(obs)


def test_the_counting_env_counts_and_ends():
    env = CountingEnv(length=3)
    obs, info = env.reset(seed=7)
    assert obs["state"].tolist() == [7, 0, 0, 0]
    assert info == {"seed": 7, "step": 0, "is_success": False}
    steps = [env.step(np.array([0.5, -0.25], np.float32)) for _ in range(3)]
    assert [reward for _, reward, *_ in steps] == [1, 2, 3]
    assert [terminated for _, _, terminated, *_ in steps] == [False, False, True]
    assert steps[-1][0]["state"].tolist() == [7, 3, 1.5, -0.75]
    assert steps[-1][4]["is_success"]


def test_the_counting_env_refuses_a_step_without_a_running_episode():
    env = CountingEnv(length=1)
    with pytest.raises(RuntimeError, match="without a running episode"):
        env.step(NOTHING)
    env.reset()
    env.step(NOTHING)
    with pytest.raises(RuntimeError, match="without a running episode"):
        env.step(NOTHING)


def test_an_episode_that_truncates_is_no_success():
    env = CountingEnv(length=1, truncate=True)
    env.reset()
    _, _, terminated, truncated, info = env.step(NOTHING)
    assert (terminated, truncated, info["is_success"]) == (False, True, False)


def test_the_counting_env_starts_the_episode_it_is_asked_for():
    env = CountingEnv()
    assert env.reset(seed=1, options={"episode": 1042})[0]["state"][0] == 42
    assert env.reset()[0]["state"][0] == 43


def test_the_counting_env_renders_only_what_is_asked_for():
    env = CountingEnv(cameras=("front", "wrist"))
    assert isinstance(env, SuiteEnv)
    delivered, _ = env.reset(seed=0)
    env.frames_enabled = False
    obs, _ = env.reset(seed=0)
    assert set(obs) == {"state"}
    assert env.frames_rendered == 2
    assert env.frame_seconds > 0
    frames = env.terminal_frame()
    for key, frame in frames.items():
        np.testing.assert_array_equal(frame, delivered[key])
    assert not np.array_equal(frames["pixels/front"], frames["pixels/wrist"])
    np.testing.assert_array_equal(env.render(), frames["pixels/front"])


@pytest.mark.parametrize("env_class", [BindingEnv, BindingNullEnv])
def test_a_binding_env_writes_in_place(env_class):
    env, ordinary = env_class(image_size=(4, 4)), env_class(image_size=(4, 4))
    buffers = {
        key: np.zeros(space.shape, space.dtype) for key, space in env.observation_space.items()
    }
    env.bind(buffers)
    for call in (lambda env: env.reset(seed=1), lambda env: env.step(NOTHING)):
        obs, expected = call(env)[0], call(ordinary)[0]
        for key, buffer in buffers.items():
            assert obs[key] is buffer
            np.testing.assert_array_equal(buffer, expected[key])


def test_the_null_env_stamps_every_step_and_allocates_nothing():
    env = NullEnv()
    first, _ = env.reset()
    second, *_ = env.step(NOTHING)
    assert second["pixels/wrist"] is first["pixels/wrist"]
    assert second["pixels/wrist"].nbytes == 256 * 256 * 3
    assert second["state"].shape == (39,)
    assert second["pixels/front"][0, 0, 0] == second["state"][0] == 1


def test_the_noisy_env_repeats_itself_for_a_seed_only():
    env = NoisyEnv()
    first, again, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(other, env.reset()[0])


def test_the_slow_env_takes_its_time():
    env = SlowEnv(step_s=0.02, frame_s=0.01)
    env.reset()
    began = time.perf_counter()
    env.step(NOTHING)
    assert time.perf_counter() - began >= 0.03
    assert env.frame_seconds >= 0.02


def test_the_dict_action_env_echoes_its_action():
    env = DictActionEnv()
    env.action_space.seed(3)
    env.reset()
    action = env.action_space.sample()
    obs, *_ = env.step(action)
    assert obs["step"] == 1
    assert gymnasium.utils.env_checker.data_equivalence(obs["echo"]["arm"], action["arm"])
    assert obs["echo"]["mode"] == action["mode"]


def test_the_info_env_has_late_and_last_keys():
    env = InfoEnv(length=4)
    _, info = env.reset()
    infos = [info, *(env.step(0)[4] for _ in range(4))]
    assert ["late" in info for info in infos] == [False, False, False, True, True]
    assert ["summary" in info for info in infos] == [False, False, False, False, True]
    assert infos[2]["ragged"].shape == (2,)


def test_the_crashing_env_raises_where_it_is_told():
    with pytest.raises(RuntimeError, match="constructor"):
        CrashingEnv(where="constructor")
    env = CrashingEnv(where="reset", at=2)
    env.reset()
    with pytest.raises(RuntimeError, match="reset"):
        env.reset()
    env = CrashingEnv(where="step", at=2)
    env.reset()
    env.step(NOTHING)
    with pytest.raises(RuntimeError, match="step"):
        env.step(NOTHING)


def test_a_failure_with_only_first_happens_once_among_all_envs(tmp_path):
    envs = [CrashingEnv(where="reset", only_first=tmp_path / "failed") for _ in range(3)]
    with pytest.raises(RuntimeError):
        envs[1].reset()
    for env in envs:
        env.reset()


def test_the_segfaulting_env_dies_of_the_real_signal():
    with run_toy("SegfaultingEnv(where='constructor')") as child:
        assert child.wait(30) == -signal.SIGSEGV
    assert SegfaultingEnv().reset()


@pytest.mark.parametrize("hold_gil", [False, True])
def test_the_hanging_env_hangs_until_it_is_killed(hold_gil):
    child = run_toy(f"print(flush=True); HangingEnv(where='constructor', hold_gil={hold_gil})")
    with child:
        child.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.2)
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert HangingEnv().reset()


LEAK = """
import os
import numpy as np
from polyarm.testing import LeakingEnv
def resident_mb():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
action = np.zeros(2, np.float32)
env = LeakingEnv(mb_per_step=32, at=2)
env.reset()
env.step(action)
before = resident_mb()
env.step(action)
env.step(action)
leaked = resident_mb() - before
env.close()
print(leaked, resident_mb() - before)
"""


def test_the_leaking_env_grows_by_resident_memory_and_lets_go_on_close():
    # In a process of its own: this one may hold freed pages that a leak would merely reuse.
    child = subprocess.run([sys.executable, "-c", LEAK], capture_output=True, check=True)
    leaked, kept = map(float, child.stdout.split())
    assert 60 < leaked < 80
    assert kept < 10


def test_the_chattering_env_writes_below_python(capfd):
    env = ChatteringEnv(nbytes=10_000, at=2)
    env.reset()
    env.step(NOTHING)
    assert capfd.readouterr().err == ""
    env.step(NOTHING)
    assert len(capfd.readouterr().err) == 10_000


@pytest.mark.parametrize("new_session", [False, True])
def test_the_forking_env_leaves_a_child_behind(new_session):
    env = ForkingEnv(new_session=new_session)
    _, info = env.reset()
    env.close()
    assert (os.getsid(info["child_pid"]) == info["child_pid"]) is new_session
    env._child.kill()
    env._child.wait()


@pytest.mark.parametrize("options", [{}, {"binding": True}, {"truncate": True}])
def test_the_toy_suite_passes_the_kit(options):
    check_suite(ToySuite(), cameras=("front", "wrist"), options=options)


def test_the_toy_suite_renders_only_where_a_display_is_attached():
    suite = ToySuite()
    env = suite.make(suite.check(EnvSpec("toy", "count-3", cameras=("front",))))
    with pytest.raises(RuntimeError, match="attach_display"):
        env.reset()
    suite.attach_display(env)
    env.reset()
    env.unwrapped.display_pid = os.getppid()  # as in a worker that was forked afterwards
    with pytest.raises(RuntimeError, match="attach_display"):
        env.step(NOTHING)


class MisnamedSuite(ToySuite):
    def tasks(self):
        return [Task("count-3")]


class UnknownMemberSuite(ToySuite):
    def sets(self):
        return {"all": ("count-4",)}


class CarelessSuite(ToySuite):
    def check(self, spec):
        known = {key: spec.options.get(key, False) for key in ("binding", "truncate")}
        return replace(super().check(replace(spec, options={})), options=known)


class RestlessSuite(ToySuite):
    def check(self, spec):
        # Options of the second check differ from those of the first.
        return super().check(spec).with_options(binding="binding" not in spec.options)


class HeavySuite(ToySuite):
    def tasks(self):
        sys.modules["mujoco"] = ctypes  # stands for the import
        return super().tasks()


class LyingSuite(ToySuite):
    def describe(self, spec):
        return super().describe(replace(spec, image_size=(1, 1)))


class EnvSuite(ToySuite):
    env_class = CountingEnv

    def make(self, spec):
        length = int(spec.task.partition("-")[2])
        return self.env_class(length=length, cameras=spec.cameras, image_size=spec.image_size)

    def attach_display(self, env):
        pass


class ForgetfulEnv(CountingEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class VagueEnv(CountingEnv):
    def _info(self):
        return {"is_success": 0.0}


class DisturbedEnv(CountingEnv):
    def _frame(self, camera):
        self._state[2] += 1
        return super()._frame(camera)


class StubbornEnv(CountingEnv):
    frames_enabled = property(lambda self: True, lambda self, value: None)


class BareEnv(NullEnv):
    def __init__(self, **_):
        super().__init__()


class StaleEnv(CountingEnv):
    def terminal_frame(self):
        return {key: frame * 0 for key, frame in super().terminal_frame().items()}


class DoubleEnv(CountingEnv):
    def _observe(self):
        return {key: value * np.float64(1) for key, value in super()._observe().items()}


class EndlessEnv(CountingEnv):
    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class ShortSightedEnv(CountingEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"episode": options["episode"] % 2**32})


class OneEpisodeEnv(CountingEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"episode": 0})


class SmallSeedEnv(CountingEnv):
    def reset(self, *, seed=None, options=None):
        np.random.RandomState(options["episode"])
        return super().reset(seed=seed, options=options)


class ImpatientEnv(CountingEnv):
    def __init__(self, **options):
        super().__init__(**{**options, "length": 7})


class OldEnv(CountingEnv):
    def step(self, action):
        return super().step(action)[:4]


class FirstOnlyEnv(CountingEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0]


class WorthlessEnv(CountingEnv):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float("nan"), *rest


class RaisingEnv(CountingEnv):
    def step(self, action):
        raise ZeroDivisionError("no such luck")


def changed(**members):
    """A toy suite with other members."""
    return type("ChangedSuite", (ToySuite,), {**members, "__module__": __name__})()


def strict(self, spec):
    if spec.task not in ("count-3", "count-10", "count-50"):
        raise KeyError(spec.task)
    return ToySuite.check(self, spec)


def with_arrays(self, spec):
    return replace(ToySuite.describe(self, spec), provenance={"gains": np.zeros(2)})


def suite_of(env):
    return type(f"{env.__name__}Suite", (EnvSuite,), {"env_class": env, "__module__": __name__})()


@pytest.mark.parametrize(
    ("suite", "complaint"),
    [
        (MisnamedSuite(), "should be named 'toy/<task>'"),
        (UnknownMemberSuite(), "'all' has members"),
        (CarelessSuite(), "accepts an unknown option"),
        (RestlessSuite(), "already completed"),
        (LyingSuite(), "describe\\(\\) gives observation_space"),
        (suite_of(ForgetfulEnv), "depends on those before it"),
        (suite_of(VagueEnv), "must be a bool at every step"),
        (suite_of(DisturbedEnv), "turning frames off changes the episode"),
        (suite_of(StubbornEnv), "with frames_enabled=False .* has keys"),
        (suite_of(StaleEnv), "terminal_frame\\(\\) is not the frame"),
        (suite_of(DoubleEnv), "dtype float64"),
        (suite_of(BareEnv), "lacks"),
        (suite_of(EndlessEnv), "goes on after max_steps=50"),
        (suite_of(ImpatientEnv), "max_steps is 7, and tasks\\(\\) says 50"),
        (suite_of(ShortSightedEnv), "episodes 3 and 4294967299 are the same"),
        (suite_of(OneEpisodeEnv), "episodes 3 and 5 are the same"),
        (suite_of(SmallSeedEnv), "'episode': 4294967299.* raised ValueError"),
        (suite_of(OldEnv), "step\\(\\) returned 4 values, expected \\(observation, reward"),
        (suite_of(FirstOnlyEnv), "reset\\(\\) returned a dict, expected \\(observation, info"),
        (suite_of(WorthlessEnv), "the reward of step 1 is nan"),
        (suite_of(RaisingEnv), "step 1 raised ZeroDivisionError: no such luck"),
        (changed(episodic=property()), "lacks episodic"),
        (changed(tasks=lambda self: ["count-3"]), "expected polyarm.Task"),
        (changed(tasks=lambda self: None), "tasks\\(\\) gives a NoneType"),
        (changed(sets=lambda self: None), "sets\\(\\) gives a NoneType"),
        (changed(sets=lambda self: {"count-3": ("count-10",)}), "both a set and a task"),
        (changed(requirements=lambda self: None), "requirements\\(\\) gives None"),
        (changed(check=lambda self, spec: None), "it returns the completed EnvSpec"),
        (changed(check=strict), "unknown task, which should be an UnknownName, raised KeyError"),
        (changed(describe=lambda self, spec: ()), "expected a polyarm.EnvDescription"),
        (changed(describe=with_arrays), "the provenance cannot be written as JSON"),
        (changed(make=lambda self, spec: None), "make\\(\\) gives None"),
        (changed(make=lambda self, spec: 1 / 0), "make\\(\\) raised ZeroDivisionError"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_the_kit_rejects_a_suite_that_breaks_a_promise(suite, complaint, monkeypatch):
    monkeypatch.setattr("polyarm.testing.suite_checks._check_light", lambda *_: None)
    with pytest.raises(AssertionError, match=complaint):
        check_suite(suite, task="count-50", cameras=("front",))


def test_the_kit_rejects_a_suite_that_imports_a_simulator_in_the_trainer(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", ctypes)  # undone after the test
    with pytest.raises(AssertionError, match="must not import mujoco"):
        check_suite(HeavySuite())


def test_the_kit_plays_an_announced_suite_in_a_worker_too(monkeypatch):
    monkeypatch.setattr(CountingEnv, "step", upset)
    with pytest.raises(AssertionError, match="the env behaves differently in a worker"):
        check_suite(ToySuite(), task="count-10")


def upset(self, action, step=CountingEnv.step):
    """Steps of this process alone: workers import the env as it is."""
    obs, reward, *rest = step(self, action)
    return obs, reward + 1, *rest


def test_a_task_that_is_always_the_same_may_say_so(monkeypatch):
    monkeypatch.setattr("polyarm.testing.suite_checks._check_light", lambda *_: None)
    check_suite(suite_of(OneEpisodeEnv), varied=False)


def test_the_kit_checks_plain_gymnasium_envs_by_their_seeds():
    class NoisySuite(ToySuite):
        def describe(self, spec):
            return None

        def make(self, spec):
            return NoisyEnv()

    check_suite(NoisySuite(), plain=True)

    class UnseededSuite(NoisySuite):
        def make(self, spec):
            env = NoisyEnv()
            env.reset = lambda **_: NoisyEnv.reset(env)
            return env

    with pytest.raises(AssertionError, match="depends on those before it"):
        check_suite(UnseededSuite(), plain=True)


def run_toy(code):
    command = [sys.executable, "-c", f"from polyarm.testing import *; {code}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
