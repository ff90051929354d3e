"""`memopt replay --diff A B`: which blocks make the difference between two peaks."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List

from ..sizes import format_size
from ..tools import Peak, PeakDifference, compare_peaks
from . import FAILURE, SUCCESS, UsageError
from .output import Output, Text
from .replay_files import name_of, read

#: Rows of the table, and what they may leave out of the difference.
_ROWS, _LEFT_OUT = 30, 0.01


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Reads both and prints."""
    for name in ("trace", "config", "capacity", "plot"):
        if getattr(arguments, name) is not None:
            raise UsageError("--diff takes two traces and no %s" % name)
    if arguments.diff == ["-", "-"]:
        raise UsageError("--diff: only one of the traces can be standard input")
    names, peaks = arguments.diff, []
    for name in names:
        arguments.trace = name
        peaks.append(read(arguments, Peak.read))
        if not peaks[-1].groups:
            output.error("%s: the trace has no allocation" % name_of(name))
            return FAILURE
    rows = compare_peaks(*peaks)
    if output.wants_json:
        output.json(collect(names, peaks, rows))
    else:
        _show(output, names, peaks, rows)
    return SUCCESS


def collect(names: List[str], peaks: List[Peak], rows: List[PeakDifference]) -> Dict[str, Any]:
    """What ``--json`` prints; schemas/replay-diff.json describes it."""
    return {
        "traces": [
            {
                "trace": name,
                "format": peak.source.format,
                "device": peak.source.device,
                "peak_live_bytes": peak.info.peak_live_bytes,
                "peak_live_blocks": sum(blocks for _, blocks in peak.groups.values()),
                "cut": peak.source.cut,
            }
            for name, peak in zip(names, peaks)
        ],
        "difference_bytes": _difference(peaks),
        "attributed_bytes": sum(row.difference for row in rows),
        "groups": [
            {
                "tag": row.group.tag or None,
                "where": row.group.where or None,
                "size": row.group.size,
                "first_bytes": row.first_bytes,
                "first_blocks": row.first_blocks,
                "second_bytes": row.second_bytes,
                "second_blocks": row.second_blocks,
                "difference_bytes": row.difference,
            }
            for row in rows
        ],
    }


def _difference(peaks: List[Peak]) -> int:
    return peaks[1].info.peak_live_bytes - peaks[0].info.peak_live_bytes


def _shown(rows: List[PeakDifference], difference: int) -> List[PeakDifference]:
    """The largest rows, until hardly anything is left."""
    left = difference
    shown: List[PeakDifference] = []
    for row in rows[:_ROWS]:
        if row.difference == 0 or (shown and abs(left) <= abs(difference) * _LEFT_OUT):
            break
        shown.append(row)
        left -= row.difference
    return shown


def _signed(nbytes: int) -> str:
    return "%s%s" % ("+" if nbytes > 0 else "-" if nbytes < 0 else "", format_size(abs(nbytes)))


def _figures(rows: List[PeakDifference]) -> List[Text]:
    return [
        "{:,}".format(sum(row.first_blocks for row in rows)),
        format_size(sum(row.first_bytes for row in rows)),
        "{:,}".format(sum(row.second_blocks for row in rows)),
        format_size(sum(row.second_bytes for row in rows)),
        _signed(sum(row.difference for row in rows)),
    ]


def _show(output: Output, names: List[str], peaks: List[Peak], rows: List[PeakDifference]) -> None:
    shown = _shown(rows, _difference(peaks))
    lines = [
        (letter, "%s: peak live %s" % (name_of(name), format_size(peak.info.peak_live_bytes)))
        for letter, name, peak in zip("AB", names, peaks)
    ]
    output.pairs("Traces", [*lines, ("B less A", _signed(_difference(peaks)))])
    tags = any(row.group.tag for row in rows)
    places = any(row.group.where for row in rows)
    columns = ["tag"] * tags + ["where"] * places + ["size"]
    table: List[List[Text]] = []
    for row in shown:
        tag, where, size = row.group
        cells: List[Text] = []
        cells += [tag or "-"] * tags + [where or "-"] * places
        table.append([*cells, size, *_figures([row])])
    rest = rows[len(shown) :]
    if rest:
        last: List[Text] = ["{:,} more".format(len(rest))]
        table.append([*last, *[""] * (len(columns) - 1), *_figures(rest)])
    columns += ["blocks A", "bytes A", "blocks B", "bytes B", "B less A"]
    output.table("Blocks alive at the peaks", columns, table)
