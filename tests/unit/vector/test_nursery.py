"""Which zygotes go when together they hold too much."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from polyarm.vector import nursery
from polyarm.vector.channel import Channel
from polyarm.vector.nursery import Nursery
from polyarm.vector.orders import Handle, Start
from polyarm.vector.watcher import Watcher

MIB = 1 << 20


@pytest.fixture
def zygotes(monkeypatch) -> Iterator[tuple[Nursery, dict[str, subprocess.Popen[bytes]]]]:
    """Three idle processes that have built something, a used longest ago; each holds 100 MiB."""
    monkeypatch.setattr(nursery, "anonymous_memory", lambda pid: 100 * MIB)
    watcher = Watcher()
    made = Nursery(watcher, (), 250 * MIB, *[lambda *_: None] * 3)
    processes = {}
    for at, name in enumerate("abc"):
        ours, theirs = Channel.pair()
        process = subprocess.Popen(["sleep", "100"])
        handle = Handle(("built", name), Channel(ours, blocking=False), {}, 1.0)
        handle.unborn, handle.pid, handle.ready, handle.used_at = theirs, process.pid, True, at
        made._register(handle)
        processes[name] = process
    yield made, processes
    for handle in made:
        made.fail(handle, {"message": "the test is over"})
    for process in processes.values():
        process.kill()
        process.wait()
    watcher.close()


def test_the_least_recently_used_zygote_goes_first(zygotes):
    made, processes = zygotes
    made.evict()
    assert [handle.key for handle in made] == [("built", "b"), ("built", "c")]
    assert processes["a"].wait(10) == -9
    assert processes["b"].poll() is None
    made.evict()  # they fit now
    assert len(list(made)) == 2


def test_what_a_zygote_says_after_a_failure_is_said_of_nobody(zygotes, monkeypatch):
    made, _ = zygotes
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(
        made, "_on_started", lambda start, pid: told.append(("started", start.worker))
    )
    monkeypatch.setattr(
        made, "_on_failed", lambda start, why: told.append(("failed", start.worker))
    )
    handle, *_ = made
    starts = [Start({"worker": number}, os.eventfd(0)) for number in range(2)]
    handle.sent.extend(starts)
    zygote = Channel(handle.unborn, blocking=True)
    zygote.send({"ok": False, "message": "cannot fork"})
    zygote.send({"ok": True, "pid": 4711})
    made._receive(handle)
    for start in starts:
        start.drop()
    assert told == [("failed", 0), ("failed", 1)]


def test_what_is_at_work_and_what_was_used_last_stays(zygotes, monkeypatch):
    made, processes = zygotes
    first, *_ = made
    first.ready = False
    monkeypatch.setattr(nursery, "anonymous_memory", lambda pid: 1000 * MIB)
    made.evict()
    assert [handle.key for handle in made] == [("built", "a"), ("built", "c")]
    assert processes["b"].wait(10) == -9


def test_a_zygote_that_builds_beyond_its_deadline_has_time_while_it_is_at_work(zygotes):
    made, processes = zygotes
    busy, asleep, _ = made
    processes["busy"] = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    busy.pid = processes["busy"].pid
    for handle in (busy, asleep):
        handle.ready, handle.timeout_s = False, 0.3
        handle.expect_answer()
    had_time = 0
    end = time.monotonic() + 60
    while not busy.overdue and time.monotonic() < end:
        time.sleep(0.02)
        had_time += made.check_deadlines(time.monotonic())
    assert had_time >= 1
    assert asleep.overdue
    assert processes["busy"].wait(10) == -6
