"""What processes of ours set up for themselves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ORPHAN = """
import os, sys
from polyarm.vector import process

process.die_with(int(sys.argv[1]))
print("alive")
"""


def run(parent: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ORPHAN, str(parent)], capture_output=True, text=True, timeout=30
    )


def test_a_process_whose_parent_has_ended_before_it_could_ask_leaves_at_once() -> None:
    late = run(parent=2**22 - 1)
    assert (late.returncode, late.stdout) == (1, "")
    assert run(parent=os.getpid()).stdout == "alive\n"


FORKS = """
import os, sys, time
from polyarm.vector import process

process.become_subreaper()
reader, writer = os.pipe()

def child(number):
    process.die_with(me)
    os.write(writer, b"%d" % number)
    time.sleep(100)

me, fork, allowed = os.getpid(), os.fork, int(sys.argv[1])

def limited():
    global allowed
    allowed -= 1
    if allowed < 0:
        raise BlockingIOError("no more")
    return fork()

os.fork = limited
try:
    pids = process.fork_detached([lambda: child(1), lambda: child(2), lambda: child(3)])
except OSError as error:
    print(error)
    while process.children():
        os.waitpid(-1, 0)
    print("nothing left")
else:
    told = b""
    while len(told) < 3:
        told += os.read(reader, 3)
    assert sorted(told) == sorted(b"123"), told
    assert sorted(pids) == sorted(process.children()), (pids, process.children())
    print("adopted", len(set(pids)))
    for pid in pids:
        process.kill(pid)
        os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        (4, "adopted 3\n"),
        (3, "the host gave 2 of 3 processes\nnothing left\n"),
        (1, "the host gave 0 of 3 processes\nnothing left\n"),
    ],
)
def test_processes_forked_together_are_all_adopted_or_none_is_left(allowed: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(allowed)], capture_output=True, text=True, timeout=30
    )
    assert done.stdout == said, done.stderr
