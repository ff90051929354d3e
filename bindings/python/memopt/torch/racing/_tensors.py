"""What a tensor says of its device, and how it goes to another: replacements of torch.Tensor's attributes."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Optional

import torch

from ._finder import DEVICE, READ
from ._operators import RaceMode, is_pinned
from ._places import is_torch
from ._session import CPU, active, raw_storage
from ._streams import Stream, index_of

_Tensor = torch.Tensor
_to = _Tensor.to
_device = torch._C.TensorBase.device.__get__
_storage_device = torch._C.StorageBase.device.__get__  # type: ignore[attr-defined]
_storage_resize = torch.UntypedStorage.resize_
_storage_clone = torch.UntypedStorage.clone


def _index(tensor: torch.Tensor) -> int:
    block = active().block_of(tensor)
    return block.device if block is not None and block.kind == DEVICE else -1


def _get_device(tensor: torch.Tensor) -> torch.device:
    index = _index(tensor)
    found: torch.device = torch.device("cuda", index) if index >= 0 else _device(tensor)
    return found


class _Across(torch.autograd.Function):
    """A copy to another device, whose gradient goes back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: Any, dtype: Any, non_blocking: bool, memory_format: Any) -> Any:
        ctx.back, ctx.dtype = tensor.device, tensor.dtype
        before, RaceMode.across = RaceMode.across, True
        try:
            return torch.ops.aten._to_copy.default(
                tensor, dtype=dtype, device=device, non_blocking=non_blocking, memory_format=memory_format
            )
        finally:
            RaceMode.across = before

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.to(ctx.back, ctx.dtype), None, None, None, None


def _move(
    tensor: torch.Tensor,
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = torch.preserve_format,
) -> torch.Tensor:
    """Tensor.to() with its arguments in order."""
    here = tensor.device
    device = (
        here if device is None else torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    )
    if device.type not in ("cpu", "cuda"):
        return _to(tensor, device, dtype or tensor.dtype, non_blocking, copy)
    if device.type == "cuda":
        device = torch.device("cuda", index_of(device))
    if device == here or (device.type == "cpu" and here.type != "cuda"):
        return _to(tensor, dtype or tensor.dtype, non_blocking, copy, memory_format=memory_format)
    result: torch.Tensor = _Across.apply(tensor, device, dtype or tensor.dtype, non_blocking, memory_format)
    return result


def to(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """Tensor.to(): of a device, a type, or as another tensor is."""
    rest = list(arguments)
    other = options.pop("other", None)
    while rest and not isinstance(rest[0], bool):
        value = rest.pop(0)
        if isinstance(value, _Tensor):
            other = value
        elif isinstance(value, torch.dtype):
            options["dtype"] = value
        elif value is not None:
            options["device"] = value
    if other is not None:
        options.update(device=other.device, dtype=other.dtype)
    options.update(zip(("non_blocking", "copy"), rest))
    return _move(self, **options)


def _cuda(
    self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> torch.Tensor:
    return _move(self, "cuda" if device is None else device, None, non_blocking, memory_format=memory_format)


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    if is_pinned(self):
        return self
    result = torch.empty(self.shape, dtype=self.dtype, pin_memory=True)
    with torch.no_grad():
        result.copy_(self)
    return result


def _record_stream(self: torch.Tensor, stream: Stream) -> None:
    session = active()
    block = session.block_of(self)
    if block is not None:
        session.record_stream(block, stream._actor)


def _host_reads(name: str) -> Callable[..., Any]:
    """A method that reads on the host without an operator."""
    raw = getattr(_Tensor, name)

    def read(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        session = active()
        block = session.block_of(self)
        if block is not None:
            if block.kind == DEVICE and name != "tolist":
                raise TypeError(
                    "can't convert cuda:%d device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host"
                    " memory first." % block.device
                )
            session.host_uses("Tensor." + name, READ, self)
            if name != "tolist":
                session.unseen["uses of page-locked memory through numpy, after Tensor.%s" % name] += 1
            elif block.kind == DEVICE:
                self = self.cpu()
        return raw(self, *arguments, **options)

    return read


def _data_ptr(self: torch.Tensor) -> int:
    """An address: what uses it is not seen, unless it is torch."""
    code = sys._getframe(1).f_code
    if not is_torch(code) and active().block_of(self) is not None:
        active().unseen["uses of an address from Tensor.data_ptr() in %s" % code.co_name] += 1
    return torch._C.TensorBase.data_ptr(self)


def _from_data(raw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch.tensor() and as_tensor(), which make a tensor of the CPU and take it to the device."""

    def make(*arguments: Any, device: Any = None, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        needs = options.pop("requires_grad", False)
        result = raw(*arguments, **options)
        if pin_memory:
            result = result.pin_memory()
        if device is None and not isinstance(arguments[0], _Tensor):
            device = torch.empty(0).device  # the default
        if device is not None:
            result = result.to(device)
        return result.requires_grad_() if needs else result

    return make


def _new_tensor(
    self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **options: Any
) -> torch.Tensor:
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **options)


def _storage_of(device: Callable[[Any], Any]) -> Any:
    """The device of a storage."""

    def get(self: torch.UntypedStorage) -> Any:
        block = active().blocks.get(self._cdata)
        return torch.device("cuda", block.device) if block is not None and block.kind == DEVICE else device(self)

    return property(get)


def _resize(self: torch.UntypedStorage, size: int) -> Any:
    session = active()
    block = session.blocks.get(self._cdata)
    place = session.places.number("UntypedStorage.resize_", sys._getframe(1)) if block is not None else 0
    if block is not None and size <= self.nbytes() and not self.resizable():  # memory of --confirm stays
        session.finder.free(block.address, place)
        if session.confirm is not None:
            session.confirm.resized(block, size)
        if size:
            session.finder.allocate(block.address, size, block.kind, block.actor, place)
        return self
    result = _storage_resize(self, size)
    if block is not None:
        session.moved(block, place)
    return result


def _to_device(self: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
    """A copy of a storage on a device, or on the CPU."""
    tensor = torch.empty(0, dtype=torch.uint8)
    source = tensor.set_(self)
    return raw_storage(source.to("cpu" if index < 0 else torch.device("cuda", index), copy=True))


def _clone_storage(self: torch.UntypedStorage) -> torch.UntypedStorage:
    block = active().blocks.get(self._cdata)
    return _to_device(self, block.device) if block is not None and block.kind == DEVICE else _storage_clone(self)  # type: ignore[no-untyped-call]


def _move_storage(self: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
    device = torch.device(device)
    return _to_device(self, index_of(device) if device.type == "cuda" else -1)


def tensor_attributes() -> Dict[str, Any]:
    """What replaces attributes of torch.Tensor."""
    return {
        "device": property(_get_device),
        "is_cuda": property(lambda self: _index(self) >= 0),
        "get_device": _index,
        "to": to,
        "cuda": _cuda,
        "cpu": lambda self, memory_format=torch.preserve_format: _move(self, CPU, memory_format=memory_format),
        "pin_memory": _pin_memory,
        "is_pinned": is_pinned,
        "record_stream": _record_stream,
        "data_ptr": _data_ptr,
        "new_tensor": _new_tensor,
        **{name: _host_reads(name) for name in ("numpy", "tolist", "__array__")},
    }


def storage_attributes() -> Dict[str, Any]:
    """What replaces attributes of torch.UntypedStorage."""
    return {
        "device": _storage_of(_storage_device),
        "is_cuda": property(lambda self: self.device.type == "cuda"),
        "resize_": _resize,
        "clone": _clone_storage,
        "to": _move_storage,
        "cuda": lambda self, device=None, non_blocking=False: _to_device(self, index_of(device)),
        "cpu": lambda self: _to_device(self, -1) if self.device.type == "cuda" else self,
    }


def constructors() -> Dict[str, Any]:
    """What replaces functions of torch that make tensors of data."""
    return {"tensor": _from_data(torch.tensor), "as_tensor": _from_data(torch.as_tensor)}


class Generator(torch.Generator):
    """A device's random numbers are the CPU's."""

    def __new__(cls, device: Optional[Any] = None) -> "Generator":
        return super().__new__(cls)
