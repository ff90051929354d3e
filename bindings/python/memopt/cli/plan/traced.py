"""Plans of a torch module: its bytes are traced on the meta device, or measured by --profile; what
fits is searched by the C solver, which asks for them."""

from __future__ import annotations

import argparse
import importlib
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ...plan import Card, Model, Phases, Plan, Run, Solution, Target
from .. import UsageError
from ..progress import Progress
from . import cards
from .answer import Source
from .describe import Description, run_fields

#: Options that describe a model or what cannot be seen in a module.
_NOT_HERE = (
    "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "top_k",
    "positions", "labels", "vision_layers", "vision_hidden", "vision_tokens", "image_size",
    "patch_size", "family", "head", "like", "attention", "dtype", "master_weights", "images",
    "positives", "negatives", "seq_mean", "padding_mask", "min_8bit_size", "image_dtype",
    "zero_engine", "reduce_bucket_size", "deepspeed_config",
)  # fmt: skip

#: torch's names.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class TraceFailed(Exception):
    """The module cannot be traced or measured; the message says why."""


class Sizes(NamedTuple):
    """What is known of a module for one optimizer and autocast."""

    #: StepBytes of a micro-batch.
    at: Callable[[int], Any]
    parameters: int
    trainable: int
    #: Bytes of gradients' buckets, which replicas have from the start.
    buckets: int
    note: str
    #: Whether the bytes of a step have them.
    counted: bool = False

    def phases(self, run: Run) -> Phases:
        """Live bytes by phase of a run, in the words of plan.h."""
        step = self.at(run.batch or 1)
        live = {"step" if name == "optimizer" else name: of for name, of in step.phases.items()}
        rest = min(live.values(), key=lambda of: of.get("activations", 0))
        states = min(of.get("optimizer", 0) for of in live.values())
        live["load"] = {"parameters": rest.get("parameters", 0), "optimizer": states}
        for name in ("forward", "loss"):
            live.setdefault(name, dict(live["load"]))
        for name, of in live.items():
            if name == "load" or not self.counted:
                live[name] = dict(of, gradients=of.get("gradients", 0) + self.buckets)
        return live


def check(arguments: argparse.Namespace, taken: Tuple[str, ...] = ()) -> None:
    """UsageError for options that say what the module itself says, but for those taken."""
    for name in _NOT_HERE:
        if name not in taken and getattr(arguments, name, None):
            raise UsageError(
                "--%s describes a configuration; a module says it itself" % name.replace("_", "-")
            )


def describe(arguments: argparse.Namespace, taken: Tuple[str, ...] = ()) -> Description:
    """The run of the options; the module says what the model is."""
    check(arguments, taken)
    try:
        run = Run(**run_fields(arguments))
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    return Description(None, run, arguments.model, [])


def torch_parts(what: str, install: str, instead: str) -> Any:
    """The modules of memopt.torch that trace; TraceFailed where torch is missing, with what needs
    it and what does without it."""
    try:
        torch = importlib.import_module("torch")
        names = ("_profile_model", "_target", "_trace_model", "_features")
        modules = [importlib.import_module("memopt.torch." + name) for name in names]
    except (ImportError, OSError) as error:  # OSError: a library that it links is missing
        said = "%s needs PyTorch (%s): pip install %s, or %s"
        raise TraceFailed(said % (what, error, install, instead)) from None
    parts = dict(zip(("profile", "target", "trace", "features"), modules))
    return SimpleNamespace(torch=torch, **parts)


class Traced(Source):
    """A module whose step is traced by sizes, as often as it is asked for."""

    #: Told how far a trace is.
    _bar: Any = staticmethod(lambda done, total: None)

    #: What may differ from the run as given: a trace shows it.
    shown = frozenset(
        ("batch", "accumulation", "optimizer", "compute_dtype", "checkpointing", "loss", "sharding")
    )

    #: Said where torch is missing: what needs it, what to install, what does without.
    needs = (
        "--model module:function",
        "torch",
        "describe the model by a config.json or by --params, --layers, --hidden, --heads and "
        "--vocab",
    )

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._parts = torch_parts(*self.needs)
        self._sequence = arguments.seq
        self._several = (arguments.accumulation or 1) > 1
        self._gpu = cards.on_gpu(arguments)
        self._adapters = {
            "lora_rank": arguments.lora or 0,
            "lora_targets": tuple(arguments.lora_targets or ("query", "value")),
            "lora_dropout": arguments.lora_dropout or 0.0,
            "quantize": arguments.quantize or "none",
        }
        self._known: Dict[Any, Any] = {}
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

    def sizes(self, run: Run) -> Sizes:
        """Sizes of a run; a step of the same features, autocast and accumulation is traced once."""
        key = (
            self._features(run),
            run.compute_dtype or "",
            self._several or (run.accumulation or 1) > 1,
        )
        try:
            with Progress("tracing") as self._bar:
                if key not in self._known:
                    self._known[key] = self._trace(*key)
                trace = self._known[key]
                line = trace.line(optimizer=run.optimizer or "adamw")
        except Exception as error:  # the user's own code
            raise TraceFailed("%s: %s" % (type(error).__name__, error)) from error
        whole, learning, gradients = self.counts(trace.target.module)
        several = trace.features.world_size > 1 and not trace.features.divides
        buckets = gradients if several else 0
        return Sizes(line.at, whole, learning, buckets, _note(line.exact), True)

    def _features(self, run: Run) -> Any:
        """What the options and a run change of the module."""
        torch, every = self._parts.torch, run.checkpoint_every or 0
        offload = run.offload or ()  # the library writes a run as text
        offload = offload.split(",") if isinstance(offload, str) else offload

        def dtype(word: Optional[str]) -> Any:
            return getattr(torch, DTYPES[word]) if word else None

        return self._parts.features.Features(
            **self._adapters,
            adapter_dtype=dtype(run.adapter_dtype or "fp32"),
            base_dtype=dtype(run.base_dtype),
            checkpointing=run.checkpointing or "none",
            checkpoint_every=every if run.checkpointing == "every" else 0,
            offload=tuple(word for word in offload if word != "none"),
            loss=run.loss or "plain",
            sharding=run.sharding or "ddp",
            world_size=run.world_size or 1,
            gather_dtype=dtype(run.gather_dtype),
            bucket_view=run.bucket_view in (True, "yes"),
            gradient_sync=run.gradient_sync not in (False, "no"),
        )

    def _trace(self, features: Any, autocast: str, several: bool) -> Any:
        return self._parts.trace.Trace(
            self.target,
            sequence=self._sequence,
            autocast=getattr(self._parts.torch, DTYPES[autocast]) if autocast else None,
            accumulation=2 if several else 1,
            gpu=self._gpu,
            features=features,
            progress=lambda batch, part: self._bar(int(50 * (batch // 2 - 1 + part)), 100),
        )

    def dtype(self) -> str:
        """Of most weights: "fp32"; of others than ours, "fp32" too."""
        sizes: Dict[str, int] = {}
        words = {getattr(self._parts.torch, name): word for word, name in DTYPES.items()}
        for parameter in self.target.module.parameters():
            word = words.get(parameter.dtype, "fp32")
            sizes[word] = sizes.get(word, 0) + parameter.numel()
        return max(sizes, key=lambda word: sizes[word]) if sizes else "fp32"

    def counts(self, module: Any) -> Tuple[int, int, int]:
        """Weights in all, those that learn, and the bytes of their gradients."""
        learning = [p for p in module.parameters() if p.requires_grad]
        count = sum(p.numel() for p in learning)
        whole = sum(p.numel() for p in self.target.module.parameters())
        adapters = count if self._adapters["lora_rank"] else 0
        return whole + adapters, count, sum(p.numel() * p.element_size() for p in learning)

    def plan(self, run: Run, card: Card, model: Optional[Model] = None) -> Plan:
        """What a run of the module takes."""
        sizes = self.sizes(run)
        return self._counted(Plan.measured(sizes.phases(run), run, card), sizes)

    def solve(self, run: Run, card: Card, target: Target) -> Solution:
        """What fits; changes that a trace does not show are not proposed."""
        given: List[Dict[str, Any]] = []

        def measure(asked: Run) -> Optional[Phases]:
            fixed = {k: v for k, v in asked.as_dict().items() if k not in self.shown}
            given.append(fixed)  # the first is the run as given
            if fixed != given[0]:
                return None
            try:
                return self.sizes(asked).phases(asked)
            except TraceFailed:
                if len(given) == 1:
                    raise
                return None  # what the module does not have

        solution = Solution.measured(measure, run, card, target)
        self._counted(solution.start, self.sizes(solution.start.run))
        solution.model = solution.start.model
        return solution

    def _counted(self, plan: Plan, sizes: Sizes) -> Plan:
        plan.parameter_count, plan.trainable_count = sizes.parameters, sizes.trainable
        plan.peak_reason += "; " + sizes.note
        taken = {name: value for name, value in self._adapters.items() if name != "lora_targets"}
        plan.model = plan.model.replace(**taken)
        return plan


def _note(exact: bool) -> str:
    return (
        "traced at two batch sizes; every moment of the step has its own line through them"
        if exact
        else "traced at two batch sizes, whose operations differ: one line a phase, an estimate"
    )
