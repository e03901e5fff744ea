"""Xvfb: started without guessing, gone without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polyarm.display import xvfb


def is_there(number: int) -> bool:
    return Path(f"/tmp/.X11-unix/X{number}").exists()


def is_left_behind(number: int) -> bool:
    """Whether a socket is there that nobody serves; a new server may have taken the number."""
    path = Path(f"/tmp/.X11-unix/X{number}")
    return path.exists() and f" {path}\n" not in Path("/proc/net/unix").read_text()


def test_a_server_takes_connections_when_it_is_started():
    server = xvfb.start()
    try:
        assert server.runs()
        assert xvfb.numbers_of(server.pid) == {server.number}
        assert is_there(server.number)
    finally:
        server.close()
    assert not is_left_behind(server.number)
    assert not server.runs()


def test_servers_started_at_once_have_numbers_of_their_own():
    with ThreadPoolExecutor(6) as pool:
        servers = list(pool.map(lambda _: xvfb.start(), range(6)))
    try:
        assert len({server.number for server in servers}) == 6
    finally:
        for server in servers:
            server.close()


def test_a_killed_server_leaves_nothing_once_it_is_closed():
    server = xvfb.start()
    os.kill(server.pid, signal.SIGKILL)
    server.close()
    assert not is_left_behind(server.number)


def test_a_stopped_server_is_ended_all_the_same():
    server = xvfb.start()
    os.kill(server.pid, signal.SIGSTOP)
    server.close()
    assert not server.runs()
    assert not is_left_behind(server.number)


def test_files_of_a_number_that_somebody_else_has_taken_stay():
    server = xvfb.start()
    try:
        xvfb.remove_files(2**22 + 1, [server.number])
        assert is_there(server.number)
    finally:
        server.close()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_goes_when_the_process_that_started_it_goes(end: signal.Signals):
    script = """
        import time
        from polyarm.display import xvfb
        server = xvfb.start()
        print(server.pid, server.number, flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        pid, number = map(int, owner.stdout.readline().split())
        owner.send_signal(end)
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() or is_left_behind(number):
        assert time.monotonic() < deadline, "the server, or its socket, is still there"
        time.sleep(0.01)


def test_a_shared_server_is_started_again_when_it_has_died():
    screen = xvfb.SharedScreen()
    try:
        first = screen.name()
        assert screen.name() == first
        (pid,) = screen.pids()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert screen.name()
        assert screen.pids() != {pid}
    finally:
        screen.close()
    assert screen.pids() == set()


def test_a_program_that_is_not_an_x_server_is_reported(tmp_path, monkeypatch):
    fake = tmp_path / "Xvfb"
    fake.write_text("#!/bin/sh\necho 'no screens found' >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(RuntimeError, match="no screens found"):
        xvfb.start()


def test_a_server_that_never_answers_is_given_up(tmp_path, monkeypatch):
    fake = tmp_path / "Xvfb"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(RuntimeError, match=r"did not answer within 0.3 s"):
        xvfb.start(timeout_s=0.3)
