"""Xvfb: an X server without a screen, for simulators that insist on one.

The server chooses its own free number (``-displayfd``), so two of them never meet, and it is told
by the kernel to leave when the process that started it ends, however it ends. One that is killed
outright leaves its socket behind, which `remove_files` removes.

Runs as a script to prove itself, or to become a server. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ENV = {"MUJOCO_GL": "glfw", "PYOPENGL_PLATFORM": "glx", "QT_QPA_PLATFORM": "xcb"}
"""What a process needs in its environment, besides the server's name in ``DISPLAY``."""

START_TIMEOUT_S = 20.0
FIX = "Fix: apt-get install xvfb libgl1-mesa-dri libgl1."

_ATTEMPTS = 3
_FAREWELL_S = 2.0
_PR_SET_PDEATHSIG = 1
# Never reset: a server would start over, and lose its GL state, whenever its last client leaves.
_ARGUMENTS = ("-screen", "0", "1280x1024x24", "-nolisten", "tcp", "-noreset", "+extension", "GLX")
_SOCKETS = "/tmp/.X11-unix/X"


class XServer:
    """A running Xvfb, a child of this process.

    Attributes:
        number: The one it chose.
        name: What goes into ``DISPLAY``.
        pid: Its process id.
    """

    def __init__(self, process: subprocess.Popen[bytes], number: int) -> None:
        self.number = number
        self.name = f":{number}"
        self.pid = process.pid
        self._process = process

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the server; nothing of it is left, whatever it takes."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_FAREWELL_S)
            except subprocess.TimeoutExpired:
                _kill(self._process)
        remove_files(self.pid, [self.number])


class SharedScreen:
    """One server for many processes, started when it is first needed and again when it has died."""

    def __init__(self) -> None:
        self._server: XServer | None = None

    def name(self) -> str:
        """What goes into ``DISPLAY``.

        Raises:
            OSError: Xvfb is not installed.
            RuntimeError: It does not start.
        """
        if self._server is None or not self._server.runs():
            self.close()
            self._server = start()
        return self._server.name

    def pids(self) -> set[int]:
        """The server's pid, while there is one."""
        return set() if self._server is None else {self._server.pid}

    def close(self) -> None:
        """End the server, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None


def start(timeout_s: float = START_TIMEOUT_S) -> XServer:
    """Start a server with a number of its own and wait until it takes connections.

    Raises:
        OSError: Xvfb is not installed.
        RuntimeError: It ended, or did not answer in time.
    """
    if shutil.which("Xvfb") is None:
        raise OSError("Xvfb is not installed")
    end = time.monotonic() + timeout_s
    complaint = ""
    for _ in range(_ATTEMPTS):
        reader, writer = os.pipe()
        words = os.memfd_create("polyarm-xvfb")
        with open(reader, "rb", buffering=0) as answers, open(words, "rb") as errors:
            try:
                process = _spawn(writer, words)
            finally:
                os.close(writer)
            number = _read_number(answers.fileno(), end)
            if number is not None:
                return XServer(process, number)
            numbers = numbers_of(process.pid)
            _kill(process)
            remove_files(process.pid, numbers)
            errors.seek(0)
            complaint = _last_words(errors.read())
        if time.monotonic() > end:
            raise RuntimeError(f"Xvfb did not answer within {timeout_s:g} s. {complaint}")
    raise RuntimeError(f"Xvfb does not start: {complaint or 'it says nothing'}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a server that does not end by itself; one that not even this ends is left behind."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_FAREWELL_S)


def numbers_of(pid: int) -> set[int]:
    """Numbers of the displays that a process serves; cheap for one that is no Xvfb."""
    held = set()
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text() != "Xvfb\n":
            return set()
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                held.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    numbers = set()
    for line in Path("/proc/net/unix").read_text().splitlines():
        inode, _, path = line.rpartition(" ")
        number = path.removeprefix("@").removeprefix(_SOCKETS)
        if number.isdecimal() and f"socket:[{inode.split()[-1]}]" in held:
            numbers.add(int(number))
    return numbers


def remove_files(pid: int, numbers: Iterable[int]) -> None:
    """Remove what a server that is gone has left, unless another one has taken its number."""
    for number in numbers:
        lock, path = Path(f"/tmp/.X{number}-lock"), Path(f"{_SOCKETS}{number}")
        with contextlib.suppress(OSError, ValueError):
            if int(lock.read_text()) == pid:
                lock.unlink()
        with contextlib.suppress(OSError):
            if _is_deserted(path):
                path.unlink()


def _is_deserted(path: Path) -> bool:
    """Whether nobody has bound a socket here, in this network namespace or in any other."""
    if f" {path}\n" in Path("/proc/net/unix").read_text():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return client.connect_ex(str(path)) == errno.ECONNREFUSED


def _spawn(writer: int, words: int) -> subprocess.Popen[bytes]:
    # A child of Python's own, which becomes the server: only there can the kernel be asked to
    # end it with this process, and this process may have threads that forbid code after a fork.
    command = [sys.executable, "-I", "-S", __file__, "serve", str(os.getpid()), str(writer)]
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    return subprocess.Popen(
        command,
        pass_fds=(writer,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=words,
        env=environment,
        start_new_session=True,
    )


def _read_number(reader: int, end: float) -> int | None:
    """The number that a server writes when it is ready; None if it ends or is too late."""
    text = b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
        part = os.read(reader, 64) if ready else b""
        if not part:
            return None
        text += part
    return int(text)


def _last_words(errors: bytes) -> str:
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-3:])


def _serve(parent: int, writer: int) -> None:
    """Become the server; it is asked to leave, and so cleans up, when ``parent`` ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    os.set_inheritable(writer, True)
    os.execvp("Xvfb", ["Xvfb", "-displayfd", str(writer), *_ARGUMENTS])


def prove() -> str:
    """Start a server, draw on it from a process of its own, and return the renderer's name."""
    server = start()
    try:
        probe = subprocess.run(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("glx.py"))],
            env={**os.environ, "DISPLAY": server.name},
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"GLX did not answer within {START_TIMEOUT_S:g} s") from error
    finally:
        server.close()
    if probe.returncode:
        words = probe.stderr.strip() or f"the GLX probe ended with code {probe.returncode}"
        raise RuntimeError(words)
    return f"Xvfb on {probe.stdout}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve(int(sys.argv[2]), int(sys.argv[3]))
    try:
        sys.stdout.write(prove())
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
