"""Work of the device at the latest moment that the streams permit, later work of other streams first.

A race is then seen as wrong numbers: what an operation makes is NaN until it runs, and it runs when the
host has waited for it. The clocks are those of the finder, kept here a second time: for each actor, the
last operation of each other that it comes after.
"""

from __future__ import annotations

import collections
from typing import Any, Callable, Deque, Dict, List, NamedTuple

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from ._finder import HOST

Clock = Dict[int, int]
_MOST = 10000  # operations that wait; then all of them run


class _Waiting(NamedTuple):
    number: int
    actor: int
    clock: Clock
    run: Callable[[], None]


def _join(clock: Clock, other: Clock) -> None:
    for actor, number in other.items():
        if clock.get(actor, 0) < number:
            clock[actor] = number


def _like(made: Any) -> Any:
    """Memory for a result, without a value yet."""
    if not isinstance(made, torch.Tensor):
        return made
    out = torch.empty_strided(made.size(), made.stride(), dtype=made.dtype)
    return out.fill_(float("nan") if out.is_floating_point() or out.is_complex() else 0)


class Confirm:
    """The streams' work that has not run."""

    def __init__(self) -> None:
        self._clocks: Dict[int, Clock] = {HOST: {}}
        self._events: Dict[int, Clock] = {}
        self._queues: Dict[int, Deque[_Waiting]] = {}
        self._number = 0

    def add(self, actor: int) -> None:
        """A stream, behind what the host has waited for."""
        self._clocks[actor] = dict(self._clocks[HOST])
        self._queues[actor] = collections.deque()

    def wait(self, waiter: int, waited: int) -> None:
        """As of the finder; what the host waits for runs."""
        self._after(waiter, self._clocks[waited])

    def record(self, actor: int, event: int) -> None:
        """As of the finder."""
        self._events[event] = dict(self._clocks[actor])

    def wait_event(self, waiter: int, event: int) -> None:
        """As of the finder."""
        self._after(waiter, self._events.get(event, {}))

    def _after(self, waiter: int, clock: Clock) -> None:
        _join(self._clocks[waiter], clock)
        if waiter == HOST:
            self._run(clock)

    def execute(self, operator: Any, run: Callable[..., Any], args: Any, kwargs: Any, actor: int) -> Any:
        """Puts an operation off; its result without a value."""
        clock = self._clocks[actor]
        _join(clock, self._clocks[HOST])
        self._number += 1
        clock[actor] = self._number
        result = _UNKNOWN if operator.waits or operator.resizes else self._result(operator, run, args, kwargs)
        if result is _UNKNOWN:
            self._run(clock)
            return run(*args, **kwargs)

        def go() -> None:
            with _disable_current_modes(), torch._C._AutoDispatchBelowAutograd():
                values = run(*args, **kwargs)
                if operator.makes:
                    for out, value in zip(_pytree.tree_leaves(result), _pytree.tree_leaves(values)):
                        if isinstance(out, torch.Tensor) and out is not value:
                            out.copy_(value)

        self._queues[actor].append(_Waiting(self._number, actor, dict(clock), go))
        if sum(map(len, self._queues.values())) > _MOST:
            self._run({actor: self._number for actor in self._queues})
        return result

    @staticmethod
    def _result(operator: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What it will return; _UNKNOWN until it has run."""
        returns = operator.function._schema.returns
        if not operator.makes:
            return None if not returns else args[0] if len(returns) == 1 and args else _UNKNOWN
        moved = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        if "device" in moved[1] or not any(isinstance(x, torch.Tensor) for x in _pytree.tree_leaves(moved)):
            moved[1]["device"] = torch.device("meta")
        try:
            return _pytree.tree_map(_like, run(*moved[0], **moved[1]))
        except (RuntimeError, NotImplementedError, TypeError):
            return _UNKNOWN

    def _run(self, clock: Clock) -> None:
        """Runs what comes before a clock, and before that what may."""
        queues = self._queues
        while True:
            heads = [queue[0] for queue in queues.values() if queue]
            needed = [head for head in heads if head.number <= clock.get(head.actor, 0)]
            if not needed:
                return
            ready = [
                head for head in heads if all(o.number > head.clock.get(o.actor, 0) for o in heads if o is not head)
            ]
            oldest = min(head.number for head in needed)
            late = [head for head in ready if head not in needed and head.number > oldest]
            chosen = max(late, key=_by_number) if late else min((h for h in ready if h in needed), key=_by_number)
            queues[chosen.actor].popleft()
            chosen.run()


def _by_number(waiting: _Waiting) -> int:
    return waiting.number


_UNKNOWN: List[Any] = []
