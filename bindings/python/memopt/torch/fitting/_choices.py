"""What may be done about a recorded step, as ``memopt_fit_create()`` takes it."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from ... import _abi
from ..._library import lib, output
from ._costs import own_seconds
from ._places import LEAST, Way
from ._recipes import words_of
from ._tape import BIRTH, DEATH, Tape, Unit

RECOMPUTE, REMAKE, OFFLOAD, DISK = map(int, _abi.FitChoiceKind)
#: So many does the library take: all modules, then the largest values.
MOST_CHOICES = 4096


class Choice(NamedTuple):
    """Something that may be done."""

    kind: int
    #: What the table calls it.
    name: str
    module: int
    storage: int
    first_pack: int
    inputs: Tuple[int, ...]
    extra: int
    seconds: float
    #: What to apply: ("module", name), ("again", name of the module), or (kind, [numbers of packs]).
    what: Tuple[str, Any]


class Plan(NamedTuple):
    """Choices and what a step takes with them."""

    choices: List[Choice]
    chosen: List[int]
    peak: int
    host: int
    seconds: float
    disk: int


class Planner:
    """Holds the C handle of a tape."""

    def __init__(self, tape: Tape, fixed: int, choices: List[Choice]) -> None:
        self.tape, self.fixed, self.choices = tape, fixed, choices
        inputs = [number for choice in choices for number in choice.inputs]
        rows, first = [], 0
        for c in choices:
            rows.append(
                _abi.FitChoice(
                    kind=c.kind,
                    module=c.module,
                    storage=c.storage,
                    first_pack=c.first_pack,
                    first_input=first,
                    input_count=len(c.inputs),
                    extra_bytes=c.extra,
                    seconds=c.seconds,
                )
            )
            first += len(c.inputs)
        events = (ctypes.c_uint32 * (3 * len(tape.events)))(*itertools.chain.from_iterable(tape.events))
        sizes = (ctypes.c_uint64 * len(tape.bytes))(*tape.bytes)
        table = (_abi.FitChoice * len(rows))(*rows)
        numbers = (ctypes.c_uint32 * len(inputs))(*inputs)
        given = _abi.FitTape(
            events=ctypes.addressof(events),
            event_count=len(tape.events),
            storage_bytes=ctypes.addressof(sizes),
            storage_count=len(sizes),
            choices=ctypes.addressof(table),
            choice_count=len(rows),
            inputs=ctypes.addressof(numbers),
            input_count=len(inputs),
            fixed_bytes=fixed,
        )
        self._handle = output(lib.memopt_fit_create, given)

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None:
            lib.memopt_fit_destroy(handle)

    def beside(self, nbytes: int) -> "Planner":
        """The same with so many bytes more that are there all the time."""
        return Planner(self.tape._replace(fixed=self.tape.fixed + nbytes), self.fixed + nbytes, self.choices)

    def replay(self, chosen: Sequence[int]) -> Any:
        """What the step takes with these choices."""
        array = (ctypes.c_uint32 * len(chosen))(*chosen)
        return output(lib.memopt_fit_replay, self._handle, array, len(chosen))

    def solve(self, budget: int, host: int = 0, disk: int = 0) -> Plan:
        """The choices of little time within a budget; 0: of least bytes."""
        options = _abi.FitOptions(budget=budget, host_limit=host, disk_limit=disk)
        chosen = (ctypes.c_uint32 * max(len(self.choices), 1))()
        count, result = ctypes.c_uint64(), _abi.FitResult()
        lib.memopt_fit_solve(self._handle, options, chosen, count, result)
        indices = list(chosen[: count.value])
        taken = result.peak_bytes, result.host_bytes, result.seconds, result.disk_bytes
        return Plan([self.choices[i] for i in indices], indices, *taken)


def choices_of(tape: Tape, moving: Dict[str, int], device_type: str, ways: Sequence[Way]) -> List[Choice]:
    """All that may be done. `moving`: bytes of the buffers that each module's forward changes, by the
    module's name; `ways`: where values may wait."""
    found = [*_modules(tape, moving, device_type), *_values(tape, moving, ways)]
    return sorted(found, key=lambda c: c.kind != RECOMPUTE and -tape.bytes[c.storage])[:MOST_CHOICES]


def _modules(tape: Tape, moving: Dict[str, int], device_type: str) -> Iterator[Choice]:
    random = torch.default_generator.get_state().nbytes if device_type == "cpu" else 0
    for unit in tape.units:
        if unit.why or unit.first_pack == unit.last_pack:
            continue
        extra = random + sum(size for name, size in moving.items() if (name + ".").startswith(unit.name + "."))
        seconds = max(unit.seconds - unit.tail, 0.0) + own_seconds().module
        yield Choice(
            RECOMPUTE, unit.name, unit.index, 0, 0, unit.inputs, extra, seconds, ("module", unit.name)
        )


def _values(tape: Tape, moving: Dict[str, int], ways: Sequence[Way]) -> Iterator[Choice]:
    packs: Dict[int, List[int]] = {}
    outside: Set[int] = set()  # saved where no hook will be
    for number, pack in enumerate(tape.packs):
        packs.setdefault(pack.storage, []).append(number)
        if pack.number < 0:
            outside.add(pack.storage)
    again = dict(_made_again(tape, moving))
    for storage, numbers in packs.items():
        if storage in outside or tape.bytes[storage] < LEAST:
            continue
        where = words_of(tape.packs[numbers[0]].look)
        unit = again.get(storage)
        first = next((n for n in numbers if unit is not None and n >= unit.last_pack), None)
        graph = [n for n in numbers if tape.packs[n].sources is not None]
        if unit is not None and first is not None:
            extra, what = _transient(tape, unit, storage), ("again", unit.name)
            seconds = unit.seconds + own_seconds().value
            yield Choice(REMAKE, unit.name, unit.index, storage, first, unit.inputs, extra, seconds, what)
        elif graph and graph == [n for n in numbers if n >= graph[0]]:
            sources = tape.packs[graph[0]].sources or ()
            seconds = tape.seconds.get(storage, 0.0) + own_seconds().value
            places = ("graph", [tape.packs[n].number for n in graph])
            yield Choice(REMAKE, where, _abi.FIT_NONE, storage, graph[0], sources, 0, seconds, places)
        for way in ways:
            if way.least <= tape.bytes[storage] <= way.most:
                seconds = way.seconds(tape.bytes[storage]) + own_seconds().value
                places = ("host", [tape.packs[n].number for n in numbers])
                yield Choice(way.kind, where, 0, storage, numbers[0], (), 0, seconds, places)


def _made_again(tape: Tape, moving: Dict[str, int]) -> Iterator[Tuple[int, Unit]]:
    """Storages that one call of a cheap module gives."""
    for unit in tape.units:
        is_other = unit.why or unit.is_heavy or unit.is_random or unit.name in moving
        cheap = unit.is_leaf and unit.is_simple and not is_other
        if cheap and len(unit.outputs) == 1 and unit.outputs[0] not in unit.inputs:
            yield unit.outputs[0], unit


def _transient(tape: Tape, unit: Unit, storage: int) -> int:
    """The most that lives beside the result while a module makes it."""
    live = most = 0
    born: Set[int] = set()
    inside = False
    for kind, subject, _ in tape.events:
        if kind in (6, 7) and subject == unit.index:
            inside = kind == 6
            if not inside:
                break
        elif inside and kind == BIRTH and subject != storage:
            born.add(subject)
            live += tape.bytes[subject]
        elif inside and kind == DEATH and subject in born:
            live -= tape.bytes[subject]
        most = max(most, live)
    return most
