"""Where exact weights are: page-locked host memory, or a file."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any, Dict, Iterable, List, Tuple

import torch

from ... import errors
from ..._abi import Status
from ...sizes import format_size
from .. import _safetensors
from ._arena import Arena
from ._parts import Part, rounded

#: Bytes of weights that were never loaded: a NaN of every floating-point type.
_UNSET = 0xFF


class HostStore:
    """Page-locked memory."""

    where = "host memory"

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def add(self, parts: List[Part]) -> List[Tuple[int, int]]:
        """Takes a layer's weights: its tickets and their bytes."""
        for part in parts:
            ticket, address = self._arena.reserve(part.nbytes)
            memory = self._arena.host_memory(address, part.nbytes)
            part.stored = ticket, part.of(memory, 0)
            put(part, memory, part.stored[1])
        return [(part.stored[0], part.nbytes) for part in parts]

    def read(self, part: Part) -> torch.Tensor:
        """The weights on the host: the store's own memory."""
        return part.stored[1]  # type: ignore[no-any-return]

    def writing(self, parts: Iterable[Part], begins: bool) -> None:
        """The host begins or ends to write weights: no copy of them runs meanwhile."""
        for part in parts:
            self._arena.writing(part.stored[0], begins)

    def write(self, part: Part, value: torch.Tensor) -> bool:
        """New weights. Whether the tickets must be made anew."""
        try:
            self.writing([part], True)
            part.stored[1].copy_(value)
        finally:
            self.writing([part], False)
        return False


def put(part: Part, memory: torch.Tensor, weights: torch.Tensor) -> None:
    """A parameter's values into the store's memory, or NaN where it has none."""
    if part.parameter.is_meta:
        memory.fill_(_UNSET)
    else:
        weights.copy_(part.parameter.detach())


class FileStore:
    """A file of the stream's own, without a name, so that it ends with the process."""

    def __init__(self, path: str, parts: List[Part]) -> None:
        self.where = path
        self._places: Dict[Part, int] = {}
        end = 0
        for part in parts:
            self._places[part], end = end, end + rounded(part.nbytes)
        if os.path.isdir(path):
            self._file, name = tempfile.mkstemp(prefix="memopt-", dir=path)
        else:
            self._file, name = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), path
        os.unlink(name)
        try:
            os.posix_fallocate(self._file, 0, end)  # a full disk shows here, and not as a signal
        except OSError as error:
            os.ftruncate(self._file, 0)  # what was taken is free again
            room = os.fstatvfs(self._file)
            raise errors.make(
                Status.IO_ERROR,
                "stream_weights: the store at %s needs %s, and %s of its file system are free: %s; nothing was changed"
                % (path, format_size(end), format_size(room.f_bavail * room.f_frsize), error.strerror),
                error.errno or 0,
            ) from None
        self._whole = torch.frombuffer(mmap.mmap(self._file, end), dtype=torch.uint8)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def add(self, parts: List[Part]) -> None:
        """Takes a layer's weights."""
        for part in parts:
            start = self._places[part]
            put(part, self._whole[start : start + part.nbytes], self.read(part))

    def tickets(self, arena: Arena, parts: List[Part]) -> List[Tuple[int, int]]:
        """Tickets of a layer and their bytes."""
        path = b"/proc/self/fd/%d" % self._file
        return [(arena.map_file(path, self._places[part], part.nbytes), part.nbytes) for part in parts]

    def read(self, part: Part) -> torch.Tensor:
        """The weights on the host: the file's pages."""
        return part.of(self._whole, self._places[part])

    def write(self, part: Part, value: torch.Tensor) -> bool:
        """New weights. Whether the tickets must be made anew: what was read once may not change."""
        self.read(part).copy_(value)
        return True


class CheckpointStore:
    """A safetensors checkpoint of the user's, which is only read: its weights are the model's."""

    def __init__(self, path: str, parts: List[Part]) -> None:
        self.where = path
        entries = _safetensors.entries_of(path)
        prefix = _prefix(path, entries, parts)
        self._entries = {part: entries[prefix + part.name] for part in parts}
        for part, entry in self._entries.items():
            dense = torch.empty(entry.shape, device="meta").stride()
            if (entry.shape, entry.dtype, dense) != (tuple(part.shape), part.dtype, part.stride):
                raise ValueError(
                    "stream_weights: %s has %s of %s for %s, which is %s of %s in the model"
                    % (entry.path, list(entry.shape), entry.dtype, part.name, list(part.shape), part.dtype)
                )

    def add(self, parts: List[Part]) -> None:
        """They are there."""

    def tickets(self, arena: Arena, parts: List[Part]) -> List[Tuple[int, int]]:
        """Tickets of a layer and their bytes."""
        entries = [self._entries[part] for part in parts]
        return [(arena.map_file(os.fsencode(e.path), e.offset, e.nbytes), e.nbytes) for e in entries]

    def read(self, part: Part) -> torch.Tensor:
        """The weights on the host."""
        entry = self._entries[part]
        with open(entry.path, "rb") as file:
            file.seek(entry.offset)
            data = bytearray(file.read(entry.nbytes))
        if len(data) < entry.nbytes:
            raise OSError("%s: the file ended while it was read" % entry.path)
        return part.of(torch.frombuffer(data, dtype=torch.uint8), 0)

    def write(self, part: Part, value: torch.Tensor) -> bool:
        """Refused, but for what is there."""
        if torch.equal(self.read(part), value.to(device="cpu", dtype=part.dtype)):
            return False
        raise errors.make(
            Status.UNSUPPORTED,
            "stream_weights: %s is the store of %s and is only read; take another store to load into"
            % (self.where, part.name),
        )


def _prefix(path: str, entries: Dict[str, _safetensors.Entry], parts: List[Part]) -> str:
    """What the checkpoint's names have before ours."""
    first = parts[0].name
    ends = [name[: -len(first)] for name in entries if name == first or name.endswith("." + first)]
    found = [start for start in ends if all(start + part.name in entries for part in parts)]
    if len(found) != 1:
        raise ValueError(
            "stream_weights: %d of the %d names of %s that end in %r have all weights of the layers with them;"
            " one must" % (len(found), len(entries), path, first)
        )
    return found[0]


#: A store whose tickets are parts of files.
InFiles = (FileStore, CheckpointStore)
Store = Any
