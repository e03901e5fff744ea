"""A policy that runs elsewhere, in a model server of vla-eval.

A server keeps an episode's state (the rest of a chunk, a history) by connection. So every episode
that runs has one, and none goes on over another one.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyarm.contracts import Batch, EnvSpec, EpisodeKey
from polyarm.errors import PolicyError, WireError
from polyarm.policies.connections import Patience, Server
from polyarm.policies.mapping import digest
from polyarm.policies.remote import (
    Decision,
    Episode,
    RemotePolicy,
    checked_address,
    plain_metadata,
    split_name,
)
from polyarm.policies.vla_eval_messages import (
    EPISODE_END,
    EPISODE_START,
    OBSERVATION,
    PROTOCOL_VERSION,
    Message,
    ModelServer,
    pack,
)
from polyarm.policies.vla_eval_observations import (
    LIBERO,
    Wishes,
    check_libero,
    checked_params,
    given_params,
    observation,
    task_info,
    warn,
)


class VlaEvalPolicy(RemotePolicy):
    """Asks one or more model servers of vla-eval.

    Use it as a context manager, or call `close`, to close its connections at once.

    Args:
        addresses: ``ws://host:port`` each; episodes are shared out among them.
        params: What is sent, where the server's own wishes are not to count: ``send_state``,
            ``send_wrist_image``, ``absolute_action``, ``quat_no_antipodal``.
        patience: How long to wait for what.

    Raises:
        PolicyError: An address is none.
        UnknownName: There is no such parameter.
    """

    row_independent = False

    def __init__(
        self,
        addresses: Sequence[str],
        params: Mapping[str, bool] | None = None,
        *,
        patience: Patience | None = None,
    ) -> None:
        servers = [
            ModelServer(checked_address(address), "", patience or Patience())
            for address in addresses
        ]
        super().__init__(servers, "vla-eval:")
        self._params = checked_params(params or {})
        self._numbers = itertools.count(1)
        self._warned: set[str] = set()

    # What servers say of themselves.

    @functools.cached_property
    def wishes(self) -> Wishes:
        """What the servers want, as the first one says: they serve the same."""
        self.connect()
        first = self._servers[0]
        return Wishes.of(first.address, first.metadata, self._params)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What the servers say of themselves, and where they are: no checkpoint is named there.

        The server's noise is not ours to fix: ``noise`` is ``"remote"``.
        """
        wishes, metadata = self.wishes, self._servers[0].metadata or {}
        return {
            "policy": "vla-eval",
            "noise": "remote",
            "protocol_version": PROTOCOL_VERSION,
            "server": str(metadata.get("model_server")),
            "params": dict(wishes.params),
            "addresses": sorted(server.address for server in self._servers),
            "metadata": digest(plain_metadata(metadata)),
        }

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse an env that gives the model what it was not made for.

        Raises:
            PolicyError: With the options that make it fit.
        """
        if spec.suite == LIBERO:
            check_libero(spec, self.wishes)
        if spec.suite not in self._warned:  # not for each of its tasks
            self._warned.add(spec.suite)
            warn(spec, self.wishes)

    # Episodes.

    def end(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes are over; their servers are told, and their connections serve others."""
        for key in episodes:
            if (episode := self._episodes.get(key)) is not None and episode.asked:
                self._thread.submit(episode.lane.tell(self._message(EPISODE_END, {})[0]))
        super().end(episodes)

    def _ask(
        self, batch: Batch, row: int, episode: Episode
    ) -> concurrent.futures.Future[Mapping[str, Any]]:
        key, server = batch.keys[row], episode.lane.server
        assert isinstance(server, ModelServer)
        messages = []
        if begins := not episode.asked:
            about = {"task": task_info(key, batch.instructions[row])}
            messages.append(self._message(EPISODE_START, about)[0])
        try:
            request, seq = self._message(OBSERVATION, observation(batch, row, self.wishes))
        except WireError as error:
            raise PolicyError(f"the observation of {key}: {error}", row=row) from error
        episode.asked = True
        read = functools.partial(server.action, seq=seq)
        # The first request of an episode can be sent again: nothing is remembered yet.
        asking = episode.lane.ask(*messages, request, read=read, resend=begins)
        return self._thread.submit(asking)

    def _decision(self, reply: Mapping[str, Any], server: Server, row: int) -> Decision:
        found = reply.get("actions", reply.get("action"))
        if found is None:
            keys = ", ".join(map(str, reply)) or "nothing"
            raise PolicyError(f"{server.address} answered without actions: {keys[:200]}", row=row)
        try:
            actions = np.asarray(found)
        except ValueError as error:
            raise PolicyError(f"{server.address} sent actions of all shapes", row=row) from error
        if actions.ndim not in (1, 2) or not actions.size or actions.dtype.kind not in "iuf":
            raise PolicyError(
                f"{server.address} answered with actions that are neither one (A,) nor a chunk"
                f" (K, A): shape {actions.shape}, dtype {actions.dtype}",
                row=row,
            )
        return np.atleast_2d(actions), {}

    def _message(self, kind: str, payload: Mapping[str, Any]) -> tuple[bytes, int]:
        seq = next(self._numbers)
        return pack(Message(kind, payload, seq)), seq


def vla_eval_policy(name: str) -> VlaEvalPolicy:
    """The policy that ``ws://host:port[,ws://…][@PARAM=true,…]`` stands for."""
    addresses, params = split_name(name)
    return VlaEvalPolicy(addresses, given_params(params))
