"""Signals during calls of the library that call back: none is lost."""

from __future__ import annotations

import gc
import signal
import sys
import time

import pytest

import memopt

from interrupts import at_every_point
from memopt import _lifetime, _lock
from memopt._interrupt import Interruptible
from on_threads import on_threads


class Rang(Exception):
    """The alarm's handler ran."""


@pytest.fixture
def alarm():
    """A function that has Rang raised soon."""

    def ring(number, frame):
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    gc.disable()  # what a handler raises within a callback of the collector, Python ignores
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def again_and_again(call):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        call()


def repeat(call, alarm):
    """Has the alarm ring at many points of a call; each time it must end the loop, and no handler
    of the library's stays."""
    for microseconds in range(100, 2600, 25):
        with pytest.raises(Rang):
            alarm(microseconds * 1e-6)
            again_and_again(call)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.filterwarnings("error")
def test_no_signal_is_lost_in_a_snapshot(alarm):
    with memopt.Device("cpu") as device, memopt.Allocator(device) as allocator:
        blocks = [allocator.alloc(512) for _ in range(300)]
        repeat(allocator.snapshot, alarm)
        for block in blocks:
            block.free()


def test_handlers_run_afterwards_and_stand_again():
    seen = []

    def first(number, frame):
        seen.append((number, interrupt.asked))

    numbers = (signal.SIGUSR1, signal.SIGTERM)
    before = [signal.signal(number, first) for number in numbers]
    try:
        with Interruptible() as interrupt:
            assert not interrupt.asked
            for number in numbers:
                signal.raise_signal(number)
            assert interrupt.asked and not seen
        assert seen == [(number, True) for number in numbers]
        assert [signal.getsignal(number) for number in numbers] == [first, first]
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def test_a_handler_that_raises_does_so_after_the_call():
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        with Interruptible():
            signal.raise_signal(signal.SIGINT)
            during = True
    assert during and signal.getsignal(signal.SIGINT) is handler


def test_patience_has_an_end():
    """The handlers run in the order of their signals, once, and the first that raises ends it."""
    seen = []

    def told(number, frame):
        seen.append(number)

    def ends(number, frame):
        seen.append(number)
        raise Rang

    handlers = {signal.SIGUSR1: told, signal.SIGTERM: ends, signal.SIGUSR2: told}
    before = {number: signal.signal(number, one) for number, one in handlers.items()}
    try:
        with Interruptible(patience=1) as interrupt:
            signal.raise_signal(signal.SIGUSR1)
            assert seen == [] and interrupt.asked
            signal.raise_signal(signal.SIGUSR2)
            assert seen == [signal.SIGUSR1, signal.SIGUSR2]
        assert len(seen) == 2 and interrupt.asked
        seen.clear()
        with pytest.raises(Rang):
            with Interruptible(patience=2), Interruptible():
                for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
                    signal.raise_signal(number)
                assert seen == []  # the inner one has all the patience of the world
        assert seen == [signal.SIGUSR1, signal.SIGTERM]
        assert {number: signal.getsignal(number) for number in handlers} == handlers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- at every point -------------------------------------------------------------------------------

#: Before it signals were heard between any two instructions.
points = pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.10 hears signals at calls")


@points
def test_no_lock_is_left_held():
    guard, free = _lock.Guard(), []

    def use():
        with guard:
            str(1)

    def take(_):
        free.append(guard.acquire(False) and guard.release() is None)

    for _ in at_every_point(use, _lock.__file__, __file__):
        on_threads(take)
        assert free.pop()


@points
def test_what_a_signal_left_half_closed_can_be_closed():
    """Its parents would else refuse to be."""
    opened = []

    def use():
        opened[:] = [_lifetime.Handle("parent", 1, lambda *_: None)]
        opened.append(_lifetime.Handle("child", 1, lambda *_: None, (opened[0],)))
        opened[1].close()

    children = 0
    for _ in at_every_point(use, _lifetime.__file__):
        if len(opened) == 2:
            children += 1
            opened[1].close()
            opened[0].close()
    assert children > 0


def test_other_threads_change_nothing():
    handler = signal.getsignal(signal.SIGINT)
    seen = []

    def other(_):
        with Interruptible() as interrupt:
            seen.extend((signal.getsignal(signal.SIGINT), interrupt.asked))

    on_threads(other)
    assert seen == [handler, False]
