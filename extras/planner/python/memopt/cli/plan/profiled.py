"""--profile: real steps of the module at two small batches, beside the estimate."""

from __future__ import annotations

import argparse
import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ...plan import Card, Model, Plan, Run
from ...sizes import format_size
from .. import UsageError
from ..output import Cell, Output, Text
from ..progress import Progress
from . import cards, ofconfig
from .describe import Description, optimizer_word, traced as names_a_function
from .traced import DTYPES, Sizes, TraceFailed, Traced, torch_parts

#: Options that Transformers' own classes have no switch for here.
_NOT_MEASURED = (
    "lora", "quantize", "offload", "loss", "zero", "set"
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    group = parser.add_argument_group("measuring")
    group.add_argument(
        "--profile",
        nargs="?",
        const=(),
        default=None,
        type=_batches,
        metavar="N,…",
        help="run one real forward and backward at batches of 2 and 4, and compare (needs torch); larger batches "
        "are measured too, and compared with what the two predict",
    )


def _batches(text: str) -> Tuple[int, ...]:
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError("%r is not a list of batches such as 8,16" % text) from None
    if not all(0 < value < 1 << 20 for value in values):
        raise argparse.ArgumentTypeError("%s: a batch is from 1 to 2^20" % text)
    return values


class Compared(NamedTuple):
    """A batch that was measured, and what was said about it."""

    batch: int
    measured: int
    #: By the configuration or the trace, before any run; None where values decide what is run.
    estimated: Optional[int]
    #: By the line through the two batches; None for these two.
    predicted: Any


class Profiled(Traced):
    """A module whose steps are run."""

    #: Other optimizers and types were not measured.
    shown = frozenset(("batch", "accumulation"))
    adapts = False

    def __init__(self, arguments: argparse.Namespace, description: Description) -> None:
        self._sequence = arguments.seq
        self._arguments, self._description = arguments, description
        self._adapters, self._own_targets = Model(), False
        if names_a_function(arguments):
            self._check_measured("checkpointing")
            self._parts = torch_parts(*self.needs)
            self.target = self._as_asked(self._load(arguments.model))
        else:
            self._check_measured()
            without = "leave --profile out: the plan of %s does without both" % arguments.model
            self._parts = torch_parts("--profile", "torch transformers", without)
            self.target = self._as_asked(ofconfig.target(self._parts, arguments, self._sequence))
            if arguments.checkpointing == "full":
                self.target.module.gradient_checkpointing_enable()
        self._gpu = any(p.is_cuda for p in self.target.module.parameters())
        self.notes: List[str] = list(self.target.notes)
        if cards.on_gpu(arguments) and not self._gpu:
            self.notes.append("measured on the CPU, whose kernels may keep more than the card's")
        self.profile: Any = None
        self.compared: List[Compared] = []

    def _check_measured(self, *names: str) -> None:
        for name in _NOT_MEASURED + names:
            if getattr(self._arguments, name, None):
                raise UsageError(
                    "--profile runs the model as it is, which knows no --%s; give "
                    "--model module:function that has it to measure it" % name.replace("_", "-")
                )

    def measure(self) -> None:
        """Runs the steps; a bar shows how far it is."""
        arguments = self._arguments
        autocast = arguments.autocast
        torch = self._parts.torch
        with Progress("measuring") as bar:
            try:
                self.profile = self._parts.profile.profile(
                    self.target,
                    sequence=self._sequence,
                    batches=(2, 4),
                    check=arguments.profile,
                    optimizer=optimizer_word(self._description.run),
                    autocast=getattr(torch, DTYPES[autocast]) if autocast else None,
                    accumulation=self._micro_batches(),
                    progress=lambda now: bar(now.done, now.total),
                )
            except Exception as error:  # the user's own code
                raise TraceFailed("%s: %s" % (type(error).__name__, error)) from error
        estimate = self._estimate()
        checked = {each.batch: each.predicted for each in self.profile.checked}
        self.compared = [
            Compared(batch, of.peak_bytes, estimate(batch), checked.get(batch))
            for batch, of in sorted(self.profile.measured.items())
        ]

    def _micro_batches(self) -> int:
        several = (self._arguments.accumulation or 1) > 1 or self._arguments.target_effective_batch
        return 2 if several else 1

    def _estimate(self) -> Callable[[int], Optional[int]]:
        """Of the configuration, or of the traced module."""
        run, model = self._description.run, self._description.model
        run = run.replace(accumulation=self._micro_batches())
        if model is not None:
            card = Card(device="cuda" if self._gpu else "cpu")

            def planned(batch: int) -> int:
                peak = Plan(model, run.replace(batch=batch), card).peak
                return peak.total - peak.overhead

            return planned
        plain = self._parts.features.Features()
        several = self._micro_batches() > 1
        trace = self._trace(plain, self._arguments.autocast or "", several)
        try:
            line = trace.line(optimizer=optimizer_word(run))
        except self._parts.target.TargetError:  # what is run depends on values
            return lambda batch: None
        return lambda batch: int(line.at(batch).peak_bytes)

    def sizes(self, run: Run, model: Model) -> Sizes:
        """Of what was measured."""
        parameters, trainable, gradients = self.counts(self.target.module)
        note = "measured at batches of %d and %d" % self._two()
        found = Sizes(self.profile.at, parameters, trainable, 0, note, events=self.profile.blocks)
        if (run.world_size or 1) > 1:  # buckets have blocks of their own, which were not seen
            return found._replace(buckets=gradients, events=lambda batch: None)
        return found

    def _two(self) -> Tuple[int, int]:
        low, high = sorted(self.profile.measured)[:2]
        return low, high

    def as_json(self) -> Dict[str, Any]:
        """What --json has under "profile"."""
        result: Dict[str, Any] = json.loads(json.dumps(self.profile.as_dict()))
        result["estimates"] = [
            {
                "batch": each.batch,
                "measured_bytes": each.measured,
                "estimated_bytes": each.estimated,
                "error": each.estimated / each.measured - 1.0,
            }
            for each in self.compared
            if each.estimated is not None
        ]
        return result

    def show(self, output: Output) -> None:
        """The measured batches beside what was said about them."""
        rows: List[List[Text]] = []
        for each in self.compared:
            rows.append(
                [
                    str(each.batch),
                    format_size(each.measured),
                    *_beside(each.estimated, each.measured),
                    *_beside(each.predicted, each.measured),
                ]
            )
        columns = ("batch", "measured", "estimated", "error", "predicted", "error ")
        output.table("Measured on %s" % self.profile.device, columns, rows)
        if self.profile.ran_out:
            words = ", ".join(map(str, self.profile.ran_out))
            output.pairs("", [("note", "memory ran out at batch %s; smaller ones were run" % words)])


def _beside(said: Optional[int], measured: int) -> List[Text]:
    if not said:
        return ["-", "-"]
    error = 100.0 * (said / measured - 1.0)
    return [format_size(said), Cell("%+.2f %%" % error, "good" if abs(error) <= 3 else "warn")]
