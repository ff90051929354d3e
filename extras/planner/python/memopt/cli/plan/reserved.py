"""What allocators hold for a planned run: its allocations and frees, replayed."""

from __future__ import annotations

import array
from typing import Any, Dict, NamedTuple, Optional

from ...errors import UnsupportedError
from ...plan import Plan
from ...tools import Trace, TraceAction

CLASSIC, EXPANDABLE = "", "expandable_segments:True"

#: A segment of small blocks, or a page: what kernels make within themselves, which no plan lists.
_WITHIN_KERNELS = 2 << 20


class Held(NamedTuple):
    """What one allocator holds from the device at its fullest moment."""

    #: With the driver's context, workspaces and other use: what `nvidia-smi` shows.
    nbytes: int
    #: None without a card. An allocator that runs out gives its cache back and tries again.
    fits: Optional[bool]


class Reserved(NamedTuple):
    """By allocator: torch's with its default configuration; with expandable segments, and ours."""

    classic: Held
    expandable: Held

    @property
    def fits(self) -> Optional[bool]:
        """Whether the run fits with one of them; None without a card."""
        return self.classic.fits or self.expandable.fits

    @property
    def saved_by_expandable(self) -> bool:
        """Whether the run fits with expandable segments alone."""
        return self.classic.fits is False and self.expandable.fits is True

    def as_json(self) -> Dict[str, Any]:
        """As --json has it."""
        return {name: {"bytes": held.nbytes, "fits": held.fits} for name, held in self._asdict().items()}


def reserved(plan: Plan) -> Optional[Reserved]:
    """Of two steps; None on a CPU, which has no such allocator, and of a module whose operations
    depend on the batch: its single blocks are not known."""
    if plan.card.device == "cpu":
        return None
    try:
        blocks = blocks_of(plan)
    except UnsupportedError:
        return None
    with blocks as trace:
        return Reserved(_held(trace, plan, CLASSIC), _held(trace, plan, EXPANDABLE))


def blocks_of(plan: Plan) -> Trace:
    """What the run allocates and frees, for replays."""
    events, words = plan.events(), array.array("Q")
    for block, nbytes in zip(events[::2], events[1::2]):
        words.extend((block, nbytes, 0, TraceAction.ALLOC if nbytes else TraceAction.FREE))
    trace = Trace()
    trace.add_words(words)
    return trace


def peak_bytes(trace: Trace, config: str) -> int:
    """What an allocator with this configuration takes from the device at most."""
    return trace.replay(config).peak_reserved_bytes + _WITHIN_KERNELS


def graphs_pool(plan: Plan) -> int:
    """The private pool of a captured step: its activations, which the cache before it holds too."""
    if plan.card.cuda_graphs != "yes" or plan.card.device == "cpu":
        return 0
    return max(of.activations + of.logits for of in plan.phases.values())


def _held(trace: Trace, plan: Plan, config: str) -> Held:
    """With as much memory as it takes, and where the card has less, with that."""
    card = plan.card
    beside = card.context_bytes + card.workspace_bytes + (card.other_bytes or 0) + graphs_pool(plan)
    most = peak_bytes(trace, config)
    if not card.capacity:
        return Held(most + beside, None)
    room = card.capacity - beside
    if most <= room:
        return Held(most + beside, True)
    if room > _WITHIN_KERNELS:
        tight = trace.replay(config, capacity=room - _WITHIN_KERNELS)
        if not tight.out_of_memory:
            return Held(tight.peak_reserved_bytes + _WITHIN_KERNELS + beside, True)
    return Held(most + beside, False)
