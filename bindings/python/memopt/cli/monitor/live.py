"""The view on a terminal: drawn by rich on the alternate screen, anew when the window changes."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

from .screen import Line, screen
from .watching import Watch

_STYLES = {
    "title": "bold",
    "head": "bold",
    "course": "cyan",
    "warn": "yellow",
    "bad": "red",
    "good": "green",
    "dim": "dim",
    "": "",
}
_LOOK = 0.1  # seconds between looks at the keyboard and the window's size


class LiveView:
    """Shows samples until somebody presses q."""

    def __init__(self, console: Any, watch: Watch, title: str, most: int) -> None:
        from rich.live import Live

        self._console, self._watch = console, watch
        self._title, self._most = title, most
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._sample: Optional[Dict[str, Any]] = None
        self._size: Any = None

    @contextlib.contextmanager
    def shown(self) -> Iterator["LiveView"]:
        """While the terminal shows it."""
        with keys() as self._key, self._live:
            yield self

    def show(self, sample: Dict[str, Any]) -> None:
        """Draws a sample."""
        self._sample = sample
        self._draw()

    def _draw(self) -> None:
        if self._sample is None:
            return
        self._size = self._console.size
        lines = screen(
            self._sample,
            self._watch,
            self._title,
            self._size.width,
            self._size.height,
            self._most,
        )
        self._live.update(as_text(lines), refresh=True)

    def wait(self, until: float) -> bool:
        """Waits for the next sample; False where somebody has had enough. It looks at the keyboard
        even where the next sample is due already, on a machine too busy for the interval."""
        while True:
            left = max(until - time.monotonic(), 0)
            if self._key(min(left, _LOOK)) in ("q", "Q"):
                return False
            if left == 0:
                return True
            if self._console.size != self._size:
                self._draw()


def as_text(lines: List[Line]) -> Any:
    """For rich; nothing is wrapped."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for cell in line:
            text.append(cell.text, style=_STYLES[cell.meaning])
    return text


@contextlib.contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key; the keyboard answers without a return meanwhile."""
    try:
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        yield _no_key  # no keyboard: Ctrl-C is left
        return

    def key(seconds: float) -> str:
        if not select.select([descriptor], [], [], seconds)[0]:
            return ""
        pressed = os.read(descriptor, 64)
        if not pressed:  # the terminal is gone
            return "q"
        return pressed[:1].decode("ascii", "replace")

    tty.setcbreak(descriptor)
    try:
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
