"""load_safetensors(): a checkpoint streamed into a model, and converted if requested.

Headers, names and shapes are all checked before the first byte is written.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch.nn.modules.module import _IncompatibleKeys

from . import _safetensors
from ._loading import Reader, Slot, Task, load_one, slots_of

Path = Union[str, "os.PathLike[str]"]


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
    entries = _safetensors.entries_of(os.fspath(path))
    slots = slots_of(model)
    tasks, missing, unexpected = _matched(model, entries, slots, strict)
    where = None if device is None else torch.device(device)
    reader = Reader()
    try:
        for task in tasks:
            load_one(task, reader, dtype, where)
    finally:
        reader.close()
    return _IncompatibleKeys(missing, unexpected)


def _matched(
    model: torch.nn.Module, entries: Dict[str, _safetensors.Entry], slots: Dict[str, Slot], strict: bool
) -> Tuple[List[Task], List[str], List[str]]:
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
        tasks.append(Task(slot, entry))
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
