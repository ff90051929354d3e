"""Small values that save_on_cpu stores together: one copy to the host for many, and one back.

A :class:`Batch` is a slot over memory of our own. Small values are copied into it, one behind the
other, in the order of the stream that saves them: each is a snapshot, and its source is free at once.
An open batch waits on its device. It is closed when it is full, when its thread saves on another
stream, and at the end of the context: then it goes the way of every slot. So the host limit, prefetch,
and the disk see one value.

A batch is open on one thread, which alone adds to it: that needs no lock. Any thread may read it.

What autograd holds is a :class:`Piece`. Each comes back into memory of its own, by a copy from the
batch, which stays on the device meanwhile: of each packer the last few that were read.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch

from ._slots import Saved, Slot, new_slot
from ._store import Store

#: Memory of a batch; less where the host limit is small.
BATCH_BYTES = 1 << 20
#: A batch has room for so many of the values that are too large for it.
LEAST_PIECES = 32
#: The part of a host limit that a batch may take.
LIMIT_PARTS = 16
#: How many batches a packer leaves on the device while they are read.
RESIDENT = 4

#: Values begin at a multiple of this, as host memory is cut.
UNIT = 64
_empty = torch.empty
_empty_strided = torch.empty_strided


class Whole(Saved):
    """The life of a batch: what its pieces hold."""

    __slots__ = ("back",)

    back: Optional[Tuple[torch.UntypedStorage, Any, int]]  # its bytes on the device, stream and address


class Batch(Slot):
    """A slot with many values."""

    __slots__ = ()

    keys: List[int]

    def copy_out(self, tensor: torch.Tensor) -> None:
        super().copy_out(tensor)
        if self.ticket:
            self().back = None  # type: ignore[union-attr]

    def bytes(self, stream: Any) -> Tuple[torch.UntypedStorage, int]:
        return self.resident(stream)[0], 0

    def prefetch(self, stream: Any) -> bool:
        whole: Any = self()
        return whole.back is not None or super().prefetch(stream)

    def resident(self, stream: Any) -> Tuple[torch.UntypedStorage, Any, int]:
        """The bytes on the device, in the order of `stream`, and their address."""
        whole: Any = self()
        back: Any = whole.back
        if back is None or back[1] != stream:
            storage = super().bytes(stream)[0]
            back = storage, stream, storage.data_ptr()
            if whole.source is None:
                whole.back = back
                self.owner.stays(self)
        return back  # type: ignore[no-any-return]


class Piece(tuple):  # type: ignore[type-arg]
    """A tensor in a batch: (whole, place, bytes, dtype, size, stride)."""

    __slots__ = ()

    @property
    def slot(self) -> Batch:
        """The batch."""
        batch: Batch = self[0].slot
        return batch

    def tensor(self, stream: Any) -> torch.Tensor:
        """The value, in the order of `stream`."""
        whole, place, nbytes, dtype, size, stride = self
        batch = whole.slot
        store = batch.store
        back = whole.back
        if back is None or back[1] != stream:
            back = batch.resident(stream)
        value = _empty_strided(size, stride, dtype=dtype, device=store.device)
        store.copy(value.data_ptr(), back[2] + place, nbytes, stream)
        return value


def open_batch(store: Store, owner: Any, stream: Any, nbytes: int) -> Whole:
    """A batch with memory of `nbytes`, of which none are in use."""
    memory = _empty(nbytes, dtype=torch.uint8, device=store.device)
    storage = memory.untyped_storage()
    back = storage, stream, storage.data_ptr()
    whole = Whole()
    whole.back = None
    batch = new_slot(whole, store, owner, memory._version, 0, 0, Batch)
    batch.stream, batch.keys = stream, []
    whole.source, whole.back = memory, back
    return whole
