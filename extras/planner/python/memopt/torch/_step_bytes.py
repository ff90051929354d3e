"""Bytes of one training step by category and phase, and lines through two of them."""

from __future__ import annotations

import array
import difflib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ._layers import Layers
from ._optimizer_bytes import OptimizerBlocks, OptimizerBytes
from ._recorder import CATEGORIES, Account
from ._step_blocks import Blocks, two_steps

#: The phases.
PHASES = ("forward", "loss", "backward", "optimizer")
#: The moment between loss and backward, and those within kernels.
_SAVED, _WITHIN = "saved", "within"

#: Bytes by category, in the order of CATEGORIES.
Bytes = Tuple[int, ...]


class StepBytes(NamedTuple):
    """What one step needs: the most bytes of tensors alive at once, in all and in each phase."""

    batch: int
    phases: Dict[str, Dict[str, int]]
    #: Activations and logits as backward begins.
    saved: int = 0
    #: What kernels take beside tensors, as far as it makes the peak higher.
    overhead: int = 0

    @property
    def peak_phase(self) -> str:
        """Where the peak is."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def peak_bytes(self) -> int:
        """The most of all phases."""
        return sum(self.categories.values())

    @property
    def categories(self) -> Dict[str, int]:
        """The peak's bytes by category."""
        return dict(self.phases[self.peak_phase])

    def as_dict(self) -> Dict[str, Any]:
        """For JSON."""
        return {
            "batch": self.batch,
            "peak_bytes": self.peak_bytes,
            "peak_phase": self.peak_phase,
            "categories": self.categories,
            "phases": self.phases,
        }


#: A category's index, its bytes more or less, what happened, and bytes within the kernel.
_Event = Tuple[int, int, Tuple[bool, str], int]


def _event(account: Account, of: List[int], event: int) -> _Event:
    tensor = account.tensors[abs(event) - 1]
    size = tensor.bytes if event > 0 else -tensor.bytes
    return of[abs(event) - 1], size, (event > 0, tensor.operation), tensor.within * (event > 0)


class Series:
    """Bytes by category after each event of a step, without optimizer. `layers` are those that ran
    for all: what they did is repeated. NotRepeated where they did not do the same."""

    def __init__(self, account: Account, layers: Optional[Layers] = None) -> None:
        self.rows: List[Bytes] = []
        #: Phase of each row.
        self.phases: List[str] = []
        #: What happened, to see whether two steps did the same.
        self.shape: List[Tuple[bool, str]] = []
        index = {name: i for i, name in enumerate(CATEGORIES)}
        of = [index[account.category(n)] for n in range(len(account.tensors))]
        events = [_event(account, of, event) for event in account.events]
        marks = list(account.marks)
        repeats = layers.repeats(account.events, events) if layers else []
        #: Block by block; sizes are those of this batch.
        self.blocks = Blocks(account, repeats)
        for place, which, times in reversed(repeats):
            more = [events[at] for at in which] * times
            events[place:place] = more
            marks = [(at + len(more) * (at >= place), phase) for at, phase in marks]
        self._add(events, marks)

    def _add(self, events: List[_Event], marks: List[Tuple[int, str]]) -> None:
        live = [0] * len(CATEGORIES)
        ends = [at for at, _ in marks[1:]] + [len(events)]
        for (start, phase), end in zip(marks, ends):
            if start > 0:  # a phase begins with what the one before left
                self._row(live, phase, (True, "mark"))
            if phase == "backward":
                self._row(live, _SAVED, (True, "mark"))
            for category, change, what, within in events[start:end]:
                live[category] += change
                self._row(live, phase, what)
                if within:
                    self._row([live[0] + within, *live[1:]], _WITHIN, (True, "within"))

    def _row(self, live: List[int], phase: str, what: Tuple[bool, str]) -> None:
        self.rows.append(tuple(live))
        self.phases.append(phase)
        self.shape.append(what)

    def highest(self) -> Dict[str, Bytes]:
        """The row of each phase with the most bytes; without an optimizer's, as such the last."""
        result: Dict[str, Bytes] = {}
        for row, phase in zip(self.rows, self.phases):
            if phase not in result or sum(row) > sum(result[phase]):
                result[phase] = row
        result.setdefault("optimizer", self.rows[-1])
        return result


def step_bytes(batch: int, highest: Dict[str, Bytes], optimizer: OptimizerBytes) -> StepBytes:
    """Adds what an optimizer keeps, and in its phase what it takes."""
    phases: Dict[str, Dict[str, int]] = {}
    for name in PHASES:
        if name in highest:
            phases[name] = dict(zip(CATEGORIES, highest[name]))
            phases[name]["optimizer"] += optimizer.states
    phases["optimizer"]["optimizer"] += optimizer.temporaries
    saved = dict(zip(CATEGORIES, highest.get(_SAVED, ())))
    step = StepBytes(batch, phases, saved.get("activations", 0) + saved.get("logits", 0))
    within = sum(highest.get(_WITHIN, ())) + optimizer.states
    return step._replace(overhead=max(within - step.peak_bytes, 0))


#: A phase, and bytes at the two batch sizes.
_Moment = Tuple[str, Bytes, Bytes]


class Line:
    """Two steps of different batch sizes, and every batch size between and beyond.

    Each moment of the step has its own line. The highest moment is searched at each batch size,
    because the peak moves between phases as batches grow. `exact` says whether both steps did the
    same operations in the same order. Where they did not (a batch of 1 is often copied less), the
    moments that they share count, and the peaks of the phases.
    """

    def __init__(self, first: Tuple[int, Series], second: Tuple[int, Series], optimizer: OptimizerBytes) -> None:
        if first[0] == second[0]:
            raise ValueError("two different batch sizes are needed, not %d twice" % first[0])
        self._batches = (first[0], second[0])
        self._optimizer = optimizer
        self.exact = first[1].shape == second[1].shape
        self._rows: List[_Moment] = [
            (first[1].phases[i], first[1].rows[i], second[1].rows[j])
            for i, j in _pairs(first[1].shape, second[1].shape)
            if first[1].phases[i] == second[1].phases[j]
        ]
        if not self.exact:
            a, b = first[1].highest(), second[1].highest()
            self._rows += [(name, a[name], b[name]) for name in a if name in b]
        self._last = (first[1].rows[-1], second[1].rows[-1])
        self._blocks = (first[1].blocks, second[1].blocks)
        self._rows = self._highest(self._rows)

    def _highest(self, rows: List[_Moment]) -> List[_Moment]:
        """Those that are the highest of their phase at some batch size: of thousands a handful."""

        def one_and_slope(moment: _Moment) -> Tuple[float, float]:
            _, a, b = moment
            low, high = self._batches
            slope = (sum(b) - sum(a)) / (high - low)
            return sum(a) - slope * (low - 1), slope

        kept: List[_Moment] = []
        top: Dict[str, float] = {}
        for moment in sorted(rows, key=lambda m: tuple(-v for v in reversed(one_and_slope(m)))):
            at_one, _ = one_and_slope(moment)
            if moment[0] not in top or at_one > top[moment[0]]:
                top[moment[0]] = at_one
                kept.append(moment)
        return kept

    def at(self, batch: int) -> StepBytes:
        """What a batch size needs."""
        low, high = self._batches
        slope = (batch - low) / (high - low)
        best: Dict[str, Tuple[float, Bytes, Bytes]] = {}
        for phase, a, b in self._rows:
            x, y = sum(a), sum(b)
            size = x + (y - x) * slope
            if phase not in best or size > best[phase][0]:
                best[phase] = (size, a, b)
        best.setdefault("optimizer", (0.0, *self._last))
        highest = {name: _between(a, b, slope) for name, (_, a, b) in best.items()}
        return step_bytes(batch, highest, self._optimizer)

    def blocks(self, batch: int, optimizer: OptimizerBlocks) -> Optional["array.array[int]"]:
        """What two steps allocate and free, as `two_steps` has it; None where the two differ."""
        a, b = self._blocks
        if not self.exact or a.events != b.events:
            return None
        low, high = self._batches
        slope = (batch - low) / (high - low)
        sizes = [max(round(x + (y - x) * slope), 0) for x, y in zip(a.sizes, b.sizes)]
        return two_steps(a, sizes, optimizer)


def _between(a: Sequence[int], b: Sequence[int], slope: float) -> Bytes:
    """A line's value by category. Where a category would be negative, the others make up for it."""
    values = [x + (y - x) * slope for x, y in zip(a, b)]
    total = max(sum(values), 0.0)
    values = [max(value, 0.0) for value in values]
    scale = total / sum(values) if sum(values) > total else 1.0
    return tuple(round(value * scale) for value in values)


def _pairs(a: List[Tuple[bool, str]], b: List[Tuple[bool, str]]) -> Iterator[Tuple[int, int]]:
    """Indices of what two sequences have in common, in order."""
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    yield from ((i, i) for i in range(start))
    middle = difflib.SequenceMatcher(None, a[start : len(a) - end], b[start : len(b) - end], autojunk=False)
    for block in middle.get_matching_blocks():
        yield from ((start + block.a + i, start + block.b + i) for i in range(block.size))
    yield from ((len(a) - i, len(b) - i) for i in range(end, 0, -1))
