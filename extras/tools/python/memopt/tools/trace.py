"""Traces of allocations: read, replayed without a GPU, and the smallest device that they need."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Tuple, Union

from .. import _lifetime, errors
from .._abi import Status
from .._abi import tools as _abi
from .._abi.tools import TraceAction
from .._arguments import unsigned
from .._interrupt import Interruptible
from .._library import c_text, output
from ..sizes import Size, parse_size
from . import _trace_files
from ._library import lib
from ._trace_files import TraceSource

if TYPE_CHECKING:
    import array

#: Reports progress: ``progress(done, total)``. An exception ends the call.
Progress = Callable[[int, int], Any]

#: The stream of a free on the block's own stream.
OWN_STREAM = (1 << 64) - 1


#: The lag of a device that does nothing before it is waited for.
LAG_WITHOUT_END = (1 << 64) - 1


class TraceInfo(NamedTuple):
    """What a trace holds, and its faults.

    ``first_…`` is the place of the first one: its line in a text, else the number of the added
    event, from 1; 0 if there is none.
    """

    #: Allocations, frees and recorded streams that a replay does, and the allocations among them.
    events: int
    allocations: int
    #: Different streams.
    streams: int
    #: The most requested bytes, and blocks, alive at once.
    peak_live_bytes: int
    peak_live_blocks: int
    #: What is alive at the end.
    live_bytes: int
    live_blocks: int
    #: Lines of text read.
    lines: int
    #: Frees of blocks from before the recording, omitted.
    unknown_frees: int
    first_unknown: int
    #: Frees of blocks that are free, omitted.
    double_frees: int
    first_double: int
    #: Allocations at the address of a live block, whose free was added before them.
    lost_frees: int
    first_lost: int
    #: Allocations of no bytes, omitted.
    empty_allocations: int
    #: Allocations that failed when the trace was recorded, and the largest of them.
    failed_allocations: int
    failed_bytes: int


class Sample(NamedTuple):
    """What was alive and held, at most, during the events up to number `event`."""

    event: int
    live_bytes: int
    reserved_bytes: int


class ReplayFailure(NamedTuple):
    """The allocation that did not fit: its event's number from 1, and what was alive and held."""

    event: int
    nbytes: int
    stream: int
    live_bytes: int
    reserved_bytes: int


class PlannedReplay(NamedTuple):
    """What the trace took as a step that repeats, with the plan of its first time."""

    #: The steps with the plan, and those that went wholly by it.
    steps: int
    as_planned: int
    #: The most bytes held from the device, and that over the peak of live bytes.
    reserved_bytes: int
    ratio: float
    #: Device calls of all of them.
    device_calls: int
    #: CPU time of an event in the fastest.
    ns_per_event: float
    #: The ranges that the plan takes, and what no plan can do with less than.
    plan_bytes: int
    least_bytes: int


class Replay(NamedTuple):
    """What a replay took."""

    #: The device's bytes.
    capacity: int
    #: Events done: all, or those before the one that failed.
    events: int
    #: The most requested bytes alive at once in the whole trace.
    peak_live_bytes: int
    #: The most bytes held from the device.
    peak_reserved_bytes: int
    #: peak_reserved_bytes over peak_live_bytes.
    ratio: float
    #: CPU time of an event in the first pass, with its device calls.
    first_ns_per_event: float
    #: CPU time of an event in the fastest warm pass; in the first where there is no other.
    ns_per_event: float
    device_allocs: int
    device_frees: int
    #: Allocations that succeeded only after giving the cache back.
    retries: int
    #: What did not fit, or None.
    failure: Optional[ReplayFailure]
    samples: List[Sample]
    #: With `steps`; None without, or where memory ran out.
    planned: Optional[PlannedReplay] = None

    @property
    def out_of_memory(self) -> bool:
        """Whether the replay ended because memory ran out."""
        return self.failure is not None


class Trace(_lifetime.Closing):
    """Allocations and frees in order, by an id (an address, mostly), a size and a stream.

    Made from calls (:meth:`alloc`, :meth:`record_stream`, :meth:`free`), from text
    (:meth:`parse_csv`), or from a file (:meth:`read`). With `with_failed`, allocations that failed
    when the trace was recorded are replayed too, and freed at once.
    """

    __slots__ = ("_handle", "source", "__weakref__")

    def __init__(self, *, with_failed: bool = False) -> None:
        options = _abi.TraceOptions(with_failed=int(bool(with_failed)))
        self._handle = _lifetime.create(
            self, "trace", lib.memopt_trace_destroy, lib.memopt_trace_create, options
        )
        #: The source of :meth:`read`; None for other traces.
        self.source: Optional[TraceSource] = None

    @classmethod
    def read(
        cls,
        file: Any,
        *,
        device: Optional[int] = None,
        partial: bool = False,
        recorded_only: bool = False,
        with_failed: bool = False,
        progress: Optional[Callable[[int, Optional[int]], Any]] = None,
        max_unpacked: Optional[Size] = None,
    ) -> "Trace":
        """Reads a trace from a path or a binary file: CSV or a PyTorch memory snapshot, either also
        compressed with gzip. CorruptError says in which line what is wrong.

        `device` picks one of a snapshot's devices (else the one with most events). With `partial`
        the part before a malformed line or a cut-off end is read. Blocks that a snapshot knows from
        before its recording are allocated first, but with `recorded_only`. ``progress(done,
        total)`` gets bytes of the file; total is None if it has no size. A gzip file that unpacks
        to more than 100 times its size and 64 MiB is refused, or to more than `max_unpacked` where
        that is given.
        """
        limit = None if max_unpacked is None else parse_size(max_unpacked)
        trace = cls(with_failed=with_failed)
        try:
            trace.source = _trace_files.read_trace(
                trace, file, device, partial, recorded_only, progress, limit)
        except BaseException:
            trace.close()
            raise
        return trace

    # --- events ---

    def alloc(self, id: int, nbytes: Size, stream: int = 0) -> None:
        """Appends an allocation."""
        self.add([(TraceAction.ALLOC, id, parse_size(nbytes), stream)])

    def record_stream(self, id: int, stream: int) -> None:
        """Appends that another stream uses the block too."""
        self.add([(TraceAction.RECORD_STREAM, id, 0, stream)])

    def free(self, id: int, stream: Optional[int] = None) -> None:
        """Appends a free, on another stream than the block's own if one is given."""
        self.add([(TraceAction.FREE, id, 0, OWN_STREAM if stream is None else stream)])

    def add(self, events: List[Tuple[int, int, int, int]]) -> None:
        """Appends events (action, id, bytes, stream)."""
        import array  # a shared library that most programs never need

        words = array.array("Q")
        for action, id, nbytes, stream in events:
            unsigned(int(action), 32, "an action")
            for value, what in ((id, "an id"), (nbytes, "a size"), (stream, "a stream")):
                unsigned(value, 64, what)
            words.extend((id, nbytes, stream, action))
        self.add_words(words)

    def add_words(self, words: "array.array[int]") -> None:
        """Appends events of four words each: id, bytes, stream, action."""
        events = _events_of(words)
        lib.memopt_trace_add(self._handle.pointer, events, len(words) // 4)

    def parse_csv(self, text: Union[bytes, str]) -> None:
        """Appends the events of a piece of CSV text, which may end anywhere; :meth:`end_csv` comes
        after the last. CorruptError names the line."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        lib.memopt_trace_parse_csv(self._handle.pointer, data, len(data))

    def end_csv(self) -> None:
        """Ends a CSV text."""
        lib.memopt_trace_end_csv(self._handle.pointer)

    @property
    def info(self) -> TraceInfo:
        """What it holds."""
        raw = output(lib.memopt_trace_get_info, self._handle.pointer)
        return TraceInfo(*(getattr(raw, name) for name in TraceInfo._fields))

    def __len__(self) -> int:
        """The number of events."""
        return self.info.events

    # --- replays ---

    def replay(
        self,
        config: str = "",
        *,
        capacity: Optional[Size] = None,
        warm_passes: int = 0,
        samples: int = 0,
        steps: int = 0,
        lag: int = 0,
        progress: Optional[Progress] = None,
    ) -> Replay:
        """Replays it on a device of `capacity` (None: more than it takes). `warm_passes` more
        replays measure the cost of an event with a filled cache; `samples` values over time are
        taken on request. With `steps` it is also replayed as a step that repeats: once to learn it,
        and `steps` times with the plan. The device works `lag` events behind the host (LAG_WITHOUT_END:
        nothing is done that is not waited for), as a busy GPU does. Running out of memory is a result, not an exception."""
        room = (_abi.ReplaySampleStruct * unsigned(samples, 32, "samples"))()
        with Interruptible() as interrupt:
            options = _options(config, capacity, lag, progress, interrupt)
            options.warm_passes = unsigned(warm_passes, 64, "warm_passes")
            options.samples, options.sample_room = room, samples
            options.steps = unsigned(steps, 64, "steps")
            raw = output(lib.memopt_trace_replay, self._handle.pointer, options)
        failure = None
        if raw.out_of_memory:
            failure = ReplayFailure(
                event=raw.events + 1,
                nbytes=raw.failed_bytes,
                stream=raw.failed_stream,
                live_bytes=raw.failed_live_bytes,
                reserved_bytes=raw.failed_reserved_bytes,
            )
        planned = None
        if raw.planned_reserved_bytes:
            planned = PlannedReplay(
                steps=steps,
                as_planned=raw.planned_steps,
                reserved_bytes=raw.planned_reserved_bytes,
                ratio=raw.planned_ratio,
                device_calls=raw.planned_device_calls,
                ns_per_event=raw.planned_ns_per_event,
                plan_bytes=raw.plan_bytes,
                least_bytes=raw.plan_least_bytes,
            )
        same = {name: getattr(raw, name) for name in Replay._fields if hasattr(raw, name)}
        taken = [Sample(s.event, s.live_bytes, s.reserved_bytes) for s in room[: raw.sample_count]]
        return Replay(**{**same, "failure": failure, "samples": taken, "planned": planned})

    def find_capacity(
        self,
        config: str = "",
        *,
        largest: Optional[Size] = None,
        lag: int = 0,
        progress: Optional[Progress] = None,
    ) -> int:
        """The smallest device that it completes on, by bisection in steps of 2 MiB.
        OutOfMemoryError if even `largest` is too small."""
        with Interruptible() as interrupt:
            options = _options(config, largest, lag, progress, interrupt)
            return int(output(lib.memopt_trace_find_capacity, self._handle.pointer, options))


def _events_of(words: "array.array[int]") -> Any:
    if len(words) == 0:
        return None
    if ctypes.sizeof(_abi.TraceEventStruct) != 4 * words.itemsize:
        raise AssertionError("an event is four words")
    return (_abi.TraceEventStruct * (len(words) // 4)).from_buffer(words)


def _options(
    config: str,
    capacity: Optional[Size],
    lag: int,
    progress: Optional[Progress],
    interrupt: Interruptible,
) -> _abi.ReplayOptions:
    """The thunk lives as long as the struct, which refers to it."""

    def told(_user: object, pointer: Any) -> int:
        def call() -> int:
            if progress is not None:
                progress(pointer.contents.done, pointer.contents.total)
            return Status.USER if interrupt.asked else Status.OK

        return errors.run_callback(call, lambda error: Status.USER)

    size = 0 if capacity is None else parse_size(capacity)
    if capacity is not None and size == 0:
        raise ValueError("capacity must be greater than 0; leave it out for no limit")
    return _abi.ReplayOptions(
        config=c_text(config, "a configuration"),
        capacity=size,
        lag=unsigned(lag, 64, "lag"),
        progress=_abi.ReplayProgress(told),
    )
