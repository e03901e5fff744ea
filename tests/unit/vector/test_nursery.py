"""Which zygotes go when together they hold too much."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from polyarm.vector import nursery
from polyarm.vector.channel import Channel
from polyarm.vector.nursery import Nursery
from polyarm.vector.orders import Handle
from polyarm.vector.watcher import Watcher

MIB = 1 << 20


@pytest.fixture
def zygotes(monkeypatch) -> Iterator[tuple[Nursery, dict[str, subprocess.Popen[bytes]]]]:
    """Three idle processes that have built something, a used longest ago; each holds 100 MiB."""
    monkeypatch.setattr(nursery, "private_memory", lambda pid: 100 * MIB)
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


def test_what_is_at_work_and_what_was_used_last_stays(zygotes, monkeypatch):
    made, processes = zygotes
    first, *_ = made
    first.ready = False
    monkeypatch.setattr(nursery, "private_memory", lambda pid: 1000 * MIB)
    made.evict()
    assert [handle.key for handle in made] == [("built", "a"), ("built", "c")]
    assert processes["b"].wait(10) == -9
