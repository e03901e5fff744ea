"""Which processes hang, and which get more time: those that compute or wait for a core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from polyarm.vector import overdue
from polyarm.vector.overdue import LongCall

BUSY = "while True: pass"
IN_A_THREAD = """
import threading

def compute():
    while True: pass

threading.Thread(target=compute).start()
"""
LOOKING = "import time\nwhile True: time.sleep(0.02)"


@contextmanager
def running(code):
    """The pid of a Python that has begun to run this."""
    command = [sys.executable, "-c", f"print(flush=True)\n{code}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def looks(call, limit_s, *, most):
    """Looks until the call is given up, as often as ``most``; how often it was left alone."""
    for number in range(most):
        time.sleep(0.05)
        if call.hangs(limit_s, time.monotonic()):
            return number
    return most


def begun(pid, ago_s=0.0):
    now = time.monotonic()
    return LongCall(pid, now - ago_s, now)


@pytest.mark.parametrize("code", [BUSY, IN_A_THREAD])
def test_who_computes_goes_on_until_it_has_computed_for_as_long_as_the_limit(code):
    with running(code) as pid:
        before = overdue.cpu_seconds(pid)
        call = begun(pid)
        assert looks(call, 0.3, most=400) >= 1
        assert overdue.cpu_seconds(pid) - before >= 0.29


@pytest.mark.parametrize("code", ["import time; time.sleep(600)", LOOKING])
def test_who_sleeps_hangs_also_if_it_looks_now_and_then_whether_it_may_go_on(code):
    with running(code) as pid:
        assert looks(begun(pid), 60.0, most=40) < 40


def test_who_has_been_stopped_hangs():
    with running(BUSY) as pid:
        os.kill(pid, signal.SIGSTOP)
        assert looks(begun(pid), 60.0, most=40) < 40


def test_who_waits_for_a_core_goes_on_although_it_gets_none(monkeypatch):
    with running(BUSY) as pid:
        monkeypatch.setattr(overdue, "cpu_seconds", lambda pid: 1.0)
        assert looks(begun(pid), 60.0, most=5) == 5


def test_nobody_goes_on_for_ever():
    with running(BUSY) as pid:
        assert looks(begun(pid, ago_s=590), 60.0, most=1) == 1
        assert looks(begun(pid, ago_s=601), 60.0, most=1) == 0


def test_a_process_that_is_gone_hangs():
    assert begun(2**22 - 1).hangs(60.0, time.monotonic())
