"""From a description and a card to the answer that ``--json`` prints."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ...plan import Bytes, Model, Plan, Run, Solution, Target
from ...plan import Card as PlanCard
from . import environment
from .reserved import Reserved, reserved
from .cards import Card
from .describe import Description, adapter_word, dtype_word, image_word, optimizer_word

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "batch", "overhead")


class Answer(NamedTuple):
    """What is said about one card, or about none."""

    card: Optional[Card]
    #: Of the run that changes are counted from: the batch given, or what fits.
    plan: Plan
    #: None without a card.
    solution: Optional[Solution]
    #: The run and model to use: with the changes where they are needed.
    run: Any
    model: Any
    #: The effective batch and the micro-batch that were asked for.
    target: Optional[int]
    asked: Optional[int]
    #: Of the run to use.
    proposed: Plan
    #: What allocators hold for it; None where that is not known.
    reserved: Optional[Reserved]
    #: The micro-batch and accumulation that were raised; None: they were not.
    raised: Optional[Tuple[int, int]] = None


class Source:
    """Where the bytes of a run come from."""

    def plan(self, run: Run, card: PlanCard, model: Optional[Model] = None) -> Plan:
        """What a run takes, with another model where changes make one of it."""
        raise NotImplementedError

    def solve(self, run: Run, card: PlanCard, target: Target) -> Solution:
        """What fits a card."""
        raise NotImplementedError


class Played(Source):
    """A described model, whose step the library plays."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def plan(self, run: Run, card: PlanCard, model: Optional[Model] = None) -> Plan:
        return Plan(model or self._model, run, card)

    def solve(self, run: Run, card: PlanCard, target: Target) -> Solution:
        return Solution(self._model, run, card, target)


def answer(
    source: Source,
    run: Run,
    card: Optional[Card],
    bare: PlanCard,
    target: Optional[int],
    fill: bool = False,
    other: bool = True,
) -> Answer:
    """Plans for one card, or without one. `fill`: a larger micro-batch where one fits; `other`: changes that
    make another training are taken too."""
    if card is None:
        plan = source.plan(_accumulated(run, target) if target else run, bare)
        held = reserved(plan)
        return Answer(None, plan, None, plan.run, plan.model, target, run.batch, plan, held)
    room = card.card
    while True:
        wanted = Target(effective_batch=target, all_changes=True, keep_training=not other)
        solution = source.solve(run, room, wanted)
        given = solution.run
        if fill and run.batch and solution.fits:
            whole = target or given.batch * given.accumulation * given.world_size
            larger = source.solve(
                run.replace(batch=None, accumulation=None), room, wanted.replace(effective_batch=whole)
            )
            if larger.fits and larger.micro_batch > given.batch:
                solution = larger
        proposed = source.plan(solution.run, solution.card, solution.model)
        held = reserved(proposed)
        if not solution.fits_after or held is None or held.fits is not False:
            break
        # The solver estimates what allocators hold, the replay knows: as much less of the card.
        share = min(0.98, proposed.card.capacity / held.expandable.nbytes)
        room = room.replace(margin=proposed.card.margin * share)
    raised = (given.batch, given.accumulation) if solution.run.batch > given.batch else None
    return Answer(
        card, solution.start, solution, solution.run, solution.model, target, run.batch, proposed, held, raised
    )


def _accumulated(run: Run, target: int) -> Run:
    """Without a card nothing bounds the micro-batch: only accumulation is worked out, the nearest
    to the target."""
    step = (run.batch or 1) * (run.world_size or 1)
    steps, rest = divmod(target, step)
    return run.replace(accumulation=steps + (steps == 0 or step - rest < rest))


def as_json(answers: List[Answer], description: Description) -> Dict[str, Any]:
    """What ``--json`` prints; schemas/plan.json describes it."""
    result = _one(answers[0])
    result["model"] = {
        "title": description.title,
        "parameters": answers[0].plan.parameter_count,
        "trainable": answers[0].plan.trainable_count,
        **{"description": answers[0].plan.model.as_dict()},
    }
    result["notes"] = description.notes
    result["cards"] = [_one(each) for each in answers] if answers[0].card is not None else []
    return result


def effective_batch(answer: Answer) -> int:
    """Samples of a step on all devices, of the run to use; 0: none fits."""
    solution, run = answer.solution, answer.run
    if solution is not None and not solution.fits_after:
        return 0
    return int(run.batch * run.accumulation * run.world_size)


def _one(answer: Answer) -> Dict[str, Any]:
    plan, solution = answer.plan, answer.solution
    effective = effective_batch(answer)
    result: Dict[str, Any] = {
        "card": answer.card.name if answer.card else None,
        "capacity_bytes": plan.card.capacity if answer.card else None,
        "limit_bytes": plan.limit_bytes if answer.card else None,
        "categories": _categories(plan.peak),
        "peak_bytes": plan.peak.total,
        "peak_phase": plan.peak_phase,
        "peak_reason": plan.peak_reason,
        "activation_peak_bytes": plan.activation_peak_bytes or None,
        "phases": {name: dict(_categories(of), total=of.total) for name, of in plan.phases.items()},
        "fits": plan.fits,
        "batch": plan.run.batch,
        "sequence": plan.run.sequence or 0,
        "micro_batch": answer.run.batch if effective else 0,
        "accumulation": answer.run.accumulation,
        "effective_batch": effective,
        "target_effective_batch": answer.target,
        "remainder": effective - answer.target if answer.target and effective else None,
        "largest_micro_batch": solution.largest_micro_batch if solution else None,
        "planned_peak_bytes": solution.peak_bytes if solution else plan.peak.total,
        "fits_after_changes": solution.fits_after if solution else plan.fits,
        "floor_bytes": (solution.floor_bytes or None) if solution else None,
        "changes": [change._asdict() for change in solution.changes] if solution else [],
        "dtype": dtype_word(plan.run),
        "adapter_dtype": adapter_word(plan.model, plan.run),
        "image_dtype": image_word(plan.model, plan.run),
        "optimizer": optimizer_word(plan.run),
        "host_bytes": plan.host_bytes,
        "host_pinned_bytes": plan.host_bytes,
        "disk_bytes": plan.disk_bytes,
        "time_factor": plan.time_factor,
        "time_assumption": plan.time_assumption,
        "overhead_reason": plan.overhead_reason,
        "reserved": answer.reserved.as_json() if answer.reserved else None,
        "environment": environment.line(plan.card, solution, answer.reserved),
        "layers": [layer._asdict() for layer in plan.layers],
    }
    return result


def _categories(of: Bytes) -> Dict[str, int]:
    return {name: getattr(of, name) for name in CATEGORIES}
