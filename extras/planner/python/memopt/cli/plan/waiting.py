"""A bar for what takes long within one call of the library or of torch."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Callable, Iterator, Optional, TextIO

from ..progress import Progress

#: Seconds between two looks at what is done.
_BEAT = 0.2


@contextlib.contextmanager
def waiting(label: str, total: int = 1, stream: Optional[TextIO] = None) -> Iterator[Callable[[], None]]:
    """While active, a thread draws how many of `total` parts are done; what is given counts one. Only on
    a terminal, and not around another bar."""
    stream = stream or sys.stderr
    done, ended = [0], threading.Event()

    def draw() -> None:
        while not ended.wait(_BEAT):
            bar(done[0], total)

    def count() -> None:
        done[0] += 1

    with Progress(label, stream) as bar:
        thread = threading.Thread(target=draw, daemon=True)
        if stream.isatty():
            thread.start()
        try:
            yield count
        finally:
            ended.set()
            if thread.ident:
                thread.join()
