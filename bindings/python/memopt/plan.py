"""What a training step of a model needs, before it runs; what fits; what to change where nothing does.

model = memopt.PlanModel(family="llama", layers=22, hidden=2048, heads=32, kv_heads=4)
run = memopt.PlanRun(batch=4, sequence=2048, weight_dtype="bf16", optimizer="adamw8bit")
plan = memopt.Plan(model, run, memopt.PlanCard(capacity="24GiB"))
print(plan.peak.total, plan.peak_phase, plan.fits)
"""

from __future__ import annotations

import ctypes
import enum
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    Type,
    TypeVar,
)

from . import _abi, errors
from ._abi import plan as _abi_plan
from ._library import part
from .sizes import parse_size

lib = part(_abi.PLAN)

#: Names of optimizers that a person writes otherwise than the C interface spells them.
_OPTIMIZERS = {
    "ADAMW_8BIT": "adamw8bit",
    "ADAMW_4BIT": "adamw4bit",
    "ADAMW_FP8": "adamwfp8",
    "ADAMW_OURS": "adamw-memopt",
    "LION_8BIT": "lion8bit",
    "SGD_8BIT": "sgd8bit",
    "NO_OPTIMIZER": "none",
}

_DTYPES = {"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "bfloat16": "bf16"}


def name_of(value: enum.IntEnum) -> str:
    """How an enumerator is written: "adamw8bit"."""
    name = value.name
    if isinstance(value, _abi_plan.PlanOptimizer):
        name = _OPTIMIZERS.get(name, name)
    return name.lower().replace("_", "-")


def names(kind: Type[enum.IntEnum]) -> Tuple[str, ...]:
    """All names of an enumeration."""
    return tuple(name_of(member) for member in kind)


def _parse(kind: Type[enum.IntEnum], field: str, value: Any) -> int:
    if isinstance(value, bool) and kind is _abi_plan.PlanChoice:
        return int(_abi_plan.PlanChoice.YES if value else _abi_plan.PlanChoice.NO)
    if not isinstance(value, str):
        return int(value)
    text = value.lower().replace("_", "-")
    for member in kind:
        if name_of(member) == text:
            return int(member)
    raise ValueError("%s: %r is none of %s" % (field, value, ", ".join(names(kind))))


def _parse_flags(kind: Type[enum.IntEnum], field: str, value: Any) -> int:
    if isinstance(value, int):
        return value
    parts = value.split(",") if isinstance(value, str) else value
    bits = 0
    for part in parts:
        bits |= _parse(kind, field, part.strip() if isinstance(part, str) else part)
    return bits


def _parse_dtype(field: str, value: Any) -> int:
    if not isinstance(value, str):
        return int(value)
    text = value.lower()
    try:
        return int(_abi.DType[_DTYPES.get(text, text).upper()])
    except KeyError:
        raise ValueError("%s: %r is no dtype (fp32, fp16, bf16)" % (field, value)) from None


class _Description:
    """A C struct of plan.h whose enumerations take names, sizes text, and choices True or False."""

    _struct: Type[_abi.Struct]
    _enums: Mapping[str, Type[enum.IntEnum]] = {}
    _flags: Mapping[str, Type[enum.IntEnum]] = {}

    def __init__(self, **values: Any) -> None:
        self._values: Dict[str, Any] = {}
        self._set(values)

    def _set(self, values: Mapping[str, Any]) -> None:
        kinds = dict((field[0], field[1]) for field in self._struct._fields_)
        for name, value in values.items():
            if name not in kinds:
                raise TypeError("%s has no field %r" % (type(self).__name__, name))
            if value is not None:
                self._values[name] = self._convert(name, kinds[name], value)

    def _convert(self, name: str, kind: Any, value: Any) -> Any:
        if name in self._enums:
            return _parse(self._enums[name], name, value)
        if name in self._flags:
            return _parse_flags(self._flags[name], name, value)
        if name.endswith("_dtype"):
            return _parse_dtype(name, value)
        if kind is ctypes.c_double:
            return float(value)
        number = parse_size(value) if isinstance(value, str) else value
        if isinstance(number, bool) or int(number) != number:
            raise TypeError("%s is a whole number, not %r" % (name, value))
        bits = 8 * ctypes.sizeof(kind)
        if not 0 <= number < 1 << bits:
            raise ValueError("%s is from 0 to 2**%d - 1, not %d" % (name, bits, number))
        return int(number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in {field for field, *_ in self._struct._fields_}:
            raise AttributeError("%s has no field %r" % (type(self).__name__, name))
        return self._values.get(name, 0)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join("%s=%r" % item for item in self.as_dict().items())
        return "%s(%s)" % (type(self).__name__, fields)

    def replace(self: _D, **changes: Any) -> _D:
        """A copy with other values."""
        copy = type(self)(**self._values)
        copy._set(changes)
        return copy

    def as_dict(self) -> Dict[str, Any]:
        """The fields that are set, enumerations by their names."""
        return {name: self._named(name, value) for name, value in self._values.items() if value}

    def _named(self, name: str, value: Any) -> Any:
        if name in self._enums:
            return name_of(self._enums[name](value))
        if name in self._flags:
            return [name_of(flag) for flag in self._flags[name] if value & flag]
        return _abi.DType(value).name.lower() if name.endswith("_dtype") else value

    def _c(self) -> Any:
        return self._struct(**self._values)

    @classmethod
    def _from_c(cls: Type[_D], struct: Any) -> _D:
        return cls(**{name: getattr(struct, name) for name, *_ in cls._struct._fields_[1:]})


_D = TypeVar("_D", bound=_Description)


class PlanModel(_Description):
    """A model: the fields of ``memopt_plan_model``; what is left out is filled in from the rest."""

    _struct = _abi_plan.PlanModel
    _enums = {
        "family": _abi_plan.PlanFamily,
        "head": _abi_plan.PlanHead,
        "activation": _abi_plan.PlanActivation,
        "gated": _abi_plan.PlanChoice,
        "tied": _abi_plan.PlanChoice,
        "attention_bias": _abi_plan.PlanChoice,
        "output_bias": _abi_plan.PlanChoice,
        "mlp_bias": _abi_plan.PlanChoice,
        "qk_norm": _abi_plan.PlanChoice,
        "pooler": _abi_plan.PlanChoice,
        "post_norm": _abi_plan.PlanChoice,
        "kin": _abi_plan.PlanKin,
        "vision_mode": _abi_plan.PlanTowerMode,
        "vision_activation": _abi_plan.PlanActivation,
    }
    _flags = {"lora_targets": _abi_plan.PlanTarget}


class PlanRun(_Description):
    """A run: the fields of ``memopt_plan_run``."""

    _struct = _abi_plan.PlanRun
    _enums = {
        "optimizer": _abi_plan.PlanOptimizer,
        "attention": _abi_plan.PlanAttention,
        "checkpointing": _abi_plan.PlanCheckpointing,
        "sharding": _abi_plan.PlanSharding,
        "loss": _abi_plan.PlanLoss,
        "use_cache": _abi_plan.PlanChoice,
        "keep_outputs": _abi_plan.PlanChoice,
        "attention_mask": _abi_plan.PlanChoice,
        "bucket_view": _abi_plan.PlanChoice,
        "zero_engine": _abi_plan.PlanEngine,
        "contiguous_gradients": _abi_plan.PlanChoice,
        "overlap_comm": _abi_plan.PlanChoice,
        "gradient_sync": _abi_plan.PlanChoice,
    }
    _flags = {"offload": _abi_plan.PlanOffload}


class PlanCard(_Description):
    """A card: the fields of ``memopt_plan_card``; sizes may be text such as "24GiB"."""

    _struct = _abi_plan.PlanCard
    _enums = {"device": _abi_plan.PlanDevice, "allocator": _abi_plan.PlanAllocator}


class PlanBytes(NamedTuple):
    """Bytes by category at one moment."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    batch: int
    overhead: int
    total: int


class PlanLayer(NamedTuple):
    """What one layer takes."""

    name: str
    kind: str
    recomputed: bool
    parameter_count: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    output_bytes: int
    saved_bytes: int
    plain_saved_bytes: int
    forward_bytes: int
    backward_bytes: int
    forward_flops: float


class PlanChange(NamedTuple):
    """A change that saves memory; measured on top of those before it."""

    kind: str
    applied: bool
    change: str
    option: str
    saves_bytes: int
    peak_bytes: int
    time_factor: float


def _bytes(struct: Any) -> PlanBytes:
    return PlanBytes(*(getattr(struct, field) for field in PlanBytes._fields))


#: Live bytes by category, for each phase: {"backward": {"parameters": 1024, …}, …}.
Phases = Mapping[str, Mapping[str, int]]


def _fill_phases(array: Any, phases: Phases) -> None:
    known = {phase.name.lower(): array[phase] for phase in _abi_plan.PlanPhase}
    for phase, sizes in phases.items():
        for name, size in sizes.items():
            if phase not in known or name not in PlanBytes._fields[:6]:
                raise ValueError("%s of %s: no bytes of a plan are called so" % (name, phase))
            setattr(known[phase], name, size)


class Plan:
    """What a run takes on one device; the fields of ``memopt_plan_report`` are attributes."""

    parameter_count: int
    trainable_count: int
    peak_reason: str

    def __init__(
        self, model: PlanModel, run: Optional[PlanRun] = None, card: Optional[PlanCard] = None
    ) -> None:
        self._make(lib.memopt_plan_create, *_references(model, run, card))

    @classmethod
    def measured(
        cls, phases: Phases, run: Optional[PlanRun] = None, card: Optional[PlanCard] = None
    ) -> "Plan":
        """A plan of bytes that were measured or traced elsewhere; it has no layers."""
        plan = cls.__new__(cls)
        array = (_abi_plan.PlanBytes * len(_abi_plan.PlanPhase))()
        _fill_phases(array, phases)
        plan._make(lib.memopt_plan_create_measured, array, *_references(run, card))
        return plan

    def _make(self, create: Any, *arguments: Any) -> None:
        handle = ctypes.c_void_p()
        create(*arguments, ctypes.byref(handle))
        try:
            self._read(handle)
        finally:
            lib.memopt_plan_destroy(handle)

    def _read(self, handle: ctypes.c_void_p) -> None:
        report = _abi_plan.PlanReport()
        lib.memopt_plan_get_report(handle, ctypes.byref(report))
        #: Bytes by category at the moment when most is alive.
        self.peak = _bytes(report.peak)
        #: Bytes by category at the fullest moment of each phase.
        self.phases = {
            phase.name.lower(): _bytes(report.phases[phase]) for phase in _abi_plan.PlanPhase
        }
        #: The phase of the peak: "backward".
        self.peak_phase = _abi_plan.PlanPhase(report.peak_phase).name.lower()
        self.fits = bool(report.fits)
        for name, kind in report._fields_:  # type: ignore[misc]
            if name not in ("struct_size", "peak", "phases", "peak_phase", "fits"):
                value = getattr(report, name)
                setattr(self, name, value.decode() if isinstance(value, bytes) else value)
        self.layers = [_layer(handle, index) for index in range(report.layer_count)]
        model, run, card = _abi_plan.PlanModel(), _abi_plan.PlanRun(), _abi_plan.PlanCard()
        lib.memopt_plan_get_settings(
            handle, ctypes.byref(model), ctypes.byref(run), ctypes.byref(card)
        )
        #: The descriptions with every default filled in.
        self.model = PlanModel._from_c(model)
        self.run = PlanRun._from_c(run)
        self.card = PlanCard._from_c(card)

    def __getattr__(self, name: str) -> Any:  # the fields of the report, set by _read
        raise AttributeError(name)


def _layer(handle: ctypes.c_void_p, index: int) -> PlanLayer:
    layer = _abi_plan.PlanLayer()
    lib.memopt_plan_get_layer(handle, index, ctypes.byref(layer))
    values = {field: getattr(layer, field) for field in PlanLayer._fields}
    values["name"] = layer.name.decode()
    values["kind"] = _abi_plan.PlanLayerKind(layer.kind).name.lower()
    values["recomputed"] = bool(layer.recomputed)
    return PlanLayer(**values)


class PlanSolution:
    """What fits a card; the fields of ``memopt_plan_fit`` are attributes.

    `target` takes the fields of ``memopt_plan_target_options``: effective_batch, keep_batch ….
    """

    def __init__(
        self,
        model: PlanModel,
        run: Optional[PlanRun],
        card: PlanCard,
        **target: Any,
    ) -> None:
        self._solve(target, lib.memopt_plan_solve, *_references(model, run, card))

    @classmethod
    def measured(
        cls,
        measure: Callable[[PlanRun], Optional[Phases]],
        run: Optional[PlanRun],
        card: PlanCard,
        **target: Any,
    ) -> "PlanSolution":
        """The same where `measure` says what a run takes; None: nothing is known of such a run."""

        def ask(user: Any, asked: Any, array: Any) -> int:
            def call() -> int:
                phases = measure(PlanRun._from_c(asked.contents))
                if phases is None:
                    return int(_abi.Status.UNSUPPORTED)
                _fill_phases(array, phases)
                return int(_abi.Status.OK)

            return errors.run_callback(call, lambda error: int(_abi.Status.USER))

        solution = cls.__new__(cls)
        thunk = _abi_plan.PlanMeasure(ask)
        call = (lib.memopt_plan_solve_measured, thunk, None)
        solution._solve(target, *call, *_references(run, card))
        return solution

    def _solve(self, target: Mapping[str, Any], solve: Any, *arguments: Any) -> None:
        options = _abi_plan.PlanTargetOptions(**{k: int(v) for k, v in target.items()})
        handle = ctypes.c_void_p()
        solve(*arguments, ctypes.byref(options), ctypes.byref(handle))
        try:
            self._read(handle)
        finally:
            lib.memopt_plan_solution_destroy(handle)

    def _read(self, handle: ctypes.c_void_p) -> None:
        fit = _abi_plan.PlanFit()
        lib.memopt_plan_solution_get_fit(handle, ctypes.byref(fit))
        for name, _ in fit._fields_[1:]:  # type: ignore[misc]
            value = getattr(fit, name)
            setattr(self, name, bool(value) if name.startswith("fits") else value)
        #: The changes, cheapest in time first.
        self.changes: List[PlanChange] = [
            _change(handle, index) for index in range(fit.change_count)
        ]
        model, run = _abi_plan.PlanModel(), _abi_plan.PlanRun()
        lib.memopt_plan_solution_get_settings(handle, ctypes.byref(model), ctypes.byref(run))
        #: The descriptions after the changes that are applied.
        self.model = PlanModel._from_c(model)
        self.run = PlanRun._from_c(run)

    def __getattr__(self, name: str) -> Any:  # the fields of the fit, set by _read
        raise AttributeError(name)


def _change(handle: ctypes.c_void_p, index: int) -> PlanChange:
    change = _abi_plan.PlanChange()
    lib.memopt_plan_solution_get_change(handle, index, ctypes.byref(change))
    return PlanChange(
        _abi_plan.PlanChangeKind(change.kind).name.lower(),
        bool(change.applied),
        change.change.decode(),
        change.option.decode(),
        change.saves_bytes,
        change.peak_bytes,
        change.time_factor,
    )


def _references(*descriptions: Optional[_Description]) -> List[Any]:
    return [None if each is None else ctypes.byref(each._c()) for each in descriptions]


def add_overhead(live: Mapping[str, int], card: PlanCard) -> Tuple[PlanBytes, int]:
    """Live bytes by category with what a card takes beside tensors, and the card's limit."""
    named = {name: live.get(name, 0) for name in PlanBytes._fields[:6]}
    struct = _abi_plan.PlanBytes(**named)
    limit = ctypes.c_uint64()
    lib.memopt_plan_add_overhead(ctypes.byref(card._c()), ctypes.byref(struct), ctypes.byref(limit))
    return _bytes(struct), limit.value


def split_batch(effective_batch: int, largest: int, world_size: int = 1) -> Tuple[int, int]:
    """The micro-batch, at most `largest`, and accumulation for an effective batch."""
    batch, accumulation = ctypes.c_uint64(), ctypes.c_uint64()
    lib.memopt_plan_split_batch(
        effective_batch, largest, world_size, ctypes.byref(batch), ctypes.byref(accumulation)
    )
    return batch.value, accumulation.value
