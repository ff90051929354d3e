"""The line of the environment that helps a run, and why."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ...plan import Solution
from ...sizes import format_size
from .reserved import Reserved

#: From this share of the memory on, what is lost to fragments matters.
_TIGHT, _VERY_TIGHT = 0.6, 0.85


def line(card: Any, solution: Optional[Solution], held: Optional[Reserved]) -> Optional[Dict[str, str]]:
    """name, value and why of the variable to set for the run that fits; None where it would not
    help."""
    if solution is None or not solution.fits_after or card.device != "cuda":
        return None  # PyTorch has expandable segments on ROCm from version 7 on, where some hang
    share = solution.peak_bytes / card.capacity
    saved = held is not None and held.saved_by_expandable
    if share < _TIGHT and not saved and card.allocator != "expandable":
        if not any(change.applied and change.kind == "allocator" for change in solution.changes):
            return None
    value = "expandable_segments:True"
    why = "%s of %s are used at the peak: segments that grow lose less of the rest to fragments" % (
        format_size(solution.peak_bytes),
        format_size(card.capacity),
    )
    if held is not None and saved:
        why = "PyTorch's default allocator would reserve %s of %s, and expandable segments %s" % (
            format_size(held.classic.nbytes),
            format_size(card.capacity),
            format_size(held.expandable.nbytes),
        )
    if share >= _VERY_TIGHT:
        value += ",garbage_collection_threshold:0.8"
        why += "; above 80 % cached blocks are given back first"
    return {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": value, "why": why}
