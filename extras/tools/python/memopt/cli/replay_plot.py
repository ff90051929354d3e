"""The plot of a replay: live and reserved memory over events, by matplotlib."""

from __future__ import annotations

import argparse
from typing import Any, Optional

from ..tools import Replay, TraceInfo
from ..sizes import format_size
from .pictures import check_picture, write_picture


class Plot:
    """A picture file. Failures are reported before the long work begins."""

    #: Points of a line: more than a picture has columns.
    SAMPLES = 2000

    def __init__(self, path: str) -> None:
        check_picture(path)
        self._path = path

    def draw(
        self,
        name: str,
        info: TraceInfo,
        replay: Replay,
        arguments: argparse.Namespace,
        smallest: Optional[int],
    ) -> None:
        """Writes the picture."""
        from matplotlib import pyplot

        scale, unit = _unit(max(replay.peak_reserved_bytes, info.peak_live_bytes))
        figure, axes = pyplot.subplots(figsize=(10, 4.5), layout="constrained")
        try:
            _lines(axes, replay, scale)
            _levels(axes, replay, arguments, smallest, scale)
            last = _mark(axes, info, replay, scale)
            axes.set(xlabel="events", ylabel=unit, xlim=(0, last), ylim=(0, None))
            axes.set_title("%s: %s" % (name, arguments.config or "default configuration"))
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, frameon=False)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.grid(alpha=0.3)
            write_picture(figure, self._path)
        finally:
            pyplot.close(figure)


def _unit(most: int) -> "tuple[float, str]":
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if most >= 1 << shift:
            return float(1 << shift), unit
    return 1.0, "B"


def _lines(axes: Any, replay: Replay, scale: float) -> None:
    events = [0] + [sample.event for sample in replay.samples]
    for label, colour, fill, values in (
        ("reserved", "tab:orange", "#fdd9b5", [s.reserved_bytes for s in replay.samples]),
        ("live", "tab:blue", "#b5d2ea", [s.live_bytes for s in replay.samples]),
    ):
        heights = [value / scale for value in values[:1] + values]
        axes.fill_between(events, heights, step="pre", color=fill, linewidth=0)
        axes.step(events, heights, where="pre", color=colour, linewidth=1, label=label)


def _levels(
    axes: Any,
    replay: Replay,
    arguments: argparse.Namespace,
    smallest: Optional[int],
    scale: float,
) -> None:
    if arguments.capacity:
        axes.axhline(replay.capacity / scale, color="black", linestyle="--", label="capacity")
    if smallest is not None:
        axes.axhline(smallest / scale, color="tab:green", linestyle=":", label="smallest device")


def _mark(axes: Any, info: TraceInfo, replay: Replay, scale: float) -> float:
    """Marks where memory ran out; returns the last event to show."""
    failure = replay.failure
    if failure is None:
        return info.events
    last = min(info.events, failure.event * 1.25)
    height = (failure.live_bytes + failure.nbytes) / scale
    text = "out of memory at event {:,} of {:,}:\n{} asked, {} alive".format(
        failure.event,
        info.events,
        format_size(failure.nbytes),
        format_size(failure.live_bytes),
    )
    axes.plot([failure.event], [height], "x", color="tab:red", markersize=12, markeredgewidth=3)
    axes.annotate(
        text,
        (failure.event, height),
        xytext=(-14, -14),
        textcoords="offset points",
        horizontalalignment="right",
        verticalalignment="top",
        color="tab:red",
        bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": "tab:red", "alpha": 0.9},
    )
    return last
