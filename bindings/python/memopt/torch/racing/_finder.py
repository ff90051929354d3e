"""The finder in C, by one ctypes call for each thing that a program does.

The functions are the binding's own: without the check that costs a call of Python's, and with the
interpreter's lock held, since handing it over takes longer than they do.
"""

from __future__ import annotations

import array
import ctypes
from ctypes import addressof, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Dict, List, Tuple

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


def _method(name: str, *parameters: Any) -> Callable[..., None]:
    function = _function(name, *parameters)

    def method(self: "Finder", *arguments: int) -> None:
        if status := function(self._handle, *arguments):
            self._failed(status)

    return method


_run = _function("run", c_uint32, c_uint64, c_void_p, c_uint32)

#: 64-bit words of a memopt_race_access, in the order of its fields: address, bytes, shape, strides,
#: and dims with the mode above it.
_WORDS = ctypes.sizeof(_abi.RaceAccess) // 8
Words = Tuple[int, int, int, int, int]
_layouts: Dict[Any, Any] = {}


def _layout(size: Tuple[int, ...], stride: Tuple[int, ...], itemsize: int) -> Any:
    """Arrays of a shape and of its strides in bytes."""
    words = ctypes.c_int64 * len(size)
    return words(*size), words(*[step * itemsize for step in stride])


def words_of(tensor: torch.Tensor, mode: int) -> Words:
    """The access to a tensor that is read or written or both."""
    if _is_contiguous(tensor):
        return _data_ptr(tensor), tensor.nbytes, 0, 0, mode
    key = tensor.shape, tensor.stride(), tensor.itemsize
    shape, strides = _layouts.get(key) or _layouts.setdefault(key, _layout(*key))
    return _data_ptr(tensor), tensor.itemsize, addressof(shape), addressof(strides), mode | len(shape)


class Finder:
    """A memopt_race. Actors are its numbers: HOST and streams. What comes after its end is ignored. The
    arguments of a call are those of race.h."""

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

    allocate = _method("allocate", c_uint64, c_uint64, c_uint32, c_uint32, c_uint64)
    free = _method("free", c_uint64, c_uint64)
    record_stream = _method("record_stream", c_uint64, c_uint32)
    wait = _method("wait", c_uint32, c_uint32)
    wait_event = _method("wait_event", c_uint32, c_uint64)

    def run(self, actor: int, tag: int, words: List[int]) -> None:
        """An operation is enqueued, or the host uses memory now; the accesses' words, one after the other."""
        accesses = array.array("Q", words)
        at, count = accesses.buffer_info()
        if status := _run(self._handle, actor, tag, at, count // _WORDS):
            self._failed(status)

    def record(self, actor: int, event: int = 0) -> int:
        """Records an event behind a stream's work; its number."""
        number = c_uint64(event)
        if not self.closed:
            _library.lib.memopt_race_record(self._handle, actor, number)
        return number.value

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
