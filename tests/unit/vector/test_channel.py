from __future__ import annotations

import fcntl
import os
import resource
import socket

import pytest

from polyarm.errors import HostLimit
from polyarm.vector.channel import Channel


def test_what_has_arrived_is_known_of_descriptors_beyond_those_of_select() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"needs 1200 descriptors, and the hard limit is {hard}: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    try:
        ours, theirs = Channel.pair()
        with ours, theirs:
            channel = Channel(
                socket.socket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, 1100)),
                blocking=True,
            )
            assert not channel.has_arrived()
            Channel(theirs, blocking=True).send({"op": "worker"})
            assert channel.has_arrived()
            assert channel.receive() == [{"op": "worker", "fds": []}]
            assert not channel.has_arrived()
            channel.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_that_finds_no_room_is_an_error_that_says_so() -> None:
    ours, theirs = Channel.pair()
    with ours, theirs:
        receiver, sender = Channel(ours, blocking=False), Channel(theirs, blocking=False)
        sender.send({"op": "worker"}, (os.eventfd(0),))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(HostLimit, match=r"no room for a descriptor .* 3 open files"):
                receiver.receive()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
