"""A lock that is an ordinary file: who holds it, and a heartbeat to tell the dead from the living.

On one machine the holder's process is looked up; from another machine, a heartbeat older than
`STALE_S` means that the holder is gone. Ages are measured by the file system's own clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from polyarm.errors import RunConflict

BEAT_S = 10.0
STALE_S = 900.0


class RunLock:
    """Held from construction until `release`.

    Args:
        path: The lock's file.

    Raises:
        RunConflict: Somebody who is alive holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._me = {
            "host": socket.gethostname(),
            "boot": _boot_id(),
            "pid": os.getpid(),
            "started": _start_of(os.getpid()),
        }
        self._held = False
        self._beaten_at = time.monotonic()
        mine = path.with_name(f"{path.name}.{self._me['host']}.{os.getpid()}")
        try:
            mine.write_text(json.dumps(self._me))
            self._take(mine)
        finally:
            mine.unlink(missing_ok=True)
        self._held = True

    def beat(self) -> None:
        """Renew the lock, if it is time to.

        Raises:
            RunConflict: It is somebody else's by now, because this process stood still for long.
        """
        now = time.monotonic()
        if self._held and now - self._beaten_at > BEAT_S:
            self._beaten_at = now
            if (holder := self._read()) != self._me:
                who = f"process {holder['pid']} on {holder['host']}" if holder else "somebody"
                raise RunConflict(f"{self._path.parent} was taken over by {who}; stopping here")
            os.utime(self._path)

    def release(self) -> None:
        """Let others have it."""
        if self._held:
            self._held = False
            if self._read() == self._me:
                self._path.unlink(missing_ok=True)

    def _take(self, mine: Path) -> None:
        for _ in range(3):
            try:
                os.link(mine, self._path)  # atomic on NFS too
            except FileExistsError:
                if (holder := self._holder(mine)) is not None:
                    raise RunConflict(
                        f"{self._path.parent} is in use by process {holder['pid']} on"
                        f" {holder['host']}; wait for it, stop it, or choose another folder"
                    ) from None
                self._clear_away(mine)
            else:
                return
        raise RunConflict(f"{self._path} is being taken by several processes at once")

    def _clear_away(self, mine: Path) -> None:
        """Remove a stale lock, unless somebody else has just replaced it with a living one."""
        stale = self._path.with_name(f"{self._path.name}.stale.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(stale)  # only one of several can have it
            age_s = mine.stat().st_mtime - stale.stat().st_mtime
            if (taken := _read(stale)) is not None and self._is_alive(taken, age_s):
                with contextlib.suppress(FileExistsError):
                    os.link(stale, self._path)
        stale.unlink(missing_ok=True)

    def _holder(self, mine: Path) -> dict[str, Any] | None:
        """Who holds the lock, or None if they are gone."""
        try:
            age_s = mine.stat().st_mtime - self._path.stat().st_mtime
        except FileNotFoundError:
            return None
        if (holder := self._read()) is None:
            return None
        return holder if self._is_alive(holder, age_s) else None

    def _is_alive(self, holder: dict[str, Any], age_s: float) -> bool:
        if holder.get("host") != self._me["host"]:
            return age_s < STALE_S
        same_boot = bool(holder.get("boot") == self._me["boot"])
        return same_boot and holder.get("started") == _start_of(int(holder["pid"]))

    def _read(self) -> dict[str, Any] | None:
        return _read(self._path)


def _read(path: Path) -> dict[str, Any] | None:
    """What a lock's file says, if it is there."""
    try:
        holder: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return holder


def _start_of(pid: int) -> str:
    """When a process was started, in clock ticks; "" if there is none, or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, *rest = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
