"""Values that save_on_cpu stores: ranges of bytes of a storage, and tensors seen in them.

A :class:`Slot` is a range of a storage's bytes, as they were when it was packed. It is in one of
three states, and who goes from the first to another sets the new state before he clears the old:

* waiting: its first tensor's `source` is what was saved, nothing has been copied (keep_last);
* packed: `ticket` is its copy on the host;
* kept: its first tensor's `source` is what was saved and stays, for want of host memory.

What autograd holds is a :class:`Saved`: dtype, shape and place of a tensor in a slot. The slot is a
weak reference to the first of them, which the others hold, and ends with it: by the reference's
callback and not by a finalizer, since an object in a finalizer can be found and revived by another
thread. The callback only puts the slot into the store's list of dead ones: it is C's, where a
callback of Python's would hear signals, whose exceptions are lost there. Slots are kept at module
level: a reference in a garbage cycle would not call.

All of this is made once per saved tensor, so it is made of few objects and few calls.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Dict, Optional, Sequence, Tuple, Type

import torch

from ._store import Store

_empty = torch.empty
_empty_strided = torch.empty_strided
_BYTE = torch.uint8


def changed(tensor: torch.Tensor, version: int) -> RuntimeError:
    """The exception for a tensor that was changed in place before backward."""
    return RuntimeError(
        "save_on_cpu: a tensor needed for gradient computation has been modified by an inplace"
        " operation: %s of shape %s is at version %d, and was saved at version %d. It was kept on"
        " its device (a parameter or buffer, small, or by keep_last or the host limit), or its copy"
        " to the host was under way" % (tensor.type(), list(tensor.shape), tensor._version, version)
    )


class Saved:
    """A tensor in a slot."""

    __slots__ = ("slot", "hold", "source", "dtype", "size", "stride", "offset", "whole", "__weakref__")

    slot: "Slot"
    hold: "Optional[Saved]"  # the slot's life; None: this is it
    source: Optional[torch.Tensor]  # where this is the first one, and its slot waits or is kept
    dtype: torch.dtype
    size: Tuple[int, ...]
    stride: Tuple[int, ...]
    offset: int  # from the slot's first byte, in elements
    whole: int  # WHOLE or DENSE: the only tensor in the slot, of as many bytes

    def tensor(self, stream: Any) -> torch.Tensor:
        """The value, in the order of `stream`."""
        slot = self.slot
        store = slot.store
        if self.whole and slot.ticket and slot.prefetched is None:
            result = _empty_strided(self.size, self.stride, dtype=self.dtype, device=store.device)
            if result.untyped_storage().nbytes() == slot.nbytes:
                store.unpack_into(slot.ticket, result.data_ptr(), slot.nbytes, stream)
                return result
        storage, start = slot.bytes(stream)
        offset = self.offset + start // self.dtype.itemsize
        return _empty(0, dtype=self.dtype, device=store.device).set_(storage, offset, self.size, self.stride)


#: Values of Saved.whole: bytes in any order, or those of a contiguous tensor.
WHOLE, DENSE = 1, 2


class Slot(weakref.ref):  # type: ignore[type-arg]
    """A stored range of bytes; called, it gives its first Saved, or None after its end."""

    __slots__ = (
        "store",
        "owner",
        "keys",
        "number",
        "version",
        "start",
        "nbytes",
        "ticket",
        "__dict__",  # of those that follow, what is not as at first
    )

    store: Store
    owner: Any  # the packer, whose tables know the slot
    keys: Sequence[int]  # the ids of storages whose places may name it
    number: int  # in the order of packing
    version: int  # of the tensor when it was saved
    start: int
    nbytes: int
    ticket: int
    stored_before: Any = None  # bytes of its packer's copies before its own: see _ahead.py
    refused: int = 0  # a ticket without a copy, to be released soon
    stream: Any = None  # torch's stream that it was packed on
    shared: bool = False  # more than one tensor is seen in it
    spoiled: Optional[RuntimeError] = None
    restored: Any = None  # a weak reference to the bytes brought back, and their stream
    prefetched: Any = None  # bytes that are being brought back, and their stream
    astray: Any = None  # the same after a signal: unknown whether a copy is pending
    coding: Any = None  # what the bytes mean, if they are not the storage's own: see _coded.py
    decoded: Any = None  # a weak reference to the values of a coded slot, and their stream

    # --- to the host ---

    def copy_out(self, tensor: torch.Tensor) -> None:
        """Packs the range of the tensor's storage, or keeps the tensor where the host is full."""
        address = tensor.untyped_storage().data_ptr() + self.start
        ahead = self.owner.ahead.get(self.store)  # None: copies are inline
        self.store.pack(self, address, tensor.detach(), 0 if ahead is None else ahead.in_flight())
        if ahead is not None:
            ahead.add(self)
        if self.ticket:
            self.first.source = None
        else:
            self.keep(tensor)

    def keep(self, tensor: torch.Tensor) -> None:
        """Keeps the tensor on the device, because host memory is full."""
        self.first.source = tensor.detach()
        self.owner.kept_overflow += len(self.keys) or 1

    @property
    def first(self) -> Saved:
        """The first tensor. The caller holds it, or a later one, which holds it."""
        return self()  # type: ignore[return-value]

    def found_changed(self, source: torch.Tensor) -> Optional[RuntimeError]:
        """The error after the copy: it is a snapshot only if nothing wrote meanwhile."""
        return None if source._version == self.version else changed(source, self.version)

    # --- and back ---

    def bytes(self, stream: Any) -> Tuple[torch.UntypedStorage, int]:
        """A storage with the range in it, valid in the order of `stream`, and where it begins."""
        source = self.first.source
        if source is not None:
            if source._version != self.version:
                raise changed(source, self.version)
            return source.untyped_storage(), self.start
        if self.restored is not None:
            reference, of = self.restored
            storage: Optional[torch.UntypedStorage] = reference()
            if storage is not None and of == stream:
                return storage, 0
        storage = self.fetched(stream)
        if storage is None:
            storage = self.room()
            self.store.unpack_into(self.ticket, storage.data_ptr(), self.nbytes, stream)
        self.brought(storage, stream)
        return storage, 0

    def brought(self, storage: torch.UntypedStorage, stream: Any) -> None:
        """Remembers what came back, for the other tensors in it."""
        if self.shared:
            self.restored = weakref.ref(storage), stream

    def fetched(self, stream: Any) -> Optional[torch.UntypedStorage]:
        """What a prefetch brings, if it is of this stream."""
        with self.store.fetching:
            prefetched = self.prefetched
            if prefetched is None or prefetched[1] != stream:
                return None
            self.store.wait_unpacked(self.ticket, stream)
            self.prefetched = None
        storage: torch.UntypedStorage = prefetched[0]
        return storage

    def prefetch(self, stream: Any) -> bool:
        """Starts to bring the range back, unless it is there or on its way. False: there is no memory
        for it, and backward asks later."""
        if not self.ticket or self.prefetched is not None or self.spoiled is not None:
            return True
        for back in (self.restored, self.decoded):
            if back is not None and back[0]() is not None:
                return True
        try:
            with self.store.fetching:
                if self.prefetched is None:
                    self.store.prefetch_into(self, self.room(), stream)
        except torch.cuda.OutOfMemoryError:
            return False
        return True

    def give_way(self) -> bool:
        """Gives up the bytes that are being brought back, which are on the host still. False: none are."""
        hold = self()
        with self.store.fetching:
            prefetched = self.prefetched
            if hold is None or prefetched is None:
                return False
            self.store.wait_unpacked(self.ticket, prefetched[1])
            self.prefetched = None
        return True

    def room(self) -> torch.UntypedStorage:
        """New memory for the range."""
        return _empty(self.nbytes, dtype=_BYTE, device=self.store.device).untyped_storage()

    def check(self) -> None:
        """Raises where the stored bytes are not what was saved."""
        if not self.store.inline and self.ticket:
            self.store.landed(self.ticket)
        if self.spoiled is not None:
            raise self.spoiled

    def forget(self) -> None:
        """It has ended, and nothing of it is left."""
        _live.pop(self.number, None)
        table = self.owner.by_storage
        for key in self.keys:
            place = table.get(key)
            if place is not None and place[1] is self:
                table.pop(key, None)


_live: Dict[int, Slot] = {}
_numbers = itertools.count(1)


#: Where the bytes of a storage are stored: a weak reference to the storage, the slot, the tensor's
#: version when it was saved, the range of the storage, and how far behind its place in the storage a
#: byte lies in the slot. A tuple, for it is made once per saved tensor.
Place = Tuple["weakref.ref[torch.UntypedStorage]", Slot, int, int, int, int]


def new_slot(
    saved: Saved, store: Store, owner: Any, version: int, start: int, nbytes: int, kind: Type[Slot] = Slot
) -> Slot:
    """A slot without bytes yet, for its first tensor."""
    number = next(_numbers)
    saved.hold = saved.source = None
    saved.slot = slot = kind(saved, store.end)  # whole before the next call: a signal may end it
    slot.store = store
    slot.owner = owner
    slot.keys = ()
    slot.number = number
    slot.version = version
    slot.start = start
    slot.nbytes = nbytes
    slot.ticket = 0
    _live[number] = slot
    return slot


class Sparse:
    """A tensor with wide gaps between its elements, of which only those are stored."""

    __slots__ = ("saved", "size", "stride")

    def __init__(self, saved: Any, size: Tuple[int, ...], stride: Tuple[int, ...]) -> None:
        self.saved = saved  # the elements, each once
        self.size = size
        self.stride = stride

    def tensor(self, stream: Any) -> torch.Tensor:
        """The value, in the order of `stream`."""
        elements = self.saved.tensor(stream)
        result = _empty_strided(elements.size(), self.stride, dtype=elements.dtype, device=elements.device)
        return result.copy_(elements).as_strided(self.size, self.stride)


class Kept:
    """A tensor that stays where it is. Changes in place are found, as without hooks."""

    __slots__ = ("value", "version")

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value
        self.version = value._version

    def tensor(self) -> torch.Tensor:
        """The value."""
        value = self.value
        if value._version != self.version:
            raise changed(value, self.version)
        return value
