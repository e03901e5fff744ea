"""The connection to the X server, on which Qt and the frames depend."""

import ctypes
import os
import select
import threading
from typing import NoReturn


class Connection:
    """An open X display whose end is the end of the process, as with Xlib and Qt."""

    def __init__(self, name: str) -> None:
        self._xlib = ctypes.CDLL("libX11.so.6")
        self._xlib.XOpenDisplay.restype = ctypes.c_void_p
        self._xlib.XOpenDisplay.argtypes = [ctypes.c_char_p]
        for function in ("XConnectionNumber", "XCloseDisplay"):
            getattr(self._xlib, function).argtypes = [ctypes.c_void_p]
        self._xlib.XSync.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self._xlib.XSetIOErrorHandler(_on_io_error)
        self._display = self._xlib.XOpenDisplay(name.encode())
        if not self._display:
            raise ConnectionError(name)
        self._stop_reader, self._stop_writer = os.pipe()
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="x-connection")
        self._watcher.start()

    def touch(self) -> None:
        """Make a round trip to the server, as every frame does."""
        self._xlib.XSync(self._display, 0)

    def close(self) -> None:
        os.write(self._stop_writer, b".")
        self._watcher.join()
        os.close(self._stop_reader)
        os.close(self._stop_writer)
        self._xlib.XCloseDisplay(self._display)

    def _watch(self) -> None:
        connection = self._xlib.XConnectionNumber(self._display)
        poll = select.poll()
        poll.register(connection, 0)  # a hang-up is reported whatever is asked for
        poll.register(self._stop_reader, select.POLLIN)
        if any(fd == connection for fd, _ in poll.poll()):
            end_without_server()


def end_without_server() -> NoReturn:
    os.write(2, b"The X11 connection broke (error 1). Did the X11 server die?\n")
    os._exit(1)


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _on_io_error(_display: int) -> int:
    end_without_server()
