"""The view on a terminal: drawn by rich on the alternate screen, anew when the window changes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import Any, Dict, Iterator, List, Optional

from ..layout import Line
from .screen import screen
from .trends import Watch

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
    """Shows samples until q is pressed."""

    def __init__(self, console: Any, watch: Watch, title: str, most: int) -> None:
        from rich.live import Live

        self._console, self._watch = console, watch
        self._title, self._most = title, most
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._sample: Optional[Dict[str, Any]] = None
        self._size: Any = None
        self._paused = False
        self._keyboard = Keyboard()

    @contextlib.contextmanager
    def shown(self) -> Iterator["LiveView"]:
        """While the terminal shows it."""
        with self._keyboard, self._live, _stops(self._ask_to_pause):
            yield self

    def _ask_to_pause(self, *unused: Any) -> None:
        """Ctrl-Z: acts between two drawings."""
        self._paused = True

    def _pause(self) -> None:
        """Releases the terminal, stops like any program, and then continues."""
        self._paused = False
        self._live.stop()
        self._keyboard.release()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._keyboard.take()
        self._live.start()
        self._draw()

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
        """Waits for the next sample; False if the user ended. It reads the keyboard even if the
        next sample is already due, on a machine too busy for the interval."""
        while True:
            if self._paused:
                self._pause()
            left = max(until - time.monotonic(), 0)
            if self._keyboard.key(min(left, _LOOK)) in ("q", "Q"):
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


class Keyboard:
    """Answers without a return, while it is taken. Without a terminal there is none."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._before: Any = None
        self._pressed = b""  # and not yet asked for

    def __enter__(self) -> "Keyboard":
        self.take()
        return self

    def __exit__(self, *unused: Any) -> None:
        self.release()

    def take(self) -> None:
        """From now on every key counts."""
        try:
            import termios
            import tty
        except ImportError:
            return
        try:
            self._descriptor = sys.stdin.fileno()
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        except (OSError, ValueError, AttributeError, termios.error):
            self._before = None  # no keyboard: Ctrl-C is left

    def release(self) -> None:
        """As it was."""
        if self._before is not None:
            import termios

            with contextlib.suppress(termios.error):  # the terminal may be gone
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
            self._before = None

    def key(self, seconds: float) -> str:
        """A key that is pressed within a time, or nothing."""
        if self._before is None:
            time.sleep(seconds)
            return ""
        if not self._pressed:
            if not select.select([self._descriptor], [], [], seconds)[0]:
                return ""
            self._pressed = os.read(self._descriptor, 64)
            if not self._pressed:  # the terminal is gone
                return "q"
        key, self._pressed = self._pressed[:1], self._pressed[1:]
        return key.decode("ascii", "replace")


@contextlib.contextmanager
def _stops(handler: Any) -> Iterator[None]:
    """Handles Ctrl-Z if it stops programs (a shell without jobs ignores it)."""
    before = signal.getsignal(signal.SIGTSTP)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)
