"""Histories of allocators: the events of their rings, and the same as torch's viewers read them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from . import _abi
from ._abi import HistoryAction
from ._library import lib
from ._stacks import Frame, Stacks, no_frames

Entry = Dict[str, Any]

#: What a ring holds by default.
EVENTS = 65_536

_PIECE = 4096


class HistoryEvent(NamedTuple):
    """Something that happened in an allocator."""

    #: Counted from 0 since the history began.
    number: int
    #: Seconds since 1970.
    time: float
    action: HistoryAction
    #: Of the block; of memory, its segment; 0 of a failure.
    address: int
    nbytes: int
    stream: int
    #: A tag's number.
    tag: int
    #: The system's number of the thread.
    thread: int
    #: Of the block's allocation, innermost first; empty where they were not asked for.
    frames: List[Frame]


def start(handle: int, events: int, stacks: Optional[Stacks]) -> None:
    """Begins the history of an allocator."""
    lib.memopt_allocator_set_history(handle, options(events, stacks))


def options(events: int, stacks: Optional[Stacks]) -> _abi.HistoryOptions:
    """For an allocator, or those to come. `stacks` must live as long as they."""
    made = _abi.HistoryOptions(events=events)
    if stacks is not None:
        made.context = stacks.callback
    return made


def read(handle: int, first: int = 0, frames: Callable[[int], List[Frame]] = no_frames) -> List[HistoryEvent]:
    """The events from number `first` on that the ring still has."""
    found: List[HistoryEvent] = []
    room = (_abi.HistoryEventStruct * _PIECE)()
    at, count = _abi.words.U64(), _abi.words.U64()
    while True:
        lib.memopt_allocator_read_history(handle, first, _PIECE, room, at, count)
        for i in range(count.value):
            raw = room[i]
            found.append(
                HistoryEvent(
                    at.value + i,
                    raw.time_ns / 1e9,
                    HistoryAction(raw.action),
                    raw.address or 0,
                    raw.bytes,
                    raw.stream or 0,
                    raw.tag,
                    raw.thread,
                    frames(raw.context),
                )
            )
        first = at.value + count.value
        if count.value < _PIECE:
            return found


class Entries:
    """The entries of torch's traces for events that come in pieces."""

    def __init__(self, pool: Tuple[int, int] = (0, 0)) -> None:
        self._used: Set[int] = set()  # blocks with recorded streams
        self._sizes: Dict[int, int] = {}
        self._pool = pool

    def of(self, events: Iterable[HistoryEvent]) -> List[Entry]:
        """As torch.cuda.memory._snapshot()["device_traces"] has them."""
        made: List[Entry] = []
        for event in events:
            for action in self._actions(event):
                made.append(self._entry(action, event))
        return made

    def _actions(self, event: HistoryEvent) -> Tuple[str, ...]:
        action, address = event.action, event.address
        if action is HistoryAction.RECORD_STREAM:
            self._used.add(address)
        elif action is HistoryAction.ALLOC:
            self._used.discard(address)
            return ("alloc",)
        elif action is HistoryAction.FREE:
            return ("free_requested",) + ("free_completed",) * (address not in self._used)
        elif action is HistoryAction.COMPLETED:
            self._used.discard(address)
            return ("free_completed",)
        elif action is HistoryAction.FAILED:
            return ("oom",)
        return ()

    def _entry(self, action: str, event: HistoryEvent) -> Entry:
        made: Entry = {"action": action}
        if action != "oom":
            made["addr"] = event.address
        made.update(size=event.nbytes, stream=event.stream, time_us=int(event.time * 1e6))
        made.update(frames=event.frames, pool_id=self._pool)
        made.update(compile_context="N/A", user_metadata="")
        if action == "oom":
            made["device_free"] = 0
        return made


def ages(events: Iterable[HistoryEvent]) -> Dict[int, float]:
    """When each block that lives at the end was allocated, by address, where the ring knows."""
    born: Dict[int, float] = {}
    for event in events:
        if event.action is HistoryAction.ALLOC:
            born[event.address] = event.time
        elif event.action is HistoryAction.FREE:
            born.pop(event.address, None)
    return born


def held(events: Iterable[HistoryEvent]) -> List[Tuple[float, int]]:
    """Changes of the bytes held from the device: times and differences."""
    signs = {HistoryAction.MAP: 1, HistoryAction.UNMAP: -1}
    return [(e.time, signs[e.action] * e.nbytes) for e in events if e.action in signs]
