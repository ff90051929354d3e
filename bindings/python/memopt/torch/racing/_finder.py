"""The finder in C, by one ctypes call for each thing that a program does.

The functions are the binding's own: without the check that costs a call of Python's, and with the
interpreter's lock held, since handing it over takes longer than they do.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Tuple

import torch

from ... import _abi, _library

_calls = ctypes.PyDLL(_library.path)
_data_ptr = torch._C.TensorBase.data_ptr
_is_contiguous = torch._C.TensorBase.is_contiguous

HOST = 0
READ, WRITE = 1, 2
DEVICE, PINNED = 1, 2


def _function(name: str, *parameters: Any) -> Any:
    function = getattr(_calls, "memopt_race_" + name)
    function.argtypes, function.restype = (c_void_p,) + parameters, c_int32
    return function


_allocate = _function("allocate", c_uint64, c_uint64, c_uint32, c_uint32, c_uint64)
_free = _function("free", c_uint64, c_uint64)
_record_stream = _function("record_stream", c_uint64, c_uint32)
_run = _function("run", c_uint32, c_uint64, c_void_p, c_uint32)
_host = _function("host", c_uint64, c_void_p, c_uint32)
_wait = _function("wait", c_uint32, c_uint32)
_wait_event = _function("wait_event", c_uint32, c_uint64)

#: 64-bit words of a memopt_race_access, in the order of its fields: address, bytes, shape, strides,
#: and dims with the mode above it.
_WORDS = ctypes.sizeof(_abi.RaceAccess) // 8
Layout = Tuple[int, int, int, int, Any]
_layouts: Dict[Any, Layout] = {}


def _layout(size: Tuple[int, ...], stride: Tuple[int, ...], itemsize: int) -> Layout:
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


class Accesses:
    """What one operation uses; a thread has one of them and fills it again and again."""

    def __init__(self) -> None:
        self.count = self._end = 0
        self._words = memoryview(b"").cast("Q")
        self._grow(64)

    def _grow(self, room: int) -> None:
        old = self._words.tolist()
        self._array = (c_uint64 * (room * _WORDS))(*old)
        self.at = c_void_p(ctypes.addressof(self._array))
        self._words = memoryview(self._array).cast("B").cast("Q")

    def clear(self) -> None:
        self.count = self._end = 0

    def extend(self, other: "Accesses") -> None:
        """Those of another operation, too."""
        end = self._end + other._end
        while end > len(self._words):
            self._grow(2 * len(self._words) // _WORDS)
        self._words[self._end : end] = other._words[: other._end]
        self.count, self._end = self.count + other.count, end

    def add_range(self, address: int, nbytes: int, mode: int) -> None:
        """Bytes at an address, of an operation that has used few others."""
        self._words[self._end], self._words[self._end + 1], self._words[self._end + 4] = address, nbytes, mode << 32
        self.count, self._end = self.count + 1, self._end + _WORDS

    def add(self, tensor: torch.Tensor, mode: int) -> None:
        """A tensor is read or written or both; one without elements counts for nothing."""
        words, at = self._words, self._end
        if at == len(words):
            self._grow(2 * self.count)
            words = self._words
        words[at] = _data_ptr(tensor)
        if _is_contiguous(tensor):
            words[at + 1] = tensor.nbytes
            words[at + 4] = mode << 32
        elif tensor.numel():
            key = tensor.shape, tensor.stride(), tensor.itemsize
            layout = _layouts.get(key) or _layouts.setdefault(key, _layout(*key))
            words[at + 1], words[at + 2], words[at + 3] = layout[:3]
            words[at + 4] = mode << 32 | layout[3]
        else:
            return
        self.count += 1
        self._end = at + _WORDS


class Finder:
    """A memopt_race. Actors are its numbers: HOST and streams."""

    def __init__(self) -> None:
        self._handle = c_void_p(_library.output(_library.lib.memopt_race_create, None))
        self.closed = False

    def close(self) -> None:
        """Ends it; what comes later is ignored."""
        if not self.closed:
            self.closed = True
            _library.lib.memopt_race_destroy(self._handle)

    def _do(self, function: Any, *arguments: Any) -> None:
        if not self.closed:
            status = function(self._handle, *arguments)
            if status:
                raise _library.from_status(status)

    def add_stream(self) -> int:
        """A new stream's number."""
        return int(_library.output(_library.lib.memopt_race_add_stream, self._handle))

    def allocate(self, address: int, nbytes: int, memory: int, actor: int, tag: int) -> None:
        """A block begins."""
        self._do(_allocate, address, nbytes, memory, actor, tag)

    def free(self, address: int, tag: int) -> None:
        """A block ends."""
        self._do(_free, address, tag)

    def record_stream(self, address: int, actor: int) -> None:
        """The block there is kept until the stream's work is done."""
        self._do(_record_stream, address, actor)

    def run(self, actor: int, tag: int, accesses: Accesses) -> None:
        """An operation is enqueued."""
        self._do(_run, actor, tag, accesses.at, accesses.count)

    def host(self, tag: int, accesses: Accesses) -> None:
        """The host uses memory now."""
        self._do(_host, tag, accesses.at, accesses.count)

    def wait(self, waiter: int, waited: int) -> None:
        """All work of a stream so far comes before what the waiter does next."""
        self._do(_wait, waiter, waited)

    def record(self, actor: int, event: int = 0) -> int:
        """Records an event behind a stream's work; its number."""
        number = c_uint64(event)
        if not self.closed:
            _library.lib.memopt_race_record(self._handle, actor, number)
        return number.value

    def wait_event(self, waiter: int, event: int) -> None:
        """What an event was recorded behind comes before what the waiter does next."""
        self._do(_wait_event, waiter, event)

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


__all__ = ("DEVICE", "HOST", "PINNED", "READ", "WRITE", "Accesses", "Finder")
