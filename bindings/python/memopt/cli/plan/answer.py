"""From a description and a card to the answer that ``--json`` prints."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, NamedTuple, Optional

from ...plan import Plan, PlanBytes, PlanCard, PlanModel, PlanRun, PlanSolution
from . import environment
from .cards import Card
from .describe import Description, dtype_word, optimizer_word

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "batch", "overhead")


class Answer(NamedTuple):
    """What is said about one card, or about none."""

    card: Optional[Card]
    #: Of the run as it is planned: the batch given, or what fits.
    plan: Plan
    #: None without a card.
    solution: Optional[PlanSolution]
    #: The run and model to use: with the changes where they are needed.
    run: PlanRun
    model: PlanModel
    #: The effective batch that was asked for.
    target: Optional[int]


def answer(
    description: Description,
    card: Optional[Card],
    bare: PlanCard,
    arguments: argparse.Namespace,
) -> Answer:
    """Plans for one card, or without one."""
    model, run = description.model, description.run
    target = arguments.target_effective_batch
    if card is None:
        run = _accumulated(run, target) if target else run
        return Answer(None, Plan(model, run, bare), None, run, model, target)
    batch_given = arguments.batch is not None
    solution = PlanSolution(model, run, card.card, effective_batch=target or 0, all_changes=True)
    planned = run
    if not batch_given and solution.fits:
        planned = run.replace(batch=solution.micro_batch, accumulation=solution.accumulation)
    return Answer(
        card,
        Plan(model, planned, card.card),
        solution,
        solution.run,
        solution.model,
        target,
    )


def _accumulated(run: PlanRun, target: int) -> PlanRun:
    """Without a card nothing bounds the micro-batch: only accumulation is worked out."""
    batch = run.batch or 1
    world = run.world_size or 1
    return run.replace(accumulation=max(1, round(target / (batch * world))))


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


def _one(answer: Answer) -> Dict[str, Any]:
    plan, solution = answer.plan, answer.solution
    world = plan.run.world_size or 1
    micro_batch, accumulation = answer.run.batch or 1, answer.run.accumulation or 1
    found = bool(solution and (solution.fits or solution.fits_after))
    result: Dict[str, Any] = {
        "card": answer.card.name if answer.card else None,
        "capacity_bytes": plan.card.capacity if answer.card else None,
        "limit_bytes": plan.limit_bytes if answer.card else None,
        "categories": _categories(plan.peak),
        "peak_bytes": plan.peak.total,
        "peak_phase": plan.peak_phase,
        "peak_reason": plan.peak_reason,
        "held_peak_bytes": plan.held_bytes or None,
        "activation_peak_bytes": plan.activation_peak_bytes or None,
        "phases": {name: dict(_categories(of), total=of.total) for name, of in plan.phases.items()},
        "fits": plan.fits,
        "batch": plan.run.batch,
        "sequence": plan.run.sequence,
        "micro_batch": micro_batch if solution is None or found else 0,
        "accumulation": accumulation,
        "effective_batch": micro_batch * accumulation * world if solution is None or found else 0,
        "target_effective_batch": answer.target,
        "largest_micro_batch": solution.largest_micro_batch if solution else None,
        "planned_peak_bytes": solution.peak_bytes if solution else plan.peak.total,
        "fits_after_changes": solution.fits or solution.fits_after if solution else plan.fits,
        "floor_bytes": (solution.floor_bytes or None) if solution else None,
        "changes": [_change(change) for change in solution.changes] if solution else [],
        "dtype": dtype_word(plan.run),
        "optimizer": optimizer_word(plan.run),
        "host_bytes": plan.host_bytes,
        "host_pinned_bytes": plan.host_pinned_bytes,
        "disk_bytes": plan.disk_bytes,
        "time_factor": plan.time_factor,
        "time_assumption": plan.time_assumption,
        "overhead_reason": plan.overhead_reason,
        "environment": environment.line(plan),
        "layers": [layer._asdict() for layer in plan.layers],
    }
    return result


def _categories(of: PlanBytes) -> Dict[str, int]:
    return {name: getattr(of, name) for name in CATEGORIES}


def _change(change: Any) -> Dict[str, Any]:
    return {
        "change": change.change,
        "kind": change.kind,
        "option": change.option,
        "saves_bytes": change.saves_bytes,
        "peak_bytes": change.peak_bytes,
        "time_factor": change.time_factor,
        "applied": change.applied,
    }
