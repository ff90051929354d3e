"""The weights of a model that was planned on the meta device: each goes where the plan has it, one at a time.

What streams goes to its store on the host, all else to the device. So nothing is there twice, and the device never has
more than the plan says.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple, Union

import torch

from .. import _safetensors
from .._loading import Reader, Slot, Task, load_one, renewed, slots_of

#: A safetensors file, its index or a folder; or tensors by name, as state_dict() gives them.
Weights = Union[str, "os.PathLike[str]", Mapping[str, torch.Tensor]]


class Found(NamedTuple):
    """A tensor of the model, and its value: a tensor, or an entry of a file."""

    name: str
    slot: Slot
    value: Any


def find(model: torch.nn.Module, weights: Weights, rename: Callable[[str], str]) -> List[Found]:
    """The model's tensors that have values in the weights. Raises where one on the meta device has none, or where
    shapes differ; the model is not changed."""
    values: Mapping[str, Any] = weights if isinstance(weights, Mapping) else _safetensors.entries_of(os.fspath(weights))
    slots = slots_of(model)
    found: Dict[int, Found] = {}
    for name, slot in slots.items():
        if rename(name) in values:
            found.setdefault(id(slot), Found(name, slot, values[rename(name)]))
    missing = [name for name, slot in slots.items() if slot.tensor.is_meta and id(slot) not in found]
    missing += [name for name, buffer in model.named_buffers() if buffer.is_meta and name not in slots]
    if missing:
        more = " and %d more" % (len(missing) - 3) if len(missing) > 3 else ""
        raise ValueError(
            "fit: %s%s are on the meta device and not among the %d names of the weights. Make what is in no file outside"
            " of torch.device('meta'); rename= says what the weights call a tensor of the model"
            % (", ".join(missing[:3]), more, len(values))
        )
    for name, slot, value in found.values():
        if tuple(slot.tensor.shape) != tuple(value.shape):
            shapes = list(value.shape), list(slot.tensor.shape)
            raise ValueError("fit: %s has shape %s in the weights, and %s in the model" % (name, *shapes))
    return list(found.values())


@torch.no_grad()
def load(model: torch.nn.Module, found: List[Found], device: torch.device) -> None:
    """Moves to the device what has values and does not stream, and fills what was found, in the model's own types."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta and tensor.device != device and not hasattr(tensor, "_memopt_write"):
            tensor.data = tensor.data.to(device)
    slots, reader = slots_of(model), Reader()  # parameters of streamed layers are new ones
    try:
        for name, _, value in sorted(found, key=_place):
            slot = slots[name]
            if isinstance(value, _safetensors.Entry):
                dtype = slot.tensor.dtype
                load_one(Task(slot, value), reader, dtype if dtype.is_floating_point else None, device)
            elif hasattr(slot.tensor, "_memopt_write"):
                slot.tensor._memopt_write(value)
            else:
                (renewed(slot, slot.tensor.dtype, device) if slot.tensor.is_meta else slot.tensor).copy_(value)
    finally:
        reader.close()


def _place(found: Found) -> Tuple[str, int]:
    is_entry = isinstance(found.value, _safetensors.Entry)
    return (found.value.path, found.value.offset) if is_entry else ("", 0)
