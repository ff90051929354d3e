"""The hooks of save_on_cpu.

:meth:`Packer.pack` decides for each saved tensor: it stays, it is a view of bytes that are already
stored, or its bytes are stored. :meth:`Packer.unpack` returns it.
"""

from __future__ import annotations

import collections
import math
import weakref
from threading import get_ident
from typing import Any, Deque, Dict, Iterable, Optional, Tuple

import torch

from .. import _abi
from . import _batches, _buffers, _coded
from . import _tensor_lists as _lists
from ._ahead import Ahead
from ._batches import Batch, Piece, Whole
from ._coded import Coded, Coder
from ._slots import DENSE, WHOLE, Kept, Place, Saved, Slot, Sparse, _live, new_slot
from ._store import Options, Store, give_store, open_store, owners

_Tensor = torch.Tensor
_empty_strided = torch.empty_strided
_ref = weakref.ref

#: A range starts at a multiple of this, so that the returned tensor has its alignment.
ALIGNMENT = 512
_UNIT = _batches.UNIT
#: Views smaller than this are stored with the gaps in them.
SPARSE_BYTES = 1 << 16


class Packer:
    """The hooks and what they know. It is made at every step: what is only needed where tensors are
    saved, is made then."""

    # What differs later
    context: "Optional[weakref.ref[Any]]" = None  # at whose end the stores go to the next one
    main: Optional[Store] = None  # the first store, for the short way through pack()
    small = batch_bytes = 0  # values below `small` go to batches, of so many bytes
    waiting_bytes = 0
    saved = shared = kept_last = kept_overflow = 0
    kept_parameters = kept_buffers = kept_small = kept_other = 0
    compressed = compressed_bytes = 0

    def __init__(
        self,
        options: Options,
        device_type: Optional[str],
        min_bytes: int,
        keep_last: "Tuple[float, float]",
        limits: Tuple[Optional[int], Optional[int]],
        coder: Optional[Coder] = None,
    ) -> None:
        self.options = options
        self.device_type = device_type
        self.min_bytes = min_bytes
        self.keep_count, self.keep_bytes = keep_last
        self.keeps = min(keep_last) > 0
        #: Bytes to bring back ahead, and bytes of copies to the host under way; None: see _ahead.py.
        self.limits = limits
        self.coder = coder
        #: Types for the short way through pack().
        self.plain = _PLAIN if coder is None else _PLAIN - _lists.GRADIENT_TYPES
        self.stores: Dict[torch.device, Optional[Store]] = {}
        #: For stores whose copies are not inline.
        self.ahead: Dict[Store, Ahead] = {}
        #: Where a storage's bytes were stored last, by the storage's id.
        self.by_storage: Dict[int, Place] = {}
        #: The open batch of a thread.
        self.open: Dict[int, Batch] = {}
        #: Batches that stay on their devices.
        self.recent: Deque[Batch] = collections.deque()
        self.waiting: Deque[Slot] = collections.deque()
        self.baselines: Dict[torch.device, Dict[str, int]] = {}

    def start_over(self) -> None:
        """For a child process: stored values can be read, new values go elsewhere."""
        self.stores.clear()
        self.ahead.clear()
        self.main = None
        self.open.clear()
        self.recent.clear()
        self.by_storage.clear()
        self.waiting.clear()
        self.waiting_bytes = 0

    # --- pack ---

    def pack(self, tensor: torch.Tensor) -> Any:
        """The hook: what autograd holds in place of the tensor.

        The common case comes first, without detours: a contiguous tensor that an operation made, of
        all of a storage that was not seen yet.
        """
        store = self.main
        if (
            store is None
            or type(tensor) is not _Tensor
            or tensor.is_leaf
            or not (tensor.is_cpu if store.on_cpu else tensor.device == store.device)
        ):
            return self.pack_any(tensor)
        try:
            storage = tensor.untyped_storage()
            nbytes, key, dtype = storage.nbytes(), id(storage), tensor.dtype
            if (
                nbytes != tensor.nbytes
                or nbytes < self.min_bytes
                or tensor._base is not None
                or not tensor.is_contiguous()
                or dtype not in self.plain  # and never negated lazily: such are parts of complex ones
            ):
                return self.pack_any(tensor)
        except (RuntimeError, NotImplementedError):  # no storage, or no strides
            return self.pack_any(tensor)
        known = self.by_storage.get(key)
        if known is not None and known[0]() is storage:
            return self.pack_any(tensor)  # else that storage is gone, and its id is another's
        if nbytes < self.small and not store.inline:
            piece = self.add_piece(store, storage, tensor, 0, nbytes)
            if piece is not None:
                self.saved += 1
                return Piece((piece[0], piece[1], nbytes, dtype, tensor.shape, tensor.stride()))
        saved = Saved()
        slot = new_slot(saved, store, self, tensor._version, 0, nbytes)
        if self.keeps or not store.inline:
            self.fill(slot, tensor)
        else:
            store.pack_inline(slot, storage.data_ptr(), nbytes)
            if not slot.ticket:
                slot.keep(tensor)
        saved.dtype, saved.size, saved.stride = dtype, tensor.shape, tensor.stride()
        saved.offset, saved.whole = 0, DENSE
        slot.keys = (key,)
        self.by_storage[key] = (_ref(storage), slot, slot.version, 0, nbytes, 0)
        self.saved += 1
        return saved

    def pack_any(self, tensor: torch.Tensor) -> Any:
        """Every other case."""
        if type(tensor) is not _Tensor:
            return self.keep_special(tensor)
        try:
            store = self.stores[tensor.device]
        except KeyError:
            store = self.find_store(tensor.device)
        if store is None:
            return self.keep_other(tensor)
        try:
            storage = tensor.untyped_storage()
            total, nbytes = storage.nbytes(), tensor.nbytes
            if total < self.min_bytes or nbytes == 0:
                self.kept_small += 1
                return keep(tensor)
            if tensor.grad_fn is None:
                if tensor.requires_grad:
                    self.kept_parameters += 1
                    return Kept(tensor)
                if _buffers.is_buffer(storage):
                    self.kept_buffers += 1
                    return Kept(tensor)
            base = tensor._base
            if base is not None and base.grad_fn is None:
                if base.requires_grad or type(base) is not _Tensor:
                    self.kept_parameters += 1
                    return keep(tensor)
            size, stride = tensor.size(), tensor.stride()
            offset: Any = tensor.storage_offset()
            dtype = tensor.dtype
            if tensor.is_neg() or (dtype.is_complex and tensor.is_conj()) or tensor.is_quantized:
                return self.keep_other(tensor)
        except (RuntimeError, NotImplementedError):  # no storage, or no strides
            return self.keep_other(tensor)
        start, end = 0, total
        if nbytes * 2 <= total:
            start, end = reach(size, stride, offset, dtype.itemsize, total)
        found = self.find(storage, tensor, start, end)
        if found is None and nbytes * 2 <= end - start and end - start > SPARSE_BYTES:
            return self.pack_sparse(tensor, size, stride)
        coded = None
        if found is not None:
            self.shared += 1
            found[0].slot.shared = True
            coded = None if found[0].slot.coding is None else found[0]
        elif end - start == total and dtype in _lists.GRADIENT_TYPES:
            coded = self.code(store, storage, tensor, total)
        self.saved += 1
        if coded is not None:
            return Coded(coded, size, stride, offset)
        if found is None and end - start < self.small and not store.inline:
            found = self.add_piece(store, storage, tensor, start, end)
        saved = Saved()
        if found is None:
            slot = self.store_bytes(saved, store, storage, tensor, start, end - start)
            shift = -start
        else:
            hold, shift = found
            slot = hold.slot
            if type(slot) is Batch and tensor.is_contiguous():
                return Piece((hold, offset * dtype.itemsize + shift, nbytes, dtype, size, stride))
            saved.hold, saved.source, saved.slot = hold, None, slot
            hold.whole = 0
        offset += shift // dtype.itemsize
        saved.dtype, saved.size, saved.stride, saved.offset = dtype, size, stride, offset
        saved.whole = WHOLE if found is None and offset == 0 and nbytes == slot.nbytes else 0
        return saved

    def find(
        self, storage: torch.UntypedStorage, tensor: torch.Tensor, start: int, end: int
    ) -> Optional[Tuple[Saved, int]]:
        """The first tensor of a slot that has these bytes of the storage, as they are now, and from
        their place in the storage to that in the slot."""
        place = self.by_storage.get(id(storage))
        if place is None:
            return None
        of, slot, version, first, last, shift = place
        hold: Optional[Saved] = slot()
        if hold is None or of() is not storage or version != tensor._version or first > start or last < end:
            return None
        if slot.coding is not None and slot.coding.dtype is not tensor.dtype:
            return None
        return hold, shift

    def note(
        self, storage: torch.UntypedStorage, tensor: torch.Tensor, slot: Slot, start: int, end: int, shift: int
    ) -> None:
        """From now on the range of the storage is found in the slot."""
        key = id(storage)
        slot.keys = (key,)
        self.by_storage[key] = (_ref(storage), slot, tensor._version, start, end, shift)

    def code(self, store: Store, storage: torch.UntypedStorage, tensor: torch.Tensor, total: int) -> Optional[Saved]:
        """Stores a storage's elements in a block-scaled format; None: it is to be stored exactly."""
        coder = self.coder
        if coder is None or total < coder.min_bytes:
            return None
        whole = _coded.whole_of(tensor, storage, total)
        kind = None if whole is None else coder.kind_of(tensor)
        if whole is None or kind is None:
            return None
        coding = _coded.Coding(kind, tensor.dtype, whole.numel())
        buffer = _coded.encode(whole, coding)
        saved = Saved()
        slot = new_slot(saved, store, self, buffer._version, 0, buffer.nbytes)
        slot.coding = coding
        saved.dtype, saved.size, saved.stride = buffer.dtype, buffer.size(), buffer.stride()
        saved.offset, saved.whole = 0, WHOLE
        self.fill(slot, buffer)
        self.note(storage, tensor, slot, 0, total, 0)
        self.compressed += 1
        self.compressed_bytes += total
        return saved

    def store_bytes(
        self, saved: Saved, store: Store, storage: torch.UntypedStorage, tensor: torch.Tensor, start: int, nbytes: int
    ) -> Slot:
        """Stores bytes of the tensor's storage, for it as the first."""
        slot = new_slot(saved, store, self, tensor._version, start, nbytes)
        self.fill(slot, tensor)
        self.note(storage, tensor, slot, start, start + nbytes, -start)  # now another thread may use it
        return slot

    def fill(self, slot: Slot, tensor: torch.Tensor) -> None:
        """Stores a new slot's bytes, or lets them wait."""
        if not slot.store.inline:
            slot.stream = slot.store.stream()
        self.send(slot, tensor)

    def send(self, slot: Slot, tensor: torch.Tensor) -> None:
        """The same for a slot that knows its stream."""
        if self.keeps:
            self.let_wait(slot, tensor)
        else:
            slot.copy_out(tensor)

    def pack_sparse(self, tensor: torch.Tensor, size: Tuple[int, ...], stride: Tuple[int, ...]) -> Any:
        """Stores the elements of a view with wide gaps, each once."""
        once = [1 if step == 0 else length for length, step in zip(size, stride)]
        elements = tensor.detach().as_strided(once, stride).contiguous()
        saved = self.pack(elements)
        return keep(tensor) if type(saved) is Kept else Sparse(saved, size, stride)

    def let_wait(self, newest: Slot, tensor: torch.Tensor) -> None:
        """Keeps the newest values on the device, and copies the oldest that waited."""
        newest.first.source = tensor.detach()
        waiting = self.waiting
        self.kept_last += 1
        self.waiting_bytes += newest.nbytes
        waiting.append(newest)
        while len(waiting) > self.keep_count or self.waiting_bytes > self.keep_bytes:
            slot = waiting[0]
            del waiting[0]
            self.waiting_bytes -= slot.nbytes
            self.kept_last -= 1
            hold = slot()
            source = None if hold is None else hold.source
            if source is not None and source._version == slot.version:
                slot.copy_out(source)  # if the version differs, unpack raises

    # --- batches ---

    def _batched(self) -> Tuple[int, int]:
        """Below how many bytes a value goes to a batch, and the bytes of one. Zeros: errors are to
        be raised, or tensors counted, one by one."""
        limit, overflow = self.options.host_limit, self.options.overflow
        if self.keeps and self.keep_count < math.inf or overflow not in (_abi.Overflow.KEEP, _abi.Overflow.SPILL):
            return 0, 0
        nbytes = min(_batches.BATCH_BYTES, limit // _batches.LIMIT_PARTS if limit else _batches.BATCH_BYTES)
        return nbytes // _batches.LEAST_PIECES, nbytes

    def add_piece(
        self, store: Store, storage: torch.UntypedStorage, tensor: torch.Tensor, start: int, end: int
    ) -> Optional[Tuple[Whole, int]]:
        """Stores a range of a storage in the open batch: what to hold, and from the range's place in the
        storage to that in the batch. None: it is to be stored alone."""
        stream = None
        if not store.on_cpu:
            if torch.cuda.is_current_stream_capturing():  # of that the offloader's error tells
                return None
            stream = store.stream()
        batch: Any = self.open.get(get_ident())
        whole: Any = None if batch is None else batch()
        nbytes = end - start
        if (
            whole is None
            or ((batch.nbytes + _UNIT - 1) & -_UNIT) + nbytes > self.batch_bytes
            or batch.store is not store
            or batch.stream != stream
        ):
            self.close_batch()
            try:
                whole = _batches.open_batch(store, self, stream, self.batch_bytes)
            except torch.cuda.OutOfMemoryError:
                return None
            self.open[get_ident()] = batch = whole.slot
        place = (batch.nbytes + _UNIT - 1) & -_UNIT
        batch.nbytes = place + nbytes  # without a call in between: a signal's handler may add values, too
        store.copy(whole.back[2] + place, storage.data_ptr() + start, nbytes, stream)
        if batch.ticket:  # such a handler has closed it
            return self.add_piece(store, storage, tensor, start, end)
        shift, key = place - start, id(storage)
        batch.keys.append(key)
        self.by_storage[key] = (_ref(storage), batch, tensor._version, start, end, shift)
        return whole, shift

    def close_batch(self) -> None:
        """Sends this thread's open batch to the host."""
        batch = self.open.pop(get_ident(), None)
        whole = None if batch is None else batch()
        if batch is not None and whole is not None and whole.source is not None:
            self.send(batch, whole.source)

    def stays(self, batch: Batch) -> None:
        """A batch is on its device again; another leaves it."""
        recent = self.recent
        recent.append(batch)
        if len(recent) > _batches.RESIDENT:
            oldest = recent.popleft()
            whole: Any = oldest()
            if whole is not None and oldest is not batch:
                whole.back = None

    # --- what stays ---

    def keep_special(self, tensor: torch.Tensor) -> Any:
        """Parameters, and subclasses, whose bytes are not known."""
        if isinstance(tensor, torch.nn.Parameter):
            self.kept_parameters += 1
            return Kept(tensor)
        return self.keep_other(tensor)

    def keep_other(self, tensor: torch.Tensor) -> Any:
        self.kept_other += 1
        return keep(tensor)

    def find_store(self, device: torch.device) -> Optional[Store]:
        """The store of a device; None where its tensors are left alone."""
        wanted = self.device_type
        if wanted is None:
            wanted = "cuda" if torch.cuda.is_available() else "cpu"
        store = None
        if device.type == wanted and wanted in ("cpu", "cuda"):
            if not self.baselines:  # an empty context has nothing to give back
                owners.add(self)
                self.small, self.batch_bytes = self._batched()
                context = None if self.context is None else self.context()
                weakref.finalize(self if context is None else context, _give_stores, self.stores).atexit = False
            store = open_store(device, self.options)
            self.baselines[device] = store.stats()
            if not store.inline:
                self.ahead[store] = Ahead(*self.limits)
            self.main = self.main or store
        self.stores[device] = store
        return store

    # --- unpack ---

    def unpack(self, packed: Any) -> torch.Tensor:
        """The hook: the tensor again."""
        kind = type(packed)
        if kind is Saved:
            slot = packed.slot
            store = slot.store
            ticket = slot.ticket
            if packed.whole == DENSE and ticket and store.inline:
                value = _empty_strided(packed.size, packed.stride, dtype=packed.dtype, device=store.device)
                store.unpack_inline(ticket, value.data_ptr(), slot.nbytes)
                return value
        elif kind is Piece:
            slot = packed[0].slot
            store = slot.store
            if packed[0].back is not None:
                try:
                    return packed.tensor(None if store.on_cpu else store.stream())  # type: ignore[no-any-return]
                except torch.cuda.OutOfMemoryError:
                    pass  # once more, below
        elif kind is Kept:
            kept: torch.Tensor = packed.tensor()
            return kept
        else:
            slot = (packed.saved if kind is Sparse else packed).slot
            store = slot.store
        if store.inline:
            result: torch.Tensor = packed.tensor(None)
            return result
        if store.dead:
            store.collect()
        slot.check()
        stream = store.stream()
        result = self.restore(packed, store, stream)
        ahead = self.ahead.get(store)
        if ahead is not None:
            ahead.fetch(slot, stream)
        return result

    def restore(self, packed: Any, store: Store, stream: Any) -> torch.Tensor:
        """The tensor; where there is no memory for it, that of values which came ahead of need."""
        result: torch.Tensor
        try:
            result = packed.tensor(stream)
        except torch.cuda.OutOfMemoryError:
            given = [slot.give_way() for slot in list(_live.values()) if slot.owner is self and slot.store is store]
            if not any(given):
                raise
            result = packed.tensor(stream)
        return result

    # --- about all of it ---

    def stats(self) -> Dict[str, int]:
        """See save_on_cpu.stats()."""
        self.close_batch()
        total = dict.fromkeys([field[0] for field in _abi.OffloaderStats._fields_[1:]], 0)
        for device, store in list(self.stores.items()):
            if store is not None:
                for name, value in store.stats().items():
                    total[name] += value - (self.baselines[device][name] if name in _COUNTERS else 0)
        for name in _OWN:
            total[name] = getattr(self, name)
        return total


#: Types whose tensors are nothing but their bytes: neither quantized nor ever lazily conjugated.
_PLAIN = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not dtype.is_complex and "q" not in str(dtype)
)
_OWN = (
    "saved",
    "shared",
    "kept_last",
    "kept_overflow",
    "kept_parameters",
    "kept_buffers",
    "kept_small",
    "kept_other",
    "compressed",
    "compressed_bytes",
)
_COUNTERS = frozenset(
    (
        "copied_out_bytes",
        "copied_back_bytes",
        "packs",
        "prefetch_hits",
        "waits",
        "disk_written_bytes",
        "disk_read_bytes",
        "disk_waits",
    )
)


def _give_stores(stores: Dict[torch.device, Optional[Store]]) -> None:
    for store in stores.values():
        if store is not None:
            give_store(store)


def keep(tensor: torch.Tensor) -> Kept:
    """The tensor, without the graph behind it: a node's own output would keep the node alive."""
    return Kept(tensor if tensor.grad_fn is None else tensor.detach())


def reach(size: Iterable[int], stride: Iterable[int], offset: int, itemsize: int, total: int) -> Tuple[int, int]:
    """The bytes of a storage that a view lies in, or all of them where it is the most."""
    last = offset
    for length, step in zip(size, stride):
        if length == 0:
            return 0, total
        last += (length - 1) * step
    start, end = offset * itemsize, (last + 1) * itemsize
    if 2 * (end - start) > total:
        return 0, total
    return start // ALIGNMENT * ALIGNMENT, end
