"""Signal handlers run when a block is left, not inside: what they raise tears nothing apart."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from polyarm.vector.interrupts import HandlersWait


class Alarm(Exception):
    """What the handler of the tests raises."""


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """Numbers of the signals that were handled; SIGALRM's handler raises as well."""
    handled: list[int] = []

    def ring(number, frame):
        handled.append(number)
        raise Alarm

    before = [
        signal.signal(signal.SIGALRM, ring),
        signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number)),
    ]
    yield handled
    signal.signal(signal.SIGALRM, before[0])
    signal.signal(signal.SIGUSR1, before[1])


def test_handlers_run_when_the_block_is_left(calls):
    handlers = [signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGUSR1)]
    done = []

    def signalled():
        with HandlersWait():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGALRM)
            done.append(list(calls))

    with pytest.raises(Alarm):
        signalled()
    assert done == [[]]
    assert calls == [signal.SIGUSR1, signal.SIGALRM]
    assert handlers == [signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGUSR1)]


def test_a_handler_that_raises_takes_no_other_signal_with_it(calls):
    def signalled():
        with HandlersWait():
            signal.raise_signal(signal.SIGALRM)
            signal.raise_signal(signal.SIGUSR1)

    with pytest.raises(Alarm):
        signalled()
    assert calls == [signal.SIGALRM, signal.SIGUSR1]


def test_ctrl_c_waits_too():
    done = []

    def interrupted():
        with HandlersWait():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done


def test_blocks_inside_blocks_wait_for_the_outermost(calls):
    seen = []

    def nested():
        with HandlersWait():
            with HandlersWait():
                signal.raise_signal(signal.SIGALRM)
            seen.append(list(calls))

    with pytest.raises(Alarm):
        nested()
    assert seen == [[]]
    assert calls == [signal.SIGALRM]


def test_a_block_that_raises_puts_the_handlers_back(calls):
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ZeroDivisionError), HandlersWait():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGALRM) is handler


@pytest.mark.parametrize("moment", range(1, 6))
def test_a_handler_that_raises_while_handlers_are_swapped_leaves_none_behind(
    calls, monkeypatch, moment
):
    numbers = [number for number in signal.valid_signals() if callable(signal.getsignal(number))]
    handlers = {number: signal.getsignal(number) for number in numbers}
    swap, swaps = signal.signal, []

    def interrupted(number, handler):
        before = swap(number, handler)
        swaps.append(number)
        if len(swaps) == moment:
            raise Alarm
        return before

    monkeypatch.setattr(signal, "signal", interrupted)

    def enter_and_leave():
        for _ in range(3):
            with HandlersWait():
                pass

    with pytest.raises(Alarm):
        enter_and_leave()
    monkeypatch.undo()
    assert handlers == {number: signal.getsignal(number) for number in numbers}


def test_an_event_loop_hears_once_of_a_signal_that_had_to_wait():
    heard = []

    async def signalled():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, heard.append, True)
        with HandlersWait():
            signal.raise_signal(signal.SIGUSR1)
        for _ in range(10):
            await asyncio.sleep(0)
        loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(signalled())
    assert heard == [True]


def test_threads_need_no_waiting(calls):
    handler = signal.getsignal(signal.SIGALRM)
    seen = []

    def look():
        with HandlersWait():
            seen.append(signal.getsignal(signal.SIGALRM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [handler]
