"""Where the ranks of a job find one another, and how they wait for those that have not come yet.

Nothing here blocks for longer than a moment, so that a rank that waits hears signals.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from polyarm.distributed.ranks import Rank
from polyarm.errors import InvalidCall, RankLost, StoppedEarly

_WITHIN_S = 300.0
"""Ranks come when PyTorch is imported, which takes a minute or two from a busy file system."""
_SPEAK_S = 240.0
"""Well within that: a thread that came back while the interpreter ends would abort the process."""
_LOOK_S = 0.05
_TCP_S = 2.0


def meet(
    rank: Rank, stopping: Callable[[], bool], environment: Mapping[str, str] = os.environ
) -> Any:
    """Wait until all ranks are there; gives the store by which they have found one another.

    The first rank listens at ``MASTER_ADDR`` and ``MASTER_PORT``, unless torchrun does already.

    Args:
        rank: This process's.
        stopping: Asked all the time, whether to wait no longer.
        environment: What the launcher says.

    Raises:
        InvalidCall: Nobody says where ranks meet, or it cannot be there.
        RankLost: Some have not come.
        StoppedEarly: It was to wait no longer.
    """
    import torch.distributed

    distributed: Any = torch.distributed
    host, port = _place(environment)
    where = f"{host}:{port}"
    patience = _Patience(stopping)
    serves = rank.leads and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    while not serves and not _answers(host, port):
        patience.spend(f"nobody has answered at {where}, where ranks are to meet")
    store = _store(host, port, rank, patience, serves=serves)
    # torchrun's store remembers the ranks that it has restarted, and where they could be reached.
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    book = distributed.PrefixStore(f"polyarm/{attempt}", store)
    names = [f"rank {number}" for number in range(rank.world)]
    book.set(names[rank.number], "here")
    while not book.check(names):
        missing = [name for name in names if not patience.left and not book.check([name])]
        patience.spend(f"of {rank.world} ranks, {', '.join(missing[:8])} have not come")
    return book


def _place(environment: Mapping[str, str]) -> tuple[str, int]:
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if host and port.isdecimal():
        return host, int(port)
    raise InvalidCall(
        f"several ranks meet at MASTER_ADDR and MASTER_PORT, found {host!r} and {port!r}; torchrun"
        " and srun set them, and RANK and WORLD_SIZE are to be unset for a single process"
    )


def _store(host: str, port: int, rank: Rank, patience: _Patience, *, serves: bool) -> Any:
    """The store at this place, however long whoever listens there may say nothing.

    PyTorch waits for that without a deadline, in C++, where no signal is heard: in a thread, which
    is left to itself if it takes too long, and ends with the process.

    Raises:
        InvalidCall: There can be no store.
        RankLost: Who listens there says nothing.
        StoppedEarly: It was to wait no longer.
    """
    import torch.distributed

    distributed: Any = torch.distributed
    where = f"{host}:{port}"
    made: list[Any] = []
    failed: list[Exception] = []

    def make() -> None:
        try:
            made.append(
                distributed.TCPStore(
                    host,
                    port,
                    rank.world,
                    is_master=serves,
                    timeout=timedelta(seconds=_SPEAK_S),
                    wait_for_workers=False,
                    multi_tenant=True,
                )
            )
        except (RuntimeError, TypeError, ValueError) as error:
            failed.append(error)

    thread = threading.Thread(target=make, name="polyarm-meeting", daemon=True)
    thread.start()
    thread.join(_LOOK_S)
    while thread.is_alive():
        patience.spend(
            f"who listens at {where} does not speak as ranks do (try another MASTER_PORT)"
        )
        thread.join(_LOOK_S)
    if failed:
        raise InvalidCall(
            f"the ranks cannot meet at {where}: {str(failed[0]).partition(chr(10))[0]}; try another"
            f" MASTER_PORT"
        ) from failed[0]
    (store,) = made
    store.set_timeout(timedelta(seconds=_WITHIN_S))
    return store


def _answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=_TCP_S):
        return True
    return False


class _Patience:
    """Time to wait, until a stop is asked for."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._deadline = time.monotonic() + _WITHIN_S

    @property
    def left(self) -> bool:
        return time.monotonic() < self._deadline

    def spend(self, complaint: str) -> None:
        """Wait for a moment, or end with this complaint."""
        if self._stopping():
            raise StoppedEarly("stopped while waiting for the other ranks; nothing was begun")
        if not self.left:
            raise RankLost(f"{complaint} within {_WITHIN_S:.0f} s; look for what they have said")
        time.sleep(_LOOK_S)
