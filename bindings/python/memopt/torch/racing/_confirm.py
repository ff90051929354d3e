"""Work of the device at the latest moment that the streams permit, later work of other streams first.

A race is then seen as wrong numbers: what an operation makes is NaN until it runs, and it runs when the
host has waited for it; memory that was freed is NaN from the next operation on that gets memory of its stream.
So that waiting work does not keep tensors alive, memory of the device is of bytearrays.
"""

from __future__ import annotations

import collections
from typing import Any, Callable, Counter, Deque, Dict, List, Tuple, Union

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from ._finder import HOST

_MOST = 10000  # operations that wait; then all of them run
At = Tuple[int, int]  # a stream, and how many of its entries are done there


class Confirm:
    """The streams' work that has not run."""

    def __init__(self, storage_of: Callable[[torch.Tensor], Any]) -> None:
        self._storage_of = storage_of
        self._events: Dict[int, At] = {}
        #: Of each stream: the number of each entry, and what is to run or to be waited for.
        self._queues: Dict[int, Deque[Tuple[int, Union[At, Callable[[], None]]]]] = {}
        self._put: Counter[int] = collections.Counter()
        self._number = 0
        self._memory: Dict[int, bytearray] = {}  # of live blocks, by address
        self._freed: Dict[int, List[bytearray]] = {}  # by the stream that may get it

    def _is_done(self, at: At) -> bool:
        return self._put[at[0]] - len(self._queues.get(at[0], ())) >= at[1]

    def _enqueue(self, actor: int, entry: Union[At, Callable[[], None]]) -> None:
        self._number += 1
        self._put[actor] += 1
        self._queues.setdefault(actor, collections.deque()).append((self._number, entry))
        if sum(map(len, self._queues.values())) > _MOST:
            for each in self._queues:
                self._run((each, self._put[each]))

    def wait(self, waiter: int, waited: int) -> None:
        """As of the finder; what the host waits for runs."""
        self._after(waiter, (waited, self._put[waited]))

    def record(self, actor: int, event: int) -> None:
        """As of the finder."""
        self._events[event] = actor, self._put[actor]

    def wait_event(self, waiter: int, event: int) -> None:
        """As of the finder."""
        self._after(waiter, self._events.get(event, (HOST, 0)))

    def _after(self, waiter: int, at: At) -> None:
        if waiter == HOST:
            self._run(at)
        elif not self._is_done(at):
            self._enqueue(waiter, at)

    def _run(self, at: At) -> None:
        """Runs a stream up to there, behind what it waits for, and before that what was enqueued later and may run."""
        queue = self._queues.get(at[0])
        while queue and not self._is_done(at):
            number, entry = queue[0]
            if isinstance(entry, tuple):
                self._run(entry)
            for other in self._queues.values():
                while other is not queue and other and other[0][0] > number:
                    if isinstance(other[0][1], tuple) and not self._is_done(other[0][1]):
                        break
                    _do(other)
            if queue and queue[0][0] == number:
                _do(queue)

    def free(self, block: Any) -> None:
        """A block has ended. One that record_stream() was called for is not handed out too early."""
        memory = self._memory.pop(block.address, None)
        if memory is not None and not block.recorded:
            self._freed.setdefault(block.actor, []).append(memory)

    def resized(self, block: Any, size: int) -> None:
        """A block is given back while its storage stays, or is taken again."""
        freed = self._freed.setdefault(block.actor, [])
        memory = self._memory[block.address]
        freed[:] = [each for each in freed if each is not memory]
        if not size and not block.recorded:
            freed.append(memory)

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
        waits = operator.waits or operator.resizes
        result = _UNKNOWN if waits else self._result(operator, run, args, kwargs, allocates)
        freed = self._freed.pop(actor, []) if allocates else []
        if result is _UNKNOWN:
            self._run((actor, self._put[actor]))
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

        self._enqueue(actor, go)
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


def _poison(freed: List[bytearray]) -> None:
    for memory in freed:
        memory[:] = b"\xff" * len(memory)


def _do(queue: Deque[Any]) -> None:
    entry = queue.popleft()[1]
    if not isinstance(entry, tuple):
        entry()


_UNKNOWN: List[Any] = []
