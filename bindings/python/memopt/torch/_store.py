"""The C offloader behind save_on_cpu: one store for each device, used from any thread.

A store owns an offloader, and the sources whose copies to the host may still run ("flights"). An
offloader takes one thread at a time, so `lock` is held around its calls. A slot ends at any point
on any thread, also inside the lock. So it is only put into `dead`, and the next holder of the lock
releases its ticket. Values on the CPU are released several at a time.

A signal may end any of this where a call returns (see _lock.py), and what the call gave is lost. So
C writes a ticket into the request, from where it goes into its slot on every way out; a slot leaves
`dead` after its ticket is released, and a second release finds nothing; and memory that a copy may
be filling is kept by the slot before the copy begins.

A source may be freed once its copy is done: it is dropped when the copy is seen to be complete, or,
where too many are under way, after the stream that it was packed on was made to wait for the copy,
so that later work of that stream may have the memory. Where another stream owns the memory,
record_stream tells torch's allocator.

On the CPU copies are done when a call returns; there are no flights.
"""

from __future__ import annotations

import array
import ctypes
import os
import weakref
from ctypes import c_int32, c_uint64, c_void_p
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from .. import _abi, _library
from .._lock import Guard
from ..offload import Offloader
from ._native import native

#: Copies of less than this are short.
SHORT_BYTES = 1 << 16
#: Where copies are inline, backward releases dead values after it has read so many bytes.
WAITING_BYTES = 1 << 22

# Functions of our own: without the check that costs a call, and for work that is shorter than
# handing the interpreter's lock over and back, without doing that.
_calls, _short_calls = ctypes.CDLL(_library.path), ctypes.PyDLL(_library.path)


def _function(name: str, *parameters: Any, calls: ctypes.CDLL = _calls) -> Any:
    function = getattr(calls, name)
    function.argtypes, function.restype = parameters, c_int32
    return function


_PACK, _UNPACK = "memopt_offloader_request_pack", "memopt_offloader_request_unpack"
_pack, _pack_short = _function(_PACK, c_void_p), _function(_PACK, c_void_p, calls=_short_calls)
_unpack, _unpack_short = (_function(_UNPACK, c_void_p), _function(_UNPACK, c_void_p, calls=_short_calls))
_prefetch_into = _function("memopt_offloader_prefetch_into", c_void_p, c_uint64, c_void_p, c_uint64, c_void_p)
_wait_unpacked = _function("memopt_offloader_wait_unpacked", c_void_p, c_uint64, c_void_p)
_wait_packed = _function("memopt_offloader_wait_packed", c_void_p, c_uint64, c_void_p)
_query_packed = _function("memopt_offloader_query_packed", c_void_p, c_uint64)
_COPY = (c_void_p, c_void_p, c_void_p, c_uint64, c_void_p)
_copy, _copy_short = _function("memopt_copy", *_COPY), _function("memopt_copy", *_COPY, calls=_short_calls)
_release = _function("memopt_offloader_release", c_void_p, c_uint64, c_void_p)
_release_many = _function("memopt_offloader_release_many", c_void_p, c_void_p, c_uint64, c_void_p, c_void_p)


#: Places of a request's fields, all of 64 bits: as words they are written in half the time.
_DATA, _BYTES, _TICKET, _KEPT = (
    getattr(_abi.OffloadRequest, field).offset // 8 for field in ("data", "bytes", "ticket", "kept")
)


def _words(request: _abi.OffloadRequest) -> Any:
    size = ctypes.sizeof(request)
    return memoryview((c_uint64 * (size // 8)).from_buffer(request)).cast("B").cast("Q")


class Options(NamedTuple):
    """What a store is made with; stores of equal options may follow each other."""

    host_limit: int
    overflow: int = int(_abi.Overflow.KEEP)
    disk: Optional[Tuple[str, int]] = None  # the path, and the most bytes


class Flight(NamedTuple):
    """A source whose copy may be under way."""

    source: torch.Tensor
    stream: Any  # torch's stream that it was packed on
    slot: Any
    before: int  # bytes of all copies that began before its own


class Store:
    """An offloader and its lock."""

    def __init__(self, device: torch.device, options: Options, inline: bool) -> None:
        self.device = device
        self.options = options
        #: Copies are done when a call returns.
        self.inline = inline
        self.on_cpu = device.type == "cpu"
        #: Below this only a short copy can be pending.
        self.short_bytes = SHORT_BYTES if inline and options.disk is None else 0
        self.lock = Guard()
        #: Held while a slot's prefetched memory changes hands; taken before `lock`.
        self.fetching = Guard()
        #: Slots that ended.
        self.dead: List[Any] = []
        #: What a slot calls at its end. In C: of a signal nothing is heard there, nor lost.
        self.end = self.dead.append
        self.burying = False
        self.unpacked_bytes = 0  # since dead slots were last released, where copies are inline
        self.flights: Dict[int, Flight] = {}  # by ticket, the oldest first
        self.flown = 0  # bytes of all copies that ever began
        self.forked = False
        self.offloader = Offloader(
            native(device).allocator,
            host_limit=options.host_limit,
            overflow=options.overflow,  # type: ignore[arg-type]
            null_stream=inline,
            disk=options.disk,
        )
        self._device = self.offloader.allocator.device._handle.pointer
        self._handle = self.offloader._handle
        self._pointer = self._handle.pointer
        # Used again and again, under `lock`: ctypes converts nothing but what is new in a call. The
        # stream of inline copies is never written.
        self._request = _abi.OffloadRequest(offloader=self._pointer)
        self._request_at = c_void_p(ctypes.addressof(self._request))
        self._request_words = _words(self._request)
        self._back = _abi.OffloadRequest(offloader=self._pointer)
        self._back_at = c_void_p(ctypes.addressof(self._back))
        self._back_words = _words(self._back)
        _stores.add(self)

    # --- streams ---

    def stream(self) -> Any:
        """torch's current stream; None on the CPU."""
        return None if self.device.type == "cpu" else torch.cuda.current_stream(self.device)

    def copy(self, destination: int, source: int, nbytes: int, stream: Any) -> None:
        """Copies a few bytes on the device, in the order of `stream`."""
        if stream is None:
            status = _copy_short(self._device, destination, source, nbytes, None)
        else:
            status = _copy(self._device, destination, source, nbytes, stream.cuda_stream)
        if status:
            raise _library.from_status(status)

    # --- calls of the offloader ---

    def pack(self, slot: Any, address: int, source: torch.Tensor, in_flight: int) -> None:
        """Gives the slot a ticket; none if its value stays on the device. Copies of more than
        `in_flight` bytes, if they are several, are not left under way."""
        stream = slot.stream
        raw = None if stream is None else stream.cuda_stream
        with self.lock:
            flight = Flight(source, stream, slot, self.flown)
            if self.dead:
                self._bury()
            request = self._request
            request.data, request.bytes, request.stream = address, slot.nbytes, raw
            try:
                status = _pack(self._request_at)
            finally:
                ticket, request.ticket = request.ticket, 0
                if request.kept:
                    slot.refused = ticket
                elif ticket:
                    slot.ticket = ticket
                    if not self.inline:
                        self.flights[ticket] = flight
                        self.flown += slot.nbytes
            if slot.refused:
                status = self._give_up(slot, raw)
            self._follow(in_flight)
        if status:
            raise _library.from_status(status)

    def pack_inline(self, slot: Any, address: int, nbytes: int) -> None:
        """The same where copies are inline."""
        lock, request = self.lock, self._request_words
        try:
            lock.acquire()
            if self.dead:
                self._bury()
            request[_DATA], request[_BYTES] = address, nbytes
            try:
                status = (_pack_short if nbytes < self.short_bytes else _pack)(self._request_at)
            finally:
                ticket, request[_TICKET] = request[_TICKET], 0
                if request[_KEPT]:
                    slot.refused = ticket
                else:
                    slot.ticket = ticket
            if slot.refused:
                status = self._give_up(slot, None)
        finally:
            try:
                lock.release()
            except RuntimeError:  # it was not acquired
                pass
        if status:
            raise _library.from_status(status)

    def _give_up(self, slot: Any, raw: Optional[int]) -> int:
        """Releases a ticket whose value stays on the device."""
        status: int = _release(self._pointer, slot.refused, raw)
        slot.refused = 0
        return status

    def unpack_inline(self, ticket: int, address: int, nbytes: int) -> None:
        """unpack_into() where copies are inline."""
        lock, request = self.lock, self._back_words
        try:
            lock.acquire()
            self.unpacked_bytes += nbytes  # backward drops what it has read
            if self.unpacked_bytes >= WAITING_BYTES:
                self._bury()
            request[_DATA], request[_BYTES], request[_TICKET] = address, nbytes, ticket
            status = (_unpack_short if nbytes < self.short_bytes else _unpack)(self._back_at)
        finally:
            try:
                lock.release()
            except RuntimeError:  # it was not acquired
                pass
        if status:
            raise _library.from_status(status)

    def unpack_into(self, ticket: int, address: int, nbytes: int, stream: Any) -> None:
        """Copies a value into memory that is free in the order of `stream`."""
        if self.inline:
            self.unpack_inline(ticket, address, nbytes)
            return
        raw = None if stream is None else stream.cuda_stream
        with self.lock:
            request = self._back
            request.data, request.bytes, request.stream = address, nbytes, raw
            request.ticket = ticket
            status = _unpack(self._back_at)
        if status:
            raise _library.from_status(status)

    def prefetch_into(self, slot: Any, memory: torch.UntypedStorage, stream: Any) -> None:
        """Starts to, and leaves the memory in slot.prefetched; a failure is harmless."""
        raw = None if stream is None else stream.cuda_stream
        address = memory.data_ptr()
        with self.lock:
            ticket, nbytes, prefetched = slot.ticket, slot.nbytes, (memory, stream)
            try:
                slot.prefetched = prefetched
                status = _prefetch_into(self._pointer, ticket, address, nbytes, raw)
            except BaseException:  # unknown whether a copy is pending
                slot.astray, slot.prefetched = slot.prefetched, None
                raise
            if status:
                slot.prefetched = None

    def wait_unpacked(self, ticket: int, stream: Any) -> None:
        """`stream` waits for the copy that prefetch_into() started."""
        raw = None if stream is None else stream.cuda_stream
        with self.lock:
            status = _wait_unpacked(self._pointer, ticket, raw)
        if status:
            raise _library.from_status(status)

    # --- sources under way ---

    def _follow(self, in_flight: int) -> None:
        """Keeps each source until its copy is done, or memory order takes care of it."""
        while self.flights:
            oldest = next(iter(self.flights))
            done = _query_packed(self._pointer, oldest) == 0
            under_way = self.flown - self.flights[oldest].before
            if not done and (under_way <= in_flight or len(self.flights) == 1):
                break
            self._land(oldest, done)

    def landed(self, ticket: int) -> None:
        """Makes sure that the ticket's source is no longer needed."""
        with self.lock:
            if ticket in self.flights:
                self._land(ticket, _query_packed(self._pointer, ticket) == 0)

    def _land(self, ticket: int, done: bool) -> None:
        source, stream, slot, _ = self.flights[ticket]
        if not done:
            raw = None if stream is None else stream.cuda_stream
            status = _wait_packed(self._pointer, ticket, raw)
            if status:
                del self.flights[ticket]
                raise _library.from_status(status)
            if stream is not None:  # else it is the CPU's: this thread has waited
                source.record_stream(stream)
        spoiled = slot.spoiled or slot.found_changed(source)
        slot.spoiled = spoiled
        del self.flights[ticket]

    # --- ends ---

    def collect(self) -> None:
        """Releases what dead slots had, unless another thread has the lock and is about to."""
        lock = self.lock
        try:
            if lock.acquire(False):
                self._bury()
        finally:
            try:
                lock.release()
            except RuntimeError:  # it was not acquired
                pass

    def _bury(self) -> None:
        if self.burying:  # this is a signal's handler
            return
        try:
            self.burying = True
            self._bury_all()
        finally:
            self.burying = False

    def _bury_all(self) -> None:
        release = self._release_many if self.inline else self._release_each
        self.unpacked_bytes = 0
        while self.dead:
            slots = self.dead[:]  # there may be more by now
            if not self._handle.closed and not self.forked:
                release([slot for slot in slots if slot.ticket or slot.refused])
            for slot in slots:
                slot.forget()
            del self.dead[: len(slots)]

    def _release_many(self, slots: List[Any]) -> None:
        tickets = array.array("Q", [slot.ticket or slot.refused for slot in slots])
        released, ended = c_uint64(), 0
        address, count = tickets.buffer_info()
        while ended < count:
            status = _release_many(self._pointer, address + 8 * ended, count - ended, None, ctypes.addressof(released))
            ended += released.value
            if status:
                self._refused(slots[ended], status)
                ended += 1

    def _release_each(self, slots: List[Any]) -> None:
        for slot in slots:
            ticket, stream = slot.ticket or slot.refused, slot.stream
            if ticket in self.flights:
                self._land(ticket, _query_packed(self._pointer, ticket) == 0)
            memory, stream = slot.prefetched or slot.astray or (None, stream)
            raw = None if stream is None else stream.cuda_stream
            if memory is not None:  # an unneeded copy is filling it
                _wait_unpacked(self._pointer, ticket, raw)
            status = _release(self._pointer, ticket, raw)
            if status:
                self._refused(slot, status)

    def _refused(self, slot: Any, status: int) -> None:
        """A missing ticket was released when a signal came."""
        if status != _abi.Status.NOT_FOUND:
            slot.ticket = slot.refused = 0  # it would fail again
            raise _library.from_status(status)

    def trim(self) -> int:
        """Gives host memory that is not in use back; the bytes."""
        with self.lock:
            self._bury()
            return self.offloader.trim()

    def stats(self) -> Dict[str, int]:
        """The offloader's."""
        with self.lock:
            self._bury()
            return self.offloader.stats()


# --- stores without an owner --------------------------------------------------------------------

_stores: "weakref.WeakSet[Store]" = weakref.WeakSet()
#: Who packs into stores.
owners: "weakref.WeakSet[Any]" = weakref.WeakSet()
_idle: Dict[Tuple[torch.device, Options], List[Store]] = {}
_idle_lock = Guard()  # reentrant: a collection may return a store inside


def open_store(device: torch.device, options: Options) -> Store:
    """A store with the host memory of an idle one with these options, if there is one."""
    with _idle_lock:
        waiting = _idle.get((device, options))
        if waiting:
            return waiting.pop()
        others = [store for stores in _idle.values() for store in stores]
    for store in others:  # no one uses their options: their host memory would be unused
        store.trim()
    return Store(device, options, copies_inline(device))


def copies_inline(device: torch.device) -> bool:
    """Whether copies of a device's tensors need no streams."""
    return device.type == "cpu"


def give_store(store: Store) -> None:
    """Its owner is gone; its remaining tickets stay valid."""
    with _idle_lock:
        if not store.forked and not store._handle.closed:
            _idle.setdefault((store.device, store.options), []).append(store)


def _after_fork() -> None:
    """The parent's values are refused in the child; it packs into stores of its own."""
    global _idle_lock
    _idle_lock = Guard()
    _idle.clear()
    for store in list(_stores):
        store.lock, store.fetching = Guard(), Guard()
        store.burying, store.forked = False, True
    for owner in list(owners):
        owner.start_over()


os.register_at_fork(after_in_child=_after_fork)
