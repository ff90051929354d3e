"""Unpickling an untrusted file: plain dicts, lists, tuples, numbers and text, within bounds.

An unpickler that knows no names at all makes nothing but built-in values. Its C code trusts the
numbers in a pickle, so each piece is walked through, opcode by opcode, before it is handed over:
sizes of items and places in the memo have to fit what the file really holds, and what the values
can take of memory is estimated from above. Opcodes that make no plain values are refused.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
from typing import Any, Dict

from .. import errors
from .._abi import Status
from ..sizes import format_size

#: No string or number of a snapshot is as long as this.
LONGEST_ITEM = 64 << 20
#: The limit of the estimate: the larger of the two. For snapshots it is about 25 times their bytes,
#: of which they take a third.
FREE_MEMORY = 256 << 20
MEMORY_PER_BYTE = 40

_PIECE = 1 << 20
_WINDOW = 1 << 16  # of one match, which remembers each opcode of it

#: Bytes of the argument of each opcode that plain values are made of.
_WIDTHS: Dict[int, int] = {
    code: width
    for width, codes in (
        (0, b"(012)}]Naestu.\x85\x86\x87\x88\x89\x94"),
        (1, b"hKq\x80\x8a\x8cCU"),
        (2, b"M"),
        (4, b"jJrTXB\x8b"),
        (8, b"G\x95\x8d\x8e\x96"),
    )
    for code in codes
}
_STOP = ord(".")
_LONG_BINPUT = ord("r")
#: Their argument is the size of what follows. A frame's is read at once, but walked through.
_SIZED = frozenset(b"\x8a\x8cCUTXB\x8b\x8d\x8e\x96")
_FRAME = 0x95
#: The unpickler always refuses these, and names what they request.
_NAMES = frozenset(b"ciPQ\x93")

#: The additional memory that one byte may make if it is this opcode.
_ANY_BYTE = 16
_HEAVY = ((b"}", 320), (b"]", 112), (b"t", 64), (b"\x85", 64), (b"\x86", 64), (b"\x87", 64))


def _plain() -> Any:
    """Matches a run of opcodes whose arguments cannot do harm."""
    special = _SIZED | {_STOP, _LONG_BINPUT, _FRAME}

    def codes(width: int) -> bytes:
        found = [bytes([c]) for c, w in _WIDTHS.items() if w == width and c not in special]
        return b"[%s]" % b"".join(map(re.escape, found))

    numbers = (re.escape(bytes([n])) + b".{%d}" % n for n in (6, 7, 5, 4, 8, 3, 2, 1))
    forms = (  # what comes often comes first
        codes(1) + b".",
        codes(0) + b"+",
        b"\\x8a(?:%s)" % b"|".join(numbers),
        codes(4) + b".{4}",
        codes(2) + b"..",
        codes(8) + b".{8}",
        b"r..[\x00-\x3f]\x00",
    )
    return re.compile(b"(?:%s)+" % b"|".join(forms), re.DOTALL).match


_match_plain = _plain()


def corrupt(what: str) -> errors.CorruptError:
    """The exception for a file that cannot be used."""
    return errors.CorruptError(Status.CORRUPT, what)


class _Refusing(pickle.Unpickler):
    """An unpickler that makes nothing but built-in values."""

    def find_class(self, module: str, name: str) -> Any:
        raise corrupt(
            "snapshot: the pickle refers to %s.%s, which no memory snapshot does; nothing was run"
            % (module, name)
        )

    def persistent_load(self, pid: Any) -> Any:
        raise corrupt("snapshot: the pickle refers to something outside itself")


class _Walked(io.RawIOBase):
    """A binary file for the unpickler; it returns only bytes that were walked through."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._bytes = 0  # looked at
        self._memory = 0  # that they may take
        self._rest = b""  # an opcode without all of its argument
        self._skip = 0  # bytes to come of an item
        self._over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read1(len(buffer))
        self._estimate(data)
        if not self._over:
            self._look(data)
        buffer[: len(data)] = data
        return len(data)

    def _estimate(self, data: bytes) -> None:
        self._bytes += len(data)
        self._memory += _ANY_BYTE * len(data)
        self._memory += sum(weight * data.count(code) for code, weight in _HEAVY)
        limit = max(FREE_MEMORY, MEMORY_PER_BYTE * self._bytes)
        if self._memory > limit:
            raise corrupt(
                "snapshot: the first %s of the pickle may take more than %s of memory, which no "
                "memory snapshot does" % (format_size(self._bytes), format_size(limit))
            )

    def _look(self, data: bytes) -> None:
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        data = self._rest + data[self._skip :]
        end = self._walk(data)
        self._rest = data[end:]
        self._skip = max(0, end - len(data))

    def _walk(self, data: bytes) -> int:
        """Where the walk ends: behind the data, or at an opcode that is not whole."""
        at, end = 0, len(data)
        while at < end and not self._over:
            run = _match_plain(data, at, min(at + _WINDOW, end))
            if run:
                at = run.end()
                continue
            behind = at + 1 + _WIDTHS.get(data[at], 0)
            if behind > end:
                return at
            at = behind + self._argument(data[at], data[at + 1 : behind])
        return at

    def _argument(self, code: int, argument: bytes) -> int:
        """Looks at one opcode; the bytes of the item behind its argument."""
        number = int.from_bytes(argument, "little")
        if code == _STOP or code in _NAMES:
            self._over = True
        elif code not in _WIDTHS:
            raise corrupt(
                "snapshot: the pickle is damaged: opcode 0x%02x does not occur in a snapshot" % code
            )
        elif code == _LONG_BINPUT and number > self._bytes:
            raise corrupt(
                "snapshot: the pickle remembers value %d within its first %d bytes, which no "
                "memory snapshot does" % (number, self._bytes)
            )
        elif (code in _SIZED or code == _FRAME) and number > LONGEST_ITEM:
            raise corrupt(
                "snapshot: the pickle has an item of %d bytes, which no memory snapshot has"
                % number
            )
        return number if code in _SIZED else 0


def load(file: Any) -> Any:
    """The values of a pickle. Collection is off meanwhile: millions of small dicts come."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return _Refusing(io.BufferedReader(_Walked(file), _PIECE)).load()
    except errors.MemoptError:
        raise
    except EOFError:
        raise corrupt("snapshot: the pickle was cut off") from None
    except MemoryError:
        raise corrupt("snapshot: the pickle needs more memory than this machine has") from None
    except (OSError, KeyboardInterrupt):
        raise
    except Exception as error:  # what a damaged pickle raises is not defined
        raise corrupt("snapshot: the pickle is damaged: %s" % error) from None
    finally:
        if enabled:
            gc.enable()
