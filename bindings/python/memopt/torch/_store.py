"""The C offloader behind save_on_cpu: one store for each device, used from any thread.

A store owns an offloader, and the sources whose copies to the host may still run ("flights"). An
offloader takes one thread at a time, so `lock` is held around its calls; a finalizer may run at any
point on any thread, also inside the lock, so it only leaves a ticket in `dead`, and whoever has the
lock, or gets it without waiting, releases it. Values on the CPU are released several at a time.

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
import threading
import weakref
from ctypes import c_int32, c_uint64, c_void_p
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from .. import _abi, _library
from ..offload import Offloader
from ._native import native

#: Copies to the host that may be under way before the packing stream waits for the oldest.
FLIGHTS = 4
#: Copies of less than this are short.
SHORT_BYTES = 1 << 16
#: Where copies are inline, values are released when there are so many bytes of them.
WAITING_BYTES = 1 << 22

# Functions of our own: without the check that costs a call, and for work that is shorter than
# handing the interpreter's lock over and back, without doing that.
_calls, _short_calls = ctypes.CDLL(_library.path), ctypes.PyDLL(_library.path)


def _function(name: str, *parameters: Any, calls: ctypes.CDLL = _calls) -> Any:
    function = getattr(calls, name)
    function.argtypes, function.restype = parameters, c_int32
    return function


_PACK, _UNPACK = "memopt_offload_request_pack", "memopt_offload_request_unpack"
_pack, _pack_short = _function(_PACK, c_void_p), _function(_PACK, c_void_p, calls=_short_calls)
_unpack, _unpack_short = (
    _function(_UNPACK, c_void_p),
    _function(_UNPACK, c_void_p, calls=_short_calls),
)
_prefetch_into = _function(
    "memopt_offload_prefetch_into", c_void_p, c_uint64, c_void_p, c_uint64, c_void_p
)
_wait_unpacked = _function("memopt_offload_wait_unpacked", c_void_p, c_uint64, c_void_p)
_wait_packed = _function("memopt_offload_wait_packed", c_void_p, c_uint64, c_void_p)
_query_packed = _function("memopt_offload_query_packed", c_void_p, c_uint64)
_release = _function("memopt_offload_release", c_void_p, c_uint64, c_void_p)
_release_many = _function(
    "memopt_offload_release_many", c_void_p, c_void_p, c_uint64, c_void_p, c_void_p
)


class Options(NamedTuple):
    """What a store is made with; stores of equal options may follow each other."""

    host_limit: int
    overflow: int
    disk: Optional[Tuple[str, int]] = None  # the path, and the most bytes


class Flight(NamedTuple):
    """A source whose copy may be under way."""

    source: torch.Tensor
    stream: Any  # torch's stream that it was packed on
    slot: Any


class Dead(NamedTuple):
    """What a slot leaves behind where copies are not inline."""

    ticket: int
    prefetched: Any  # memory that a copy is filling for nobody, and the stream it is of
    stream: Any


class Store:
    """An offloader and its lock."""

    def __init__(self, device: torch.device, options: Options, inline: bool) -> None:
        self.device = device
        self.options = options
        #: Copies are done when a call returns.
        self.inline = inline
        self.on_cpu = device.type == "cpu"
        #: Below this a short copy is all that there can be to do.
        self.short_bytes = SHORT_BYTES if inline and options.disk is None else 0
        self.lock = threading.Lock()
        #: Held while a slot's prefetched memory changes hands; taken before `lock`.
        self.fetching = threading.Lock()
        #: What finalizers left: Dead, or where copies are inline just the tickets. They only append.
        self.dead: List[Any] = []
        self.dead_bytes = 0  # about
        self.flights: Dict[int, Flight] = {}  # by ticket, the oldest first
        self.forked = False
        self.offloader = Offloader(
            native(device).allocator,
            host_limit=options.host_limit,
            overflow=options.overflow,  # type: ignore[arg-type]
            null_stream=inline,
            disk=options.disk,
        )
        self._handle = self.offloader._handle
        self._pointer = self._handle.pointer
        # Used again and again, under `lock`: ctypes converts nothing but what is new in a call. The
        # stream of inline copies is never written.
        self._request = _abi.OffloadRequest(offloader=self._pointer)
        self._request_at = c_void_p(ctypes.addressof(self._request))
        _stores.add(self)

    # --- streams ---

    def stream(self) -> Any:
        """torch's current stream; None on the CPU."""
        return None if self.device.type == "cpu" else torch.cuda.current_stream(self.device)

    # --- calls of the offloader ---

    def pack(self, address: int, nbytes: int, stream: Any) -> int:
        """A ticket; 0 where the value is to stay on the device."""
        raw = None if stream is None else stream.cuda_stream
        with self.lock:
            if self.dead:
                self._bury()
            request = self._request
            request.data, request.bytes, request.stream = address, nbytes, raw
            status = _pack(self._request_at)
            ticket: int = request.ticket
            if status == 0 and request.kept:
                status, ticket = _release(self._pointer, ticket, raw), 0
        if self.dead:
            self.collect()
        if status:
            raise _library.from_status(status)
        return ticket

    def pack_inline(self, address: int, nbytes: int) -> int:
        """The same where copies are inline."""
        lock, request = self.lock, self._request
        lock.acquire()
        if self.dead:
            try:
                self._bury()
            except BaseException:
                lock.release()
                raise
        request.data, request.bytes = address, nbytes
        status = (_pack_short if nbytes < self.short_bytes else _pack)(self._request_at)
        ticket: int = request.ticket
        kept = request.kept
        lock.release()
        if status:
            raise _library.from_status(status)
        if kept:
            self.dead.append(ticket)
            self.collect()
            return 0
        return ticket

    def unpack_inline(self, ticket: int, address: int, nbytes: int) -> None:
        """unpack_into() where copies are inline."""
        lock, request = self.lock, self._request
        lock.acquire()
        request.data, request.bytes, request.ticket = address, nbytes, ticket
        status = (_unpack_short if nbytes < self.short_bytes else _unpack)(self._request_at)
        lock.release()
        if status:
            raise _library.from_status(status)

    def unpack_into(self, ticket: int, address: int, nbytes: int, stream: Any) -> None:
        """Copies a value into memory that is free in the order of `stream`."""
        raw = None if stream is None else stream.cuda_stream
        with self.lock:
            request = self._request
            request.data, request.bytes, request.stream = address, nbytes, raw
            request.ticket = ticket
            status = _unpack(self._request_at)
        if self.dead:
            self.collect()
        if status:
            raise _library.from_status(status)

    def prefetch_into(self, ticket: int, address: int, nbytes: int, stream: Any) -> bool:
        """Starts to; False where that failed, which is no harm."""
        raw = None if stream is None else stream.cuda_stream
        with self.lock:
            status: int = _prefetch_into(self._pointer, ticket, address, nbytes, raw)
        return status == 0

    def wait_unpacked(self, ticket: int, stream: Any) -> None:
        """`stream` waits for the copy that prefetch_into() started."""
        raw = None if stream is None else stream.cuda_stream
        with self.lock:
            status = _wait_unpacked(self._pointer, ticket, raw)
        if status:
            raise _library.from_status(status)

    # --- sources under way ---

    def follow(self, ticket: int, flight: Flight) -> None:
        """Keeps a source until its copy is done, or memory order takes care of it."""
        with self.lock:
            self.flights[ticket] = flight
            while self.flights:
                oldest = next(iter(self.flights))
                done = _query_packed(self._pointer, oldest) == 0
                if not done and len(self.flights) <= FLIGHTS:
                    break
                self._land(oldest, done)

    def landed(self, ticket: int) -> None:
        """Makes sure that nothing of the ticket's source is needed any more."""
        with self.lock:
            if ticket in self.flights:
                self._land(ticket, _query_packed(self._pointer, ticket) == 0)

    def _land(self, ticket: int, done: bool) -> None:
        flight = self.flights.pop(ticket)
        if not done:
            stream = flight.stream
            raw = None if stream is None else stream.cuda_stream
            status = _wait_packed(self._pointer, ticket, raw)
            if status:
                raise _library.from_status(status)
            if stream is not None:  # else it is the CPU's: this thread has waited
                flight.source.record_stream(stream)
        flight.slot.source_landed(flight.source)

    # --- ends ---

    def release(self, dead: Dead) -> None:
        """Ends a ticket, now or soon; for finalizers."""
        if self._handle.closed or self.forked:
            return
        self.dead.append(dead)
        self.collect()

    def collect(self) -> None:
        """Releases dead tickets, unless another thread is about to."""
        while self.dead and self.lock.acquire(False):
            try:
                self._bury()
            finally:
                self.lock.release()

    def _bury(self) -> None:
        if self._handle.closed or self.forked:
            self.dead.clear()
        elif self.inline:
            self._bury_inline()
        else:
            self._bury_each()

    def _bury_inline(self) -> None:
        dead = self.dead
        self.dead_bytes = 0
        while dead:
            tickets = array.array("Q", dead)
            del dead[: len(tickets)]  # there may be more by now
            released = c_uint64()
            address, count = tickets.buffer_info()
            status = _release_many(self._pointer, address, count, None, ctypes.addressof(released))
            if status:
                dead.extend(tickets[released.value + 1 :])  # the one that failed will do so again
                raise _library.from_status(status)

    def _bury_each(self) -> None:
        while self.dead:
            ticket, prefetched, stream = self.dead.pop(0)
            if self._handle.closed:
                return
            if ticket in self.flights:
                self._land(ticket, _query_packed(self._pointer, ticket) == 0)
            raw = None if stream is None else stream.cuda_stream
            if prefetched is not None:
                _wait_unpacked(self._pointer, ticket, raw)
            status = _release(self._pointer, ticket, raw)
            if status:
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
_idle_lock = threading.RLock()  # reentrant: a collection may return a store inside


def open_store(device: torch.device, options: Options) -> Store:
    """A store with an idle one's host memory, where there is one of these options."""
    with _idle_lock:
        waiting = _idle.get((device, options))
        if waiting:
            return waiting.pop()
        others = [store for stores in _idle.values() for store in stores]
    for store in others:  # their options are out of use: what they hold would only lie there
        store.trim()
    return Store(device, options, copies_inline(device))


def copies_inline(device: torch.device) -> bool:
    """Whether copies of a device's tensors need no streams."""
    return device.type == "cpu"


def give_store(store: Store) -> None:
    """Its owner is gone; what is left of its tickets goes on."""
    with _idle_lock:
        if not store.forked and not store._handle.closed:
            _idle.setdefault((store.device, store.options), []).append(store)


def _after_fork() -> None:
    """The child reads the parent's values on the CPU, and packs into stores of its own."""
    global _idle_lock
    _idle_lock = threading.RLock()
    _idle.clear()
    for store in list(_stores):
        store.lock, store.fetching = threading.Lock(), threading.Lock()
        store.forked = True
    for owner in list(owners):
        owner.start_over()


os.register_at_fork(after_in_child=_after_fork)
