"""Events out of a PyTorch memory snapshot, as ``torch.cuda.memory._dump_snapshot`` writes it.

It is a pickle of plain dicts, lists, tuples, numbers and text, and is read without torch.
"""

from __future__ import annotations

import array
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .._abi.tools import TraceAction
from ._pickles import corrupt

_ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_HOW = (
    "record it with torch.cuda.memory._record_memory_history() before the part that matters and "
    "torch.cuda.memory._dump_snapshot(FILE) after it"
)


class Events(NamedTuple):
    """The events of one device."""

    #: Four words an event: id, bytes, stream, action.
    words: "array.array[int]"
    device: int
    by_device: Tuple[int, ...]
    earlier_blocks: int
    earlier_bytes: int


def events_of(snapshot: Any, device: Optional[int], recorded_only: bool) -> Events:
    """The events of a device, or of the one with most."""
    traces = _traces(snapshot)
    counts = tuple(sum(map(_counts, trace)) for trace in traces)
    if not any(counts):
        raise corrupt(
            "snapshot: the file has no events, only the blocks that were allocated at its end; "
            + _HOW
        )
    if device is None:
        device = max(range(len(counts)), key=lambda i: counts[i])
    if not 0 <= device < len(counts) or not counts[device]:
        having = ", ".join("%d (%d)" % (i, n) for i, n in enumerate(counts) if n)
        raise corrupt(
            "snapshot: device %d has no events; these devices have: %s" % (device, having)
        )
    try:
        recorded, earlier, seen = _recorded(traces[device])
        if recorded_only:
            earlier = {}
        else:
            earlier.update(_untouched(snapshot, device, seen))
        words = array.array("Q")
        for address in sorted(earlier):
            size, stream = earlier[address]
            words.extend((address, size, stream, TraceAction.ALLOC))
    except (TypeError, OverflowError, KeyError, AttributeError) as error:
        raise corrupt(
            "snapshot: an entry of device %d is malformed: %r" % (device, error)
        ) from None
    words.extend(recorded)
    sizes = [size for size, _ in earlier.values()]
    return Events(words, device, counts, len(sizes), sum(sizes))


def _traces(snapshot: Any) -> List[List[Dict[str, Any]]]:
    if isinstance(snapshot, list):
        raise corrupt(
            "snapshot: the file is a list, as memopt's snapshot() returns, and has no events; "
            + _HOW
        )
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise corrupt(
            "snapshot: the file has no 'device_traces'; it is not a PyTorch memory snapshot"
        )
    return traces


def _counts(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("action") in ("alloc", "free_completed")


def _recorded(
    trace: List[Dict[str, Any]],
) -> "Tuple[array.array[int], Dict[int, Tuple[int, int]], Dict[int, bool]]":
    """The events; blocks from before, by address, that are freed in them; and whether an address
    that comes up in them is alive at their end.

    A block is free for others when its free is completed, not when it is requested.
    """
    words = array.array("Q")
    earlier: Dict[int, Tuple[int, int]] = {}
    alive: Dict[int, bool] = {}
    add = words.extend
    alloc, free, failed = map(int, (TraceAction.ALLOC, TraceAction.FREE, TraceAction.FAILED))
    for entry in trace:
        action = entry["action"]
        if action == "alloc":
            address = entry["addr"]
            alive[address] = True
            add((address, entry["size"], entry["stream"], alloc))
        elif action == "free_completed":
            address, size, stream = entry["addr"], entry["size"], entry["stream"]
            if address not in alive:
                earlier[address] = (size, stream)
            alive[address] = False
            add((address, 0, stream, free))
        elif action == "oom":
            add((0, entry["size"], entry.get("stream", 0), failed))
    return words, earlier, alive


def _untouched(
    snapshot: Dict[str, Any], device: int, seen: Dict[int, bool]
) -> Dict[int, Tuple[int, int]]:
    """Blocks that live at the end and never come up in the events."""
    found: Dict[int, Tuple[int, int]] = {}
    for segment in snapshot.get("segments") or ():
        if segment.get("device", device) != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            if block["state"] in _ACTIVE and address not in seen:
                size = block.get("requested_size") or block["size"]
                found[address] = (size, segment.get("stream", 0))
            address += block["size"]
    return found
