"""Chunks of bytes that pass through two buffers in host memory, and wait in an offloader with a disk.

A chunk lies in one of the buffers, by its number, or in the offloader, which writes it to its file
and reads it ahead of need. While a chunk is worked on, the next one is read into the other buffer and
earlier ones are written. Host memory is the two buffers and the offloader's limit, whatever the
chunks take in all.

Nothing is lost where a write fails: a chunk leaves its buffer only when the offloader has it, and the
offloader keeps it in memory until it is in the file.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch

from ... import errors
from ..._abi import Status
from ...offload import Disk, Offloader, Ticket
from ...sizes import Size, format_size, parse_size
from .._native import native
from . import _pinned

#: The share of a chunk in the host memory: two buffers, two for what goes along with a chunk, and
#: the offloader's, of which a quarter is being written or read.
SHARES = 12
_LEAST = 1 << 20
_PAGE = 4096


class Chunk:
    """Bytes in a buffer or in the offloader."""

    __slots__ = ("number", "nbytes", "ticket", "is_new")

    def __init__(self, number: int, nbytes: int) -> None:
        self.number, self.nbytes = number, nbytes
        #: The offloader's copy; None: the buffer has the only one, or there is none.
        self.ticket: Optional[Ticket] = None
        #: Only the buffer has what it holds now.
        self.is_new = False

    def release(self) -> None:
        """Ends the offloader's copy."""
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.release()


class Pager:
    """The buffers and the offloader."""

    def __init__(self, disk: Disk, host_limit: Size) -> None:
        self.limit = parse_size(host_limit)
        if self.limit < _LEAST:
            raise ValueError("host_limit is %d bytes; with disk= it must be 1 MiB or more" % self.limit)
        #: The most bytes of a chunk.
        self.unit = self.limit // SHARES // _PAGE * _PAGE
        self.offloader = Offloader(
            native(torch.device("cpu")).allocator, host_limit=self.limit - 4 * self.unit, disk=disk
        )
        self._room: List[Optional[torch.Tensor]] = [None, None]
        self._beside: List[Optional[torch.Tensor]] = [None, None]
        self._held: List[Optional[Chunk]] = [None, None]
        self._arriving = [False, False]
        #: Chunks that fit into the offloader's memory, and so need not be in the file.
        self.kept = (self.limit - 4 * self.unit) // self.unit

    # --- memory ---

    def buffer(self, chunk: Chunk, device: torch.device) -> torch.Tensor:
        """The bytes of a chunk's buffer, at an address that never changes, for parameters there."""
        return self._make(self._room, chunk, device)

    def beside(self, chunk: Chunk, device: torch.device) -> torch.Tensor:
        """As many bytes again, which are not kept."""
        return self._make(self._beside, chunk, device)

    def _make(self, rooms: List[Optional[torch.Tensor]], chunk: Chunk, device: torch.device) -> torch.Tensor:
        at = chunk.number % 2
        room = rooms[at]
        if room is None:
            outline = torch.empty(self.unit, dtype=torch.uint8, device="meta")
            room = rooms[at] = _pinned.like(outline, outline.dtype, device)
        return room

    def nbytes(self) -> Tuple[int, int]:
        """Bytes of host memory that it holds now: beside the chunks, and the rest."""
        beside, room = (sum(t.nbytes for t in rooms if t is not None) for rooms in (self._beside, self._room))
        return beside, room + self.offloader.stats()["host_bytes"]

    # --- chunks ---

    def is_here(self, chunk: Chunk) -> bool:
        """Whether the buffer has the chunk, or will have it."""
        return self._held[chunk.number % 2] is chunk

    def begin(self, chunk: Chunk) -> None:
        """A chunk without a value takes its buffer; write it, and call wrote()."""
        self._leave(chunk.number % 2)
        self._held[chunk.number % 2] = chunk

    def need(self, chunk: Chunk) -> None:
        """Returns when the buffer has the chunk."""
        at = chunk.number % 2
        if self._held[at] is chunk and not self._arriving[at]:
            return
        assert chunk.ticket is not None
        if self._held[at] is chunk:
            self._arriving[at], self._held[at] = False, None
            chunk.ticket.wait_unpacked()
        else:
            self._leave(at)
            chunk.ticket.unpack_into(self._view(chunk))
        self._held[at] = chunk

    def ahead(self, chunk: Chunk) -> None:
        """Begins to bring the chunk, if the memory for that is free."""
        at = chunk.number % 2
        if self._held[at] is chunk:
            return
        self._leave(at)
        assert chunk.ticket is not None
        try:
            chunk.ticket.prefetch_into(self._view(chunk))
        except (errors.LimitReachedError, errors.StorageError, errors.CorruptError):
            return  # need() reads it, or reports
        self._held[at], self._arriving[at] = chunk, True

    def wrote(self, chunk: Chunk) -> None:
        """The buffer has another value of the chunk, or will have: the offloader's ends."""
        chunk.is_new = True
        chunk.release()

    def leave(self) -> None:
        """Both buffers give up what they hold."""
        for at in (0, 1):
            self._leave(at)

    def drop(self, chunks: List[Chunk]) -> None:
        """Ends chunks with their values."""
        for chunk in chunks:
            at = chunk.number % 2
            if self._held[at] is chunk:
                if self._arriving[at] and chunk.ticket is not None:
                    self._let_arrive(chunk.ticket)
                self._held[at], self._arriving[at] = None, False
            chunk.release()

    def fill_the_file(self, most: int) -> None:
        """Makes the file as large as it will ever be beside chunks of at most so many bytes, so that
        a full disk shows now."""
        room = torch.empty(most, dtype=torch.uint8)
        held = []
        try:
            for _ in range(self.kept + 4):
                held.append(self._pack(room))
        finally:
            for ticket in held:
                ticket.wait_packed()
                ticket.release()

    # --- between the buffers and the offloader ---

    def _view(self, chunk: Chunk) -> torch.Tensor:
        room = self._room[chunk.number % 2]
        assert room is not None
        return room[: chunk.nbytes]

    def _leave(self, at: int) -> None:
        """Frees a buffer: what only it has goes to the offloader."""
        chunk = self._held[at]
        if chunk is None:
            return
        if self._arriving[at]:
            assert chunk.ticket is not None
            self._let_arrive(chunk.ticket)
        elif chunk.is_new:
            ticket = self._pack(self._view(chunk))
            chunk.ticket, chunk.is_new = ticket, False
            ticket.wait_packed()
        self._held[at], self._arriving[at] = None, False

    def _let_arrive(self, ticket: Ticket) -> None:
        """Waits for a copy into a buffer, of which nothing else is wanted."""
        try:
            ticket.wait_unpacked()
        except (errors.StorageError, errors.CorruptError):
            pass  # whoever needs the value is told

    def _pack(self, view: torch.Tensor) -> Ticket:
        ticket = self.offloader.pack_borrowed(view)
        if ticket.kept:
            used = self.offloader.stats()["disk_bytes"]
            ticket.release()
            raise errors.make(
                Status.LIMIT_REACHED,
                "no room for %s of optimizer states: %s of the file are in use, and disk= allows no"
                " more" % (format_size(view.nbytes), format_size(used)),
            )
        return ticket
