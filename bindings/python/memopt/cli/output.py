"""How the verbs print: tables by ``rich`` on a terminal where it is installed, else plain text.

Piped output is plain and never wrapped or cut, so that it can be searched. NO_COLOR and TERM=dumb
are honoured. With ``--json`` only :meth:`Output.json` prints.
"""

from __future__ import annotations

import json as json_module
import os
import shutil
import sys
from typing import Any, Optional, Sequence, TextIO, Tuple

from . import layout
from .layout import Cell, Line, Text, aligned, plain, width, wrapped
from .standard_streams import nearest

_STYLES = {"good": "green", "bad": "red", "warn": "yellow", "head": "bold", "dim": "dim", "": ""}


class Output:
    """Where a verb prints."""

    def __init__(self, json: bool = False, stream: Optional[TextIO] = None) -> None:
        self.wants_json = json
        self._stream = stream if stream is not None else sys.stdout
        self._terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._console = None if json else self._make_console()
        self._started = False

    def _make_console(self) -> Any:
        if not self._terminal:
            return None
        try:
            from rich.console import Console
        except ImportError:
            return None
        return Console(file=self._stream, highlight=False, markup=False)

    @property
    def rich(self) -> bool:
        """Whether tables are drawn by rich."""
        return self._console is not None

    @property
    def console(self) -> Any:
        """rich's console where tables are drawn by rich, else None."""
        return self._console

    def line(self, text: str) -> None:
        """One line of a stream of them, which a reader gets at once."""
        self._started = True
        print(text, file=self._stream, flush=True)

    def _print(self, text: str = "") -> None:
        print(text, file=self._stream)

    def _begin(self, title: str, meaning: str = "") -> None:
        if self._started:
            self._print()
        self._started = True
        if not title:
            return
        if self._console is not None:
            from rich.text import Text as RichText

            self._console.print(RichText(title, style=("bold " + _STYLES[meaning]).strip()))
        else:
            self._print(title)

    def json(self, value: Any) -> None:
        """Prints the one JSON object of ``--json``. NaN and infinity become null."""
        self._print(json_text(value, self._stream.encoding, indent=2))

    def json_line(self, value: Any) -> None:
        """Prints one object of a stream of them, on a line of its own, which a reader gets at
        once."""
        self.line(json_text(value, self._stream.encoding))

    def pairs(self, title: str, pairs: Sequence[Tuple[str, Text]], meaning: str = "") -> None:
        """A title and lines of "name  value"; pairs without a value are left out."""
        shown = [(name, self._cell(value)) for name, value in pairs if plain(value)]
        self._begin(title, meaning)
        if not shown:
            return
        indent = max(width(name) for name, _ in shown) + 4
        for name, value in shown:
            self._pair(name, value, indent)

    def _cell(self, value: Text) -> Cell:
        """A text as the stream can show it."""
        cell = value if isinstance(value, Cell) else Cell(value)
        return Cell(nearest(cell.text, self._stream.encoding), cell.meaning)

    def _pair(self, name: str, value: Cell, indent: int) -> None:
        lines = [value.text]
        if self._terminal:
            lines = wrapped(lines[0], max(self._width() - indent, 20), break_words=False)
        for number, line in enumerate(lines):
            head = aligned("  " + name if number == 0 else "", indent, False)
            self._show([Cell(head, "dim"), Cell(line, value.meaning)])

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        """A table; columns that hold numbers are set to the right."""
        self._begin(title)
        room = self._width() if self._terminal else None
        rows = [[self._cell(cell) for cell in row] for row in rows]
        for line in layout.table(columns, rows, room, "─" if self.rich else "-"):
            self._show(line)

    def _width(self) -> int:
        return shutil.get_terminal_size().columns

    def _show(self, line: Line) -> None:
        """A line that is neither wrapped nor cut here: the terminal wraps a long word, so that
        copying it gives the whole word."""
        if self._console is None:
            self._print("".join(cell.text for cell in line).rstrip())
            return
        from rich.text import Text as RichText

        text = RichText()
        for cell in line:
            text.append(cell.text, style=_STYLES[cell.meaning])
        text.rstrip()
        self._console.print(text, soft_wrap=True)

    def error(self, message: str) -> None:
        """Prints the reason of a failure to standard error."""
        self._stream.flush()
        print("memopt: " + message, file=sys.stderr)


def json_text(value: Any, encoding: Optional[str] = "utf-8", indent: Optional[int] = None) -> str:
    """JSON in the encoding's own characters, or in ASCII where it has not all of them. It is valid
    either way: a file name that is not text, for instance, is escaped."""
    text = json_module.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        text = json_module.dumps(value, indent=indent, allow_nan=False)
    return text


__all__ = ("Cell", "Output", "Text", "json_text")
