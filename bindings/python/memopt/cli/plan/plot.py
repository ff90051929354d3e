"""The breakdown as a picture."""

from __future__ import annotations

from typing import Any, List

from ...sizes import format_size
from .answer import CATEGORIES, Answer
from .show import LABELS

_COLOURS = ("#4c72b0", "#55a868", "#c44e52", "#dd8452", "#8172b3", "#937860", "#b0b0b0")
_GIB = float(1 << 30)


class PlotError(Exception):
    """The picture cannot be made."""


def plot(answers: List[Answer], path: str, title: str) -> None:
    """Writes one bar a phase for one card, one bar a card for several."""
    try:
        import matplotlib
    except ImportError:
        raise PlotError("--plot needs matplotlib: pip install 'memopt[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    try:
        if len(answers) == 1:
            _bars(axes, [(name, of) for name, of in answers[0].plan.phases.items()])
            _limit(axes, answers[0])
        else:
            _bars(axes, [(a.card.name if a.card else "", a.plan.peak) for a in answers])
            for position, answer in enumerate(answers):
                _mark(axes, position, answer)
        axes.set_ylabel("GiB")
        axes.set_title(title)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise PlotError("%s: %s" % (path, error)) from None
    finally:
        pyplot.close(figure)


def _bars(axes: Any, columns: List[Any]) -> None:
    names = [name for name, _ in columns]
    bottoms = [0.0] * len(columns)
    for category, colour in zip(CATEGORIES, _COLOURS):
        heights = [getattr(of, category) / _GIB for _, of in columns]
        axes.bar(names, heights, 0.65, bottom=bottoms, color=colour, label=LABELS[category])
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
    for position, (_, of) in enumerate(columns):
        axes.text(position, bottoms[position], format_size(of.total), ha="center", va="bottom")
    axes.margins(y=0.12)


def _limit(axes: Any, answer: Answer) -> None:
    card = answer.plan.card
    if not card.capacity:
        return
    axes.axhline(card.capacity / _GIB, color="black", linewidth=1, label="card")
    axes.axhline(
        answer.plan.limit_bytes / _GIB, color="black", linewidth=1, linestyle="--", label="limit"
    )


def _mark(axes: Any, position: int, answer: Answer) -> None:
    for size, style in ((answer.plan.card.capacity, "-"), (answer.plan.limit_bytes, "--")):
        axes.hlines(
            size / _GIB, position - 0.4, position + 0.4, color="black", linewidth=1, linestyle=style
        )
