"""The hooks of save_on_cpu.

:meth:`Packer.pack` decides for each saved tensor: it stays, it is a view of bytes that are already
stored, or its bytes are stored. :meth:`Packer.unpack` returns it.
"""

from __future__ import annotations

import collections
from typing import Any, Deque, Dict, Iterable, Optional, Tuple

import torch

from .. import _abi
from . import _buffers, _coded
from . import _tensor_lists as _lists
from ._ahead import Ahead
from ._coded import Coded, Coder
from ._slots import DENSE, WHOLE, Kept, Saved, Slot, Sparse, new_slot
from ._store import Options, Store, open_store, owners

_Tensor = torch.Tensor
_empty_strided = torch.empty_strided

#: A range starts at a multiple of this, so that the returned tensor has its alignment.
ALIGNMENT = 512
#: Views smaller than this are stored with the gaps in them.
SPARSE_BYTES = 1 << 16


class Packer:
    """The hooks and what they know."""

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
        #: The first of them, for the short way through pack().
        self.main: Optional[Store] = None
        #: The newest slot of a storage, by the storage's id.
        self.by_storage: Dict[int, Slot] = {}
        self.waiting: Deque[Slot] = collections.deque()
        self.waiting_bytes = 0
        self.baselines: Dict[torch.device, Dict[str, int]] = {}
        self.saved = self.shared = self.kept_last = self.kept_overflow = 0
        self.kept_parameters = self.kept_buffers = self.kept_small = self.kept_other = 0
        self.compressed = self.compressed_bytes = 0
        owners.add(self)

    def start_over(self) -> None:
        """For a child process: stored values can be read, new values go elsewhere."""
        self.stores.clear()
        self.ahead.clear()
        self.main = None
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
        if known is not None and known.origin() is storage:
            return self.pack_any(tensor)  # else that storage is gone, and its id is another's
        saved = Saved()
        slot = new_slot(saved, store, self, storage, tensor._version, 0, nbytes)
        if self.keeps or not store.inline:
            self.fill(slot, tensor)
        else:
            store.pack_inline(slot, storage.data_ptr(), nbytes)
            if not slot.ticket:
                slot.keep(tensor)
        saved.dtype, saved.size, saved.stride = dtype, tensor.shape, tensor.stride()
        saved.offset, saved.whole = 0, DENSE
        self.by_storage[key] = slot
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
        if found is None and end - start == total and dtype in _lists.GRADIENT_TYPES:
            found = self.code(store, storage, tensor, total)
        elif found is not None:
            self.shared += 1
            found.slot.shared = True
        if found is not None and found.slot.coding is not None:
            self.saved += 1
            return Coded(found, size, stride, offset)
        saved = Saved()
        if found is None:
            slot = self.store_bytes(saved, store, storage, tensor, start, end - start)
        else:
            saved.hold, slot = found, found.slot
            saved.slot = slot
            found.whole = 0
        if slot.start:
            offset -= slot.start // dtype.itemsize
        saved.dtype, saved.size, saved.stride, saved.offset = dtype, size, stride, offset
        saved.whole = WHOLE if found is None and offset == 0 and nbytes == slot.nbytes else 0
        self.saved += 1
        return saved

    def find(self, storage: torch.UntypedStorage, tensor: torch.Tensor, start: int, end: int) -> Optional[Saved]:
        """The first tensor of a slot that has these bytes of the storage, as they are now."""
        slot = self.by_storage.get(id(storage))
        if slot is None:
            return None
        hold: Optional[Saved] = slot()
        if hold is None or slot.origin() is not storage:
            return None
        coding = slot.coding
        if coding is not None:  # the whole storage
            same = coding.version == tensor._version and coding.dtype is tensor.dtype
            return hold if same else None
        if slot.version != tensor._version or slot.start > start or slot.start + slot.nbytes < end:
            return None
        return hold

    def code(self, store: Store, storage: torch.UntypedStorage, tensor: torch.Tensor, total: int) -> Optional[Saved]:
        """Stores a storage's elements in a block-scaled format; None: it is to be stored exactly."""
        coder = self.coder
        if coder is None or total < coder.min_bytes:
            return None
        whole = _coded.whole_of(tensor, storage, total)
        kind = None if whole is None else coder.kind_of(tensor)
        if whole is None or kind is None:
            return None
        coding = _coded.Coding(kind, tensor.dtype, whole.numel(), tensor._version)
        buffer = _coded.encode(whole, coding)
        saved = Saved()
        slot = new_slot(saved, store, self, storage, buffer._version, 0, buffer.nbytes)
        slot.coding = coding
        saved.dtype, saved.size, saved.stride = buffer.dtype, buffer.size(), buffer.stride()
        saved.offset, saved.whole = 0, WHOLE
        self.fill(slot, buffer)
        self.by_storage[slot.key] = slot
        self.compressed += 1
        self.compressed_bytes += total
        return saved

    def store_bytes(
        self, saved: Saved, store: Store, storage: torch.UntypedStorage, tensor: torch.Tensor, start: int, nbytes: int
    ) -> Slot:
        """Stores bytes of the tensor's storage, for it as the first."""
        slot = new_slot(saved, store, self, storage, tensor._version, start, nbytes)
        self.fill(slot, tensor)
        self.by_storage[slot.key] = slot  # now that another thread may use it
        return slot

    def fill(self, slot: Slot, tensor: torch.Tensor) -> None:
        """Stores a new slot's bytes, or lets them wait."""
        if not slot.store.inline:
            slot.stream = slot.store.stream()
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
        result = packed.tensor(stream)
        ahead = self.ahead.get(store)
        if ahead is not None:
            ahead.fetch(slot, stream)
        return result

    # --- about all of it ---

    def stats(self) -> Dict[str, int]:
        """See save_on_cpu.stats()."""
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
