"""vla-eval's messages: a map of type, payload, sequence number and time, in msgpack.

An array is a map ``{"__ndarray__": True, "data": …, "dtype": "<f4", "shape": […]}``. Frames go so,
too: vla-eval's servers read both them and the PNGs that its own client makes of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyarm.errors import PolicyError, WireError
from polyarm.policies import wire
from polyarm.policies.connections import Server
from polyarm.policies.mapping import digest

PROTOCOL_VERSION = 1

HELLO = "hello"
EPISODE_START = "episode_start"
EPISODE_END = "episode_end"
OBSERVATION = "observation"
ACTION = "action"
ERROR = "error"
_KINDS = (HELLO, EPISODE_START, EPISODE_END, OBSERVATION, ACTION, ERROR)

_ARRAY = "__ndarray__"


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        kind: ``"hello"``, ``"observation"``, ``"action"`` …
        payload: What it says.
        seq: A number; an answer has that of what it answers.
    """

    kind: str
    payload: Mapping[str, Any]
    seq: int


def pack(message: Message) -> bytes:
    """A message as bytes.

    Raises:
        WireError: It holds what vla-eval's servers refuse, such as an array of text.
    """
    about = {"type": message.kind, "seq": message.seq, "timestamp": time.time()}
    return wire.pack({**about, "payload": message.payload}, _plain)


def unpack(data: bytes, max_nbytes: int = wire.MAX_NBYTES) -> Message:
    """What `pack`, or vla-eval's own packer, made bytes of. Arrays are read-only.

    Raises:
        WireError: It is no message of vla-eval's.
    """
    found = wire.unpack(data, max_nbytes, _restored)
    match found:
        case {"type": str(kind), "payload": dict(payload), "seq": int(seq)} if kind in _KINDS:
            return Message(kind, payload, seq)
    keys = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__qualname__
    raise WireError(f"what is no message of vla-eval's: {keys[:200]}")


class ModelServer(Server):
    """A model server of vla-eval's kind; it is greeted first."""

    health_path = "/health"

    async def _greeting(self, connection: Any) -> Mapping[str, Any]:
        from polyarm import __version__

        hello = {"harness_version": f"polyarm {__version__}", "protocol_version": PROTOCOL_VERSION}
        await connection.send(pack(Message(HELLO, hello, 0)))
        reply = self.answer(await connection.recv())
        try:
            message = unpack(reply, self.patience.max_nbytes)
        except WireError as error:
            raise PolicyError(
                f"{self.address} is no model server of vla-eval: it sent {error}. A server of"
                f" openpi's kind is --policy openpi:{self.address}"
            ) from error
        if message.kind != HELLO:
            raise PolicyError(f"{self.address} answered our greeting with {_told(message)}")
        version = message.payload.get("protocol_version")
        if version != PROTOCOL_VERSION:
            raise PolicyError(
                f"{self.address} speaks version {version!r} of vla-eval's protocol, and we speak"
                f" {PROTOCOL_VERSION}"
            )
        return message.payload

    def _silent_kind(self) -> str:
        return ""

    def _identity(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"told": digest(metadata)}

    def action(self, reply: str | bytes, seq: int) -> Mapping[str, Any]:
        """The payload of a reply.

        Args:
            reply: The reply.
            seq: Number of the observation that it answers.

        Raises:
            PolicyError: It is an error of the server, or answers something else.
        """
        try:
            message = unpack(self.answer(reply), self.patience.max_nbytes)
        except WireError as error:
            raise PolicyError(f"{self.address} sent {error}") from error
        if message.kind != ACTION or message.seq != seq:
            what = _told(message)
            if message.kind == ACTION:
                what += f" to message {message.seq}, not to {seq}: it serves more than was asked"
            raise PolicyError(f"{self.address} answered with {what}")
        return message.payload


def _told(message: Message) -> str:
    if message.kind == ERROR:
        return f"an error: {message.payload.get('error', dict(message.payload))}"
    return f"a message of type {message.kind!r}"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise TypeError(f"an array of dtype {value.dtype}; vla-eval sends numbers only")
        in_place = value.flags.c_contiguous and value.nbytes
        return {
            _ARRAY: True,
            "data": value.data if in_place else value.tobytes(),
            "dtype": value.dtype.str,
            "shape": value.shape,
        }
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__qualname__} has no place in a message")


def _restored(found: dict[Any, Any]) -> Any:
    if _ARRAY not in found:
        return found
    return wire.restored_array(found.get("dtype"), found.get("data"), found.get("shape"))
