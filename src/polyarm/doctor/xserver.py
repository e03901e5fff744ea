"""Xvfb, and the screens and room of an X server that somebody else runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from polyarm.display import external
from polyarm.display.rank import local_rank
from polyarm.doctor import child
from polyarm.doctor.case import Case
from polyarm.doctor.findings import Finding, install

TIMEOUT_S = 30.0

MOST_SCREENS = 16
"""As many as an X server can have."""

CLIENTS_PER_WORKER = 2
"""The simulator's own connection, and that of a probe or of a successor that overlaps with it."""

DEFAULT_MAX_CLIENTS = 256

_CONFIGURATION = (Path("/etc/X11/xorg.conf"), Path("/etc/X11/xorg.conf.d"))
_LOCKS = Path("/tmp")
_UNIX_SOCKETS = Path("/proc/net/unix")
_CONNECTED = "03"
_CONFIGURED = {"X", "Xorg"}
"""Servers that read ``xorg.conf``; the others have their arguments alone."""

_SERVERS = {*_CONFIGURED, "Xvfb", "Xephyr", "Xwayland", "Xtigervnc", "Xvnc"}
_UNSEEN = "the X server's default; its process cannot be seen from here"
_XORG = "`polyarm setup xorg` writes a configuration with a screen per GPU"


def check_xvfb(case: Case) -> Iterator[Finding]:
    """Whether workers can have an X server of their own."""
    if path := shutil.which("Xvfb"):
        yield Finding("Xvfb", "ok", path)
        return
    finding = Finding("Xvfb", "missing", "workers cannot have X servers", install(["xvfb"]))
    yield finding if case.needs_x and not external.wanted() else finding.optional()


def check_screens(case: Case) -> Iterator[Finding]:
    """Each screen of the server that the environment names, and its room for clients."""
    name = external.display_name("", local_rank())
    if not name:
        if case.needs_x:
            text = "no server is named: each worker starts an Xvfb"
            yield Finding("X server", "ok", text)
        return
    server = name.rpartition(".")[0] if "." in name.rpartition(":")[2] else name
    based = any(os.environ.get(variable) for variable in external.BASE_DISPLAY)
    needed = case.needs_x and external.wanted()
    # A display without a screen for each rank is tried by the test frames, as it is.
    screens = _screens(server, name, case) if based else []
    for finding in [*screens, *_clients(server, case)]:
        yield finding if needed else finding.optional()


def max_clients(number: int) -> tuple[int, str]:
    """How many clients the local server ``:number`` takes, and where that is said."""
    if not (words := _server(number)):
        return DEFAULT_MAX_CLIENTS, _UNSEEN
    said = words[words.index("-maxclients") + 1 :][:1] if "-maxclients" in words else []
    if said and said[0].isdecimal():
        return int(said[0]), "the server's -maxclients"
    if Path(words[0]).name in _CONFIGURED:
        for file in _configuration(words):
            text = file.read_text(errors="replace") if file.is_file() else ""
            if told := re.search(r'^\s*Option\s+"MaxClients"\s+"(\d+)"', text, re.M | re.I):
                return int(told[1]), str(file)
    return DEFAULT_MAX_CLIENTS, f"the default of {Path(words[0]).name}"


def _server(number: int) -> list[str]:
    """The command line of the local server ``:number``, or [] if it cannot be seen."""
    lock = _LOCKS / f".X{number}-lock"
    with contextlib.suppress(OSError, ValueError):
        words = _words(Path(f"/proc/{int(lock.read_text())}/cmdline"))
        if words:
            return words
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        words = _words(process)
        if words and f":{number}" in words:
            return words
    return []


def _words(process: Path) -> list[str]:
    """The command line of a process, if it is an X server."""
    try:
        words = process.read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it ended meanwhile
        return []
    return words if Path(words[0]).name in _SERVERS else []


def _configuration(words: list[str]) -> list[Path]:
    """The files that a server reads, the most important first."""
    main, folder = _CONFIGURATION
    if "-config" in words[:-1]:
        main = main.parent / words[words.index("-config") + 1]
    return [main, *sorted(folder.glob("*.conf"), reverse=True)]


def _screens(server: str, name: str, case: Case) -> Iterator[Finding]:
    """Probe ``:N.0``, ``:N.1`` … until there is no such screen."""
    found = 0
    for screen in (f"{server}.{index}" for index in range(MOST_SCREENS)):
        ended = child.run_python(external.__file__, screen, timeout_s=TIMEOUT_S)
        if ended.status == 0:
            found += 1
            mine = " (this rank's)" if screen == name else ""
            took = f"{ended.seconds * 1e3:.0f} ms"
            yield Finding(f"screen {screen}", "ok", f"{ended.stdout.strip()}{mine}, {took}")
        elif found and "no X server answers" in ended.stderr:
            break
        else:
            fix = f"start it, or give {external.BASE_DISPLAY[0]} another server. {_XORG}"
            yield Finding(f"screen {screen}", "broken", ended.complaint, fix)
            return
    if 0 < found < len(case.gpus):
        text = f"{found} for {len(case.gpus)} GPUs: the other GPUs cannot render"
        yield Finding("X screens", "warning", text, _XORG)


def _clients(server: str, case: Case) -> Iterator[Finding]:
    host, _, number = server.rpartition(":")
    if host or not number.isdecimal():
        return  # another machine's, or tunnelled: its limit cannot be told from here
    limit, source = max_clients(int(number))
    now, planned = _connections(int(number)), case.workers * CLIENTS_PER_WORKER
    text = f"{limit} ({source}); {now} now, about {planned} for {case.workers} workers"
    if now + planned <= limit:
        yield Finding("X MaxClients", "ok", text)
        return
    finding = Finding("X MaxClients", "broken", text, _clients_fix(int(number)))
    yield finding.optional() if source == _UNSEEN else finding


def _clients_fix(number: int) -> str:
    program = Path((_server(number) or ["X"])[0]).name
    if program not in _CONFIGURED:
        return f"start it as {program} :{number} -maxclients 2048 …; or use display='xvfb'"
    return (
        "polyarm setup xorg --write --max-clients 2048, then start X as it says; or use "
        "display='xvfb'"
    )


def _connections(number: int) -> int:
    """Clients that the local server has now, by its ends of their sockets."""
    rows = [line.split() for line in _UNIX_SOCKETS.read_text().splitlines()[1:]]
    ends = (f"/tmp/.X11-unix/X{number}", f"@/tmp/.X11-unix/X{number}")
    return sum(len(row) > 7 and row[5] == _CONNECTED and row[7] in ends for row in rows)
