"""The caching, stream-ordered allocator of device memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import weakref
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _dlpack, _events, _lifetime, _snapshot, errors, oom, steps
from ._abi import Status, Tag
from ._arguments import unsigned
from ._events import HistoryEvent
from ._library import c_text, lib, listed, output, values_of
from ._stacks import Stacks, no_frames
from .device import Device
from .memory import Memory
from .oom import OutOfMemoryReport
from .sharing import Export
from .sizes import Size, parse_size
from .steps import StepPlan
from .streams import StreamLike, stream_pointer

#: A tag by name ("weights", or one that was registered), by :class:`Tag`, or by number.
TagLike = Union[str, Tag, int]


#: Functions that give memory and take it back: see :class:`Allocator`.
Provider = Tuple[Callable[[int], Optional[int]], Callable[[int, int], Any]]


class TagStats(NamedTuple):
    """What a tag's blocks take."""

    current_bytes: int
    peak_bytes: int
    blocks: int
    outside_bytes: int = 0


class Paused(int):
    """The bytes that a pause has given back to the device."""

    shared: int  #: bytes of pages that stay, because other blocks are in them, too
    kept: int  #: bytes of contents that have moved

    @classmethod
    def of(cls, reports: Sequence[Any]) -> "Paused":
        """What several allocators have given back together."""
        result = cls(sum(raw.released_bytes for raw in reports))
        result.shared, result.kept = (sum(getattr(raw, f) for raw in reports) for f in ("shared_bytes", "kept_bytes"))
        return result


class RangeEvent(NamedTuple):
    """A range of addresses that has got memory, or (`mapped` false) is about to lose it."""

    mapped: bool
    address: int
    bytes: int
    generation: int  #: the number of the event; later ones are larger


class Buffer(Memory):
    """A block of an allocator.

    Freed by ``allocator.free(buffer)``, ``buffer.free()``, on leaving ``with``, or when it is
    forgotten. Wherever an address is wanted, ``int(buffer)`` is it.
    """

    __slots__ = ("allocator", "_stream", "_tag")

    device: Device
    _kind = "buffer"

    def __init__(
        self, allocator: "Allocator", address: Optional[int], nbytes: int, stream: StreamLike, tag: int = 0
    ) -> None:
        super().__init__(allocator.device, address, nbytes, allocator._handle)
        #: Where it came from.
        self.allocator = allocator
        self._tag = tag
        self._stream = stream  # a Stream must not end before its blocks

    @property
    def _on_host(self) -> bool:
        return self.allocator.pinned

    def free(self) -> None:
        """Frees the block. Work of its own stream may still be pending. ClosedError the second
        time."""
        self.allocator.free(self)

    def record_stream(self, stream: StreamLike) -> None:
        """Says that work on another stream uses it."""
        self.allocator.record_stream(self, stream)

    def __enter__(self) -> "Buffer":
        self.pointer
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not self.freed and (error is None or not self._exports):
            self.free()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # An instance whose making failed has no address; one that was freed has None.
        if finalizing() or not getattr(self, "_address", None) or self._handle.lost:
            return
        self.allocator._give_back(self)

    def _add_export(self) -> None:
        if self.allocator._is_paused(self._tag):
            raise errors.BusyError(Status.BUSY, "the buffer is in a paused pool: resume it before making a view")
        super()._add_export()

    def _take(self) -> int:
        """The address, which now belongs to another owner."""
        self._refuse_exports()
        address = self.pointer
        self._address = None
        return address


class Allocator(_lifetime.Closing):
    """A caching allocator of one device.

    `config` is a string as in PYTORCH_CUDA_ALLOC_CONF:
    "expandable_segments:True,max_split_size_mb:128". `limit` is the most it may hold from the
    device. ``on_pressure(bytes_needed)`` is called when memory is short and returns the bytes it
    freed; ``on_oom(asked, free, report)`` when an allocation fails for good. With `pinned` it caches
    page-locked host memory in place of device memory; a freed block is reused once the work of its
    stream and of all recorded ones is complete. `provider` is a pair of functions that give memory in
    place of the driver: ``alloc(nbytes)`` returns an address, or None where there is no more, and
    ``free(address, nbytes)`` takes it back; they cannot use the allocator.
    """

    __slots__ = (
        "_config",
        "device",
        "_handle",
        "_live",
        "_tags",
        "_names",
        "_on_pressure",
        "_on_oom",
        "pinned",
        "_observers",
        "_stacks",
        "_recording",
        "_oom",
        "__weakref__",
    )

    def __init__(
        self,
        device: Device,
        config: str = "",
        *,
        limit: Size = 0,
        pinned: bool = False,
        provider: Optional[Provider] = None,
        on_pressure: Optional[Callable[[int], Optional[int]]] = None,
        on_oom: Optional[Callable[[int, int, str], Any]] = None,
    ) -> None:
        self._on_pressure = on_pressure
        self._on_oom = on_oom
        #: Whether its memory is page-locked host memory.
        self.pinned = bool(pinned)
        self._begin(device, config, {t.name.lower(): int(t) for t in Tag if t is not Tag.USER})
        memory = _abi.AllocatorMemory.PINNED if pinned else _abi.AllocatorMemory.DEVICE
        options = _abi.AllocatorOptions(limit=parse_size(limit), memory=memory)
        options.pressure, options.oom = thunks = _thunks(weakref.ref(self))
        kept: Tuple[Any, ...] = thunks
        if provider is not None:
            functions = _provider_thunks(*provider)
            options.provider = ctypes.pointer(_abi.MemoryProvider(alloc=functions[0], free=functions[1]))
            kept += functions
        self._handle = _lifetime.create(
            self,
            "allocator",
            lib.memopt_allocator_destroy,
            lib.memopt_allocator_create,
            device._handle.pointer,
            c_text(config, "a configuration"),
            options,
            parents=(device._handle,),
            keep=(*kept, self._observers),
            force_end=lib.memopt_allocator_destroy_force,
        )

    def _begin(self, device: Device, config: str, tags: Dict[str, int]) -> None:
        #: The device whose memory it gives out.
        self.device = device
        self._config = config
        self._tags = tags  # one for an allocator and its pools
        self._live: Dict[int, "weakref.ref[Buffer]"] = {}  # Buffers by address
        self._observers: Dict[int, Any] = {}  # thunks by number
        self._names = stat_names()
        self._stacks: Optional[Stacks] = None  # of the last history with frames
        self._recording = False
        self._oom: Optional[OutOfMemoryReport] = None

    def pool(self, name: str = "", *, limit: Size = 0, config: Optional[str] = None, retain: bool = False) -> "Pool":
        """A pool of this allocator; see :class:`Pool`."""
        return Pool(self, name, limit=limit, config=config, retain=retain)

    def close(self, force: bool = False) -> None:
        """Gives all memory back to the device. BusyError while blocks are allocated.

        With `force`, blocks that are still allocated are freed. BufferError where one of them has
        views in use.
        """
        self._handle.close(force)

    # --- blocks ---

    def alloc(self, nbytes: Size, stream: StreamLike = None, tag: TagLike = "other") -> Buffer:
        """Allocates device memory for work on a stream; OutOfMemoryError says what is free."""
        size, number = parse_size(nbytes), self.tag(tag)
        try:
            address = output(lib.memopt_allocator_alloc, self._handle.pointer, size, number, stream_pointer(stream))
        except errors.OutOfMemoryError as error:
            with contextlib.suppress(errors.MemoptError):  # never hide the failure
                self._note_failure(error.message)
            raise
        buffer = Buffer(self, address, size, stream, number)
        if address:
            self._live[address] = weakref.ref(buffer)
        return buffer

    def free(self, block: Union[Buffer, int, None]) -> None:
        """Frees a block: the Buffer, or its address. None is allowed."""
        if block is None:
            return
        if not isinstance(block, Buffer):
            known = self._live.get(int(block))
            buffer = known() if known is not None else None
            if buffer is None:
                lib.memopt_allocator_free(self._handle.pointer, int(block))
                return
            block = buffer
        if block.allocator is not self:
            raise ValueError("free: the buffer belongs to another allocator")
        self._give_back(block)

    def _give_back(self, buffer: Buffer) -> None:
        address = buffer._take()
        known = self._live.pop(address, None)  # before another thread can be given the address
        try:
            lib.memopt_allocator_free(self._handle.pointer, address)
        except errors.MemoptError:
            if known is not None:
                self._live[address] = known
            buffer._address = address
            raise

    def _disown(self, buffer: Buffer) -> None:
        """Another object has taken the block: an offloader's ticket."""
        self._live.pop(buffer._take(), None)

    def record_stream(self, block: Union[Buffer, int], stream: StreamLike) -> None:
        """Says that work on another stream uses a block, so that its memory waits for it."""
        lib.memopt_allocator_record_stream(self._handle.pointer, int(block), stream_pointer(stream))

    def export_block(self, block: Union[Buffer, int]) -> Export:
        """Lets other processes import a block: see :class:`Export`. UnsupportedError without
        ``expandable_segments:True``, or where the device cannot share memory."""
        return Export(self._handle, int(block))

    def block(self, pointer: Union[Buffer, int]) -> Tuple[int, int]:
        """The first byte and the usable size of the live block that holds an address."""
        base, size = ctypes.c_void_p(), ctypes.c_uint64()
        lib.memopt_allocator_get_block(self._handle.pointer, int(pointer), base, size)
        return base.value or 0, size.value

    def trim(self, target: Size = 0) -> int:
        """Gives cached memory back to the device until at most `target` bytes are held; the bytes
        given back. Live blocks are not touched."""
        return int(
            output(lib.memopt_allocator_trim_sync, self._handle.pointer, parse_size(target))
        )

    def set_limit(self, limit: Size) -> None:
        """Sets the most bytes to hold from the device; 0: no limit."""
        lib.memopt_allocator_set_limit(self._handle.pointer, parse_size(limit))

    def set_outside(self, tag: int, nbytes: Size) -> None:
        """Tells of memory that another library holds and that counts as this allocator's: below its limit, and in the
        out-of-memory message. It replaces what was told for the tag before; 0: none."""
        lib.memopt_allocator_set_outside(self._handle.pointer, tag, parse_size(nbytes))

    # --- steps ---

    def mark_step(self, learn: bool = False, end: bool = False) -> None:
        """Marks the end of a training step and the beginning of the next one. Once two steps in a
        row have made the same allocations, the allocator lays their blocks out: then a step needs
        no driver call and hardly more memory than its blocks. A step that differs is served as
        without a plan, from there on. With `learn` the step that ends is planned at once; with
        `end` there are no more steps. The mark that makes a plan takes up to a second.
        UnsupportedError with pinned memory."""
        steps.mark(self._handle.pointer, learn, end)

    @property
    def step_plan(self) -> StepPlan:
        """What it knows of the steps that were marked."""
        return steps.read(self._handle.pointer)

    # --- pausing ---

    def pause(
        self,
        keep: bool = True,
        *,
        tags: Optional[Iterable[TagLike]] = None,
        file: Union[str, "os.PathLike[str]", None] = None,
    ) -> Paused:
        """Gives physical memory back to the device and keeps the addresses of the blocks: of those
        with one of `tags`, or of all; the bytes given back. With `keep` the contents move to pinned
        host memory, or to a `file` (a folder, or a new file, which has no name once it is open);
        else they are lost. No work may use the blocks until :meth:`resume`; blocks of other tags
        stay usable. A page with blocks of other tags stays: see :attr:`Paused.shared`. BufferError
        where blocks are host memory ("cpu") with views in use; UnsupportedError without
        ``expandable_segments:True``."""
        if self.device._dlpack_device(False)[0] == _dlpack.CPU:
            self._handle.refuse_exports("paused")
        options = pause_options(keep, file)
        options.tags = 0 if tags is None else self._tag_bits(tags)
        return Paused.of([output(lib.memopt_pool_pause_sync, self._handle.pointer, options)])

    def resume(self, *, tags: Optional[Iterable[TagLike]] = None) -> None:
        """Gives the blocks memory again, with the contents that were kept: those of `tags`, and of
        the tags that were paused together with them, or all. OutOfMemoryError where too little is
        free, OSError where a file cannot be read: they stay paused."""
        bits = 0 if tags is None else self._tag_bits(tags)
        lib.memopt_pool_resume_sync(self._handle.pointer, bits)

    def _tag_bits(self, tags: Iterable[TagLike]) -> int:
        bits = 0
        for tag in [tags] if isinstance(tags, (str, int)) else tags:
            number = self.tag(tag)
            if number > 63:
                raise ValueError("tag %d: there are at most 64" % number)
            bits |= 1 << number
        if not bits:
            raise ValueError("tags is empty; without it, all are meant")
        return bits

    @property
    def paused(self) -> bool:
        """Whether all of it is paused."""
        return paused_bits(self._handle.pointer) == (1 << 64) - 1

    @property
    def paused_tags(self) -> FrozenSet[str]:
        """The names of the paused tags."""
        bits = paused_bits(self._handle.pointer)
        return frozenset(name for name, number in self._tags.items() if bits >> number & 1)

    def _is_paused(self, tag: int) -> bool:
        return bool(paused_bits(self._handle.pointer) >> tag & 1)

    # --- ranges ---

    def add_range_observer(self, observer: Callable[[RangeEvent], object]) -> int:
        """Calls ``observer(event)`` after each range of addresses got memory and before it loses
        it, first for all that is mapped now; the observer's number. Of an allocator it is told of
        its pools' ranges, too. An exception refuses the event: the range goes again, or stays, and
        the call that caused it raises the exception. The observer may free buffers; other calls
        with the allocator may fail with BusyError there."""

        def observe(_user: object, pointer: Any) -> int:
            def call() -> int:
                raw = pointer.contents
                mapped = raw.kind == _abi.RangeKind.MAPPED
                observer(RangeEvent(mapped, raw.address or 0, raw.bytes, raw.generation))
                return _abi.Status.OK

            return errors.run_callback(call, lambda error: _abi.Status.USER)

        thunk = _abi.RangeObserver(observe)
        number = output(lib.memopt_allocator_add_range_observer, self._handle.pointer, thunk, None)
        self._observers[int(number)] = thunk
        return int(number)

    def remove_range_observer(self, number: int) -> None:
        """Ends the calls of an observer; NotFoundError where there is none with the number."""
        wanted = unsigned(number, 64, "number")
        lib.memopt_allocator_remove_range_observer(self._handle.pointer, wanted)
        self._observers.pop(wanted, None)

    # --- tags ---

    def register_tag(self, name: str) -> int:
        """Registers a tag, or finds it; from then on `name` can be given to alloc()."""
        text = c_text(name, "a tag")
        number = int(output(lib.memopt_allocator_register_tag, self._handle.pointer, text))
        self._tags[name] = number
        return number

    def tag(self, tag: TagLike) -> int:
        """The number of a tag."""
        if isinstance(tag, str):
            try:
                return self._tags[tag]
            except KeyError:
                names = ", ".join(sorted(self._tags))
                raise ValueError("tag %r is not registered; the tags are %s" % (tag, names)) from None
        return unsigned(int(tag), 32, "tag")

    def tags(self) -> Dict[str, TagStats]:
        """Current and peak bytes of every tag, by name."""
        every = map(values_of, listed(lib.memopt_allocator_get_tag_stats, self._handle.pointer))
        return {raw["name"]: TagStats(*(raw[field] for field in TagStats._fields)) for raw in every}

    # --- statistics ---

    def stats(self) -> Dict[str, int]:
        """All statistics at one moment, under PyTorch's keys: "reserved_bytes.all.peak" …"""
        values = (ctypes.c_uint64 * len(self._names))()
        lib.memopt_allocator_get_stats(self._handle.pointer, len(self._names), None, values, None)
        return dict(zip(self._names, values))

    def stat(self, name: str) -> int:
        """One statistic by its key."""
        text = c_text(name, "a statistic")
        return int(output(lib.memopt_allocator_get_stat, self._handle.pointer, text))

    def reset_peaks(self) -> None:
        """Makes every peak the current value."""
        lib.memopt_allocator_reset_peaks(self._handle.pointer)

    def snapshot(self) -> List[Dict[str, Any]]:
        """Segments with their blocks as they were at one moment, in the format of
        torch.cuda.memory_snapshot(), with each block's tag."""
        return _snapshot.read_segments(self._handle.pointer, self.device.properties.index, frames=self._frames)

    def full_snapshot(self) -> Dict[str, Any]:
        """The same as torch.cuda.memory._snapshot() gives it, for torch.cuda._memory_viz and other
        viewers, with the history that :meth:`start_history` has begun."""
        events = self.history() if self._recording else []
        index = self.device.properties.index
        traces: List[List[Any]] = [[] for _ in range(index)] + [_events.Entries().of(events)]
        whole = _snapshot.whole(self.snapshot(), self._config, traces)
        whole["memopt"] = {
            "tags": oom.tag_names(self._handle.pointer),
            "held": _events.held(events),
            "out_of_memory": None if self._oom is None else self._oom.as_dict(),
        }
        return whole

    def dump_snapshot(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes :meth:`full_snapshot`: a page for a browser if the name ends in .html, JSON if it
        ends in .json, else the pickle that https://pytorch.org/memory_viz opens."""
        _snapshot.dump(self.full_snapshot(), path)

    # --- history ---

    def start_history(self, events: int = _events.EVENTS, *, frames: bool = False) -> None:
        """Begins to keep the last `events` events in memory, with `frames` also the Python call
        stack of each allocation, which takes some microseconds. Pools made from now on keep one of
        their own. BusyError if there is one already."""
        stacks = Stacks() if frames else None
        pointer = self._handle.pointer
        if stacks is not None:
            # C may call it as long as the allocator lives.
            self._handle.keep = (self._handle.keep, stacks)
        _events.start(pointer, unsigned(events, 64, "events"), stacks)
        self._stacks, self._recording = stacks, True

    def stop_history(self) -> None:
        """Ends the history and forgets its events."""
        lib.memopt_allocator_set_history(self._handle.pointer, None)
        self._recording = False

    def history(self, first: int = 0) -> List[HistoryEvent]:
        """The events that are kept, from number `first` on, oldest first. NotFoundError without a
        history."""
        return _events.read(self._handle.pointer, first, self._frames)

    def _frames(self, number: int) -> List[Dict[str, Any]]:
        return no_frames(number) if self._stacks is None else self._stacks.frames(number)

    @property
    def out_of_memory(self) -> Optional[OutOfMemoryReport]:
        """Why the last allocation has failed for lack of memory, and who held what then; None if
        none has failed. Frames and times are those of :meth:`start_history`. A failure inside the
        library, of an optimizer's state, for example, is described as of now."""
        self._note_failure("")
        return self._oom

    def _note_failure(self, message: str) -> None:
        """Keeps a report of the last failure, if it is new: it was not for host memory."""
        numbers = oom.numbers_of(self._handle.pointer)
        known = None if self._oom is None else self._oom.numbers["number"]
        if numbers is not None and numbers["number"] != known:
            self._oom = self._report(numbers, message)

    def _report(self, numbers: Dict[str, int], message: str) -> OutOfMemoryReport:
        born = _events.ages(self.history()) if self._recording else {}
        tags = oom.tag_names(self._handle.pointer)
        holders = oom.holders_of(self.snapshot(), tags, self._frames, born)
        return OutOfMemoryReport(numbers, tags, holders, message)

    # --- traces ---

    def start_trace(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Begins to record allocations and frees to a file that ``memopt replay`` reads."""
        name = os.fsencode(path)
        if b"\0" in name:
            raise ValueError("start_trace: a path holds no NUL character")
        lib.memopt_allocator_trace(self._handle.pointer, name, None)

    def stop_trace(self) -> int:
        """Ends the recording; how many events it has. StorageError if the file is not complete."""
        return int(output(lib.memopt_allocator_trace, self._handle.pointer, None))


class Pool(Allocator):
    """An allocator that shares the device, the limit, the tags and the callbacks of its parent.

    It has its own blocks, cache, statistics and `limit`, and its parent's `config` if it is given
    none. Before the parent or one of its pools runs out of memory, free memory of the others goes
    back to the device, but for pools with `retain`: memory that recorded graphs use must stay. The
    parent cannot be closed before its pools.
    """

    __slots__ = ("parent",)

    def __init__(
        self, parent: Allocator, name: str = "", *, limit: Size = 0, config: Optional[str] = None, retain: bool = False
    ) -> None:
        #: The allocator that it was made from, which has the callbacks.
        self.parent = parent
        self.pinned = parent.pinned
        self._begin(parent.device, parent._config if config is None else config, parent._tags)
        text = None if config is None else c_text(config, "a configuration")
        options = _abi.PoolOptions(
            name=c_text(name, "a name"), config=text, limit=parse_size(limit), retain=bool(retain)
        )
        self._handle = _lifetime.create(
            self,
            "pool",
            lib.memopt_allocator_destroy,
            lib.memopt_pool_create,
            parent._handle.pointer,
            options,
            parents=(parent._handle,),
            force_end=lib.memopt_allocator_destroy_force,
        )
        self._handle.keep = self._observers
        self._stacks, self._recording = parent._stacks, parent._recording

    @property
    def name(self) -> str:
        """Who uses it, in messages."""
        name: bytes = output(lib.memopt_allocator_get_info, self._handle.pointer).name
        return name.decode()


def config_items(text: str) -> List[Tuple[int, str]]:
    """The "key:value" parts of a configuration and where they begin; commas inside brackets do not
    separate."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text + ","):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and (depth <= 0 or position == len(text)):
            part = text[start:position]
            if part.strip():
                items.append((start + len(part) - len(part.lstrip()), part.strip()))
            start = position + 1
    return items


def pause_options(keep: bool, file: Union[str, "os.PathLike[str]", None]) -> _abi.PauseOptions:
    """Of all tags. ValueError for a file that would keep nothing."""
    if file is not None and not keep:
        raise ValueError("pause: a file keeps the contents, keep=False discards them")
    return _abi.PauseOptions(
        path=None if file is None else os.fsencode(file),
        how=_abi.Pause.FILE if file is not None else _abi.Pause.KEEP if keep else _abi.Pause.DISCARD,
    )


def paused_bits(handle: int) -> int:
    """The paused tags of an allocator; all bits: all are."""
    return int(output(lib.memopt_allocator_get_info, handle).paused_tags)


def stat_names() -> List[str]:
    """The keys of all statistics, in the library's order."""
    count = int(output(lib.memopt_allocator_get_stats, None, 0, None, None))
    names = (ctypes.c_char_p * count)()
    lib.memopt_allocator_get_stats(None, count, names, None, None)
    return [(name or b"").decode() for name in names]


def _provider_thunks(alloc: Callable[[int], Optional[int]], free: Callable[[int, int], Any]) -> Tuple[Any, Any]:
    """The C functions of a provider. What a function raises is raised by the call that needed it."""

    def get(_user: object, nbytes: int, out_pointer: Any) -> int:
        def call() -> int:
            address = alloc(nbytes)
            if not address:
                return Status.OUT_OF_DEVICE_MEMORY
            out_pointer[0] = address
            return Status.OK

        return errors.run_callback(call, lambda error: Status.DRIVER_ERROR)

    def put(_user: object, address: int, nbytes: int) -> int:
        def call() -> int:
            free(address, nbytes)
            return Status.OK

        return errors.run_callback(call, lambda error: Status.DRIVER_ERROR)

    return _abi.ProviderAlloc(get), _abi.ProviderFree(put)


def _thunks(owner: "weakref.ref[Allocator]") -> Tuple[Any, Any]:
    """The C callbacks of an allocator. They reach it weakly, so that it can be collected."""

    def pressure(_user: object, bytes_needed: int) -> int:
        def call() -> int:
            allocator = owner()
            if allocator is None or allocator._on_pressure is None:
                return 0
            return max(int(allocator._on_pressure(bytes_needed) or 0), 0)

        return errors.run_callback(call, lambda error: 0)

    def oom(_user: object, asked: int, free: int, report: bytes) -> None:
        def call() -> None:
            allocator = owner()
            if allocator is not None and allocator._on_oom is not None:
                allocator._on_oom(asked, free, (report or b"").decode("utf-8", "replace"))

        errors.run_callback(call, lambda error: None)

    # No thunk where there is no callback: C then skips that step of the order under pressure.
    allocator = owner()
    assert allocator is not None
    return (
        _abi.PressureCallback(pressure) if allocator._on_pressure else _abi.PressureCallback(),
        _abi.OomCallback(oom) if allocator._on_oom else _abi.OomCallback(),
    )
