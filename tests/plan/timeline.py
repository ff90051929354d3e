#!/usr/bin/env python3
"""Shows one row of rows.py step by step: what happens around its peak, and what lives there.

    PYTHONPATH=bindings/python python tests/plan/timeline.py NAME [--around 12] [--phase loss]
    … --set batch=2 seq=64 hidden_size=256        # the row with other values
    … --saved                                     # what forward leaves for backward
    … --all                                       # every event

Sizes in bytes. A line of "alive" stands for tensors of one shape that one operation made:
count, bytes of all, category, operation, autograd's node in backward, shape, modules.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Dict, List, Tuple

import measure
import rows
from memopt.torch._recorder import Account


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name")
    parser.add_argument("--around", type=int, default=12, help="events before and after the peak")
    parser.add_argument("--phase", help="the peak of this phase, not the highest")
    parser.add_argument("--saved", action="store_true", help="what lives when the loss is there")
    parser.add_argument("--all", action="store_true", help="every event")
    parser.add_argument("--held", action="store_true", help="as if outputs were held")
    parser.add_argument("--in-place", action="store_true", help="without the recorder's own sums")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    row = next((row for row in rows.ROWS if row["name"] == options.name), None)
    if row is None:
        parser.error("no row is called %s" % options.name)
    for assignment in options.set:
        _set(row, *assignment.split("=", 1))
    if "world_size" in row["run"]:
        parser.error("%s is of several processes: it has no timeline here" % options.name)
    account, held, in_place = measure.accounts(row, measure.Step(row).recorder())
    account = held if options.held else in_place if options.in_place else account
    show(account, options)
    return 0


def _set(row: Dict[str, Any], key: str, text: str) -> None:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    row["run" if key in row["run"] else "config"][key] = value


def show(account: Account, options: Any) -> None:
    """Prints all of it."""
    peaks = account.peaks()
    for name, peak in peaks.items():
        parts = {k: v for k, v in account.categories(peak.event).items() if v}
        print("%-9s peak %13d  %s" % (name, peak.bytes, parts))
    peak = peaks[options.phase] if options.phase else account.peak()
    if options.saved:
        start = [at for at, name in account.marks if name == "backward"][-1]
        alive(account, start - 1, "alive when backward starts")
    events(account, peak.event, None if options.all else options.around)
    alive(account, peak.event, "alive at the peak (%s)" % peak.phase)


def events(account: Account, at: int, around: Any) -> None:
    """The births and deaths around an event."""
    curve = account.curve()
    first = 0 if around is None else max(at - around, 0)
    last = len(curve) if around is None else at + around + 1
    marks = dict(account.marks)
    print("\n%8s %14s %14s" % ("event", "change", "alive"))
    for index in range(first, min(last, len(curve))):
        if index in marks:
            print("-- " + marks[index])
        event = account.events[index]
        tensor = account.tensors[abs(event) - 1]
        size = tensor.bytes if event > 0 else -tensor.bytes
        print(
            "%8d %+14d %14d %s #%d %s %s %s %s%s"
            % (
                index,
                size,
                curve[index],
                "new " if event > 0 else "dies",
                abs(event) - 1,
                account.category(abs(event) - 1),
                tensor.operation,
                tensor.node,
                "%s %s" % (tensor.dtype, list(tensor.shape)),
                " " + tensor.module + ("   <== peak" if index == at else ""),
            )
        )


def alive(account: Account, event: int, title: str) -> None:
    """What lives after an event, grouped."""
    groups: Dict[Tuple[Any, ...], List[Any]] = {}
    for number in account.alive(event):
        t = account.tensors[number]
        module = ".".join("*" if part.isdigit() else part for part in t.module.split("."))
        key = (account.category(number), t.operation, t.node, t.dtype, t.shape, t.phase, module)
        group = groups.setdefault(key, [0, 0])
        group[0] += 1
        group[1] += t.bytes
    print("\n%s: %d bytes" % (title, sum(size for _, size in groups.values())))
    for key, (count, size) in sorted(groups.items(), key=lambda item: -item[1][1]):
        category, operation, node, dtype, shape, phase, module = key
        print(
            "%5d × = %12d %-11s %s %s %s %s %s %s"
            % (count, size, category, operation or "-", node, dtype, list(shape), phase, module)
        )


if __name__ == "__main__":
    sys.exit(main())
