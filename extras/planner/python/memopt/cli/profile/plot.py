"""The course of a run as a picture, drawn by matplotlib."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from ..pictures import write_picture
from .report import one_line

_GIB = 1 << 30
_MIB = 1 << 20
_SELDOM = "host, shared once"
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d")
#: Of the bands behind them: other hues, so that no band seems to belong to a line.
_BANDS = ("#9ecae9", "#ffe08a", "#bfe3b4", "#e3c4ea", "#ffc1bd", "#c9c9c9", "#d7c4a3", "#a8dcd9")


def draw(report: Dict[str, Any], path: str) -> None:
    """Writes the picture; the name's ending says which kind."""
    from matplotlib import pyplot

    lines = _lines(report)
    most = max([value for _, values in lines for _, value in values], default=0)
    unit, name = (_GIB, "GiB") if most >= _GIB else (_MIB, "MiB")
    figure, axes = pyplot.subplots(figsize=(9, 4.5), dpi=100, layout="constrained")
    for number, (label, values) in enumerate(lines):
        times = [seconds for seconds, _ in values]
        sizes = [value / unit for _, value in values]
        # What is seldom read is no line.
        style = {"linestyle": "", "marker": "."} if label == _SELDOM else {"linewidth": 1.5}
        axes.plot(times, sizes, label=label, color=_COLOURS[number % 8], **style)
    _shade(axes, report)
    axes.set_xlabel("seconds")
    axes.set_ylabel(name)
    axes.set_xlim(0, max(report["seconds"], 1e-3))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_title(_title(report), fontsize=10)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", fontsize=8)
    write_picture(figure, path)
    pyplot.close(figure)


def _title(report: Dict[str, Any]) -> str:
    words = " ".join(one_line(report["command"]).split())
    end = "exit code %d" % report["exit_code"]
    return "%s (%s)" % (words if len(words) <= 70 else words[:69] + "…", end)


def _lines(report: Dict[str, Any]) -> List[Tuple[str, List[Tuple[float, int]]]]:
    """What is above zero at some time."""
    course = report["course"]

    def values(get: Any) -> List[Tuple[float, int]]:
        found = [(one["seconds"], get(one)) for one in course]
        return [(seconds, value) for seconds, value in found if value is not None]

    found = []
    for device in report["devices"]:
        name = device["device"]
        for whose in ("program", "everybody"):
            got = values(lambda one: one["devices"][name][whose])  # noqa: B023
            found.append(("%s, %s" % (name, whose), got))
    for key, label in (("rss", "host, resident"), ("pss", _SELDOM), ("locked", "host, page-locked")):
        found.append((label, values(lambda one: one[key])))  # noqa: B023
    return [(label, got) for label, got in found if any(value for _, value in got)]


def _shade(axes: Any, report: Dict[str, Any]) -> None:
    """A band for each stay in a phase, one colour a phase."""
    names = [one["phase"] for one in report["phases"] if one["phase"] is not None]
    shown = set()
    spans = report["spans"] + [{"seconds": report["seconds"], "phase": None}]
    for span, after in zip(spans, spans[1:]):
        name = span["phase"]
        if name is None:
            continue
        axes.axvspan(
            span["seconds"],
            after["seconds"],
            alpha=0.5,
            linewidth=0,
            zorder=0,
            color=_BANDS[names.index(name) % len(_BANDS)],
            label=None if name in shown else name,
        )
        shown.add(name)
