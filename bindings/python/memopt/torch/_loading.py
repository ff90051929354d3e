"""Tensors of a model, and entries of checkpoint files that are read into them.

A file is read in pieces of a few MiB (not mapped: mapped pages would count as the process's), and each piece is cast
into its place.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from .. import _abi
from .._library import lib
from . import _safetensors, _tensor_lists
from ._native import native

PIECE = 4 << 20  # bytes read at once: a multiple of every element size


class Place(NamedTuple):
    """Where a module holds a tensor."""

    held: Dict[str, Any]  # the module's parameters or its buffers
    name: str


class Slot:
    """A tensor of the model with all places that hold it."""

    __slots__ = ("tensor", "places")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.places: List[Place] = []


class Task(NamedTuple):
    """A tensor to be loaded."""

    slot: Slot
    entry: _safetensors.Entry


def _places_of(model: torch.nn.Module) -> Iterator[Tuple[str, Place]]:
    """The full name of each place of a parameter or persistent buffer."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        dot = prefix + "." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield dot + name, Place(module._parameters, name)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield dot + name, Place(module._buffers, name)


def slots_of(model: torch.nn.Module) -> Dict[str, Slot]:
    """By name; the names of a tied tensor share their slot."""
    by_identity: Dict[int, Slot] = {}
    result = {}
    for key, place in _places_of(model):
        tensor = place.held[place.name]
        slot = by_identity.setdefault(id(tensor), Slot(tensor))
        slot.places.append(place)
        result[key] = slot
    return result


@torch.no_grad()
def load_one(task: Task, reader: "Reader", dtype: Optional[torch.dtype], device: Optional[torch.device]) -> None:
    """As load_safetensors() does with a tensor."""
    tensor, entry = task.slot.tensor, task.entry
    kind = tensor.dtype
    if kind.is_floating_point and dtype is not None:
        kind = dtype
    elif kind.is_floating_point and tensor.is_meta and entry.dtype.is_floating_point:
        kind = entry.dtype
    where = device if device is not None else tensor.device
    if where.type == "meta":
        where = torch.device("cpu")
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    write = getattr(tensor, "_memopt_write", None)
    if write is not None:  # its weights stream, and are in a store
        whole = torch.empty(tensor.shape, dtype=tensor.dtype)
        reader.fill(whole, entry)
        write(whole)
        return
    if tensor.dtype != kind or tensor.device != where:
        tensor = renewed(task.slot, kind, where)
    if tensor.is_contiguous():
        reader.fill(tensor.detach(), entry)
    else:
        whole = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        reader.fill(whole.detach(), entry)
        tensor.copy_(whole)
    _tensor_lists.changed([tensor])


def renewed(slot: Slot, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """New memory for a tensor of the model, in all its places; the old one is freed first."""
    old = slot.tensor
    if old.device.type != "meta":
        shape = old.shape
        old.grad = None  # of the old type
        old.data = torch.empty(0, dtype=old.dtype, device=old.device)
        old.data = torch.empty(shape, dtype=dtype, device=device)
        return old
    new = torch.empty(old.shape, dtype=dtype, device=device)
    if isinstance(old, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad=old.requires_grad)
    new.__dict__.update(old.__dict__)
    for place in slot.places:
        place.held[place.name] = new
    slot.tensor = new
    return new


class Reader:
    """Reads entries into tensors, through one small buffer (two for GPUs)."""

    def __init__(self) -> None:
        self._path: Optional[str] = None
        self._descriptor = -1
        self._host: Optional[torch.Tensor] = None
        self._stages: List["_Stage"] = []

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._path, self._descriptor = None, -1

    def fill(self, target: torch.Tensor, entry: _safetensors.Entry) -> None:
        """Reads an entry into a contiguous tensor of as many elements."""
        if not entry.nbytes:
            return
        if entry.path != self._path:
            self.close()
            self._descriptor = os.open(entry.path, os.O_RDONLY)
            self._path = entry.path
        flat = target.view(-1)
        if flat.is_cuda:
            self._fill_gpu(flat, entry)
        elif flat.dtype == entry.dtype:
            self._read(entry, 0, flat.data_ptr(), entry.nbytes)
        else:
            self._fill_cpu(flat, entry)

    def _fill_cpu(self, flat: torch.Tensor, entry: _safetensors.Entry) -> None:
        if self._host is None:
            self._host = torch.empty(PIECE, dtype=torch.uint8)
        for offset, count in _pieces(entry.nbytes):
            self._read(entry, offset, self._host.data_ptr(), count)
            _convert(flat, offset // entry.dtype.itemsize, self._host[:count], entry.dtype)

    def _fill_gpu(self, flat: torch.Tensor, entry: _safetensors.Entry) -> None:
        """The next piece is read while the one before is copied and cast."""
        if not self._stages or self._stages[0].device.device != flat.device:
            self._stages = [_Stage(flat.device), _Stage(flat.device)]
        for offset, count in _pieces(entry.nbytes):
            stage = self._stages[0]
            self._stages.reverse()
            stage.done.synchronize()
            self._read(entry, offset, stage.host.data_ptr(), count)
            with torch.cuda.device(flat.device):
                stage.device[:count].copy_(stage.host[:count], non_blocking=True)
                _convert(flat, offset // entry.dtype.itemsize, stage.device[:count], entry.dtype)
                stage.done.record()

    def _read(self, entry: _safetensors.Entry, offset: int, address: int, count: int) -> None:
        view = memoryview((ctypes.c_char * count).from_address(address))
        done = 0
        while done < count:
            part = view[done : done + (1 << 30)]
            got = os.preadv(self._descriptor, [part], entry.offset + offset + done)
            if got <= 0:
                raise OSError("%s: the file ended while it was read" % entry.path)
            done += got


class _Stage:
    """A piece on its way to a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.host = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
        self.device = torch.empty(PIECE, dtype=torch.uint8, device=device)
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]


def _pieces(nbytes: int) -> Iterator[Tuple[int, int]]:
    for offset in range(0, nbytes, PIECE):
        yield offset, min(PIECE, nbytes - offset)


def _convert(flat: torch.Tensor, first: int, piece: torch.Tensor, dtype: torch.dtype) -> None:
    """Casts a piece, bytes of `dtype`, into the elements of `flat` from `first` on."""
    count = piece.numel() // dtype.itemsize
    if dtype in _tensor_lists.FLOAT_TYPES and flat.dtype in _tensor_lists.FLOAT_TYPES:
        side = native(flat.device)
        lib.memopt_cast(
            side.device._handle.pointer,
            _tensor_lists.array([flat[first : first + count]]),
            ctypes.byref(_tensor_lists.raw(piece.data_ptr(), count, dtype)),
            1,
            ctypes.byref(_abi.CastOptions()),
            side.stream(),
        )
    else:
        flat[first : first + count].copy_(piece.view(dtype))
