"""Tensors whose memory is a file without a name: they take host memory only while it is free."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any, List, Tuple

import torch

_PAGE = 4096


class Snapshot:
    """A file that is written first, so that a full disk raises, and then mapped as tensors. It ends
    with the last of them."""

    def __init__(self, folder: "str | os.PathLike[str]") -> None:
        self._file: Any = tempfile.TemporaryFile(dir=folder, buffering=0)
        self._places: List[Tuple[int, torch.dtype, int]] = []
        self._end = 0

    def reserve(self, dtype: torch.dtype, count: int) -> int:
        """Room for a tensor; its number."""
        self._places.append((self._end, dtype, count))
        self._end += -(-count * dtype.itemsize // _PAGE) * _PAGE
        return len(self._places) - 1

    def write(self, number: int, first: int, elements: torch.Tensor) -> None:
        """Writes elements of a reserved tensor, from its element `first`. OSError if that fails."""
        offset, dtype, _ = self._places[number]
        offset += first * dtype.itemsize
        array: Any = elements.view(torch.uint8).numpy()
        bytes_ = memoryview(array)
        while len(bytes_):
            done = os.pwrite(self._file.fileno(), bytes_, offset)
            bytes_, offset = bytes_[done:], offset + done

    def finish(self) -> List[torch.Tensor]:
        """The tensors by their numbers, without a shape of their own."""
        with self._file:
            if self._end == 0:
                return [torch.empty(0, dtype=dtype) for _, dtype, _ in self._places]
            self._file.truncate(self._end)
            memory = mmap.mmap(self._file.fileno(), self._end, access=mmap.ACCESS_WRITE)
        return [
            torch.frombuffer(memory, dtype=dtype, count=count, offset=offset) if count else torch.empty(0, dtype=dtype)
            for offset, dtype, count in self._places
        ]
