"""Plans of a torch module: its bytes are traced on the meta device, or measured by --profile; what
fits is searched by the C solver, which asks for them."""

from __future__ import annotations

import argparse
import functools
import importlib
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ...plan import Card, Model, Phases, Plan, Run, Solution, Target, words
from ...sizes import format_size, parse_size
from .. import UsageError
from ..progress import Progress
from . import cards
from .answer import Source
from .describe import Description, run_fields, settings_of

#: Options that describe a model or what cannot be seen in a module.
_NOT_HERE = (
    "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "attention", "dtype",
)  # fmt: skip

#: Options that are arguments of the module's `inputs`, by their names there.
_OF_INPUTS = {"images": ("images", "frames"), "positives": ("positives",), "negatives": ("negatives",)}

_SEEN = ("run.master_dtype", "run.sequence_mean", "run.attention_mask", "run.min_8bit_size", "run.image_dtype")

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
    #: What two steps of a micro-batch allocate and free; None where that is not known.
    events: Callable[[int], Any] = lambda batch: None
    #: Bytes of gradients.
    gradients: int = 0

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
        fullest = "step" if step.peak_phase == "optimizer" else step.peak_phase
        live[fullest] = dict(live[fullest], overhead=step.overhead)
        return live


class Growth(NamedTuple):
    """What one more of a setting costs, and one more where there are half as many more."""

    name: str
    value: int
    bytes: int
    later: int

    @property
    def linear(self) -> bool:
        """Whether each costs the same."""
        return abs(self.later - self.bytes) <= 0.02 * max(abs(self.bytes), 1)

    def sentence(self) -> str:
        """In words."""
        name = "token of sequence" if self.name == "sequence" else "sample" if self.name == "batch" else self.name[:-1]
        more = "" if self.linear else ", not linear: %s later" % _size(self.later)
        return "one more %s than %d costs %s%s" % (name, self.value, _size(self.bytes), more)


def _size(size: int) -> str:
    return ("-" if size < 0 else "") + format_size(abs(size))


def check(arguments: argparse.Namespace, taken: Tuple[str, ...] = ()) -> None:
    """UsageError for options that say what the module itself says, but for those taken."""
    for name in _NOT_HERE:
        if name not in taken and getattr(arguments, name, None):
            raise UsageError("--%s describes a configuration; a module says it itself" % name.replace("_", "-"))
    for key, _ in arguments.set:
        if key.startswith("model.") and key != "model.lora_dropout" or key in _SEEN:
            raise UsageError("--set %s describes a configuration; a module says it itself" % key)


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
        ("batch", "accumulation", "optimizer", "compute_dtype", "checkpointing", "loss", "sharding",
         "offload", "base_dtype", "state_dtype")
    )  # fmt: skip
    #: Whether adapters are traced, and quantised weights under them.
    adapts = True

    #: Said where torch is missing: what needs it, what to install, what does without.
    needs = (
        "--model module:function",
        "torch",
        "describe the model by a config.json or by --params, --layers, --hidden, --heads and --vocab",
    )

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._parts = torch_parts(*self.needs)
        self._arguments, self._sequence = arguments, arguments.seq
        self._gpu = cards.on_gpu(arguments)
        #: Where adapters are, if the planner has words for all of it; else the options alone say it.
        targets: Optional[List[str]] = arguments.lora_targets
        self._own_targets = not set(targets or ()) <= set(words("model.lora_targets"))
        self._adapters = Model(
            lora_rank=arguments.lora or 0,
            lora_targets=None if self._own_targets else targets,
            lora_dropout=float(settings_of(arguments).get("model.lora_dropout", 0.0)),
            quantize=arguments.quantize or "none",
        )
        self._known: Dict[Any, Any] = {}
        with self._parts.torch.device("meta"):
            self.target = self._as_asked(self._load(arguments.model))
        self.notes: List[str] = list(self.target.notes)

    def _load(self, name: str) -> Any:
        try:
            return self._parts.target.load_target(name, self._sequence)
        except self._parts.target.TargetError as error:
            raise TraceFailed(str(error)) from None
        except Exception as error:  # the user's own code
            raise TraceFailed("%s: %s: %s" % (name, type(error).__name__, error)) from error

    def _as_asked(self, target: Any) -> Any:
        """With the options that are arguments of its inputs."""
        for option, names in _OF_INPUTS.items():
            value = getattr(self._arguments, option)
            own = [name for name in names if name in target.settings]
            if value and not own:
                wanted = "--%s: the model's inputs have no such argument; write inputs(batch, %s=%d)"
                raise UsageError(wanted % (option, option, value))
            target = target.at(**{name: value for name in own if value})
        return target

    def growth(self, run: Run, model: Model) -> List[Growth]:
        """What one more of each setting costs, traced at two more values of it."""
        features, several = self._features(run, model), (run.accumulation or 1) > 1
        optimizer = run.optimizer or "adamw"
        given = {"batch": run.batch or 1, **self.target.settings}

        def peak(**values: int) -> int:
            own = {name: value for name, value in values.items() if name != "batch"}
            trace = self._trace(features, run.compute_dtype or "", several, self.target.at(**own))
            step = trace.at(values.get("batch", given["batch"]), optimizer)
            return int(step.peak_bytes + step.overhead)

        result: List[Growth] = []
        try:
            with Progress("growth") as bar:
                self._bar = lambda done, total: bar(len(result), len(given))
                start = peak()
                for name, value in given.items():
                    step = max(value // 2, 1)
                    two = [peak(**{name: value + n * step}) for n in (1, 2)]
                    result.append(Growth(name, value, round((two[0] - start) / step), round((two[1] - two[0]) / step)))
        except self._parts.target.TargetError:  # what is run depends on values
            return []
        return result

    def run_of(self, given: Run) -> Run:
        """A run of the options, of this module."""
        try:
            fields = {"weight_dtype": self.dtype(), **run_fields(self._arguments)}
            return given.replace(**{name: v for name, v in fields.items() if v is not None})
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None

    def sizes(self, run: Run, model: Model) -> Sizes:
        """Sizes of a run with a model's adapters; a step of the same features, autocast and
        accumulation is traced once."""
        features, several = self._features(run, model), (self._arguments.accumulation or 1) > 1
        optimizer = run.optimizer or "adamw"
        key = (features, run.compute_dtype or "", several or (run.accumulation or 1) > 1)
        try:
            with Progress("tracing") as self._bar:
                if key not in self._known:
                    self._known[key] = self._trace(*key)
                trace = self._known[key]
                line = trace.line(optimizer=optimizer)
        except Exception as error:  # the user's own code
            raise TraceFailed("%s: %s" % (type(error).__name__, error)) from error
        whole, learning, gradients = self.counts(trace.target.module, bool(features.lora_rank))
        several = trace.features.world_size > 1 and not trace.features.divides
        buckets = gradients if several else 0
        states = trace.optimizer(optimizer)
        events = functools.partial(line.blocks, optimizer=states)
        return Sizes(line.at, whole, learning, buckets, _note(line.exact), True, events, gradients)

    def _features(self, run: Run, model: Model) -> Any:
        """What a run and adapters change of the module; the options know its layers' names."""
        torch, every = self._parts.torch, run.checkpoint_every or 0
        offload = run.offload or ()  # the library writes a run as text
        offload = offload.split(",") if isinstance(offload, str) else offload

        def dtype(word: Optional[str]) -> Any:
            return getattr(torch, DTYPES[word]) if word else None

        return self._parts.features.Features(
            adapter_dtype=dtype(run.adapter_dtype or "fp32"),
            lora_rank=model.lora_rank or 0,
            lora_targets=tuple(self._arguments.lora_targets or model.lora_targets or ("query", "value")),
            lora_dropout=model.lora_dropout or 0.0,
            quantize=model.quantize or "none",
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

    def _trace(self, features: Any, autocast: str, several: bool, target: Any = None) -> Any:
        return self._parts.trace.Trace(
            target or self.target,
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

    def counts(self, module: Any, adapted: bool = False) -> Tuple[int, int, int]:
        """Weights in all, those that learn, and the bytes of their gradients."""
        learning = [p for p in module.parameters() if p.requires_grad]
        count = sum(p.numel() for p in learning)
        whole = sum(p.numel() for p in self.target.module.parameters())
        return whole + count * adapted, count, sum(p.numel() * p.element_size() for p in learning)

    def plan(self, run: Run, card: Card, model: Optional[Model] = None) -> Plan:
        """What a run of the module takes."""
        model = model or self._adapters
        sizes = self.sizes(run, model)
        events = sizes.events(run.batch or 1)
        return self._counted(Plan.measured(sizes.phases(run), run, card, model, events), sizes)

    def solve(self, run: Run, card: Card, target: Target) -> Solution:
        """What fits; changes that a trace does not show are not proposed."""
        given: List[Dict[str, Any]] = []

        def measure(asked: Run, model: Model) -> Optional[Phases]:
            fixed = {k: v for k, v in asked.as_dict().items() if k not in self.shown}
            given.append(fixed)  # the first is the run as given
            if fixed != given[0] or not (self.adapts or model.lora_rank == self._adapters.lora_rank):
                return None
            try:
                return self.sizes(asked, model).phases(asked)
            except TraceFailed:
                if len(given) == 1:
                    raise
                return None  # what the module does not have

        solution = Solution.measured(measure, run, card, target, self._adapters)
        start = solution.start
        self._counted(start, self.sizes(start.run, start.model))
        return solution

    def _counted(self, plan: Plan, sizes: Sizes) -> Plan:
        plan.parameter_count, plan.trainable_count = sizes.parameters, sizes.trainable
        plan.peak_reason += "; " + sizes.note
        if self._own_targets:
            plan.model = plan.model.replace(lora_targets=None)
        if self._features(plan.run, plan.model).offload:
            host, limit = self._on_host(plan, sizes), parse_size(str(plan.run.host_limit or 0))
            plan.disk_bytes = max(host - limit, 0) if limit else 0
            plan.host_bytes = host - plan.disk_bytes
        return plan

    def _on_host(self, plan: Plan, sizes: Sizes) -> int:
        """What a trace of all on the device has beyond one with offload; of states on the host those of
        ours, fp32 masters, and buffers for gradients of a device."""
        run, beside = plan.run.replace(offload=None), 0
        if "optimizer" in self._features(plan.run, plan.model).offload:
            narrow, count = run.weight_dtype != "fp32", sizes.trainable
            masters = 4 * count * (self._gpu or narrow)
            if (run.optimizer or "adamw") in ("adamw", "adamw-foreach", "adamw-fused"):
                masters += 4 * count * narrow  # moments of fp32 too
            parts = run.world_size or 1 if run.sharding not in (None, "ddp") else 1
            beside = (masters + sizes.gradients * self._gpu) // parts
        whole = self.sizes(run, plan.model)

        def kept(of: Sizes) -> int:
            states: int = of.phases(plan.run)["load"].get("optimizer", 0)
            return states + int(of.at(plan.run.batch or 1).saved)

        return kept(whole) - kept(sizes) + beside


def _note(exact: bool) -> str:
    return (
        "traced at two batch sizes; every moment of the step has its own line through them"
        if exact
        else "traced at two batch sizes, whose operations differ: one line a phase, an estimate"
    )
