"""Work of the device at the latest moment that the streams permit, later work of other streams first.

A race is then seen as wrong numbers: what an operation makes is NaN until it runs, and it runs when the
host has waited for it; memory that was freed is NaN from the next operation on that gets memory of its stream.
So that waiting work does not keep tensors alive, memory of the device is of bytearrays. The clocks are those of the finder, kept here a second time: for each actor, the
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


class Confirm:
    """The streams' work that has not run."""

    def __init__(self, storage_of: Callable[[torch.Tensor], Any]) -> None:
        self._storage_of = storage_of
        self._clocks: Dict[int, Clock] = {HOST: {}}
        self._events: Dict[int, Clock] = {}
        self._queues: Dict[int, Deque[_Waiting]] = {}
        self._number = 0
        self._memory: Dict[int, bytearray] = {}  # of live blocks, by address
        self._freed: Dict[int, List[bytearray]] = {}  # by the stream that may get it

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

    def free(self, block: Any) -> None:
        """A block has ended. One that record_stream() was called for is not handed out too early."""
        memory = self._memory.pop(block.address, None)
        if memory is not None and not block.recorded:
            self._freed.setdefault(block.actor, []).append(memory)

    def _like(self, made: Any, allocates: bool) -> Any:
        """Memory for a result, without a value yet."""
        if not isinstance(made, torch.Tensor):
            return made
        if not allocates or not made.numel():
            return torch.empty_strided(made.size(), made.stride(), dtype=made.dtype)
        is_number = made.is_floating_point() or made.is_complex()
        memory = bytearray((b"\xff" if is_number else b"\0") * made.untyped_storage().nbytes())
        out = torch.frombuffer(memory, dtype=made.dtype).as_strided(made.size(), made.stride())
        self._memory[out.data_ptr()] = memory
        return out

    def _alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory, which another storage holds."""
        storage = self._storage_of(tensor)
        memory = self._memory.get(storage.data_ptr()) if storage is not None else None
        if memory is None or tensor.is_conj() or tensor.is_neg():
            return tensor
        base = torch.frombuffer(memory, dtype=tensor.dtype)
        return base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def execute(
        self, operator: Any, run: Callable[..., Any], args: Any, kwargs: Any, actor: int, allocates: bool
    ) -> Any:
        """Puts an operation off; its result without a value."""
        clock = self._clocks[actor]
        _join(clock, self._clocks[HOST])
        self._number += 1
        clock[actor] = self._number
        result = _UNKNOWN if operator.waits or operator.resizes else self._result(operator, run, args, kwargs, allocates)
        freed = self._freed.pop(actor, []) if allocates else []
        if result is _UNKNOWN:
            self._run(clock)
            _poison(freed)
            return run(*args, **kwargs)
        outs, args, kwargs = _pytree.tree_map_only(
            torch.Tensor, self._alias, (_pytree.tree_leaves(result) if operator.makes else [], args, kwargs)
        )

        def go() -> None:
            _poison(freed)
            with _disable_current_modes(), torch._C._AutoDispatchBelowAutograd():
                values = run(*args, **kwargs)
                for out, value in zip(outs, _pytree.tree_leaves(values)):
                    if isinstance(out, torch.Tensor):
                        out.copy_(value)

        self._queues[actor].append(_Waiting(self._number, actor, dict(clock), go))
        if sum(map(len, self._queues.values())) > _MOST:
            self._run({actor: self._number for actor in self._queues})
        return result

    def _result(self, operator: Any, run: Callable[..., Any], args: Any, kwargs: Any, allocates: bool) -> Any:
        """What it will return; _UNKNOWN until it has run."""
        returns = operator.function._schema.returns
        if not operator.makes:
            return None if not returns else args[0] if len(returns) == 1 and args else _UNKNOWN
        moved = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        if "device" in moved[1] or not any(isinstance(x, torch.Tensor) for x in _pytree.tree_leaves(moved)):
            moved[1]["device"] = torch.device("meta")
        try:
            return _pytree.tree_map(lambda made: self._like(made, allocates), run(*moved[0], **moved[1]))
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


def _poison(freed: List[bytearray]) -> None:
    for memory in freed:
        memory[:] = b"\xff" * len(memory)


def _by_number(waiting: _Waiting) -> int:
    return waiting.number


_UNKNOWN: List[Any] = []
