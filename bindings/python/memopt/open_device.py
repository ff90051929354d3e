"""What streams, memory and tensors know of their device, and what its work keeps alive."""

from __future__ import annotations

import collections
from typing import Any, Deque, NamedTuple, Tuple

from . import _abi, _dlpack, _lifetime
from ._arguments import unsigned
from ._library import lib, output, values_of
from ._lock import Guard
from .backends import backend_info
from .views import Tensor


class DeviceProperties(NamedTuple):
    """What a device is and can do."""

    name: str
    backend: str
    isa: str
    index: int  # type: ignore[assignment]  # hides tuple.index, as C calls it so
    threads: int
    warp_size: int
    virtual_memory: bool
    total_memory: int
    granularity: int
    kernels: str
    limit: str


class MemoryInfo(NamedTuple):
    """Device and pinned memory in bytes."""

    total: int
    free: int
    used: int
    used_peak: int
    reserved_va: int
    pinned: int
    pinned_peak: int
    registered: int


class OpenDevice(_lifetime.Closing):
    """A device without what is made on it; :class:`Device` is the whole."""

    __slots__ = ("_handle", "_properties", "_is_cpu", "_pending", "_lock", "__weakref__")

    def __init__(self, handle: _lifetime.Handle) -> None:
        self._handle = handle
        self._properties = _read_properties(handle.pointer)
        self._is_cpu = self.backend == "cpu"
        if self.backend == "cuda":
            backend_info("cuda")  # loads the compiler that the first launch may need
        self._pending: Deque[Tuple[Any, Any]] = collections.deque()  # events, owners of memory
        self._lock = Guard()

    @property
    def name(self) -> str:
        """The device as the driver calls it."""
        return self._properties.name

    @property
    def backend(self) -> str:
        """ "cpu", "cuda" or "hip"."""
        return self._properties.backend

    @property
    def properties(self) -> DeviceProperties:
        """What it is and can do."""
        return self._properties

    def __repr__(self) -> str:
        return "<memopt.Device %s%s>" % (self.backend, " (closed)" if self.closed else "")

    def set_threads(self, threads: int) -> None:
        """Changes how many threads run kernels, from 1 to 1024, on "cpu" only; 0: as many as by
        default. Results are the same bits with any number. :attr:`properties` tells it."""
        lib.memopt_device_set_threads(self._handle.pointer, unsigned(threads, 32, "threads"))
        self._properties = _read_properties(self._handle.pointer)

    def memory_info(self) -> MemoryInfo:
        """Device and page-locked memory: total, free, and what this handle holds."""
        info = output(lib.memopt_device_get_memory_info, self._handle.pointer)
        return MemoryInfo(*(getattr(info, field) for field in MemoryInfo._fields))

    def sync(self) -> None:
        """Waits for all work of the device that this handle knows."""
        lib.memopt_device_sync(self._handle.pointer)
        self._forget_done()

    def close(self) -> None:
        """Waits for all work and closes the device. BusyError while anything of it is left."""
        if not self.closed:
            if self._pending:
                self.sync()
            self._handle.close()

    # --- for the other modules ---

    def _dlpack_device(self, on_host: bool) -> Tuple[int, int]:
        kinds = {
            "cpu": (_dlpack.CPU, _dlpack.CPU),
            "cuda": (_dlpack.CUDA, _dlpack.CUDA_HOST),
            "hip": (_dlpack.ROCM, _dlpack.ROCM_HOST),
        }[self.backend]
        return (kinds[on_host], self._properties.index)

    def _check_tensor(self, view: Tensor, host_too: bool = False) -> None:
        """Refuses a tensor that this device's work cannot reach."""
        kind = view.device_type
        if kind is None or (kind == _dlpack.CPU and (self._is_cpu or host_too)):
            return
        if (self._is_cpu or host_too) and view._is_host():
            return
        if view.device_id == self._properties.index:
            if self.backend == "cuda" and view.device_type in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
                return
            if self.backend == "hip" and view.device_type in (_dlpack.ROCM, _dlpack.CUDA):
                return  # torch calls both of them cuda
        raise ValueError(
            "the tensor is on %s, the device is %s:%d" % (view._device_text(), self.backend, self._properties.index)
        )

    def _forget_done(self) -> None:
        """Lets go of what work that is done has used, the oldest first."""
        while True:
            with self._lock:
                if not self._pending or not self._pending[0][0].query():
                    return
                done = self._pending.popleft()
            done[0].close()
            del done  # outside the lock: owners may end here


def _read_properties(pointer: int) -> DeviceProperties:
    raw = output(lib.memopt_device_get_properties, pointer)
    values = values_of(raw, DeviceProperties._fields)
    values["virtual_memory"] = bool(values["virtual_memory"])
    return DeviceProperties(**values)
