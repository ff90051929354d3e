"""The live view as lines of text for a terminal of some width and height.

In a table that is too wide, names are cut first, then the least important columns are dropped; the
course over time takes the rest.
"""

from __future__ import annotations

import textwrap
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from ...sizes import format_size
from ..layout import Cell, Line, aligned
from ..layout import width as columns_of
from .trends import Course, Watch

_BARS = "▁▂▃▄▅▆▇█"
_COURSE_LEAST, _COURSE_MOST = 8, 60


class Spark(NamedTuple):
    """A cell that shows values, from 0 to `most`, in as many characters as there are."""

    values: Sequence[int]
    most: int

    def text(self, width: int) -> str:
        """The last values."""
        shown = list(self.values)[-width:]
        if self.most <= 0:
            return ""
        top = len(_BARS) - 1
        return "".join(_BARS[max(0, min(top, round(top * v / self.most)))] for v in shown)


Content = Union[str, Cell, Spark]


class Column(NamedTuple):
    """A column; the one with the least `rank` is dropped first."""

    title: str
    rank: int
    right: bool = False
    shortest: int = 0  # above 0: its texts may be cut down to so many characters


DEVICES = (
    Column("device", 99),
    Column("name", 1, shortest=10),
    Column("used", 98, right=True),
    Column("of", 97, right=True),
    Column("%", 96, right=True),
    Column("peak", 95, right=True),
    Column("util", 94, right=True),
    Column("temp", 3, right=True),
    Column("power", 2, right=True),
    Column("over time", 4),
)
PROCESSES = (
    Column("device", 96),
    Column("pid", 99, right=True),
    Column("name", 98, shortest=8),
    Column("used", 97, right=True),
    Column("peak", 94, right=True),
    Column("over time", 2),
)


# --- tables ---------------------------------------------------------------------------------------


def table(columns: Sequence[Column], rows: Sequence[Sequence[Content]], width: int) -> List[Line]:
    """The lines of a table, none longer than the width."""
    shown, widths = _fit(columns, rows, width)
    titles = [_aligned(columns[i].title, widths[i], columns[i].right) for i in shown]
    lines = [_joined([Cell(title, "head") for title in titles])]
    for row in rows:
        lines.append(_joined([_cell(row[i], widths[i], columns[i].right) for i in shown]))
    return lines


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[Content]], width: int
) -> Tuple[List[int], List[int]]:
    widths = [
        max([len(column.title)] + [_length(row[i]) for row in rows])
        for i, column in enumerate(columns)
    ]
    empty = {i for i in range(len(columns)) if rows and all(_blank(row[i]) for row in rows)}
    shown = [i for i in range(len(columns)) if i not in empty]

    def excess() -> int:
        return sum(widths[i] + 2 for i in shown) - width

    for i in shown:
        if excess() > 0 and columns[i].shortest:
            widths[i] = max(widths[i] - excess(), min(columns[i].shortest, widths[i]))
    while excess() > 0 and len(shown) > 1:
        shown.remove(min(shown, key=lambda i: columns[i].rank))
    for i in shown:
        longest = max([_values(row[i]) for row in rows], default=0)
        if longest:
            widths[i] = max(min(widths[i] - excess(), _COURSE_MOST, longest), widths[i])
    return shown, widths


def _blank(content: Content) -> bool:
    if isinstance(content, Spark):
        return False
    return (content.text if isinstance(content, Cell) else content) in ("", "-")


def _values(content: Content) -> int:
    return len(content.values) if isinstance(content, Spark) else 0


def _length(content: Content) -> int:
    if isinstance(content, Spark):
        return _COURSE_LEAST
    return columns_of(content.text if isinstance(content, Cell) else content)


def _cell(content: Content, width: int, right: bool) -> Cell:
    if isinstance(content, Spark):
        return Cell(content.text(width).ljust(width), "course")
    text = content.text if isinstance(content, Cell) else content
    meaning = content.meaning if isinstance(content, Cell) else ""
    return Cell(_aligned(text, width, right), meaning)


def _aligned(text: str, width: int, right: bool) -> str:
    if columns_of(text) > width:
        while text and columns_of(text) > max(width - 1, 0):
            text = text[:-1]
        text += "…"
    return aligned(text, width, right)


def _joined(cells: Sequence[Cell]) -> Line:
    line: Line = []
    for cell in cells:
        line += [Cell("  "), cell]
    return line


# --- what stands in them --------------------------------------------------------------------------


def size(value: Optional[int]) -> str:
    """A number of bytes, or "-" where it is not known."""
    return "-" if value is None else format_size(value)


def _with_unit(value: Optional[float], unit: str) -> str:
    return "-" if value is None else "%.0f %s" % (value, unit)


def share(device: Dict[str, Any]) -> Optional[float]:
    """Percent of the memory that is used."""
    used, total = device["memory_used"], device["memory_total"]
    return None if used is None or not total else 100 * used / total


def device_row(device: Dict[str, Any], course: Optional[Course]) -> List[Content]:
    """A row of DEVICES."""
    if device["error"] is not None:
        return [device["device"], Cell(device["error"]["status"], "bad")] + ["-"] * 8
    percent = share(device)
    meaning = "bad" if percent is not None and percent >= 95 else ""
    return [
        device["device"],
        device["name"] or "-",
        size(device["memory_used"]),
        size(device["memory_total"]),
        Cell("-" if percent is None else "%.0f" % percent, meaning),
        size(device["memory_peak"]),
        _with_unit(device["utilization"], "%"),
        _with_unit(device["temperature"], "°C"),
        _with_unit(device["power"], "W"),
        Spark(list(course.values) if course else [], device["memory_total"] or 0),
    ]


def process_row(
    device: Dict[str, Any], process: Dict[str, Any], course: Optional[Course]
) -> List[Content]:
    """A row of PROCESSES."""
    return [
        device["device"],
        str(process["pid"]),
        process["name"] or "?",
        size(process["used"]),
        size(process["peak"]),
        Spark(list(course.values) if course else [], course.peak if course else 0),
    ]


def host_text(sample: Dict[str, Any]) -> str:
    """One line about the machine's memory."""
    host = sample["host"]
    return "host memory: %s used of %s, %s available" % (
        size(host["memory_used"]),
        size(host["memory_total"]),
        size(host["memory_available"]),
    )


# --- the whole screen -----------------------------------------------------------------------------


def screen(
    sample: Dict[str, Any], watch: Watch, title: str, width: int, height: int, most: int
) -> List[Line]:
    """Everything, in at most so many lines; `most` processes of a device at most."""
    clock = time.strftime("%H:%M:%S", time.localtime(sample["time"]))
    lines: List[Line] = [[Cell(_heading(title.split("  ") + [clock], width), "title")], []]
    rows = [device_row(d, watch.course(d["device"])) for d in sample["devices"]]
    lines += table(DEVICES, rows, width) + [[]]
    below: List[Line] = [[]] + _notes(sample, width)
    room = height - len(lines) - len(below)
    return (lines + _process_lines(sample, watch, width, room, most) + below)[:height]


def _heading(parts: List[str], width: int) -> str:
    """The parts that fit; the name and the time are dropped last."""
    while len(parts) > 1 and columns_of("  ".join(parts)) > width:
        del parts[1 if len(parts) > 2 else 0]
    return _aligned("  ".join(parts), width, False).rstrip()


def _process_lines(
    sample: Dict[str, Any], watch: Watch, width: int, room: int, most: int
) -> List[Line]:
    rows, hidden = [], 0
    for device in sample["devices"]:
        processes = device["processes"]
        hidden += max(len(processes) - most, 0)
        for process in processes[:most]:
            key = (device["device"], process["pid"])
            rows.append(process_row(device, process, watch.courses.get(key)))
    if not rows:
        return [[Cell("  no process uses a device", "dim")]]
    if len(rows) > max(room - 2, 1):
        hidden += len(rows) - max(room - 2, 1)
        rows = rows[: max(room - 2, 1)]
    columns = PROCESSES
    if len(sample["devices"]) == 1:  # which is clear then, unless there is room for it
        columns = (PROCESSES[0]._replace(rank=3),) + PROCESSES[1:]
    lines = table(columns, rows, width)
    if hidden:
        lines.append([Cell("  and %d more" % hidden, "dim")])
    return lines


def _notes(sample: Dict[str, Any], width: int) -> List[Line]:
    texts = [("warn", "! " + one["message"]) for one in sample["warnings"]]
    for device in sample["devices"]:
        if device["error"] is not None:
            texts.append(("bad", "! %s: %s" % (device["device"], device["error"]["message"])))
        if device["processes_error"] is not None:
            texts.append(("dim", "%s: %s" % (device["device"], device["processes_error"])))
    if not all(device["backend"] == "cpu" for device in sample["devices"]):
        texts.append(("dim", host_text(sample)))
    if sample["note"]:
        texts.append(("dim", sample["note"]))
    lines: List[Line] = []
    for meaning, text in texts:
        for part in textwrap.wrap(text, max(width - 2, 20), break_on_hyphens=False):
            lines.append([Cell("  " + part, meaning)])
    return lines
