"""Tables as lines of text: as wide as they are for a pipe, or so that a terminal shows them whole.

No figure is ever cut. If a table is too wide for the terminal, texts are wrapped between words;
then empty columns are dropped; then rows and columns change places; and if even that does not fit,
each row becomes a block of "name value" lines.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union


class Cell(NamedTuple):
    """A text with a meaning that a terminal may show in colour: "good", "bad", "warn", "head" or
    "dim"."""

    text: str
    meaning: str = ""


Text = Union[str, Cell]
#: A line is a sequence of pieces, each with its meaning.
Line = List[Cell]

_GAP = 2
_LONGEST_WORD = 24  # longer ones, paths mostly, may be broken
_MOST_TURNED = 8  # rows that may become columns

#: What stands in a column of numbers, with its unit or without a value.
_NUMBER = re.compile(r"[-+]?\d[\d.,]*( ?%| ?[KMGT]?i?B| W| °C| ×)?|-|")


def printable(name: str) -> str:
    """A name that a process chose itself, without characters that control a terminal."""
    return "".join(one if one.isprintable() else "?" for one in name)


def plain(cell: Text) -> str:
    """The text of a cell."""
    return cell.text if isinstance(cell, Cell) else cell


def width(text: str) -> int:
    """The columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def aligned(text: str, columns: int, right: bool) -> str:
    """A text with blanks on one side."""
    blanks = " " * max(columns - width(text), 0)
    return blanks + text if right else text + blanks


def wrapped(text: str, columns: int, break_words: bool = True) -> List[str]:
    """A text in lines of at most so many columns; at least one line."""
    lines = textwrap.wrap(text, max(columns, 1), break_on_hyphens=False, break_long_words=break_words)
    return lines or [""]


def numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds numbers, and is set to the right."""
    return any(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


def table(columns: Sequence[str], rows: Sequence[Sequence[Text]], room: Optional[int], rule: str = "-") -> List[Line]:
    """The lines of a table, in a terminal of `room` columns (None: no terminal)."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    whole = _Table(list(columns), cells)
    if room is None or whole.natural() <= room:
        return whole.lines(whole.widths(), rule)
    filled = whole.without_blanks()
    for one in (whole, filled, filled.turned(), filled.without_ornament()):
        widths = one.fit(room) if one is not None else None
        if one is not None and widths is not None:
            return one.lines(widths, rule)
    return filled.stacked(room)


class _Table:
    """Columns and rows of cells."""

    def __init__(self, columns: List[str], rows: List[List[Cell]]) -> None:
        self.columns, self.rows = columns, rows
        self.right = [numeric(self._texts(i)) for i in range(len(columns))]

    def _texts(self, column: int) -> List[str]:
        return [row[column].text for row in self.rows]

    def widths(self) -> List[int]:
        """Those at which nothing is wrapped."""
        return [max(map(width, [title] + self._texts(i))) for i, title in enumerate(self.columns)]

    def natural(self) -> int:
        """How wide it is then."""
        return sum(self.widths()) + _GAP * len(self.columns)

    def fit(self, room: int) -> Optional[List[int]]:
        """Widths for a terminal; None where figures would have to be cut."""
        widths = self.widths()
        least = [self._least(i) for i in range(len(widths))]
        excess = sum(widths) + _GAP * len(widths) - room
        while excess > 0:
            slack = [i for i in range(len(widths)) if widths[i] > least[i]]
            if not slack:
                return None
            widths[max(slack, key=lambda i: widths[i])] -= 1
            excess -= 1
        return widths

    def _least(self, column: int) -> int:
        texts, title = self._texts(column), _longest_word(self.columns[column])
        if self.right[column]:
            return max(map(width, texts + [" " * title]))
        figures = max((width(text) for text in texts if _NUMBER.fullmatch(text)), default=0)
        words = max(map(_longest_word, texts), default=0)
        return max(figures, min(words, _LONGEST_WORD), title)

    def without_blanks(self) -> "_Table":
        """Without the columns in which nothing stands."""
        return self._only([i for i in range(len(self.columns)) if set(self._texts(i)) - {"", "-"}])

    def without_ornament(self) -> "_Table":
        """Without the columns that have no title, except marks before the rows."""
        return self._only([i for i, title in enumerate(self.columns) if title or i == 0])

    def _only(self, kept: List[int]) -> "_Table":
        return _Table([self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows])

    def turned(self) -> Optional["_Table"]:
        """Rows and columns change places, if there are few rows and they have names."""
        if not self.columns or not self.columns[0] or len(self.rows) > _MOST_TURNED:
            return None
        columns = [self.columns[0]] + self._texts(0)
        rows = [[Cell(title, "head")] + [row[i] for row in self.rows] for i, title in enumerate(self.columns)]
        return _Table(columns, rows[1:])

    def lines(self, widths: List[int], rule: str) -> List[Line]:
        """Titles, a rule, and the rows."""
        shown = self._row([Cell(title, "head") for title in self.columns], widths, True)
        shown.append(self._line([Cell(rule * columns, "dim") for columns in widths], widths))
        for row in self.rows:
            shown += self._row(row, widths, False)
        return shown

    def _row(self, row: List[Cell], widths: List[int], bottom: bool) -> List[Line]:
        parts = [wrapped(cell.text, columns) for cell, columns in zip(row, widths)]
        height = max(map(len, parts), default=0)
        blanks = [[""] * (height - len(part)) for part in parts]
        parts = [b + part if bottom else part + b for b, part in zip(blanks, parts)]
        return [
            self._line([Cell(part[i], cell.meaning) for part, cell in zip(parts, row)], widths) for i in range(height)
        ]

    def _line(self, cells: List[Cell], widths: List[int]) -> Line:
        line: Line = []
        for i, cell in enumerate(cells):
            last = i == len(cells) - 1 and not self.right[i]
            text = cell.text if last else aligned(cell.text, widths[i], self.right[i])
            line += [Cell(" " * _GAP), Cell(text, cell.meaning)]
        return line

    def stacked(self, room: int) -> List[Line]:
        """Each row as a block of lines."""
        indent = max(map(width, self.columns), default=0) + 2 * _GAP
        lines: List[Line] = []
        for number, row in enumerate(self.rows):
            lines += [[]] if number else []
            for title, cell in self._named(row):
                lines += _block(title, cell, indent, room)
        return lines

    def _named(self, row: List[Cell]) -> List[Tuple[str, Cell]]:
        """The cells of a row with their names; a cell without a name joins one with a name."""
        found: List[Tuple[str, Cell]] = []
        mark = ""
        for title, cell in zip(self.columns, row):
            if title and (cell.text or mark):
                found.append((title, Cell((mark + " " + cell.text).strip(), cell.meaning)))
                mark = ""
            elif cell.text and found:
                name, before = found[-1]
                found[-1] = (name, Cell("%s, %s" % (before.text, cell.text), before.meaning))
            elif cell.text:
                mark = cell.text
        return found


def _block(title: str, cell: Cell, indent: int, room: int) -> List[Line]:
    heads = [aligned(" " * _GAP + title, indent, False)]
    parts = wrapped(cell.text, max(room - indent, 8), break_words=False)
    heads += [" " * indent] * (len(parts) - 1)
    return [[Cell(head, "dim"), Cell(part, cell.meaning)] for head, part in zip(heads, parts)]


def _longest_word(text: str) -> int:
    return max(map(width, text.split()), default=0)


__all__: Tuple[str, ...] = (
    "Cell", "Line", "Text", "aligned", "numeric", "plain", "table", "width", "wrapped",
)  # fmt: skip
