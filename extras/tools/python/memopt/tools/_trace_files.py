"""Trace files: what they are, by their first bytes, and their events into a Trace.

CSV is passed on in pieces as it is read and unpacked, so the size of a file does not matter. A
snapshot is a pickle and has to be unpickled as a whole. What a gzip file may unpack to is limited,
as a megabyte can unpack to a gigabyte.
"""

from __future__ import annotations

import gzip
import io
import os
import select
import zlib
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Protocol, Tuple

if TYPE_CHECKING:
    import array

from .. import errors
from ._pickles import corrupt, load
from ._snapshots import events_of
from ..sizes import format_size

#: What a gzip file may unpack to by default: the larger of the two. Traces unpack to about ten
#: times their size.
FREE_UNPACKED = 64 << 20
UNPACKED_PER_BYTE = 100

_PIECE = 1 << 20
_GZIP = b"\x1f\x8b"
#: Formats that are not read, by their first bytes, and what to do.
_OTHERS = (
    (b"PK\x03\x04", "a zip archive (torch.save makes such files); unpack it, or give the pickle"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it, or use gzip"),
    (b"\xfd7zXZ", "compressed with xz; unpack it, or use gzip"),
    (b"BZh", "compressed with bzip2; unpack it, or use gzip"),
)

FileProgress = Callable[[int, Optional[int]], Any]


class Trace(Protocol):
    """What the events of a file go into."""

    def parse_csv(self, text: bytes) -> None: ...

    def end_csv(self) -> None: ...

    def add_words(self, words: "array.array[int]") -> None: ...

    def __len__(self) -> int: ...


class TraceSource(NamedTuple):
    """Where the events of a trace that was read come from."""

    #: "csv" or "pytorch".
    format: str
    #: The device of a PyTorch snapshot, and the number of events of each in it.
    device: Optional[int] = None
    events_by_device: Tuple[int, ...] = ()
    #: Blocks, and their bytes, that lived before the recording and are allocated first.
    earlier_blocks: int = 0
    earlier_bytes: int = 0
    #: Why the file was not read to its end (``partial=True``), or None.
    cut: Optional[str] = None


class _Counted(io.RawIOBase):
    """A file that counts and reports its reads."""

    def __init__(self, file: Any, total: Optional[int], progress: Optional[FileProgress]) -> None:
        self._file = file
        self._total = total
        self._progress = progress
        self.done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        while data is None:  # a non-blocking pipe
            select.select([self._file], [], [])
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.done += len(data)
        if self._progress is not None:
            self._progress(self.done, self._total)
        return len(data)


class _Unpacked(io.RawIOBase):
    """What a gzip file holds, up to a limit; None: up to what a trace may."""

    def __init__(self, file: Any, counted: _Counted, limit: Optional[int]) -> None:
        self._unpacked = gzip.GzipFile(fileobj=file)
        self._counted = counted
        self._limit = limit
        self._done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._unpacked.read1(len(buffer))  # not more: what is before damage counts
        self._done += len(data)
        packed, limit = self._counted.done, self._limit
        if limit is None:
            limit = max(FREE_UNPACKED, UNPACKED_PER_BYTE * packed)
        if self._done > limit:
            raise corrupt(
                "trace: %s of the gzip file unpack to more than the limit of %s; if you trust the "
                "file, raise the limit by max_unpacked (--max-unpacked)"
                % (format_size(packed), format_size(limit))
            )
        buffer[: len(data)] = data
        return len(data)


def _open(file: Any) -> Tuple[Any, Optional[int], bool]:
    """A binary file, its size where it has one, and whether it is ours to close."""
    if hasattr(file, "read"):
        return file, _size(file), False
    opened = open(os.fspath(file), "rb", buffering=0)
    return opened, _size(opened), True


def _size(file: Any) -> Optional[int]:
    try:
        return os.fstat(file.fileno()).st_size or None
    except (OSError, AttributeError, ValueError):
        return None


def read_trace(
    trace: Trace,
    file: Any,
    device: Optional[int],
    partial: bool,
    recorded_only: bool,
    progress: Optional[FileProgress],
    max_unpacked: Optional[int],
) -> TraceSource:
    """Reads a file into a trace."""
    opened, size, ours = _open(file)
    try:
        counted = _Counted(opened, size, progress)
        text: Any = io.BufferedReader(counted, _PIECE)
        packed = text.peek(2)[:2] == _GZIP
        if packed:
            text = io.BufferedReader(_Unpacked(text, counted, max_unpacked), _PIECE)
        try:
            start = text.peek(8)[:8]
        except (EOFError, OSError, zlib.error) as error:
            raise _damaged(error) from None
        for first, what in _OTHERS:
            if start.startswith(first):
                raise corrupt("trace: the file is " + what)
        if start[:1] == b"\x80":
            return _read_snapshot(trace, text, device, recorded_only, packed)
        return TraceSource("csv", cut=_read_csv(trace, text, partial))
    finally:
        if ours:
            opened.close()


def _damaged(error: BaseException) -> errors.CorruptError:
    """What the gzip module raised about a file."""
    if isinstance(error, EOFError):
        return corrupt("trace: the gzip file was cut off")
    return corrupt("trace: the gzip file is damaged: %s" % error)


def _is_gzip_error(error: BaseException) -> bool:
    """An OSError of the file itself has a number; those of the gzip module have none."""
    return not isinstance(error, OSError) or error.errno is None


def _read_csv(trace: Trace, text: Any, partial: bool) -> Optional[str]:
    """Why it was not read to its end, if that is allowed, or None."""
    try:
        while True:
            try:
                piece = text.read1(_PIECE)
            except (EOFError, OSError, zlib.error) as error:
                if not _is_gzip_error(error):
                    raise
                raise _damaged(error) from None
            if not piece:
                break
            trace.parse_csv(piece)
        trace.end_csv()
    except errors.CorruptError as error:
        if not partial or len(trace) == 0:
            raise
        return str(error)
    return None


def _read_snapshot(
    trace: Trace, text: Any, device: Optional[int], recorded_only: bool, packed: bool
) -> TraceSource:
    try:
        snapshot = load(text)
        while packed and text.read1(_PIECE):
            pass  # the checksum is behind the last byte
    except (EOFError, OSError, zlib.error) as error:
        if not _is_gzip_error(error):
            raise
        raise _damaged(error) from None
    found = events_of(snapshot, device, recorded_only)
    trace.add_words(found.words)
    return TraceSource(
        "pytorch",
        device=found.device,
        events_by_device=found.by_device,
        earlier_blocks=found.earlier_blocks,
        earlier_bytes=found.earlier_bytes,
    )
