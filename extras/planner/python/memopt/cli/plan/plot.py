"""The breakdown as a picture."""

from __future__ import annotations

import textwrap
from typing import Any, List, Tuple

from ...sizes import format_size
from ..pictures import write_picture
from .answer import CATEGORIES, Answer
from .describe import dtype_word, optimizer_word
from .show import LABELS, count

_COLOURS = ("#4c72b0", "#55a868", "#c44e52", "#dd8452", "#8172b3", "#937860", "#b0b0b0")


def plot(answers: List[Answer], path: str, title: str) -> None:
    """Writes one bar a phase for one card, one bar a card for several: of the runs that the table
    proposes."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    try:
        unit = _unit(answers)
        if len(answers) == 1:
            _bars(axes, [(name, of) for name, of in answers[0].plan.phases.items()], unit)
            _limit(axes, answers[0], unit)
        else:
            _bars(axes, [(_card(answer), answer.proposed.peak) for answer in answers], unit)
            for position, answer in enumerate(answers):
                _mark(axes, position, answer, unit)
        axes.set_ylabel(unit[1])
        axes.set_title(_title(answers, title), fontsize=11)
        handles, labels = axes.get_legend_handles_labels()
        # As the parts of a bar lie, one upon the other.
        axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        write_picture(figure, path)
    finally:
        pyplot.close(figure)


def _unit(answers: List[Answer]) -> Tuple[float, str]:
    most = max(max(a.plan.peak.total, a.proposed.peak.total, a.plan.card.capacity or 0) for a in answers)
    for shift, name in ((30, "GiB"), (20, "MiB")):
        if most >= 1 << shift:
            return float(1 << shift), name
    return 1024.0, "KiB"


def _title(answers: List[Answer], title: str) -> str:
    """The model, and the run where it is the same for all."""
    plan = answers[0].plan
    parts = ["%s parameters" % count(plan.parameter_count)]
    if len(answers) == 1:
        parts.append("micro-batch %d" % plan.run.batch)
    parts += ["sequence %d" % plan.run.sequence] if plan.run.sequence else []
    parts += [dtype_word(plan.run), optimizer_word(plan.run)]
    return "%s\n%s" % (title if len(title) <= 80 else "…" + title[-79:], ", ".join(parts))


def _card(answer: Answer) -> str:
    solution = answer.solution
    assert solution is not None
    fits = solution.fits_after
    name = answer.card.name if answer.card else ""
    lines = textwrap.wrap(name, 16) + ["micro-batch %d" % answer.run.batch]
    if not fits or not solution.fits:
        lines.append("with changes" if fits else "too large")
    return "\n".join(lines)


def _bars(axes: Any, columns: List[Any], unit: Tuple[float, str]) -> None:
    places = list(range(len(columns)))
    bottoms = [0.0] * len(columns)
    for category, colour in zip(CATEGORIES, _COLOURS):
        heights = [getattr(of, category) / unit[0] for _, of in columns]
        axes.bar(places, heights, 0.65, bottom=bottoms, color=colour, label=LABELS[category])
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
    for place, (_, of) in zip(places, columns):
        # Upon the lines of the card's size, so that it can be read.
        axes.annotate(
            format_size(of.total),
            (place, bottoms[place]),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            zorder=3,
            bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "linewidth": 0, "alpha": 0.8},
        )
    axes.set_xticks(places, [name for name, _ in columns])
    axes.margins(y=0.12)


def _limit(axes: Any, answer: Answer, unit: Tuple[float, str]) -> None:
    capacity, limit = answer.plan.card.capacity, answer.plan.limit_bytes
    if not capacity:
        return
    style = {"color": "black", "linewidth": 1}
    label = "limit %s (%.0f %%)" % (format_size(limit), 100 * limit / capacity)
    axes.axhline(limit / unit[0], linestyle="--", label=label, **style)
    axes.axhline(capacity / unit[0], label="card %s" % format_size(capacity), **style)


def _mark(axes: Any, position: int, answer: Answer, unit: Tuple[float, str]) -> None:
    for size, style, label in ((answer.plan.limit_bytes, "--", "limit"), (answer.plan.card.capacity, "-", "card")):
        axes.hlines(
            size / unit[0],
            position - 0.4,
            position + 0.4,
            color="black",
            linewidth=1,
            linestyle=style,
            label=label if position == 0 else None,
        )
