"""load_safetensors(): a checkpoint streamed into a model, and converted if requested.

The file is read in pieces of a few MiB (not mapped: mapped pages would count as the process's), and
each piece is cast into its place in the model. Headers, names and shapes are all checked before the
first byte is written.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch
from torch.nn.modules.module import _IncompatibleKeys

from .. import _abi
from .._library import lib
from . import _tensor_lists, _safetensors
from ._native import native

Path = Union[str, "os.PathLike[str]"]

_PIECE = 4 << 20  # bytes read at once: a multiple of every element size
_INDEX = ".safetensors.index.json"


class _Slot:
    """A tensor of the model with all places that hold it."""

    __slots__ = ("tensor", "places")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.places: List["_Place"] = []


class _Task(NamedTuple):
    """A tensor to be loaded."""

    slot: _Slot
    entry: _safetensors.Entry


def load_safetensors(
    model: torch.nn.Module,
    path: Path,
    dtype: Optional[torch.dtype] = None,
    strict: bool = True,
    device: Union[None, str, torch.device] = None,
) -> Any:
    """Loads a safetensors checkpoint into `model`, never holding both copies.

        with torch.device("meta"):
            model = Model(config)
        load_safetensors(model, "checkpoint/", dtype=torch.bfloat16)

    `path` is a file, the index of a sharded checkpoint (``*.safetensors.index.json``), or a folder
    with either. Floating-point parameters and buffers become `dtype`, rounded to nearest even; with
    None types are those after load_state_dict(): the model's, and on the meta device the
    checkpoint's. Others keep the model's type. A parameter that has another type, or is on the meta
    device, or not on `device` (None: where it is; the CPU instead of meta) gets new memory when its
    turn comes; any other is filled in place. Meta parameters become new Parameter objects: make the
    optimizer afterwards. Tied parameters stay tied, and one of their names in the checkpoint is
    enough.

    Missing and unexpected names are reported as by load_state_dict(), whose result this returns: an
    error with `strict`, else only reported. RuntimeError for shapes that differ, ValueError for a
    malformed checkpoint; the model is then unchanged. Only if reading fails halfway (OSError) is a
    part of the model loaded. Hooks of load_state_dict() are not run.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError("load_safetensors: dtype must be a floating-point type or None, not %s" % dtype)
    entries = _entries_of(os.fspath(path))
    slots = _slots_of(model)
    tasks, missing, unexpected = _matched(model, entries, slots, strict)
    where = None if device is None else torch.device(device)
    reader = _Reader()
    try:
        for task in tasks:
            _load(task, reader, dtype, where)
    finally:
        reader.close()
    return _IncompatibleKeys(missing, unexpected)


# --- the checkpoint -------------------------------------------------------------------------------


def _entries_of(path: str) -> Dict[str, _safetensors.Entry]:
    if os.path.isdir(path):
        path = _file_in(path)
    if not path.endswith(".json"):
        return _safetensors.read_header(path)
    files = _safetensors.read_index(path)
    shards = {file: _safetensors.read_header(file) for file in sorted(set(files.values()))}
    result = {}
    for name, file in files.items():
        if name not in shards[file]:
            raise ValueError("%s: tensor %r is not in %s" % (path, name, file))
        result[name] = shards[file][name]
    return result


def _file_in(folder: str) -> str:
    names = sorted(os.listdir(folder))
    for preferred in ("model" + _INDEX, "model.safetensors"):
        if preferred in names:
            return os.path.join(folder, preferred)
    for ending in (_INDEX, ".safetensors"):
        found = [name for name in names if name.endswith(ending)]
        if len(found) == 1:
            return os.path.join(folder, found[0])
        if found:
            raise ValueError(
                "%s: there are %d files *%s (%s, …) and no model%s; name one"
                % (folder, len(found), ending, found[0], ending)
            )
    raise FileNotFoundError("%s: the folder has no file *.safetensors" % folder)


# --- the model ------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Where a module holds a tensor."""

    held: Dict[str, Any]  # the module's parameters or its buffers
    name: str


def _places_of(model: torch.nn.Module) -> Iterator[Tuple[str, _Place]]:
    """The full name of each place of a parameter or persistent buffer."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        dot = prefix + "." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield dot + name, _Place(module._parameters, name)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield dot + name, _Place(module._buffers, name)


def _slots_of(model: torch.nn.Module) -> Dict[str, _Slot]:
    """By name; the names of a tied tensor share their slot."""
    by_identity: Dict[int, _Slot] = {}
    result = {}
    for key, place in _places_of(model):
        tensor = place.held[place.name]
        slot = by_identity.setdefault(id(tensor), _Slot(tensor))
        slot.places.append(place)
        result[key] = slot
    return result


def _matched(
    model: torch.nn.Module, entries: Dict[str, _safetensors.Entry], slots: Dict[str, _Slot], strict: bool
) -> Tuple[List[_Task], List[str], List[str]]:
    """What to load, in the order of the files; missing and unexpected names."""
    errors, tasks, given = [], [], set()
    for key, entry in entries.items():
        if key not in slots:
            continue
        slot = slots[key]
        given.add(id(slot))
        if tuple(slot.tensor.shape) != entry.shape:
            errors.append(
                "size mismatch for %s: copying a param with shape %s from checkpoint, the shape in"
                " current model is %s." % (key, torch.Size(entry.shape), slot.tensor.shape)
            )
        _check_slot(key, slot.tensor)
        tasks.append(_Task(slot, entry))
    missing = [key for key, slot in slots.items() if id(slot) not in given]
    unexpected = [key for key in entries if key not in slots]
    if strict and unexpected:
        errors.insert(0, "Unexpected key(s) in state_dict: %s. " % _quoted(unexpected))
    if strict and missing:
        errors.insert(0, "Missing key(s) in state_dict: %s. " % _quoted(missing))
    if errors:
        raise RuntimeError("Error(s) in loading state_dict for %s:\n\t%s" % (type(model).__name__, "\n\t".join(errors)))
    tasks.sort(key=lambda task: (task.entry.path, task.entry.offset))
    return tasks, missing, unexpected


def _quoted(names: List[str]) -> str:
    return ", ".join('"%s"' % name for name in names)


def _check_slot(key: str, tensor: torch.Tensor) -> None:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.device.type not in ("cpu", "cuda", "meta"):
        raise TypeError(
            "load_safetensors: %s is a %s (%s) on %s; dense tensors on cpu, cuda or meta can be"
            " loaded, no subclasses" % (key, type(tensor).__name__, tensor.layout, tensor.device)
        )


# --- loading --------------------------------------------------------------------------------------


@torch.no_grad()
def _load(task: _Task, reader: "_Reader", dtype: Optional[torch.dtype], device: Optional[torch.device]) -> None:
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
        tensor = _renewed(task.slot, kind, where)
    if tensor.is_contiguous():
        reader.fill(tensor.detach(), entry)
    else:
        whole = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        reader.fill(whole.detach(), entry)
        tensor.copy_(whole)
    _tensor_lists.changed([tensor])


def _renewed(slot: _Slot, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
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


class _Reader:
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
            self._host = torch.empty(_PIECE, dtype=torch.uint8)
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
        self.host = torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
        self.device = torch.empty(_PIECE, dtype=torch.uint8, device=device)
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]


def _pieces(nbytes: int) -> Iterator[Tuple[int, int]]:
    for offset in range(0, nbytes, _PIECE):
        yield offset, min(_PIECE, nbytes - offset)


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
