"""Messages with descriptors over a Unix socket, for the slow path between our own processes.

A message is a pickled dict behind its length. Only the trainer, the fork server and its zygotes
hold ends of such sockets; nothing from outside is ever unpickled.
"""

from __future__ import annotations

import array
import os
import pickle
import resource
import select
import socket
import struct
from collections import deque
from typing import Any

from polyarm.errors import HostLimit

_LENGTH = struct.Struct("=Q")
_MAX_FDS = 16

Message = dict[str, Any]


class Channel:
    """One end of a connection.

    Sending never blocks when ``blocking`` is False: what does not fit waits in `flush`, so that
    a busy peer can't stall the fork server.

    Args:
        sock: A connected Unix stream socket.
        blocking: Whether `send` waits for room.
    """

    def __init__(self, sock: socket.socket, *, blocking: bool) -> None:
        sock.setblocking(blocking)
        self.sock = sock
        self._blocking = blocking
        self._received = bytearray()
        self._fds: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Two connected sockets."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def unblock(self) -> None:
        """From now on, neither `send` nor `receive` waits."""
        self.sock.setblocking(False)
        self._blocking = False

    def fileno(self) -> int:
        """Descriptor, for selectors."""
        return self.sock.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message; ``fds`` are closed here once they are on their way."""
        body = pickle.dumps({**message, "fds": len(fds)}, protocol=pickle.HIGHEST_PROTOCOL)
        self._unsent.append((memoryview(_LENGTH.pack(len(body)) + body), fds))
        self.flush()

    def flush(self) -> bool:
        """Push out what is waiting; True when nothing is left."""
        while self._unsent:
            data, fds = self._unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                sent = self.sock.sendmsg([data], rights)
            except BlockingIOError:
                return False
            for fd in fds:
                os.close(fd)
            if sent == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = (data[sent:], ())
        return True

    def receive(self) -> list[Message] | None:
        """Messages that have arrived, with their descriptors under ``"fds"``; None at the end.

        Blocks for at least one message when the channel is blocking.

        Raises:
            HostLimit: A descriptor that came with one is lost, as this process has too many.
        """
        while True:
            try:
                data, fds, flags, _ = socket.recv_fds(
                    self.sock, 1 << 16, _MAX_FDS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return []
            except ConnectionResetError:
                return None
            self._fds.extend(fds)
            if flags & socket.MSG_CTRUNC:
                limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                raise HostLimit(
                    f"no room for a descriptor that was sent to process {os.getpid()}: its limit is"
                    f" {limit} open files (ulimit -n); close some of them, or raise the limit"
                )
            if not data:
                return None
            self._received += data
            messages = self._split()
            if messages or not self._blocking:
                return messages

    def has_arrived(self) -> bool:
        """Whether there is more to receive, or the end."""
        poll = select.poll()  # select() knows no descriptors from 1024 on
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the socket and descriptors that nobody took."""
        self.sock.close()
        while self._fds:
            os.close(self._fds.popleft())
        for _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()

    def _split(self) -> list[Message]:
        messages = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + length
            if len(self._received) < end:
                break
            message = pickle.loads(bytes(self._received[_LENGTH.size : end]))
            del self._received[:end]
            message["fds"] = [self._fds.popleft() for _ in range(message["fds"])]
            messages.append(message)
        return messages
