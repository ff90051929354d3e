"""Plans and solutions: what the library says of settings."""

from __future__ import annotations

import contextlib
import ctypes
import json
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional

from .. import _abi, errors
from .._abi import plan as _abi_plan
from .._library import c_text
from ._library import lib
from .settings import Card, Model, Run, Settings, Target, parse_lines

if TYPE_CHECKING:
    import array

#: Live bytes by category, for each phase: {"backward": {"parameters": 1024, …}, …}.
Phases = Mapping[str, Mapping[str, int]]
#: What a run takes, with the adapters that a Model says, if any; None: nothing is known of it.
Measure = Callable[[Run, Model], Optional[Phases]]


class Bytes(NamedTuple):
    """Bytes by category at one moment."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    batch: int
    overhead: int
    total: int


class Layer(NamedTuple):
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


class Change(NamedTuple):
    """A change that saves memory; one that is applied is measured on top of those before it."""

    kind: str
    applied: bool
    change: str
    option: str
    saves_bytes: int
    peak_bytes: int
    time_factor: float
    #: "same" numbers, "close" ones of other rounding, or an "other" training.
    training: str


class Plan:
    """What a run takes on one device."""

    #: Bytes by category at the moment when most is alive, and of each phase at its fullest.
    peak: Bytes
    phases: Dict[str, Bytes]
    #: The phase of the peak: "backward".
    peak_phase: str
    peak_reason: str
    fits: bool
    limit_bytes: int
    mean_bytes: int
    parameter_count: int
    trainable_count: int
    buffer_bytes: int
    activation_bytes: int
    activation_peak_bytes: int
    host_bytes: int
    disk_bytes: int
    link_bytes: int
    samples: int
    recomputed_layers: int
    forward_flops: float
    time_factor: float
    step_seconds: float
    time_assumption: str
    overhead_reason: str
    layers: List[Layer]
    #: A Model, a Run and a Card with every default filled in.
    model: Any
    run: Any
    card: Any
    #: Of bytes that were measured elsewhere: what says them again, and their events.
    _measure: Optional[Measure] = None
    _listed: Optional["array.array[int]"] = None

    def __init__(self, model: Model, run: Optional[Run] = None, card: Optional[Card] = None) -> None:
        self._read(_call("memopt_plan_create", None, model, run, card))

    @classmethod
    def measured(
        cls,
        phases: Phases,
        run: Optional[Run] = None,
        card: Optional[Card] = None,
        model: Optional[Model] = None,
        events: Optional["array.array[int]"] = None,
    ) -> Plan:
        """A plan of bytes that were measured or traced elsewhere; it has no layers. Of `model`,
        adapters and quantize count. `events` is what `events()` then says."""
        plan = cls.__new__(cls)
        plan._measure, plan._listed = lambda run, model: phases, events
        plan._read(_call("memopt_plan_create", plan._measure, model, run, card))
        return plan

    def events(self) -> "array.array[int]":
        """What two steps of the run allocate and free, in order: the id and the bytes of a block
        that begins, or the id and 0 where it ends. UnsupportedError of measured bytes that came
        without."""
        import array  # a shared library that most programs never need

        if self._listed is not None:
            return self._listed
        count = ctypes.c_uint64()
        with _made("memopt_plan_create", self._measure, self.model, self.run, self.card) as handle:
            lib.memopt_plan_get_events(handle, None, 0, ctypes.byref(count))
            words = array.array("Q", bytes(16 * count.value))
            room = (_abi_plan.PlanEventStruct * count.value).from_buffer(words)
            lib.memopt_plan_get_events(handle, room, count, ctypes.byref(count))
        return words

    @classmethod
    def _of(cls, result: Dict[str, Any]) -> Plan:
        plan = cls.__new__(cls)
        plan._read(result)
        return plan

    def _read(self, result: Dict[str, Any]) -> None:
        settings = result.pop("settings")
        self.model, self.run, self.card = (kind.of(settings) for kind in (Model, Run, Card))
        self.peak = Bytes(**result.pop("categories"))
        self.phases = {name: Bytes(**of) for name, of in result.pop("phases").items()}
        self.layers = [Layer(**layer) for layer in result.pop("layers")]
        result.pop("peak_bytes")  # the total of the peak
        vars(self).update(result)


class Solution:
    """What fits a card, and the changes that make it fit."""

    #: Of the run that changes are counted from: the batch given, or what fits.
    start: Plan
    fits: bool
    fits_after: bool
    micro_batch: int
    largest_micro_batch: int
    accumulation: int
    effective_batch: int
    target_batch: int
    remainder: int
    peak_bytes: int
    floor_bytes: int
    limit_bytes: int
    time_factor: float
    start_batch: int
    start_accumulation: int
    start_peak_bytes: int
    #: Cheapest in time first.
    changes: List[Change]
    #: The same after the changes that are applied.
    model: Any
    run: Any
    card: Any

    def __init__(self, model: Model, run: Optional[Run], card: Card, target: Optional[Target] = None) -> None:
        self._read(_call("memopt_plan_solve", None, model, run, card, target))

    @classmethod
    def measured(
        cls,
        measure: Measure,
        run: Optional[Run],
        card: Card,
        target: Optional[Target] = None,
        model: Optional[Model] = None,
    ) -> Solution:
        """The same where `measure` says what a run takes. Of `model`, adapters and quantize count."""
        solution = cls.__new__(cls)
        solution._read(_call("memopt_plan_solve", measure, model, run, card, target))
        solution.start._measure = measure
        return solution

    def _read(self, result: Dict[str, Any]) -> None:
        found = result.pop("solution")
        settings = found.pop("settings")
        self.start = Plan._of(result)
        self.model, self.run, self.card = (kind.of(settings) for kind in (Model, Run, Card))
        self.changes = [Change(**change) for change in found.pop("changes")]
        vars(self).update(found)


def _call(name: str, measure: Optional[Measure], *settings: Optional[Settings]) -> Dict[str, Any]:
    """The JSON of a call."""
    with _made(name, measure, *settings) as handle:
        result: Dict[str, Any] = json.loads(lib.memopt_plan_get_json(handle))
    return result


@contextlib.contextmanager
def _made(name: str, measure: Optional[Measure], *settings: Optional[Settings]) -> Iterator[ctypes.c_void_p]:
    lines = [line for group in settings if group is not None for line in group.lines()]
    text = c_text("\n".join(lines), "settings")
    thunk = _abi_plan.PlanMeasure() if measure is None else _thunk(measure)
    handle = ctypes.c_void_p()
    getattr(lib, name)(text, thunk, None, ctypes.byref(handle))
    try:
        yield handle
    finally:
        lib.memopt_plan_destroy(handle)


def _thunk(measure: Measure) -> Any:
    """The function as C calls it."""

    def ask(user: Any, settings: bytes, out_bytes: Any) -> int:
        def call() -> int:
            said = parse_lines(settings.decode())
            phases = measure(Run.of(said), Model.of(said))
            if phases is None:
                return int(_abi.Status.UNSUPPORTED)
            _fill(out_bytes, phases)
            return int(_abi.Status.OK)

        return errors.run_callback(call, lambda error: int(_abi.Status.USER))

    return _abi_plan.PlanMeasure(ask)


def _fill(out_bytes: Any, phases: Phases) -> None:
    kinds, categories = _abi_plan.PLAN_PHASES, _abi_plan.PLAN_CATEGORIES
    for phase, sizes in phases.items():
        for name, size in sizes.items():
            if phase not in kinds or name not in categories:
                raise ValueError("%s of %s: a plan has no such bytes" % (name, phase))
            out_bytes[kinds.index(phase) * len(categories) + categories.index(name)] = size
