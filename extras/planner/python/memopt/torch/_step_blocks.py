"""The blocks of two steps of a training run, for replays: the weights, a step whose optimizer makes
its states, and a step that has them."""

from __future__ import annotations

import array
import itertools
from typing import Any, Dict, List, Sequence, Set, Tuple

from ._layers import Repeat
from ._optimizer_bytes import OptimizerBlocks
from ._recorder import Account


class Blocks:
    """A step's blocks: each event is n + 1 where block n begins, or -(n + 1) where it ends."""

    def __init__(self, account: Account, repeats: Sequence[Repeat]) -> None:
        """`repeats` stand for other blocks than those of the events that are repeated."""
        #: Of each block.
        self.sizes: List[int] = [tensor.bytes for tensor in account.tensors]
        self.events: List[int] = []
        start = account.marks[1][0] if len(account.marks) > 1 else len(account.events)
        loaded = [number - 1 for number in account.events[:start] if number > 0]
        #: What is there before a step and after it.
        self.stay: List[int] = [n for n in loaded if account.category(n) != "batch"]
        self._tensors = account.tensors
        self._alive: Set[int] = set()
        #: What was made by operations that are the same in each layer, the youngest last.
        self._like: Dict[Any, List[int]] = {}
        self._first = _firsts(account, repeats)
        done = 0
        names: Dict[int, int] = {}
        for place, which, times in repeats:
            self._run(account.events[done:place], names)
            for _ in range(times):
                self._run([account.events[at] for at in which], {}, copied=True)
            done = place
        self._run(account.events[done:], names)

    def _run(self, events: List[int], names: Dict[int, int], copied: bool = False) -> None:
        """`names`: the block that each tensor has, or that a layer which was not run has for it."""
        sums: Set[int] = set()
        for at, number in enumerate(events):
            tensor = abs(number) - 1
            if number > 0:
                onto = self._summand(events, at)
                if onto < 0:
                    names[tensor] = self._begin(tensor, copied)
                else:  # autograd adds into it, but not under a recorder
                    sums.add(onto)
                    names[tensor] = self._find(-events[onto] - 1, names)
            elif at not in sums:
                self._end(self._find(tensor, names))

    def _summand(self, events: List[int], at: int) -> int:
        """Where a summand of the sum that was just made ends, as large as that; -1: none does."""
        made = self._tensors[events[at] - 1]
        if made.onto is None or self._tensors[made.onto].bytes != made.bytes:
            return -1
        later = range(at + 1, min(at + 3, len(events)))
        return next((i for i in later if events[i] == -made.onto - 1), -1)

    def _keys(self, tensor: int) -> Tuple[Any, Any]:
        of = self._tensors[tensor]
        return self._first.get(tensor, tensor), (of.operation, of.bytes)

    def _begin(self, tensor: int, copied: bool) -> int:
        block = tensor
        if copied:
            block = len(self.sizes)
            self.sizes.append(self.sizes[tensor])
        for key in self._keys(tensor):
            self._like.setdefault(key, []).append(block)
        self._alive.add(block)
        self.events.append(block + 1)
        if self._tensors[tensor].within:  # of the kernel that made it
            self.sizes.append(self._tensors[tensor].within)
            self.events += [len(self.sizes), -len(self.sizes)]
        return block

    def _find(self, tensor: int, names: Dict[int, int]) -> int:
        """Its block; of a tensor that another layer made, the youngest that is like it; or -1."""
        block = names.get(tensor, -1)
        if block in self._alive:
            return block
        for key in self._keys(tensor):
            like = self._like.get(key, [])
            while like and like[-1] not in self._alive:
                like.pop()
            if like:
                return like[-1]
        return -1

    def _end(self, block: int) -> None:
        if block >= 0:
            self._alive.remove(block)
            self.events.append(-block - 1)


def _firsts(account: Account, repeats: Sequence[Repeat]) -> Dict[int, int]:
    """Tensors of layers that do the same, and those of one of them: the layers beside it count as
    far as they do the same."""
    events, found = account.events, {}

    def same(one: int, other: int) -> bool:
        a, b = (account.tensors[abs(number) - 1] for number in (one, other))
        return one * other > 0 and (a.operation, a.bytes) == (b.operation, b.bytes)

    for place, which, _ in repeats:
        start = which[0]
        if which != list(range(start, place)):
            continue
        before = zip(reversed(events[:start]), reversed(events[start:place]))
        after = zip(events[place:], events[start:place] + events[start:place])
        for pairs in (before, after):
            for other, own in itertools.takewhile(lambda pair: same(*pair), pairs):
                if own > 0:
                    found[other - 1] = own - 1
    return found


def two_steps(blocks: Blocks, sizes: Sequence[int], optimizer: OptimizerBlocks) -> "array.array[int]":
    """What two steps allocate and free, in order, as `memopt.plan.Plan.events` has it."""
    words, alive, stay = array.array("Q"), set(), set(blocks.stay)
    states = range(len(sizes), len(sizes) + len(optimizer.states))

    def begin(block: int, size: int) -> None:
        if size and block not in alive:
            alive.add(block)
            words.extend((block + 1, size))

    def end(block: int) -> None:
        if block in alive:
            alive.remove(block)
            words.extend((block + 1, 0))

    for _ in range(2):
        for block in blocks.stay:
            begin(block, sizes[block])
        for event in blocks.events:
            if event < 0:
                end(-event - 1)
            elif event - 1 not in stay:
                begin(event - 1, sizes[event - 1])
        for block, size in zip(states, optimizer.states):
            begin(block, size)
        _temporaries(optimizer.step, states.stop, begin, end)
        for block in sorted(alive.difference(stay, states)):
            end(block)
    return words


def _temporaries(step: List[int], first: int, begin: Any, end: Any) -> None:
    """Of an optimizer's step; of blocks of one size the youngest ends."""
    of_size: Dict[int, List[int]] = {}
    for block, size in enumerate(step, first):
        if size > 0:
            of_size.setdefault(size, []).append(block)
            begin(block, size)
        elif size < 0:
            end(of_size[-size].pop())
