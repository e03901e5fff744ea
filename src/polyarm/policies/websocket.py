"""A policy that runs elsewhere, behind openpi's websocket protocol."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyarm.contracts import Batch, EnvSpec
from polyarm.errors import PolicyError, WireError
from polyarm.policies import wire
from polyarm.policies.connections import Patience, Server, served
from polyarm.policies.mapping import (
    MAPPED_ORIENTATIONS,
    MAPPINGS,
    ObservationMapping,
    digest,
    load_mapping,
    mapping_from,
)
from polyarm.policies.remote import (
    Decision,
    Episode,
    RemotePolicy,
    checked_address,
    plain_metadata,
    split_name,
)

API_KEY = "POLYARM_API_KEY"
_DEFAULT_MAPPING = "libero"


class OpenPIPolicy(RemotePolicy):
    """Asks one or more policy servers; of openpi's kind, or ``polyarm serve``.

    Use it as a context manager, or call `close`, to close its connections at once.

    Args:
        addresses: ``ws://host:port`` each; episodes are shared out among them.
        mapping: What is sent: a name, a file, ``module:function`` or an `ObservationMapping`. By
            default what ``polyarm serve`` says that it wants, and openpi's LIBERO example else.
        api_key: By default the value of ``POLYARM_API_KEY``.
        patience: How long to wait for what.

    Raises:
        PolicyError: An address is none.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        mapping: str | ObservationMapping | None = None,
        *,
        api_key: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        key = (os.environ.get(API_KEY, "") if api_key is None else api_key).strip()
        servers = [
            Server(checked_address(address), key, patience or Patience()) for address in addresses
        ]
        super().__init__(servers, "openpi:")
        self._mapping = load_mapping(mapping) if isinstance(mapping, str) else mapping

    # What servers say of themselves.

    @property
    def mapping(self) -> ObservationMapping:
        """What is sent; asks the server if nobody has said."""
        if self._mapping is None:
            self.connect()
            told = _ours(self._servers[0]).get("mapping")
            self._mapping = (
                MAPPINGS[_DEFAULT_MAPPING]
                if told is None
                else mapping_from(told, f"the metadata of {self._servers[0].address}")
            )
        return self._mapping

    @property
    def execute(self) -> int | None:
        """Actions executed before it is asked again, unless the run says otherwise."""
        return self.mapping.execute

    @property
    def needs_frames(self) -> bool:
        """Whether frames are sent."""
        if self._mapping is not None and not self._mapping.needs_frames:
            return False
        self.connect()
        told = all(_ours(server).get("needs_frames", True) for server in self._servers)
        return told and self.mapping.needs_frames

    @property
    def row_independent(self) -> bool:
        """Whether every server promises it; openpi's draws noise in the order of requests."""
        return all(bool(_ours(server).get("row_independent")) for server in self._servers)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Mapping and server: what ``polyarm serve`` says it serves, or else the addresses.

        The server's noise is not ours to fix: ``noise`` is ``"remote"``.
        """
        self.connect()
        about: dict[str, Any] = {
            "policy": "openpi",
            "noise": "remote",
            "mapping": digest(self.mapping.table),
            "execute": self.mapping.execute,
        }
        if told := _ours(self._servers[0]).get("fingerprint"):
            return {**about, "served": str(told)}
        metadata = dict(self._servers[0].metadata or {})
        addresses = sorted(server.address for server in self._servers)
        return {**about, "addresses": addresses, "metadata": digest(plain_metadata(metadata))}

    def _digest(self, server: Server) -> str:
        return str(_ours(server).get("fingerprint") or super()._digest(server))

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse an env whose frames are turned otherwise than the mapping takes them.

        Raises:
            PolicyError: A model would see everything upside down.
        """
        delivered = spec.options.get("orientation")
        for name, taken in MAPPED_ORIENTATIONS.items():
            if self.mapping == MAPPINGS[name] and delivered not in (None, taken):
                others = [one for one in MAPPED_ORIENTATIONS if one != name]
                raise PolicyError(
                    f"{spec.name} delivers frames with orientation={delivered}, and the mapping "
                    f"{name!r} takes {taken}; add @{others[0]} to the policy's name, or "
                    f"--suite-options orientation={taken}"
                )

    # Episodes.

    def _ask(self, batch: Batch, row: int, episode: Episode) -> concurrent.futures.Future[bytes]:
        key, lane = batch.keys[row], episode.lane
        ours = bool(_ours(lane.server))
        request = self.mapping.request(batch, row)
        if ours:  # others would take these for observations
            told = [key.suite, key.task, key.index, key.repeat]
            request["polyarm"] = {"episode": told, "step": int(batch.steps[row])}
            request["reset"] = not episode.asked
        resend = not (ours and episode.asked)
        episode.asked = True
        try:
            message = wire.pack(request)
        except WireError as error:
            raise PolicyError(f"the request about {key}: {error}", row=row) from error
        return self._thread.submit(lane.ask(message, read=lane.server.answer, resend=resend))

    def _decision(self, reply: bytes, server: Server, row: int) -> Decision:
        try:
            found = wire.unpack(reply, server.patience.max_nbytes)
        except WireError as error:
            raise PolicyError(f"{server.address} sent {error}", row=row) from error
        if not isinstance(found, Mapping) or "actions" not in found:
            keys = ", ".join(map(str, found)) if isinstance(found, Mapping) else repr(found)[:100]
            raise PolicyError(f"{server.address} answered without actions: {keys}", row=row)
        actions, extras = found["actions"], found.get("extras") if _ours(server) else None
        if not isinstance(actions, np.ndarray) or actions.ndim < 1 or not len(actions):
            raise PolicyError(
                f"{server.address} answered with actions that are no chunk (H, A):"
                f" {np.shape(actions)} {type(actions).__qualname__}",
                row=row,
            )
        given = extras if isinstance(extras, Mapping) else {}
        return actions, {str(name): np.asarray(value) for name, value in given.items()}


def openpi_policy(name: str) -> OpenPIPolicy:
    """The policy that ``ws://host:port[,ws://…][@MAPPING]`` stands for."""
    addresses, mapping = split_name(name)
    return OpenPIPolicy(addresses, mapping or None)


def _ours(server: Server) -> Mapping[str, Any]:
    """What ``polyarm serve`` says of itself; empty for other servers."""
    return served(server.metadata)
