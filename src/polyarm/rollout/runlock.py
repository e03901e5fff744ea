"""A lock that is an ordinary file: who holds it, and a heartbeat to tell the dead from the living.

On one machine the holder's process is looked up; from another machine or container, a heartbeat
older than `STALE_S` means that the holder is gone. Ages are measured by the file system's own
clock. A second name of the file is a *claim*: it says who made it, and has the same heartbeat.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyarm.errors import RunConflict

BEAT_S = 10.0
STALE_S = 180.0
"""More than a network file system may keep the time of the last heartbeat from other hosts."""

_LOOK_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """What has started a process, and would start another one in its place.

    Attributes:
        name: The same for both; "" if nothing would.
        attempt: Which of them it is: a successor's is larger.
    """

    name: str = ""
    attempt: tuple[int, ...] = ()


class RunLock:
    """Held from construction until `release`; its heart beats in a thread of its own.

    Args:
        path: The lock's file.
        job: What has started this process; its predecessor, of an earlier attempt on another host,
            is waited for: it was killed, or it would not have been replaced.
        waiting: Called now and then meanwhile; what it raises ends the wait.
        **about: What others may read in it, beside who holds it.

    Attributes:
        path: The lock's file.

    Raises:
        RunConflict: Somebody who is alive holds it.
    """

    def __init__(
        self,
        path: Path,
        *,
        job: Job = Job(),  # noqa: B008  it cannot be changed
        waiting: Callable[[], None] = lambda: None,
        **about: Any,
    ) -> None:
        self.path = path
        self._me = {**_this_process(), "job": job.name, "attempt": list(job.attempt), **about}
        self._waiting = waiting
        self._held = False
        self._beaten_at = time.monotonic()
        self._released = threading.Event()
        # Containers may have their host's name, but pids of their own.
        mine = path.with_name(f"{path.name}.{self._me['host']}.{os.getpid()}.{uuid.uuid4().hex}")
        try:
            mine.write_text(json.dumps(self._me))
            self._take(mine)
        finally:
            mine.unlink(missing_ok=True)
        self._held = True
        self._heart = threading.Thread(target=self._beat_on, name="polyarm-lock", daemon=True)
        self._heart.start()

    def beat(self) -> None:
        """Renew the lock, if it is time to.

        Raises:
            RunConflict: It is somebody else's by now, because this process stood still for long.
        """
        now = time.monotonic()
        if self._held and now - self._beaten_at > BEAT_S:
            self._beaten_at = now
            if (holder := _read(self.path)) != self._me:
                who = f"process {holder['pid']} on {holder['host']}" if holder else "somebody"
                raise RunConflict(f"{self.path.parent} was taken over by {who}; stopping here")
            os.utime(self.path)

    def claim(self, path: Path) -> bool:
        """Make a claim, which only one can have; returns whether it is ours.

        A claim whose maker is gone is taken over.
        """
        for _ in range(2):
            try:
                os.link(self.path, path)  # atomic on NFS too
            except FileExistsError:
                if self._is_ours(path):
                    return True
                if living_holder(path) is not None:
                    return False
                clear_away(path)
            except FileNotFoundError:
                raise RunConflict(f"{self.path} is gone; somebody has taken the folder") from None
            else:
                return True
        return False

    def release(self) -> None:
        """Let others have it."""
        if self._held:
            self._held = False
            self._released.set()
            self._heart.join()
            if _read(self.path) == self._me:
                self.path.unlink(missing_ok=True)

    def _is_ours(self, path: Path) -> bool:
        return _read(path) == self._me

    def _beat_on(self) -> None:
        """The policy may take minutes over a decision; others must not think that we are gone."""
        while not self._released.wait(BEAT_S or 1.0):
            with contextlib.suppress(OSError):  # told by the next `beat`
                if self._is_ours(self.path):
                    os.utime(self.path)

    def _take(self, mine: Path) -> None:
        deadline = time.monotonic() + 2 * STALE_S
        for _ in range(3):
            try:
                os.link(mine, self.path)
            except FileExistsError:
                with contextlib.suppress(FileNotFoundError):
                    if self.path.samefile(mine):
                        return  # NFS repeats a request whose answer was lost
                self._await_predecessor(deadline)
                clear_away(self.path)
            else:
                return
        raise RunConflict(f"{self.path} is being taken by several processes at once")

    def _await_predecessor(self, deadline: float) -> None:
        told = False
        while (holder := living_holder(self.path)) is not None:
            folder = self.path.parent
            if not self._succeeds(holder) or time.monotonic() > deadline:
                raise RunConflict(in_use(folder, holder)) from None
            if not told:
                who = f"process {holder['pid']} of this job, on {holder['host']}"
                _log.warning(
                    "%s is held by %s; waiting until that is known to be gone", folder, who
                )
            told = True
            self._waiting()
            time.sleep(_LOOK_S)

    def _succeeds(self, holder: dict[str, Any]) -> bool:
        me = self._me
        same_job = bool(me["job"]) and holder.get("job") == me["job"]
        earlier = holder.get("attempt", me["attempt"]) < me["attempt"]
        return same_job and earlier and _is_elsewhere(holder, me)


def in_use(folder: Path, holder: dict[str, Any]) -> str:
    """Why a folder cannot be had."""
    return (
        f"{folder} is in use by process {holder['pid']} on {holder['host']}; wait for it, stop it,"
        " or choose another folder"
    )


def living_holder(path: Path) -> dict[str, Any] | None:
    """Who holds a lock or has made a claim; None if nobody has, or they are gone."""
    holder = _read(path)
    if holder is None:
        return None
    me = _this_process()
    if _is_elsewhere(holder, me):
        return holder if _age_s(path) < STALE_S else None
    same_boot = holder.get("boot") == me["boot"]
    lives = same_boot and holder.get("started") == start_of(int(holder["pid"]))
    return holder if lives else None


def _is_elsewhere(holder: dict[str, Any], me: dict[str, Any]) -> bool:
    """Whether a process cannot be looked up from here."""
    if holder.get("host") != me["host"]:
        return True
    # Containers may have their host's name, but pids of their own; none outlives a boot.
    same_boot = holder.get("boot") == me["boot"]
    return bool(same_boot and holder.get("pids", me["pids"]) != me["pids"])


def clear_away(path: Path) -> None:
    """Remove a stale file, unless somebody else has just replaced it with a living one."""
    if not path.exists() or living_holder(path) is not None:
        return  # moving a living one, even for a moment, would let two have it
    stale = path.with_name(f"{path.name}.stale.{socket.gethostname()}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(stale)  # only one of several can have it
        if living_holder(stale) is not None:
            with contextlib.suppress(FileExistsError):
                os.link(stale, path)
    stale.unlink(missing_ok=True)


def start_of(pid: int) -> str:
    """When a process was started, in clock ticks; "" if there is none, or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, *rest = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pids": _pid_namespace(),
        "pid": os.getpid(),
        "started": start_of(os.getpid()),
    }


def _age_s(path: Path) -> float:
    """Seconds since a file's last heartbeat, by the clock of its file system."""
    now = path.with_name(f".now.{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}")
    try:
        now.touch()
        return now.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return STALE_S
    finally:
        now.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """What a lock's file says, if it is there."""
    try:
        holder: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return holder


def _pid_namespace() -> str:
    """Where a pid means the same process."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
