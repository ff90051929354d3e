"""What a refusal tells: what sets the floor, and which modules cannot help."""

from __future__ import annotations

from typing import Any, Dict, List

from ..._abi import FIT_NONE
from ...sizes import format_size
from ._recipes import words_of
from ._tape import BACKWARD, Tape


def at_peak(tape: Tape, result: Any) -> str:
    """What lives at a floor's peak."""
    kind = ["forward", "backward"][any(e[0] == BACKWARD for e in tape.events[: result.peak_event])]
    where = ""
    if result.peak_module != FIT_NONE:
        unit = tape.units[result.peak_module]
        where = ", in %s (%s)" % (unit.name, type(unit.module).__name__)
    largest = ""
    if result.peak_storage != FIT_NONE:
        looks = [pack.look for pack in tape.packs if pack.storage == result.peak_storage][:1]
        name = ", saved as %s" % words_of(looks[0]) if looks else ""
        largest = "; the largest tensor then has %s%s" % (format_size(tape.bytes[result.peak_storage]), name)
    return "That is reached in %s%s%s" % (kind, where, largest)


def left_out(tape: Tape) -> str:
    """Which modules cannot run again although they have gradients, for the commonest reason."""
    names: Dict[str, List[str]] = {}
    for unit in tape.units:
        if unit.why.startswith(("takes", "changes")):
            names.setdefault(unit.why, []).append(unit.name)
    if not names:
        return ""
    why = max(names, key=lambda reason: len(names[reason]))
    hint = " (pass use_cache=False)" if "Cache" in why else ""
    more = " and %d more" % (len(names[why]) - 1) if len(names[why]) > 1 else ""
    return ". %s%s cannot run again: %s%s" % (names[why][0], more, why, hint)
