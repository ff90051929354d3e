"""Page-locked host memory: the library's own, or the caller's while it is registered."""

from __future__ import annotations

from typing import Any

from . import _lifetime
from ._library import lib
from .memory import Memory
from .open_device import OpenDevice
from .tensors import TensorLike, tensor


class PinnedMemory(Memory):
    """Page-locked host memory; freed by free(), on leaving `with`, or when forgotten."""

    __slots__ = ()
    _kind = "pinned memory"

    @property
    def _on_host(self) -> bool:
        return True

    def __init__(self, device: OpenDevice, nbytes: int) -> None:
        parent = device._handle
        handle = _lifetime.create(
            self,
            self._kind,
            lambda pointer: lib.memopt_host_free(parent.pointer, pointer),
            lib.memopt_host_alloc,
            parent.pointer,
            nbytes,
            parents=(parent,),
        )
        super().__init__(device, handle.pointer, nbytes, handle)

    def free(self) -> None:
        """Frees it. No copy may use it any more. Harmless a second time."""
        self._refuse_exports()
        self._handle.close()

    def __enter__(self) -> "PinnedMemory":
        self.pointer
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or not self._exports:
            self.free()


class Registration(_lifetime.Closing):
    """Host memory of the caller that is page-locked as long as this is open."""

    __slots__ = ("_handle", "_view", "__weakref__")

    def __init__(self, device: OpenDevice, memory: TensorLike) -> None:
        view = tensor(memory)
        device._check_tensor(view, host_too=True)
        lib.memopt_host_register(device._handle.pointer, view.pointer, view.nbytes)
        parent = device._handle
        self._view = view
        self._handle = _lifetime.Handle(
            "registration",
            view.pointer,
            lambda pointer: lib.memopt_host_unregister(parent.pointer, pointer),
            (parent,),
            keep=view,  # unregistered before the memory goes
        )
        _lifetime.finalize(self, self._handle)
