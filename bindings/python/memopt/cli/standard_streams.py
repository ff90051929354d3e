"""Standard output and standard error as the command needs them.

They are always open, and able to take every text in the locale's encoding. A missing character is
replaced by the nearest one ("->" for an arrow), and file names that are not text are written as
their bytes.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import sys
from typing import Any, Iterator, Optional, Tuple, Union

_HANDLER = "memopt"
_NEAREST = {
    "→": "->", "×": "x", "…": "...", "·": ".", "—": "--", "–": "-", "−": "-", "≤": "<=",
    "≥": ">=", "°": "", "µ": "u", "─": "-", "█": "#", "▇": "#", "▆": "#", "▅": "=", "▄": "=",
    "▃": "-", "▂": "-", "▁": "_", "▏": " ", "▎": " ", "▍": "=", "▌": "=", "▋": "=", "▊": "#",
    "▉": "#", "“": '"', "”": '"', "‘": "'", "’": "'", "✓": "+", "✗": "x",
}  # fmt: skip


def _nearest(error: UnicodeError) -> Tuple[Union[str, bytes], int]:
    """What stands for a character that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    if all(0xDC80 <= ord(one) <= 0xDCFF for one in text):  # bytes of a name, see os.fsdecode()
        return bytes(ord(one) - 0xDC00 for one in text), error.end
    return "".join(_NEAREST.get(one, "?") for one in text), error.end


codecs.register_error(_HANDLER, _nearest)


def nearest(text: str, encoding: Optional[str]) -> str:
    """A text in the characters of an encoding, so that its length is known."""
    return text.encode(encoding or "utf-8", _HANDLER).decode(encoding or "utf-8", "surrogateescape")


def prepare() -> None:
    """Sets the streams up. A closed stream is replaced by one without a reader, which keeps its
    descriptor: otherwise the next opened file would receive the library's log. A program that is
    started does not see it."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8", errors=_HANDLER))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_HANDLER)


@contextlib.contextmanager
def drivers_quiet() -> Iterator[None]:
    """Discards what vendors' libraries print while they start. The library cannot do this: file
    descriptor 2 belongs to all threads of a program. With MEMOPT_LOG everything is let through."""
    if os.environ.get("MEMOPT_LOG"):
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def give_up() -> None:
    """Discards what a stream could not write; otherwise it is tried again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def said(error: OSError) -> str:
    """The system's text of an error, with the file's name."""
    text = error.strerror or str(error) or type(error).__name__
    names = [name for name in (error.filename, error.filename2) if name is not None]
    if names:
        return "%s: %s" % (" and ".join(map(_name, names)), text)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
    return "standard output cannot be written: " + text if full else text


def _name(name: Any) -> str:
    return (os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else str(name)) or "''"
