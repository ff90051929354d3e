"""The device's side: the library's streamer, and the storages under which torch sees its arena.

A layer that is lent is one storage. The streamer knows it as in use until nobody refers to that storage:
a node of autograd, a checkpoint or the program may hold it, and still reads the right weights. The end of
a storage comes on any thread: it is only noted there (`dead`), and told to the streamer at the next call.

A signal is heard as a call ends, and what the call gave is then lost. So a use is noted where no call is
between the library's and the note; what the library did is seen in what it wrote.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from ... import _abi, _lifetime
from ..._library import lib, output, values_of
from ...offload import Offloader
from .. import _store
from .._native import native


ARENA_UNIT = 512


class Lent(weakref.ref):  # type: ignore[type-arg]
    """A lent storage, by what owns its memory."""

    __slots__ = ("layer", "streams")

    layer: int
    streams: List[Optional[int]]  # on which the streamer has lent it


class _OnGpu:
    """What torch takes for memory of a GPU."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def memory_at(device: torch.device, address: int, nbytes: int, keeper: Any) -> Tuple[torch.Tensor, Any]:
    """Bytes of a device as a tensor, whose storage keeps `keeper`; and the object that ends with the storage."""
    owner: Any
    if _store.copies_inline(device):
        owner = (ctypes.c_uint8 * nbytes).from_address(address)
        owner.keeper = keeper
        return torch.frombuffer(owner, dtype=torch.uint8), owner
    owner = _OnGpu(address, nbytes)
    owner.keeper = keeper
    return torch.as_tensor(owner, device=device), owner


def _address_of(owner: Any) -> int:
    if isinstance(owner, _OnGpu):
        return owner.address
    return ctypes.addressof(owner)


class Arena:
    """A streamer with its offloader. One thread at a time."""

    def __init__(self, device: torch.device, budget: int) -> None:
        self.device = device
        self._native = native(device)
        self.offloader = Offloader(self._native.allocator, null_stream=_store.copies_inline(device))
        self._parts: List[List[Tuple[int, int]]] = []  # of each layer
        self._open(budget)
        self._lent: Dict[int, Lent] = {}  # by id: an array has no hash, so a reference to it has none
        self._dead: List[Lent] = []
        self._written: Set[int] = set()  # tickets that the host writes

    def _open(self, budget: int) -> None:
        store, own = self.offloader._handle, self._native.device._handle
        self._handle = _lifetime.create(
            self,
            "streamer",
            lib.memopt_streamer_destroy,
            lib.memopt_streamer_create,
            own.pointer,
            store.pointer,
            budget,
            parents=(store, own),
            force_end=lib.memopt_streamer_destroy_force,
        )
        self.budget, self._told = budget, False
        for parts in self._parts:
            self._add(parts)

    # --- layers ---

    def add(self, parts: List[Tuple[int, int]]) -> int:
        """A layer of (ticket, bytes)."""
        number = self._add(parts)
        self._parts.append(parts)
        return number

    def _add(self, parts: List[Tuple[int, int]]) -> int:
        given = (_abi.StreamPart * len(parts))(*(_abi.StreamPart(ticket=t, bytes=n) for t, n in parts))
        return int(output(lib.memopt_streamer_add, self._handle.pointer, given, len(parts)))

    def resize(self, budget: int) -> None:
        """The same layers in another number of bytes; none is lent. The old arena goes before the new one comes, and
        comes again where that raises."""
        before = self.budget
        self._handle.close()
        try:
            self._open(budget)
        except BaseException:
            self._handle.close()
            self._open(before)
            raise

    def expect(self) -> None:
        """Says, once, that a training step comes: forward, and backward from where it turned."""
        count = len(self._parts)
        order = [*range(count), *range(count - 2, 0, -1)]
        if not self._told:
            self._told = True
            numbers = (ctypes.c_uint32 * len(order))(*order)
            lib.memopt_streamer_expect(self._handle.pointer, numbers, len(order))

    def lend(self, layer: int, nbytes: int) -> Tuple[torch.Tensor, Lent]:
        """All of a layer's memory, in the order of the current stream."""
        stream, pointer = self._native.stream(), self._handle.pointer
        addresses = (ctypes.c_void_p * len(self._parts[layer]))()
        noted = False
        try:
            lib.memopt_streamer_begin(pointer, layer, stream, addresses)
            flat, owner = memory_at(self.device, addresses[0] or 0, nbytes, self)
            lent = Lent(owner, self._dead.append)
            lent.layer, lent.streams = layer, []
            number = id(lent)
            self._lent[number], lent.streams, noted = lent, [stream], True
        except BaseException:
            if addresses[0] and not noted:
                lib.memopt_streamer_end(pointer, layer, stream)
            raise
        return flat, lent

    def follow(self, lent: Lent) -> None:
        """A lent layer is also used on the current stream."""
        stream, pointer = self._native.stream(), self._handle.pointer
        if stream not in lent.streams:
            addresses = (ctypes.c_void_p * len(self._parts[lent.layer]))()
            try:
                lib.memopt_streamer_begin(pointer, lent.layer, stream, addresses)
            finally:
                if addresses[0]:
                    lent.streams += [stream]

    def take_back(self) -> None:
        """Tells the streamer which storages have ended."""
        pointer = self._handle.pointer if self._dead else None
        while self._dead:
            lent = self._dead[0]
            while lent.streams:
                try:
                    lib.memopt_streamer_end(pointer, lent.layer, lent.streams[-1])
                finally:
                    del lent.streams[-1]
            self._lent.pop(id(lent), None)
            del self._dead[0]

    def held(self) -> Set[int]:
        """Layers whose memory somebody refers to."""
        return {lent.layer for lent in self._lent.values()}

    def lends(self, address: int) -> bool:
        """Whether a lent storage begins there."""
        owners = (lent() for lent in list(self._lent.values()))
        return any(owner is not None and _address_of(owner) == address for owner in owners)

    def evict(self, layer: int) -> None:
        """The store has other weights: the copy on the device is the old one."""
        lib.memopt_streamer_evict(self._handle.pointer, layer)

    def close(self) -> None:
        """Ends it, where no layer is lent; else it ends with the last one."""
        self.take_back()
        if not self._lent:
            self._handle.close()

    # --- figures ---

    def plan(self) -> Dict[str, int]:
        """What a training step copies."""
        plan = _abi.StreamPlan()
        lib.memopt_streamer_get_plan(self._handle.pointer, None, 0, plan)
        return values_of(plan)

    def limit(self, work: List[float], link: float) -> float:
        """The least seconds of a training step: of each layer's work forward and then backward, of a link."""
        seconds = ctypes.c_double()
        given = (ctypes.c_double * len(work))(*work)
        lib.memopt_streamer_get_limit(self._handle.pointer, None, 0, given, link, ctypes.byref(seconds))
        return seconds.value

    def stats(self) -> Dict[str, int]:
        """The streamer's."""
        return values_of(output(lib.memopt_streamer_get_stats, self._handle.pointer))

    # --- values of the offloader ---

    def reserve(self, nbytes: int) -> Tuple[int, int]:
        """A ticket of host memory, and its address."""
        ticket, address = ctypes.c_uint64(), ctypes.c_void_p()
        lib.memopt_offloader_reserve(self.offloader._handle.pointer, nbytes, ticket, address)
        lib.memopt_offloader_host_end(self.offloader._handle.pointer, ticket)
        return ticket.value, address.value or 0

    def host_memory(self, address: int, nbytes: int) -> torch.Tensor:
        """Bytes of such memory, which live as long as the tensor."""
        owner: Any = (ctypes.c_uint8 * nbytes).from_address(address)
        owner.offloader = self.offloader
        return torch.frombuffer(owner, dtype=torch.uint8)

    def map_file(self, path: bytes, offset: int, nbytes: int) -> int:
        """A ticket of a part of a file."""
        ticket = ctypes.c_uint64()
        lib.memopt_offloader_map_file(self.offloader._handle.pointer, path, offset, nbytes, ticket)
        return ticket.value

    def writing(self, ticket: int, begins: bool) -> None:
        """The host writes a ticket's memory: copies that read it are waited for, and none begins. Nothing
        where that has begun, or ended, already."""
        pointer, address = self.offloader._handle.pointer, ctypes.c_void_p()
        if begins == (ticket in self._written):
            return
        if begins:
            try:
                lib.memopt_offloader_host(pointer, ticket, _abi.HostAccess.WRITE, address)
            finally:
                if address.value:
                    self._written |= {ticket}
        else:
            try:
                lib.memopt_offloader_host_end(pointer, ticket)
            finally:
                self._written -= {ticket}
