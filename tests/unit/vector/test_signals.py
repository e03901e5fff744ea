"""The completion pipe, also when interrupts tear at whoever reads it."""

from __future__ import annotations

import os
from collections import deque
from contextlib import closing

import pytest

from polyarm.vector import signals
from polyarm.vector.signals import Completions, announce


def taken(completions):
    inbox = deque()
    completions.take(inbox)
    return list(inbox)


def test_completions_arrive_in_order_and_once():
    with closing(Completions()) as completions:
        assert taken(completions) == []
        for number in range(3):
            announce(completions.write_fd, number, 0, 7)
        assert taken(completions) == [(0, 0, 7), (1, 0, 7), (2, 0, 7)]
        assert taken(completions) == []


def test_what_was_read_when_an_interrupt_came_is_not_lost(monkeypatch):
    """Python runs signal handlers right after a call has returned, before its result is kept."""

    def interrupted(fd, buffers):
        os.readv(fd, buffers)
        raise KeyboardInterrupt

    with closing(Completions()) as completions:
        announce(completions.write_fd, 0, 0, 0)
        announce(completions.write_fd, 1, 2, 3)
        with monkeypatch.context() as patch:
            patch.setattr(signals, "os", FakeOs(interrupted))
            with pytest.raises(KeyboardInterrupt):
                taken(completions)
        announce(completions.write_fd, 4, 5, 6)
        assert taken(completions) == [(0, 0, 0), (1, 2, 3)]
        assert taken(completions) == [(4, 5, 6)]


class FakeOs:
    """The module, with another `readv`."""

    def __init__(self, readv):
        self.readv = readv

    def __getattr__(self, name):
        return getattr(os, name)
