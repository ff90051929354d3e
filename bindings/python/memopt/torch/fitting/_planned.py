"""What is done in forwards of one shape."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from ._choices import DISK, OFFLOAD, RECOMPUTE, REMAKE, Plan, Planner
from ._runs import Moving, Tried
from ._tape import Tape

#: What the table calls them.
KINDS = {RECOMPUTE: "run again", REMAKE: "made again", OFFLOAD: "to the host", DISK: "to the disk"}


class Planned:
    """What is done in forwards of one shape."""

    def __init__(
        self, spec: Any, plain: int, peak: int, host: int, choices: Any, gradients: bool, states: int, seconds: float = 0,
        disk: int = 0,
    ) -> None:
        #: What Applied takes, what a step takes as it was and by the plan, and the time that this adds.
        self.spec, self.plain, self.peak, self.host, self.disk = spec, plain, peak, host, disk
        self.seconds = seconds
        self.choices: List[Tuple[str, str]] = [(kind, name) for kind, name in choices]
        #: Whether it may meet gradients, and the bytes of optimizer states that it leaves room for.
        self.gradients, self.states = gradients, states
        self.planner: Optional[Planner] = None  # of a plan that was loaded
        self.tried: Optional[Tried] = None
        #: What the step took more before it became what is planned; see _otherwise.py.
        self.spared = 0

    def facts(self) -> Dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("planner", "tried", "spared")}


def spec_of(tape: Tape, plan: Plan, moving: Moving, loss: str = "") -> Dict[str, Any]:
    """What Applied takes; plain data."""
    spec: Dict[str, Any] = {"modules": {}, "within": {}, "again": [], "graph": [], "host": [], "loss": loss}
    chosen = {choice.module for choice in plan.choices if choice.kind == RECOMPUTE}
    looks = {pack.number: pack.look for pack in tape.packs}
    for choice in plan.choices:
        kind, what = choice.what
        if kind == "module":
            unit = tape.units[choice.module]
            buffers = [
                "%s.%s" % (name, buffer) if name else buffer
                for name, names in moving.items()
                for buffer in names
                if (name + ".").startswith(unit.name + ".")
            ]
            if any(outer.index in chosen for outer in unit.outer()):
                spec["within"][what] = buffers
            else:
                spec["modules"][what] = [unit.begin, unit.end, buffers]
        elif kind == "again":
            spec["again"].append(what)
        else:
            spec[kind] += [[number, looks[number]] for number in what]
    return spec
