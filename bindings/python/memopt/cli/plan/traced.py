"""Plans of a torch module: traced on the meta device, or measured by --profile.

The answers have the attributes of Plan and PlanSolution that tables and JSON read, so that a module
and a configuration are shown alike.
"""

from __future__ import annotations

import argparse
import importlib
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ...plan import PlanBytes, PlanCard, PlanChange, PlanModel, PlanRun, add_overhead, split_batch
from ...sizes import format_size
from .. import UsageError
from ..output import Output
from .answer import Answer
from .cards import Card
from .describe import Description, optimizer_word

#: Options that describe a model or what cannot be seen in a module.
_NOT_HERE = (
    "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "top_k",
    "positions", "labels", "vision_layers", "vision_hidden", "vision_tokens", "image_size",
    "patch_size", "family", "head", "like", "lora", "lora_targets", "checkpointing",
    "checkpoint_every", "checkpoint_budget", "offload", "zero", "loss", "attention", "dtype",
    "master_weights", "images", "positives", "negatives", "seq_mean", "keep_outputs",
    "padding_mask", "min_8bit_size",
)  # fmt: skip

#: torch's names.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_PHASES = ("load", "forward", "loss", "backward", "step")
_EIGHT_BIT = {"adamw": "adamw8bit", "adamw-foreach": "adamw8bit", "adamw-fused": "adamw8bit"}
_LARGEST = 1 << 16


class TraceFailed(Exception):
    """The module cannot be traced or measured; the message says why."""


class Sizes(NamedTuple):
    """What is known of a module for one optimizer and autocast."""

    #: StepBytes of a micro-batch.
    at: Callable[[int], Any]
    parameters: int
    trainable: int
    note: str


def check(arguments: argparse.Namespace, taken: Tuple[str, ...] = ()) -> None:
    """UsageError for options that say what the module itself says, but for those taken."""
    for name in _NOT_HERE:
        if name not in taken and getattr(arguments, name, None):
            raise UsageError(
                "--%s describes a configuration; a module says it itself" % name.replace("_", "-")
            )


def describe(arguments: argparse.Namespace, taken: Tuple[str, ...] = ()) -> Description:
    """The run of the options; the model is told by the module."""
    check(arguments, taken)
    run = PlanRun(
        batch=arguments.batch,
        sequence=arguments.seq,
        accumulation=arguments.accumulation,
        world_size=arguments.world_size,
        optimizer=arguments.optimizer,
        compute_dtype=arguments.autocast,
    )
    return Description(PlanModel(), run, arguments.model, [])


def torch_parts() -> Any:
    """The modules of memopt.torch that trace; TraceFailed where torch is missing."""
    try:
        torch = importlib.import_module("torch")
        names = ("_profile_model", "_target", "_trace_model")
        modules = [importlib.import_module("memopt.torch." + name) for name in names]
    except ImportError as error:
        raise TraceFailed(
            "--model module:function needs PyTorch (%s): pip install torch, or describe the model "
            "by a config.json or by --params, --layers, --hidden, --heads and --vocab" % error
        ) from None
    return SimpleNamespace(torch=torch, profile=modules[0], target=modules[1], trace=modules[2])


class Traced:
    """A module whose step is traced by sizes, as often as it is asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._parts = torch_parts()
        self._sequence = arguments.seq
        self._several = (arguments.accumulation or 1) > 1
        self._known: Dict[Tuple[str, str, bool], Sizes] = {}
        with self._parts.torch.device("meta"):
            self.target = self._load(arguments.model)
        self.notes: List[str] = list(self.target.notes)

    def _load(self, name: str) -> Any:
        try:
            return self._parts.target.load_target(name, self._sequence)
        except self._parts.target.TargetError as error:
            raise TraceFailed(str(error)) from None
        except Exception as error:  # the user's own code
            raise TraceFailed("%s: %s: %s" % (name, type(error).__name__, error)) from error

    def sizes(self, optimizer: str, autocast: str, several: bool) -> Sizes:
        """Sizes with an optimizer, autocast and accumulation; traced once."""
        key = (optimizer, autocast, several or self._several)
        if key not in self._known:
            self._known[key] = self._trace(*key)
        return self._known[key]

    def _trace(self, optimizer: str, autocast: str, several: bool) -> Sizes:
        dtype = getattr(self._parts.torch, DTYPES[autocast]) if autocast else None
        try:
            trace = self._parts.trace.Trace(
                self.target,
                sequence=self._sequence,
                optimizer=optimizer,
                autocast=dtype,
                accumulation=2 if several else 1,
            )
            line = trace.line()
        except Exception as error:  # the user's own code
            raise TraceFailed("%s: %s" % (type(error).__name__, error)) from error
        return Sizes(line.at, *self.counts(), _note(line.exact))

    def dtype(self) -> str:
        """Of most weights: "fp32"; of others than ours, "fp32" too."""
        sizes: Dict[str, int] = {}
        words = {getattr(self._parts.torch, name): word for word, name in DTYPES.items()}
        for parameter in self.target.module.parameters():
            word = words.get(parameter.dtype, "fp32")
            sizes[word] = sizes.get(word, 0) + parameter.numel()
        return max(sizes, key=lambda word: sizes[word]) if sizes else "fp32"

    def counts(self) -> Tuple[int, int]:
        """Weights in all, and those that learn."""
        parameters = list(self.target.module.parameters())
        learning = sum(p.numel() for p in parameters if p.requires_grad)
        return sum(p.numel() for p in parameters), learning


def _note(exact: bool) -> str:
    return (
        "traced at two batch sizes; every moment of the step has its own line through them"
        if exact
        else "traced at two batch sizes, whose operations differ: one line a phase, an estimate"
    )


# --- answers --------------------------------------------------------------------------------------


def plan_of(sizes: Sizes, run: PlanRun, card: PlanCard) -> Any:
    """What Plan has, of a micro-batch of the run."""
    step = sizes.at(run.batch or 1)
    live = {"step" if name == "optimizer" else name: of for name, of in step.phases.items()}
    rest = min(live.values(), key=lambda of: of.get("activations", 0))
    live["load"] = {name: rest.get(name, 0) for name in ("parameters",)}
    live["load"]["optimizer"] = min(of.get("optimizer", 0) for of in step.phases.values())
    phases = {}
    limit = 0
    for name in _PHASES:
        phases[name], limit = add_overhead(live.get(name, live["load"]), card)
    peak_phase = max(phases, key=lambda name: phases[name].total)
    peak = phases[peak_phase]
    return SimpleNamespace(
        model=PlanModel(),
        run=run.replace(
            batch=run.batch or 1, accumulation=run.accumulation or 1, world_size=run.world_size or 1
        ),
        card=card,
        peak=peak,
        phases=phases,
        peak_phase=peak_phase,
        peak_reason=sizes.note,
        held_bytes=0,
        activation_peak_bytes=0,
        fits=not card.capacity or peak.total <= limit,
        limit_bytes=limit,
        parameter_count=sizes.parameters,
        trainable_count=sizes.trainable,
        host_bytes=0,
        host_pinned_bytes=0,
        disk_bytes=0,
        time_factor=1.0,
        time_assumption="",
        overhead_reason=_overhead_reason(peak),
        layers=[],
    )


def _overhead_reason(peak: PlanBytes) -> str:
    if not peak.overhead:
        return "none: tensors alone are counted"
    return "context, workspaces, other use and rounding: %s" % format_size(peak.overhead)


class _Search:
    """What fits, for one card."""

    def __init__(self, traced: Traced, run: PlanRun, card: PlanCard) -> None:
        self._traced, self._run, self._card = traced, run, card

    def plan(self, run: PlanRun) -> Any:
        """The plan of a run."""
        autocast = {"bf16": "bf16", "f16": "fp16"}.get(run.as_dict().get("compute_dtype", ""), "")
        sizes = self._traced.sizes(optimizer_word(run), autocast, (run.accumulation or 1) > 1)
        return plan_of(sizes, run, self._card)

    def largest(self, run: PlanRun, most: int) -> int:
        """The largest micro-batch that fits; 0: none."""
        low, high = 0, most + 1
        while high - low > 1:
            middle = min(2 * low + 1, most) if high == most + 1 else (low + high) // 2
            if self.plan(run.replace(batch=middle)).fits:
                low = middle
            else:
                high = middle
        return low

    def candidates(self, run: PlanRun) -> List[Tuple[str, str, str, PlanRun, float]]:
        """kind, words, option, the run with it, and its time."""
        found = []
        word = optimizer_word(run)
        if word in _EIGHT_BIT:
            to = _EIGHT_BIT[word]
            words = "optimizer %s → %s" % (word, to)
            changed = run.replace(optimizer=to)
            found.append(("optimizer", words, "--optimizer " + to, changed, 1.02))
        if not run.compute_dtype:
            words = "compute fp32 → bf16 (autocast)"
            changed = run.replace(compute_dtype="bf16")
            found.append(("dtype", words, "--autocast bf16", changed, 1.0))
        return found

    def solve(self, target: Optional[int], given: bool) -> Any:
        """What PlanSolution has."""
        run = self._run.replace(batch=self._run.batch or 1)
        several = bool(target and target > (run.batch if given else _LARGEST))
        if several and not run.accumulation:
            run = run.replace(accumulation=2)
        most = run.batch if given else _LARGEST
        start = self.plan(run)
        changes: List[PlanChange] = []
        fits = bool(start.fits)
        if not fits and run.batch > 1 and self.largest(run.replace(accumulation=2), most):
            return self._finish(run, start, changes, False, target, most)
        before = start
        for kind, words, option, changed, time in self.candidates(run):
            after = self.plan(changed)
            saves = before.peak.total - after.peak.total
            if saves <= before.peak.total // 1000:
                continue
            applied = not fits and not before.fits
            changes.append(PlanChange(kind, applied, words, option, saves, after.peak.total, time))
            if applied:
                run, before = _with(run, changed), after
        return self._finish(run, start, changes, fits, target, most)

    def _finish(
        self,
        run: PlanRun,
        start: Any,
        changes: List[PlanChange],
        fits: bool,
        target: Optional[int],
        most: int,
    ) -> Any:
        world = run.world_size or 1
        largest = self.largest(run, most)
        if target and largest * world < target:
            largest = self.largest(run.replace(accumulation=2), most)
        wanted = target or (
            start.run.batch * start.run.accumulation * world if most < _LARGEST else 0
        )
        batch, steps = largest, run.accumulation or 1
        if wanted and largest:
            batch, steps = split_batch(wanted, largest, world)
        after = bool(largest)
        chosen = run.replace(batch=max(batch, 1), accumulation=steps)
        peak = self.plan(chosen).peak.total
        if after and not fits and batch < start.run.batch:
            words = "micro-batch %d → %d, accumulation %d → %d" % (
                start.run.batch, batch, start.run.accumulation, steps,
            )  # fmt: skip
            option = "--batch %d --accumulation %d" % (batch, steps)
            saves = max(start.peak.total - peak, 0)
            changes = [PlanChange("micro_batch", True, words, option, saves, peak, 1.0), *changes]
        time = 1.0
        for change in changes:
            time *= change.time_factor if change.applied else 1.0
        return SimpleNamespace(
            fits=fits,
            fits_after=after,
            micro_batch=batch,
            largest_micro_batch=largest,
            accumulation=steps,
            effective_batch=batch * steps * world,
            peak_bytes=peak,
            floor_bytes=0 if after else peak,
            changes=changes,
            time_factor=time,
            run=chosen,
            model=PlanModel(),
        )


def _with(run: PlanRun, changed: PlanRun) -> PlanRun:
    return run.replace(optimizer=changed.optimizer, compute_dtype=changed.compute_dtype or None)


def answer(traced: Traced, description: Description, card: Optional[Card], bare: PlanCard,
           arguments: argparse.Namespace) -> Answer:  # fmt: skip
    """Plans for one card, or without one."""
    run, target = description.run, arguments.target_effective_batch
    search = _Search(traced, run, card.card if card else bare)
    if card is None:
        return Answer(None, search.plan(run), None, run, PlanModel(), target)
    solution = search.solve(target, arguments.batch is not None)
    planned = run
    if arguments.batch is None and solution.fits:
        planned = run.replace(batch=solution.micro_batch, accumulation=solution.accumulation)
    return Answer(card, search.plan(planned), solution, solution.run, PlanModel(), target)
