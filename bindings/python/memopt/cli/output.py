"""How the verbs print: tables by ``rich`` on a terminal where it is installed, else plain text.

Piped output is plain and never wrapped or cut, so that it can be searched. NO_COLOR and TERM=dumb
are honoured. With ``--json`` only :meth:`Output.json` prints.
"""

from __future__ import annotations

import json as json_module
import os
import re
import shutil
import sys
import textwrap
from typing import Any, List, NamedTuple, Optional, Sequence, TextIO, Tuple, Union


class Cell(NamedTuple):
    """A text with a meaning that a terminal may show in colour: "good", "bad", "warn" or "dim"."""

    text: str
    meaning: str = ""


Text = Union[str, Cell]
_STYLES = {"good": "green", "bad": "red", "warn": "yellow", "dim": "dim", "": ""}

#: What stands in a column of numbers, with its unit or without a value.
_NUMBER = re.compile(r"\d[\d.]*( ?%| ?[KMGT]?i?B| W| °C)?|-|")


def _plain(cell: Text) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def _numeric(cells: Sequence[str]) -> bool:
    return any(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


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
        """Prints the one JSON object of ``--json``. What is no number is null there."""
        json_module.dump(value, self._stream, indent=2, ensure_ascii=False, allow_nan=False)
        self._print()

    def json_line(self, value: Any) -> None:
        """Prints one object of a stream of them, on a line of its own, which a reader gets at
        once."""
        self.line(json_module.dumps(value, ensure_ascii=False, allow_nan=False))

    def pairs(self, title: str, pairs: Sequence[Tuple[str, Text]], meaning: str = "") -> None:
        """A title and lines of "name  value"; pairs without a value are left out."""
        shown = [(name, value) for name, value in pairs if _plain(value)]
        self._begin(title, meaning)
        if not shown:
            return
        indent = max(len(name) for name, _ in shown) + 4
        for name, value in shown:
            self._pair(name, value, indent)

    def _pair(self, name: str, value: Text, indent: int) -> None:
        head = ("  " + name).ljust(indent)
        lines = [_plain(value)]
        if self._terminal:
            width = max(shutil.get_terminal_size().columns - indent, 20)
            lines = textwrap.wrap(lines[0], width, break_on_hyphens=False) or [""]
        for number, line in enumerate(lines):
            start = head if number == 0 else " " * indent
            if self._console is None:
                self._print(start + line)
                continue
            from rich.text import Text as RichText

            meaning = value.meaning if isinstance(value, Cell) else ""
            whole = RichText(start, style="dim")
            whole.append(line, style="not dim " + _STYLES[meaning] if meaning != "dim" else "dim")
            self._console.print(whole, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        """A table; columns that hold numbers are set to the right."""
        self._begin(title)
        texts = [[_plain(cell) for cell in row] for row in rows]
        right = [_numeric([row[i] for row in texts]) for i in range(len(columns))]
        if self._console is not None:
            self._rich_table(columns, rows, right)
            return
        self._plain_table(columns, texts, right)

    def _rich_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Text]], right: List[bool]
    ) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text as RichText

        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=True)
        for column, to_the_right in zip(columns, right):
            table.add_column(column, justify="right" if to_the_right else "left")
        for row in rows:
            table.add_row(
                *(
                    RichText(_plain(c), style=_STYLES[c.meaning if isinstance(c, Cell) else ""])
                    for c in row
                )
            )
        console: Any = self._console
        console.print(table)

    def _plain_table(
        self, columns: Sequence[str], rows: List[List[str]], right: List[bool]
    ) -> None:
        widths = [
            max([len(column)] + [len(row[i]) for row in rows]) for i, column in enumerate(columns)
        ]
        if self._terminal:
            _shrink(widths, columns, shutil.get_terminal_size().columns - 2 * len(columns))
        for line in [list(columns), ["-" * width for width in widths]] + rows:
            parts = [
                textwrap.wrap(cell, width, break_on_hyphens=False) or [""]
                for cell, width in zip(line, widths)
            ]
            for number in range(max(map(len, parts))):
                cells = [part[number] if number < len(part) else "" for part in parts]
                self._print(_aligned(cells, widths, right))

    def error(self, message: str) -> None:
        """Says on standard error why it could not be done."""
        self._stream.flush()
        print("memopt: " + message, file=sys.stderr)


def _shrink(widths: List[int], columns: Sequence[str], room: int) -> None:
    """Makes the widest column narrower, and then the next, until all fit the terminal."""
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda i: widths[i] - len(columns[i]))
        if widths[widest] <= max(len(columns[widest]), 20):
            return
        widths[widest] -= 1


def _aligned(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    shown = [
        cell.rjust(width) if to_the_right else cell.ljust(width)
        for cell, width, to_the_right in zip(cells, widths, right)
    ]
    return ("  " + "  ".join(shown)).rstrip()
