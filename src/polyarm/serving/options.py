"""What a server is asked for: Python API and command line in one dataclass."""

from __future__ import annotations

from dataclasses import dataclass

from polyarm.errors import InvalidCall


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of a server.

    Attributes:
        host: Address to listen at; by default nobody else can reach it. 0.0.0.0 for everybody.
        port: Port to listen at; 0 for any that is free.
        max_batch: Requests per decision of the policy at most.
        max_wait_ms: How long a request waits for others to join its batch. It does not wait where
            every client has asked already, nor for clients that have been silent for long.
        max_queue: Requests that wait at most; clients beyond that are not read from.
        max_clients: Connections at once at most; others are refused with HTTP 503.
        max_message_mib: Size of a request at most, in MiB.
        grace_s: How long a server that is told to stop waits for what is under way.
        mapping: How requests become observations: libero, plain, or a JSON or YAML file.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_batch: int = 32
    max_wait_ms: float = 10.0
    max_queue: int = 256
    max_clients: int = 256
    max_message_mib: int = 64
    grace_s: float = 30.0
    mapping: str = "libero"

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_queue", "max_clients", "max_message_mib"):
            if getattr(self, name) < 1:
                raise InvalidCall(f"{name.replace('_', '-')} must be at least 1")
        for name in ("max_wait_ms", "grace_s"):
            if not getattr(self, name) >= 0:
                raise InvalidCall(f"{name.replace('_', '-')} must be at least 0")
        if not 0 <= self.port < 65536:
            raise InvalidCall(f"port must be from 0 to 65535, found {self.port}")
