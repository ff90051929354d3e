"""The finder in C, by one ctypes call for each thing that a program does.

The functions are the binding's own: without the check that costs a call of Python's, and with the
interpreter's lock held, since handing it over takes longer than they do.
"""

from __future__ import annotations

import array
import ctypes
from ctypes import c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Tuple

import torch

from ... import _abi, _library

_calls = ctypes.PyDLL(_library.path)
_data_ptr = torch._C.TensorBase.data_ptr
_is_contiguous = torch._C.TensorBase.is_contiguous

HOST = 0
READ, WRITE = 1 << 32, 2 << 32  # as the last word of an access has them
DEVICE, PINNED = 1, 2


def _function(name: str, *parameters: Any) -> Any:
    function = getattr(_calls, "memopt_race_" + name)
    function.argtypes, function.restype = (c_void_p,) + parameters, c_int32
    return function


_allocate = _function("allocate", c_uint64, c_uint64, c_uint32, c_uint32, c_uint64)
_free = _function("free", c_uint64, c_uint64)
_record_stream = _function("record_stream", c_uint64, c_uint32)
_run = _function("run", c_uint32, c_uint64, c_void_p, c_uint32)
_wait = _function("wait", c_uint32, c_uint32)
_wait_event = _function("wait_event", c_uint32, c_uint64)

#: 64-bit words of a memopt_race_access, in the order of its fields: address, bytes, shape, strides,
#: and dims with the mode above it.
_WORDS = ctypes.sizeof(_abi.RaceAccess) // 8
Words = Tuple[int, int, int, int, int]
_layouts: Dict[Any, Any] = {}


def _layout(size: Tuple[int, ...], stride: Tuple[int, ...], itemsize: int) -> Any:
    """Bytes, shape, strides and dims of an access; the arrays are the last. Dense elements are one range."""
    dims = sorted((s * itemsize, n) for n, s in zip(size, stride) if n != 1 and s != 0)
    dense = itemsize
    for step, n in dims:
        if step != dense:
            break
        dense *= n
    else:
        return dense, 0, 0, 0, None
    arrays = [(ctypes.c_int64 * len(dims))(*values) for values in ([n for _, n in dims], [s for s, _ in dims])]
    return itemsize, ctypes.addressof(arrays[0]), ctypes.addressof(arrays[1]), len(dims), arrays


def words_of(tensor: torch.Tensor, mode: int) -> Words:
    """The access to a tensor that is read or written or both."""
    if _is_contiguous(tensor):
        return _data_ptr(tensor), tensor.nbytes, 0, 0, mode
    key = tensor.shape, tensor.stride(), tensor.itemsize
    nbytes, shape, strides, dims, _ = _layouts.get(key) or _layouts.setdefault(key, _layout(*key))
    return _data_ptr(tensor), nbytes, shape, strides, mode | dims


class Finder:
    """A memopt_race. Actors are its numbers: HOST and streams. What comes after its end is ignored."""

    def __init__(self) -> None:
        self._handle = c_void_p(_library.output(_library.lib.memopt_race_create, None))
        self.closed = False

    def close(self) -> None:
        """Ends it."""
        if not self.closed:
            self.closed = True
            _library.lib.memopt_race_destroy(self._handle)
            self._handle = c_void_p()

    def _failed(self, status: int) -> None:
        if not self.closed:
            raise _library.from_status(status)

    def add_stream(self) -> int:
        """A new stream's number."""
        return int(_library.output(_library.lib.memopt_race_add_stream, self._handle))

    def allocate(self, address: int, nbytes: int, memory: int, actor: int, tag: int) -> None:
        """A block begins."""
        if status := _allocate(self._handle, address, nbytes, memory, actor, tag):
            self._failed(status)

    def free(self, address: int, tag: int) -> None:
        """A block ends."""
        if status := _free(self._handle, address, tag):
            self._failed(status)

    def record_stream(self, address: int, actor: int) -> None:
        """The block there is kept until the stream's work is done."""
        if status := _record_stream(self._handle, address, actor):
            self._failed(status)

    def run(self, actor: int, tag: int, words: List[int]) -> None:
        """An operation is enqueued, or the host uses memory now; the accesses' words, one after the other."""
        accesses = array.array("Q", words)
        at, count = accesses.buffer_info()
        if status := _run(self._handle, actor, tag, at, count // _WORDS):
            self._failed(status)

    def wait(self, waiter: int, waited: int) -> None:
        """All work of a stream so far comes before what the waiter does next."""
        if status := _wait(self._handle, waiter, waited):
            self._failed(status)

    def record(self, actor: int, event: int = 0) -> int:
        """Records an event behind a stream's work; its number."""
        number = c_uint64(event)
        if not self.closed:
            _library.lib.memopt_race_record(self._handle, actor, number)
        return number.value

    def wait_event(self, waiter: int, event: int) -> None:
        """What an event was recorded behind comes before what the waiter does next."""
        if status := _wait_event(self._handle, waiter, event):
            self._failed(status)

    def drop_event(self, event: int) -> None:
        """The event is no longer needed."""
        if not self.closed:
            _library.lib.memopt_race_drop_event(self._handle, event)

    def stats(self) -> Dict[str, int]:
        """What it has seen and holds."""
        raw = _abi.RaceStats()
        _library.lib.memopt_race_get_stats(self._handle, raw)
        return _library.values_of(raw)

    def reports(self) -> List[_abi.RaceReport]:
        """The races, in the order in which they were found."""
        return _library.listed(_library.lib.memopt_race_get_report, self._handle)
