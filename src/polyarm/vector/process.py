"""What a process of ours sets up for itself: who it dies with, its name, what it keeps open.

Standard library only: the fork server imports this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
WORKER_TAG = "POLYARM_WORKER_PID"
"""Variable by which what a worker starts can be told from what another one started."""

REPORT = struct.Struct("<qqqq")
"""What a worker tells the fork server: its index and generation, and pid and number of its X server
if that is what it tells; else that its envs are built."""

_PID = struct.Struct("<q")

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int | bytes) -> None:
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}): {os.strerror(errno)}")


def set_name(name: str) -> None:
    """Set the name ``ps`` and ``top`` show, 15 characters at most."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def become_subreaper() -> None:
    """Adopt all orphaned descendants, so that none can escape the fork server."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Be killed when ``parent`` ends; leave at once if it has ended already.

    The parent must be single-threaded: the kernel fires when the *thread* that is the parent ends.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def thread_count() -> int:
    """Threads of this process; a fork is safe with exactly one."""
    return len(os.listdir("/proc/self/task"))


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor above the standard three that is not in ``keep``."""
    kept = set(keep)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)


def occupy_standard_streams() -> None:
    """Open what is closed of the first three descriptors, or another file would take its place.

    What C libraries write to stderr would then go into the shared block.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free


def be_expendable() -> None:
    """No core dumps, and the first to go when the host runs out of memory."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("600")


def yield_to_trainer() -> None:
    """Never preempt the trainer while it wakes the others.

    In a bare loop of eventfds and a pipe, 32 workers on 2 cores, a round took 148 µs, not 220.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def run_and_leave(main: Callable[[], object]) -> NoReturn:
    """Run ``main`` and end the process without running the exit handlers it was forked with."""
    import traceback

    status = 70
    try:
        main()
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001  the process ends here; its last words go to the captured stderr
        traceback.print_exc()
    finally:
        os._exit(status)


def fork_detached(mains: Sequence[Callable[[], object]]) -> list[int]:
    """Fork processes that are adopted by the subreaper above, and return their pids.

    The process in between ends at once, so this one need not reap anybody later.

    Raises:
        OSError: The host gives no more processes.
    """
    reader, writer = os.pipe()
    try:
        middle = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if middle == 0:
        try:
            _fork_and_tell(mains, reader, writer)
        finally:
            os._exit(0)
    os.close(writer)
    told = b""
    while len(told) < _PID.size * len(mains) and (more := os.read(reader, 4096)):
        told += more
    os.close(reader)
    os.waitpid(middle, 0)
    pids = [pid for (pid,) in _PID.iter_unpack(told)]
    if len(pids) < len(mains):
        for pid in pids:
            kill(pid)
        raise OSError(f"the host gave {len(pids)} of {len(mains)} processes")
    return pids


def _fork_and_tell(mains: Sequence[Callable[[], object]], reader: int, writer: int) -> None:
    me = os.getpid()
    gate, ours = os.pipe()
    for main in mains:
        child = os.fork()
        if child == 0:
            for fd in (reader, writer, ours):
                os.close(fd)
            os.read(gate, 1)  # the end of this pipe is that of the process in between, or nearly so
            while os.getppid() == me:  # until the subreaper has adopted this process
                os.sched_yield()
            os.close(gate)
            run_and_leave(main)
        os.write(writer, _PID.pack(child))


def signal_name(number: int) -> str:
    """A signal's name; real-time signals have none of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill(pid: int) -> bool:
    """SIGKILL a process of ours, if it has not ended already.

    Returns:
        False if it may not be signalled, as it has become another user's (sudo, setuid programs).
    """
    with contextlib.suppress(ProcessLookupError):
        try:
            os.kill(pid, signal.SIGKILL)
        except PermissionError:
            return False
    return True


def how_it_ended(pid: int, patience_s: float = 0.2) -> str:
    """How a child that is ending ended, in words; reaps it."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            break
        if reaped:
            code = os.waitstatus_to_exitcode(status)
            return f"of {signal_name(-code)}" if code < 0 else f"with exit status {code}"
        time.sleep(0.001)
    return "for an unknown reason"


def owner(pid: int) -> int | None:
    """The worker a process belongs to, by the tag its environment carries or by its session."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        tags = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for tag in tags:
        if tag.startswith(WORKER_TAG.encode() + b"="):
            return int(tag.partition(b"=")[2])
    return int(stat.rsplit(")", 1)[1].split()[3])


def children() -> list[int]:
    """Pids of this process's children, zombies included."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return [int(pid) for pid in text.split()]
    except OSError:
        return _scan_children()


def _scan_children() -> list[int]:
    me = os.getpid()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = Path(f"/proc/{name}/stat").read_text()
                if int(stat.rsplit(")", 1)[1].split()[1]) == me:
                    found.append(int(name))
    return found
