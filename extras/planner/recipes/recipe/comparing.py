"""Planned beside measured: tables for people, and the checks that a recipe passes or fails by."""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from memopt.sizes import format_size

from .measuring import CATEGORIES, Bytes
from .settings import Step

Check = Tuple[str, bool]

#: The plan is never below what is measured, and at most a tenth above, in percent.
UNDER, OVER = 0.0, 10.0

#: Points of a percentage that a planned saving may be from the measured one.
NEAR = 3.0
LABELS = {
    "parameters": "weights",
    "gradients": "gradients",
    "optimizer": "states",
    "activations": "activations",
    "logits": "logits",
    "peak": "peak",
}


class Row(NamedTuple):
    """A step of a recipe, planned and measured."""

    step: Step
    planned: Bytes
    measured: Bytes
    losses: List[float]

    @property
    def error(self) -> float:
        """Of the plan's peak, in percent."""
        return 100.0 * (self.planned.peak / self.measured.peak - 1)


def holds(error: float) -> bool:
    """Whether a plan may be so many percent off."""
    return UNDER <= error <= OVER


def saved(before: Bytes, after: Bytes, category: str) -> float:
    """Percent of a category that is gone."""
    was, now = getattr(before, category), getattr(after, category)
    return 100.0 * (1 - now / was) if was else 0.0


def change(saving: float) -> str:
    """A saving of so many percent, as a change."""
    percent = round(saving)
    return "0 %" if percent == 0 else "%s%d %%" % ("−" if percent > 0 else "+", abs(percent))


def checks(rows: Sequence[Row]) -> List[Check]:
    """Every row's bounds; every change's savings, and its losses."""
    result: List[Check] = []
    for row in rows:
        text = "%s: planned %+.1f %% of measured" % (row.step.title, row.error)
        result.append((text, holds(row.error)))
    for before, after in zip(rows, rows[1:]):
        said = " (the guide: %s)" % after.step.guide if after.step.guide else ""
        for category, (least, most) in after.step.saves.items():
            measured = saved(before.measured, after.measured, category)
            planned = saved(before.planned, after.planned, category)
            sizes = "%s %s measured, %s planned" % (
                LABELS[category], change(measured), change(planned),
            )  # fmt: skip
            text = "%s: %s%s" % (after.step.title, sizes, said)
            said = ""
            fine = least <= measured <= most and abs(measured - planned) <= NEAR
            result.append((text, fine))
        if after.step.losses is not None:
            result.append(_losses(before, after, after.step.losses))
    return result


def _losses(before: Row, after: Row, limit: float) -> Check:
    apart = max(abs(a / b - 1) for a, b in zip(after.losses, before.losses))
    if limit == 0:
        return "%s: the same losses, bit for bit" % after.step.title, before.losses == after.losses
    text = "%s: losses within %.2g of those before" % (after.step.title, limit)
    return text, 0 <= apart <= limit


def table(rows: Sequence[Row]) -> List[str]:
    """Bytes of each step."""
    lines = [["", "", *(LABELS[name] for name in (*CATEGORIES, "peak")), "plan"]]
    for row in rows:
        lines.append([row.step.title, "planned", *_sizes(row.planned), "%+.1f %%" % row.error])
        lines.append(["", "measured", *_sizes(row.measured), ""])
    return _columns(lines, 2)


def savings(rows: Sequence[Row]) -> List[str]:
    """What all changes together save of each category, and of the peak."""
    lines = [["", *(LABELS[name] for name in (*CATEGORIES, "peak"))]]
    for title, of in (("planned", "planned"), ("measured", "measured")):
        first, last = getattr(rows[0], of), getattr(rows[-1], of)
        names = (*CATEGORIES, "peak")
        lines.append([title, *(change(saved(first, last, name)) for name in names)])
    return _columns(lines, 1)


def _sizes(of: Bytes) -> List[str]:
    return [format_size(getattr(of, name)) for name in (*CATEGORIES, "peak")]


def _columns(lines: List[List[str]], left: int) -> List[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]
