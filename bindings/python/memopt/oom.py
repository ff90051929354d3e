"""Out of memory: who holds what, since when, and what would have served the request."""

from __future__ import annotations

import datetime
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import errors
from ._abi import OomCause
from ._library import lib, listed, output, values_of
from ._snapshot import Segment
from ._stacks import Frame
from .sizes import format_size

_NONE = (1 << 64) - 1

#: What each cause means, and what to do.
_MEANINGS = {
    OomCause.GROWTH: (
        "live memory itself: no setting serves the request",
        "recompute or offload activations, 8-bit states, a smaller batch with accumulation",
    ),
    OomCause.FRAGMENTATION: (
        "enough is free, in holes beside blocks that live long",
        "a pool of its own for blocks that live long, or allocate them first",
    ),
    OomCause.SEGMENTS: ("enough is free in holes of classic segments", "expandable_segments:True"),
    OomCause.LEAK: (
        "a leak, or a cache that only grows: blocks are added steadily and never freed",
        "free them; the frames below say who allocates them",
    ),
    OomCause.STREAM: (
        "freed memory waits for a stream, or is kept while a stream records a graph",
        "allocate before or after the recording",
    ),
    OomCause.ROUNDING: (
        "sizes are rounded up by roundup_power2_divisions or max_split_size_mb",
        "leave these settings out",
    ),
    OomCause.POOL: ("other pools have enough free and keep it", "trim them, or make them without retain"),
    OomCause.LIMIT: ("a limit or per_process_memory_fraction; the device has enough", "a higher limit"),
    OomCause.OUTSIDE: ("others use the device: processes, contexts, other allocators", "memopt monitor shows them"),
    OomCause.REQUEST: ("the request is larger than the device", "a smaller batch, or the work in parts"),
}


class Holder(NamedTuple):
    """Live blocks of one tag that one place of the program has allocated."""

    tag: str
    nbytes: int
    blocks: int
    #: Ages in allocations.
    oldest: int
    newest: int
    #: When the oldest was allocated, in seconds since 1970, where the history still knows.
    since: Optional[float]
    #: Innermost first; empty without a history with frames.
    frames: List[Frame]


class OutOfMemoryReport:
    """Why an allocation has failed. ``str()`` is the table, :meth:`as_dict` plain values."""

    def __init__(self, numbers: Dict[str, int], tags: List[str], holders: List[Holder], message: str = "") -> None:
        #: What would have served the request.
        self.cause = OomCause(numbers["cause"])
        #: The fields of memopt_oom_report, in bytes and allocations.
        self.numbers = numbers
        #: What was asked for, and whose live blocks are in the way.
        self.tag, self.holder_tag = tags[numbers["tag"]], tags[numbers["holder_tag"]]
        #: Live blocks by tag and place, most bytes first.
        self.holders = holders
        #: The library's message.
        self.message = message

    def as_dict(self) -> Dict[str, Any]:
        """Everything as plain dicts, lists and numbers."""
        limit = self.numbers["limit_bytes"]
        return {
            **{k: v for k, v in self.numbers.items() if k not in ("cause", "tag", "holder_tag")},
            "limit_bytes": None if limit == _NONE else limit,
            "cause": self.cause.name.lower(),
            "meaning": _MEANINGS[self.cause][0],
            "advice": _MEANINGS[self.cause][1],
            "tag": self.tag,
            "holder_tag": self.holder_tag,
            "holders": [holder._asdict() for holder in self.holders],
            "message": self.message,
        }

    def __repr__(self) -> str:
        return "<memopt.OutOfMemoryReport: %s>" % self.cause.name.lower()

    def __str__(self) -> str:
        return self.table()

    def table(self, holders: int = 8, frames: int = 4) -> str:
        """The report as text, with so many holders and frames of each."""
        n, size = self.numbers, format_size
        meaning, advice = _MEANINGS[self.cause]
        lines = [
            "%s asked for %s, %s lacked" % (size(n["asked_bytes"]), self.tag,
                                            size(n["missing_bytes"])),
            "cause   %s" % meaning,
            "try     %s" % advice,
            "device  %s, %s free, %s held here, %s used by others"
            % (*map(size, (n["total_bytes"], n["free_bytes"], n["held_bytes"])),
               size(n["outside_bytes"])),
            "held    %s live, %s pending, %s cached, largest free block %s"
            % (*map(size, (n["live_bytes"], n["pending_bytes"], n["cached_bytes"])),
               size(n["largest_free_bytes"])),
            "blame   " + _blocks(n["holder_bytes"], self.holder_tag, n["holder_blocks"],
                                 n["holder_newest"], n["holder_oldest"]),
        ]  # fmt: skip
        for holder in self.holders[:holders]:
            lines += ["", _told(holder)]
            lines += ["    %(filename)s:%(line)d %(name)s" % f for f in holder.frames[:frames]]
        if len(self.holders) > holders:
            rest = sum(holder.nbytes for holder in self.holders[holders:])
            lines += ["", "%s in %d more places" % (size(rest), len(self.holders) - holders)]
        return "\n".join(lines)


def _many(number: int, noun: str) -> str:
    return "%d %s%s" % (number, noun, "" if number == 1 else "s")


def _blocks(nbytes: int, tag: str, blocks: int, newest: int, oldest: int) -> str:
    ages = "%d to " % newest if newest < oldest else ""
    return "%s of %s in %s, %s%s old" % (
        format_size(nbytes), tag, _many(blocks, "block"), ages, _many(oldest, "allocation")
    )  # fmt: skip


def _told(holder: Holder) -> str:
    text = _blocks(holder.nbytes, holder.tag, holder.blocks, holder.newest, holder.oldest)
    if holder.since is None:
        return text
    since = datetime.datetime.fromtimestamp(holder.since)
    return "%s, since %s" % (text, since.strftime("%H:%M:%S"))


def tag_names(handle: int) -> List[str]:
    """The names of an allocator's tags, by number."""
    return [values_of(raw)["name"] for raw in listed(lib.memopt_allocator_get_tag_stats, handle)]


def holders_of(
    segments: Iterable[Segment], tags: List[str], frames: Callable[[int], List[Frame]], born: Dict[int, float]
) -> List[Holder]:
    """The live blocks of snapshots by tag and place, most bytes first."""
    groups: Dict[Tuple[int, int], List[Dict[str, Any]]] = {}
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                groups.setdefault((block["tag"], block["context"]), []).append(block)
    found = []
    for (tag, context), blocks in groups.items():
        times = [born[b["address"]] for b in blocks if b["address"] in born]
        found.append(
            Holder(
                tags[tag],
                sum(b["requested_size"] for b in blocks),
                len(blocks),
                max(b["age"] for b in blocks),
                min(b["age"] for b in blocks),
                min(times) if len(times) == len(blocks) else None,
                frames(context),
            )
        )
    return sorted(found, key=lambda holder: -holder.nbytes)


def numbers_of(handle: int) -> Optional[Dict[str, int]]:
    """The report of the last failure, or None if there was none."""
    try:
        return values_of(output(lib.memopt_allocator_get_oom_report, handle))
    except errors.NotFoundError:
        return None
