"""Standard error of workers: captured at C level, always drained, bounded, shown on failure."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import cloudpickle
import pytest

import polyarm
from polyarm.errors import BuildError
from polyarm.testing import ChatteringEnv, CountingEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("start", ["imports", "fresh"])
@pytest.mark.parametrize("where", ["step", "constructor", "close"])
def test_ten_megabytes_of_stderr_block_nobody(probe, where, start):
    began = time.monotonic()
    with polyarm.make_vec(
        lambda: ChatteringEnv(nbytes=10 << 20, where=where), num_envs=2, start=start
    ) as envs:
        look = probe(envs)
        envs.reset()
        assert envs.step(look.actions())[1].tolist() == [1, 1]
    assert time.monotonic() - began < 30


def test_chatter_in_a_forked_builder_blocks_nobody(probe):
    with polyarm.make_vec(
        lambda: ChatteringEnv(nbytes=10 << 20, where="constructor"), num_envs=2, start="built"
    ) as envs:
        envs.reset()


def test_the_tail_is_bounded_and_holds_the_last_lines(probe, tmp_path):
    class Talker(CountingEnv):
        def step(self, action):
            if self.step_number == 2:
                for n in range(20000):
                    os.write(2, b"line %06d .....................\n" % n)
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(action)

    with polyarm.make_vec(Talker, num_envs=1) as envs:
        look = probe(envs)
        envs.reset()
        for _ in range(3):
            info = envs.step(look.actions())[-1]
        error = info["error"][0]
        assert "line 019999" in error.stderr
        assert "line 000000" not in error.stderr
        assert len(error.stderr) <= 20_000


def test_lines_from_c_and_from_python_are_shown_when_a_worker_dies(probe):
    class CTalker(CountingEnv):
        def step(self, action):
            libc = ctypes.CDLL(None)
            libc.dprintf(2, b"words from C\n")
            sys.stderr.write("words from Python\n")
            os.system("echo words from a child >&2")
            ctypes.string_at(0)

    with polyarm.make_vec(CTalker, num_envs=1) as envs:
        look = probe(envs)
        envs.reset()
        error = envs.step(look.actions())[-1]["error"][0]
        for words in ("words from C", "words from Python", "words from a child"):
            assert words in error.stderr
            assert words in str(error)
        assert "Segmentation fault" in error.stack
        assert "Segmentation fault" not in error.stderr


@pytest.mark.parametrize("start", ["built", "imports", "fresh"])
def test_what_a_constructor_wrote_is_shown_when_it_raises(start):
    class Talker(CountingEnv):
        def __init__(self):
            os.write(2, b"about to fail\n")
            raise OSError("failed")

    for _ in range(3):
        with pytest.raises(BuildError, match="about to fail"):
            polyarm.make_vec(Talker, num_envs=1, start=start)


def test_nothing_reaches_the_trainers_stderr(probe, capfd):
    with polyarm.make_vec(lambda: ChatteringEnv(nbytes=1000), num_envs=1) as envs:
        envs.reset()
        envs.step(probe(envs).actions())
    assert "chatter" not in capfd.readouterr().err


def test_a_descendant_that_keeps_stderr_open_does_not_delay_the_report(probe):
    class Daemonic(CountingEnv):
        def step(self, action):
            os.system("setsid sleep 1000 >/dev/null &")
            os._exit(9)

    with polyarm.make_vec(Daemonic, num_envs=1) as envs:
        look = probe(envs)
        envs.reset()
        began = time.monotonic()
        error = envs.step(look.actions())[-1]["error"][0]
        assert "exit status 9" in error.message
        assert time.monotonic() - began < 10
