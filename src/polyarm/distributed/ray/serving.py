"""The central policy as the driver sees it: its actor, and another one where that was lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyarm.distributed.ray.central import CentralPolicy, PolicyServer
from polyarm.distributed.ray.cluster import Cluster, last_line, why
from polyarm.distributed.ray.hosts import DEATHS, LONG_S, LOOK_S
from polyarm.errors import PolicyError, WorkerError
from polyarm.rollout.options import EvalOptions, seconds
from polyarm.rollout.plan import Group

_log = logging.getLogger("polyarm")


class ServedPolicy:
    """Has one actor decide for all nodes, and starts it when it is not there.

    Args:
        cluster: Whose nodes.
        options: Of the evaluation.
        stopping: Asked while a policy is loaded, whether to wait no longer.

    Attributes:
        on_gpu: Whether a policy said that it runs on a GPU.
    """

    def __init__(
        self, cluster: Cluster, options: EvalOptions, stopping: Callable[[], bool]
    ) -> None:
        self._stopping = stopping
        self._cluster = cluster
        self._ray = cluster.ray
        self._options = options
        self._gpu = self._is_gpu_there()
        self._server: Any = None
        self._loaded: tuple[Any, Group] | None = None
        self._traits: Mapping[str, Any] = {}
        self._deaths = 0
        self.on_gpu = False

    @property
    def lost(self) -> bool:
        """Whether its actor was found to be gone, and there is no other yet."""
        return self._server is None and self._loaded is not None

    def load(self, policy: Any, group: Group) -> None:
        """Load a policy for the episodes of a group; returns without it if a stop is asked for.

        Args:
            policy: In Ray's store.
            group: The tasks.

        Raises:
            PolicyError: Its actors die; or whatever loading it raises.
            WorkerError: There is no GPU left for it.
        """
        self._loaded = (policy, group)
        while True:
            try:
                traits = self._load(policy, group)
                if traits is None:
                    return
            except self._ray.exceptions.RayTaskError as error:
                raise why(error) from None
            except self._ray.exceptions.RayError as error:
                self._lose(error)
            else:
                self.on_gpu |= traits.pop("device").startswith("cuda")
                self._traits = traits
                return

    def load_again(self) -> None:
        """Load what the lost actor had; raises what `load` does."""
        assert self._loaded is not None
        self.load(*self._loaded)

    def acting_on(self, node: str) -> CentralPolicy:
        """What acts on a node."""
        timeout_s = seconds(self._options.policy_timeout)
        return CentralPolicy(self._server, node, self._traits, timeout_s)

    def look(self) -> None:
        """Find out whether the actor is gone.

        Raises:
            PolicyError: Once too often.
        """
        if self._server is None:
            return
        try:
            self._ray.get(self._server.__ray_ready__.remote(), timeout=LONG_S)
        except self._ray.exceptions.GetTimeoutError:
            _log.warning("the central policy's actor has not answered for %g s", LONG_S)
        except self._ray.exceptions.RayError as error:
            self._lose(error)

    def forget(self, node: str) -> None:
        """A node is gone."""
        if self._server is not None:
            self._server.forget.remote(node)  # not waited for: it may be lost, too

    def works(self) -> None:
        """An episode was finished: deaths are no longer in a row."""
        self._deaths = 0

    def close(self) -> None:
        """End the actor."""
        if self._server is not None:
            self._ray.kill(self._server)
            self._server = None

    def _load(self, policy: Any, group: Group) -> dict[str, Any] | None:
        if self._server is None:
            self._server = self._start()
        loading = self._server.load.remote(policy, group)
        told_at = time.monotonic()
        while not self._ray.wait([loading], timeout=LOOK_S)[0]:
            if self._stopping():
                return None
            if time.monotonic() - told_at < LONG_S:
                continue
            told_at = time.monotonic()
            if self._gpu and not self._is_gpu_there():
                raise WorkerError(
                    "no node with a GPU is left for the central policy; the same command goes on"
                    " where it was, on the nodes that there are then"
                )
            _log.warning("still loading the policy: `ray status` says who has the GPUs")
        traits: dict[str, Any] = self._ray.get(loading)
        return traits

    def _start(self) -> Any:
        options = self._options
        kind = self._ray.remote(PolicyServer).options(
            num_cpus=0, num_gpus=0.5 if self._gpu else 0, max_restarts=0
        )
        return kind.remote(options.chunk, options.max_wait_ms / 1000, str(Path.cwd()))

    def _lose(self, error: Exception) -> None:
        self.close()
        self._deaths += 1
        reason = last_line(error)
        if self._deaths >= DEATHS:
            raise PolicyError(
                f"the central policy was lost {self._deaths} times in a row: {reason}"
            ) from error
        _log.warning("lost the central policy; another actor gets it (%s)", reason)

    def _is_gpu_there(self) -> bool:
        return any(node.gpus >= 1 for node in self._cluster.nodes())
