"""The answer as tables."""

from __future__ import annotations

from typing import Any, List, Tuple

from ...plan import Plan, Solution
from ...sizes import format_size
from ..output import Cell, Output, Text
from . import environment
from .answer import CATEGORIES, Answer, effective_batch
from .describe import Description, dtype_word, optimizer_word

LABELS = {
    "parameters": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "logits": "logits and loss",
    "batch": "batch data",
    "overhead": "overhead",
}
#: Without options torch's function makes all logits.
_FUSED = (
    "torch.nn.functional.linear_cross_entropy(…, options=torch.nn.LinearCrossEntropyOptions()) "
    "in torch 2.15 and newer, or a kernel such as Liger's"
)


def show(answers: List[Answer], description: Description, assumed: List[str], output: Output, details: bool) -> None:
    """Ten lines for one card, and with `details` everything else; a table side by side for several."""
    first = answers[0]
    if len(answers) > 1:
        lines: List[Any] = [("model", _model(first, description)), ("run", _run(first.plan, True))]
        notes = description.notes + (["assumed: " + ", ".join(assumed)] if assumed else [])
        output.pairs("memopt plan", lines + [("note", Cell(note, "dim")) for note in notes])
        _tiers(answers, output)
        return
    brief(first, description, assumed, output)
    if details:
        _breakdown(first.plan, output)
        _phases(first.plan, output)
        _layers(first.plan, output)
        _reserved(first, output)
        _changes(first, output)


def brief(answer: Answer, description: Description, assumed: List[str], output: Output) -> None:
    """The answer in ten lines; --details has the rest."""
    plan, solution = answer.plan, answer.solution
    parts = sorted(((getattr(plan.peak, part), LABELS[part]) for part in CATEGORIES), reverse=True)[:3]
    needs = "%s in %s: %s" % (
        format_size(plan.peak.total),
        plan.peak_phase,
        ", ".join("%s %s" % (label, format_size(size)) for size, label in parts if size),
    )
    lines: List[Any] = [("model", _model(answer, description)), ("run", _run(plan, False)), ("needs", needs)]
    title, meaning = "Without a card", ""
    if solution is not None:
        title, meaning = _title(answer, solution)
        lines += [("card", _of_card(answer, solution)), *_what_to_do(answer, solution)]
    elif answer.target:
        lines += _batch(answer)
    if assumed:
        lines.append(("assumed", ", ".join(assumed)))
    lines += [("note", Cell(note, "dim")) for note in description.notes]
    output.pairs(title, lines, meaning)


def _model(answer: Answer, description: Description) -> str:
    plan = answer.plan
    text = "%s, %s parameters" % (description.title, count(plan.parameter_count))
    if plan.trainable_count > 0.995 * plan.parameter_count:
        return text
    share = 100.0 * plan.trainable_count / max(plan.parameter_count, 1)
    return text + ", of which %s learn (%.2f %%)" % (count(plan.trainable_count), share)


def _title(answer: Answer, solution: Solution) -> Tuple[str, str]:
    only = " with expandable segments" if answer.reserved and answer.reserved.saved_by_expandable else ""
    if not solution.fits_after:
        return "It cannot fit", "bad"
    return ("It fits" + only, "good") if solution.fits else ("It fits after changes" + only, "warn")


def _of_card(answer: Answer, solution: Solution) -> str:
    plan = answer.plan
    limit = "%s (%.0f %% of %s)" % (
        format_size(plan.limit_bytes), 100 * plan.card.margin, format_size(plan.card.capacity)
    )  # fmt: skip
    if not solution.fits_after:
        floor = format_size(solution.floor_bytes)
        return "limit %s; floor, with all changes of the same training: %s" % (limit, floor)
    used = "%.0f %%" % (100 * solution.peak_bytes / plan.card.capacity)
    return "peak %s, %s used; limit %s" % (format_size(solution.peak_bytes), used, limit)


def _what_to_do(answer: Answer, solution: Solution) -> List[Any]:
    applied = [change for change in solution.changes if change.applied]
    lines: List[Any] = []
    if answer.raised:
        run = answer.run
        text = "micro-batch %d → %d, accumulation %d → %d" % (
            answer.raised[0],
            run.batch,
            answer.raised[1],
            run.accumulation,
        )
        lines.append(("raise", text + "; the largest that fits is %d (training: same)" % solution.largest_micro_batch))
    for change in applied:
        saved = "saves %s, %.2f × time (training: %s)" % (
            format_size(change.saves_bytes),
            change.time_factor,
            change.training,
        )
        lines.append(("change", "%s: %s" % (change.change, saved)))
    others = [change for change in solution.changes if change.training == "other" and not change.applied]
    if not solution.fits_after and others:
        words = "; ".join(change.change for change in others[:3])
        lines.append(("other", "--allow other takes changes to another training too: %s" % words))
    if solution.fits_after:
        run = answer.run
        if solution.fits and answer.asked and run.batch < answer.asked:
            why = "which divides %d less evenly" % solution.target_batch
            lines.append(("instead", "micro-batch %d in place of %d, %s" % (run.batch, answer.asked, why)))
        options = [change.option for change in applied if change.kind != "micro_batch"]
        lines += _batch(answer)
        batch = "--batch %d --accumulation %d" % (run.batch, run.accumulation)
        lines.append(("use", " ".join([batch, *options])))
        if answer.proposed.step_seconds > 0:
            rate = answer.proposed.card.flops_per_second / 1e12
            told = "about %s a step at %.0f TFLOP/s" % (_seconds(answer.proposed.step_seconds), rate)
            lines.append(("time", "%s, %.2f × the run as given" % (told, solution.time_factor)))
        if any(change.kind == "loss" for change in applied):
            lines.append(("fused loss", _FUSED))
    line = environment.line(answer.plan.card, solution, answer.reserved)
    if line is not None:
        lines.append(("set", "%(name)s=%(value)s" % line))
    return lines


def _seconds(seconds: float) -> str:
    return "%.1f s" % seconds if seconds >= 1 else "%.0f ms" % (1000 * seconds)


def _run(plan: Plan, several: bool) -> str:
    """In words; of several cards, each has its own batch."""
    run = plan.run
    parts = [] if several else ["micro-batch %d" % run.batch]
    if run.sequence:
        parts.append("sequence %d" % run.sequence)
    if run.accumulation > 1 and not several:
        parts.append("accumulation %d" % run.accumulation)
    if run.world_size > 1:
        parts.append("%d devices (%s)" % (run.world_size, run.sharding))
    parts.append(dtype_word(run) + (" autocast" if run.compute_dtype else ""))
    parts.append(optimizer_word(run))
    if plan.layers:  # else a module's own
        parts.append("attention %s" % run.attention)
    if run.checkpointing != "none":
        parts.append("checkpointing %s" % run.checkpointing)
    if run.offload:
        parts.append("offload of " + " and ".join(run.offload))
    parts.append("on %s" % plan.card.device)
    return ", ".join(parts)


def count(number: int) -> str:
    """Of weights, for people."""
    for factor, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if round(number / factor, 5) >= 1:  # 999,999 are 1.00 M, and not 1000.00 k
            return "%.2f %s" % (number / factor, unit)
    return str(number)


def _breakdown(plan: Plan, output: Output) -> None:
    whole = max(plan.peak.total, 1)
    rows: List[List[Text]] = []
    for name in CATEGORIES:
        size = getattr(plan.peak, name)
        share = 100.0 * size / whole
        rows.append([LABELS[name], format_size(size), "%.1f %%" % share, _bar(share)])
    rows.append(["peak", format_size(plan.peak.total), "100.0 %", "in " + plan.peak_phase])
    if plan.card.capacity:
        rows.append(["card", format_size(plan.card.capacity), _percent_of_card(plan), ""])
        free = plan.card.capacity - plan.peak.total
        rows.append(["free", Cell(_signed(free), "good" if free >= 0 else "bad"), "", ""])
    output.table("At the peak", ("what", "bytes", "share", ""), rows)
    output.pairs(
        "Why",
        [
            ("peak", plan.peak_reason),
            ("overhead", plan.overhead_reason if plan.peak.overhead else ""),
            ("host", _host(plan)),
            ("time", _time(plan)),
        ],
    )


def _time(plan: Plan) -> str:
    if plan.time_factor <= 1.0005:
        return ""
    return "%.2f × a step without recomputation and offload: %s" % (plan.time_factor, plan.time_assumption)


def _bar(share: float) -> str:
    return "█" * round(share / 5)


def _signed(size: int) -> str:
    return format_size(size) if size >= 0 else "-" + format_size(-size)


def _percent_of_card(plan: Plan) -> str:
    return "%.1f %%" % (100.0 * plan.peak.total / plan.card.capacity)


def _host(plan: Plan) -> str:
    if not plan.host_bytes and not plan.disk_bytes:
        return ""
    size = format_size(plan.host_bytes)
    text = "%s on the host (%s page-locked)" % (size, size)
    return text + (", %s on disk" % format_size(plan.disk_bytes) if plan.disk_bytes else "")


def _phases(plan: Plan, output: Output) -> None:
    rows: List[List[Text]] = []
    for name, of in plan.phases.items():
        peak = name == plan.peak_phase
        rows.append(
            [name]
            + [format_size(getattr(of, category)) for category in CATEGORIES]
            + [Cell(format_size(of.total), "warn" if peak else "")]
        )
    output.table("By phase", ("phase", *CATEGORIES, "total"), rows)


def _reserved(answer: Answer, output: Output) -> None:
    if answer.reserved is None:
        return
    held = answer.reserved
    batch = "Reserved with micro-batch %d" % answer.run.batch
    names = (("PyTorch's default allocator", held.classic), ("expandable segments, or memopt's", held.expandable))
    rows: List[List[Text]] = [
        [name, format_size(of.nbytes), Cell("does not fit the card", "bad") if of.fits is False else ""]
        for name, of in names
    ]
    output.table(batch, ("allocator", "bytes", ""), rows)


def _layers(plan: Plan, output: Output) -> None:
    rows: List[List[Text]] = [
        [
            layer.name,
            count(layer.parameter_count),
            format_size(layer.parameter_bytes + layer.gradient_bytes + layer.optimizer_bytes),
            format_size(layer.saved_bytes),
            format_size(layer.backward_bytes),
            "again" if layer.recomputed else "",
        ]
        for layer in plan.layers
    ]
    columns = ("layer", "weights", "weights and states", "kept", "peak in backward", "run")
    if rows:
        output.table("By layer", columns, rows)


def _batch(answer: Answer) -> List[Any]:
    run, target = answer.run, answer.target
    effective = run.batch * run.accumulation * run.world_size
    product = "%d × %d" % (run.batch, run.accumulation)
    product += " × %d" % run.world_size if run.world_size > 1 else ""
    lines: List[Any] = [("effective batch", "%d = %s" % (effective, product))]
    if target and effective != target:
        text = "%+d: %d samples a step in place of %d" % (effective - target, effective, target)
        lines.append(("remainder", Cell(text, "warn")))
    return lines


def _changes(answer: Answer, output: Output) -> None:
    solution = answer.solution
    if solution is None or not solution.changes:
        return
    rows: List[List[Text]] = [
        [
            "→" if change.applied else "",
            change.change,
            format_size(change.saves_bytes),
            format_size(change.peak_bytes),
            "%.2f ×" % change.time_factor,
            change.training,
            change.option,
        ]
        for change in solution.changes
    ]
    title = "To fit more" if solution.fits else "Changes"
    output.table(title, ("", "change", "saves", "peak", "time", "training", "option"), rows)
    told = _assumed(answer.plan, solution)
    if told:
        output.pairs("", [("time", told)])


def _assumed(plan: Plan, solution: Solution) -> str:
    """What the times of changes assume."""
    slower = {change.kind for change in solution.changes if change.time_factor > 1.0005}
    words = [plan.time_assumption] if slower & {"checkpointing", "offload"} else []
    if "optimizer" in slower:
        words.append("8-bit states are taken to cost 2 %")
    if "sharding" in slower:
        words.append("gathering weights is taken to cost 10 %")
    return "; ".join(words)


def _met(answer: Answer) -> str:
    effective, target = effective_batch(answer), answer.target
    if not target or effective == target:
        return str(effective)
    return "%d (%+d)" % (effective, effective - target)


def _tiers(answers: List[Answer], output: Output) -> None:
    rows: List[List[Text]] = []
    for answer in answers:
        solution = answer.solution
        assert solution is not None and answer.card is not None
        found = solution.fits_after
        applied = [change.change for change in solution.changes if change.applied]
        run = answer.run
        rows.append(
            [
                answer.card.name,
                Cell("fits" if solution.fits else "with changes" if found else "no",
                     "good" if solution.fits else "warn" if found else "bad"),
                str(run.batch) if found else "-",
                str(run.accumulation) if found else "-",
                _met(answer) if found else "-",
                format_size(solution.peak_bytes if found else answer.plan.peak.total),
                "%.0f %%" % (100.0 * solution.peak_bytes / answer.plan.card.capacity) if found else "-",
                "; ".join(applied) if found else "floor " + format_size(solution.floor_bytes),
            ]
        )  # fmt: skip
    columns = ("card", "", "micro-batch", "accumulation", "effective", "peak", "used", "changes")
    output.table("What fits", columns, rows)
