"""fit(): a model's training step within a byte budget.

One step is recorded as a tape (_tape.py), on fake tensors where the model allows it (_fakes.py). The
library replays it to the byte under choices (_choices.py) and finds those that hold the budget in
little time; _apply.py applies them by hooks (_recipes.py) and checkpoint().
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

import torch

from ... import errors
from ..._abi import FIT_NONE
from ...sizes import Size, format_size, parse_size
from .._live_bytes import LiveBytes
from ._apply import Applied
from ._choices import OFFLOAD, RECOMPUTE, REMAKE, Plan, Planner, choices_of
from ._tape import BACKWARD, Tape, record, tensors_in

__all__ = ["Fit", "fit"]

#: Bytes a second to the host and back, as long as nothing was measured.
LINK = {"cpu": 3e9, "cuda": 12e9}
FORMAT = 1


def fit(
    model: torch.nn.Module,
    optimizer: Any,
    step: Callable[[], torch.Tensor],
    *,
    budget: Size,
    host: Optional[Size] = None,
) -> "Fit":
    """Makes training steps of a model take at most `budget` bytes of its device; the bits stay the same.

        fit = mt.fit(model, optimizer, lambda: model(input_ids=ids, labels=ids).loss, budget="8GiB")
        print(fit.table())

    Each module is kept or run again in backward; each saved value is kept, made again by one cheap
    operation from other saved ones, or, with `host`, moved to host memory of so many bytes. What is
    chosen is what takes least time; nothing is changed where the step fits as it is.

    `step` runs the model once and gives the loss, without backward. `optimizer` (or None) counts by
    the states that it has now: call this after its first step, or leave room for them. Gradients are
    taken to be None before a step (``zero_grad()``). `step` is called under torch.no_grad(), with fake
    tensors in place of the model's own, and once in earnest to correct the budget by what the kernels
    take beyond their tensors. Random states, buffers and gradients are as before afterwards.

    A step that saves other tensors than this one is right, too: what the plan does not know is kept,
    and a warning says so. LimitReachedError gives the least budget and what sets it.
    """
    for name, part in model.named_modules():
        if getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule":
            raise NotImplementedError("fit: module %r is compiled; pass the model before torch.compile" % name)
    limit, host_limit = parse_size(budget), 0 if host is None else parse_size(host)
    planner, moving = _plan_of(model, optimizer, step, host)
    plan = _solve(planner, limit, host_limit)
    plain = planner.replay(()).peak_bytes
    made = Fit(model, _spec(planner.tape, plan, moving), limit, host_limit, plan, plain)
    try:
        made.measured = measured = _measure(model, step, planner.fixed)
        if measured > limit:  # kernels take more than their tensors
            plan = _solve(planner, limit - (measured - plan.peak), host_limit)
            made.remove()
            made = Fit(model, _spec(planner.tape, plan, moving), limit, host_limit, plan, plain)
            made.measured = _measure(model, step, planner.fixed)
    except BaseException:
        made.remove()
        raise
    return made


class Fit:
    """A plan at work on a model, made by :func:`fit`."""

    def __init__(
        self, model: torch.nn.Module, spec: Dict[str, Any], budget: int, host: int, plan: Optional[Plan], plain: int
    ) -> None:
        self.budget, self.plain_bytes = budget, plain
        #: What the plan takes by its tape; and what a step took, None before one was measured.
        self.peak_bytes = 0 if plan is None else plan.peak
        self.host_bytes = 0 if plan is None else plan.host
        self.measured: Optional[int] = None
        #: What is done, in the table's words.
        self.choices: List[Tuple[str, str]] = [] if plan is None else [(_KINDS[c.kind], c.name) for c in plan.choices]
        self._spec, self._host = spec, host
        self._applied = Applied(model, spec, host)

    def remove(self) -> None:
        """The model trains as before."""
        self._applied.remove()

    def table(self) -> str:
        """What is done, and what it takes."""
        rows = [
            ("budget", format_size(self.budget)),
            ("as it was", format_size(self.plain_bytes)),
            ("planned", format_size(self.peak_bytes)),
            ("measured", "-" if self.measured is None else format_size(self.measured)),
            ("on the host", format_size(self.host_bytes)),
        ]
        rows += [("%s" % kind, name) for kind, name in self.choices]
        width = max(len(first) for first, _ in rows)
        return "\n".join("%-*s  %s" % (width, first, second) for first, second in rows)

    __str__ = table

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the plan as JSON; :meth:`load` applies it to a model of the same code."""
        facts = {name: getattr(self, name) for name in _FACTS}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, **facts, "host": self._host, "spec": self._spec}, file, indent=1)

    @classmethod
    def load(cls, path: Union[str, "os.PathLike[str]"], model: torch.nn.Module) -> "Fit":
        """Applies a saved plan; nothing is measured."""
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("fit: %s is not a plan of format %d" % (os.fspath(path), FORMAT))
        made = cls(model, found["spec"], found["budget"], found["host"], None, found["plain_bytes"])
        for name in _FACTS:
            setattr(made, name, found[name])
        made.choices = [(kind, name) for kind, name in found["choices"]]
        return made


_FACTS = ("budget", "plain_bytes", "peak_bytes", "host_bytes", "measured", "choices")
_KINDS = {RECOMPUTE: "run again", REMAKE: "made again", OFFLOAD: "to the host"}


def _plan_of(
    model: torch.nn.Module, optimizer: Any, step: Any, host: Optional[Size]
) -> Tuple[Planner, Dict[str, List[str]]]:
    """The planner of a step, and the buffers that forward changes, by module."""
    from ._fakes import REFUSALS, fakes  # what they load takes time

    with _unchanged(model):
        moving, counting = _what_moves(model, step)
    with _unchanged(model):
        try:
            with fakes(model):
                tape = record(model, step)
        except REFUSALS:  # it needs values
            tape = record(model, step)
    for unit in tape.units:
        if not unit.why and any((name + ".").startswith(unit.name + ".") for name in counting):
            unit.why = "changes an attribute of its own"
    fixed = tape.fixed + _state_bytes(model, optimizer)
    device = next((p.device.type for p in model.parameters()), "cpu")
    link = None if host is None else LINK.get(device, LINK["cuda"])
    parts = dict(model.named_modules())
    sizes = {name: sum(parts[name]._buffers[n].nbytes for n in names) for name, names in moving.items()}
    return Planner(tape, fixed, choices_of(tape, sizes, link)), moving


def _solve(planner: Planner, limit: int, host: int) -> Plan:
    try:
        return planner.solve(max(limit, 1), host)
    except errors.LimitReachedError as error:
        floor = planner.solve(0, host)
        result = planner.replay(floor.chosen)
        raise errors.LimitReachedError(
            error.status,
            "fit: the budget is %s; the least is %s, of which %s are weights, states and the batch. %s%s"
            % (format_size(limit), format_size(floor.peak), format_size(planner.fixed),
               _at_peak(planner.tape, result), _left_out(planner.tape)),
        ) from error


def _at_peak(tape: Tape, result: Any) -> str:
    """What lives at a floor's peak."""
    kind = ["forward", "backward"][any(e[0] == BACKWARD for e in tape.events[: result.peak_event])]
    where = ""
    if result.peak_module != FIT_NONE:
        unit = tape.units[result.peak_module]
        where = ", in %s (%s)" % (unit.name, type(unit.module).__name__)
    largest = ""
    if result.peak_storage != FIT_NONE:
        looks = [pack.look for pack in tape.packs if pack.storage == result.peak_storage][:1]
        name = ", saved as %s %s" % (looks[0][3], "x".join(map(str, looks[0][0]))) if looks else ""
        largest = "; the largest tensor then has %s%s" % (format_size(tape.bytes[result.peak_storage]), name)
    return "That is reached in %s%s%s" % (kind, where, largest)


def _left_out(tape: Tape) -> str:
    """Which modules cannot run again although they have gradients, for the commonest reason."""
    names: Dict[str, List[str]] = {}
    for unit in tape.units:
        if unit.why.startswith(("takes", "changes")):
            names.setdefault(unit.why, []).append(unit.name)
    if not names:
        return ""
    why = max(names, key=lambda reason: len(names[reason]))
    hint = " (pass use_cache=False)" if "Cache" in why else ""
    more = " and %d more" % (len(names[why]) - 1) if len(names[why]) > 1 else ""
    return ". %s%s cannot run again: %s%s" % (names[why][0], more, why, hint)


def _spec(tape: Tape, plan: Plan, moving: Dict[str, List[str]]) -> Dict[str, Any]:
    """What Applied takes; plain data."""
    spec: Dict[str, Any] = {"modules": {}, "again": [], "graph": [], "host": []}
    looks = {pack.number: pack.look for pack in tape.packs}
    for choice in plan.choices:
        kind, what = choice.what
        if kind == "module":
            unit = tape.units[choice.module]
            buffers = [
                "%s.%s" % (name, buffer) if name else buffer
                for name, names in moving.items()
                for buffer in names
                if (name + ".").startswith(unit.name + ".")
            ]
            spec["modules"][what] = [unit.begin, unit.end, buffers]
        elif kind == "again":
            spec["again"].append(what)
        else:
            spec[kind] += [[number, looks[number]] for number in what]
    return spec


def _state_bytes(model: torch.nn.Module, optimizer: Any) -> int:
    """Of an optimizer's tensors on the model's device."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    states = () if optimizer is None else tensors_in(list(optimizer.state.values()))
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in states if t.device == device}
    return sum(storages.values())


# --- runs that leave everything as it was ---------------------------------------------------------


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Random states, buffers, gradients and plain attributes of modules are as before afterwards; there
    are no gradients meanwhile."""
    generators = [torch.default_generator, *(torch.cuda.default_generators if _cuda_runs() else ())]
    random = [(generator, generator.get_state()) for generator in generators]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    gradients = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    attributes = [(module, _scalars(module)) for module in model.modules()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for generator, state in random:
            generator.set_state(state)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter in model.parameters():
            parameter.grad = None
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, values in attributes:
            module.__dict__.update(values)


def _cuda_runs() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _scalars(module: torch.nn.Module) -> Dict[str, Any]:
    return {name: value for name, value in vars(module).items() if type(value) in (int, float, str, bool)}


def _what_moves(model: torch.nn.Module, step: Any) -> Tuple[Dict[str, List[str]], Set[str]]:
    """Buffers whose contents a forward changes, by module; and modules whose attributes it changes.
    Contents: BatchNorm changes its averages without a version."""
    with torch.no_grad(), _unchanged(model):
        try:
            loss = step()
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise TypeError("fit: step() called backward(); it must return the loss, and backward stays where it is") from error
    parts = dict(model.named_modules())
    buffers = {name: {n: b.clone() for n, b in part._buffers.items() if b is not None} for name, part in parts.items()}
    scalars = {name: _scalars(part) for name, part in parts.items()}
    with torch.no_grad():
        again = step()
    _check_repeats(loss, again)
    moving: Dict[str, List[str]] = {}
    for name, before in buffers.items():
        names = [n for n, b in before.items() if not _same(b, parts[name]._buffers[n])]
        if names:
            moving[name] = names
    return moving, {name for name, before in scalars.items() if _scalars(parts[name]) != before}


def _check_repeats(loss: Any, again: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError("fit: step() must give the loss, a tensor of one number, not %r" % type(loss).__name__)
    if not _same(loss, again):
        raise ValueError(
            "fit: two runs of step() from the same random states give %r and %r. What is run again in backward must be"
            " what was run: take random numbers from torch's default generators" % (loss.item(), again.item())
        )


def _same(a: torch.Tensor, b: Optional[torch.Tensor]) -> bool:
    return b is not None and torch.equal(a.nan_to_num(), b.nan_to_num())


class _Live(LiveBytes):  # type: ignore[no-untyped-call]
    """What the step brings along does not count, nor do views of it."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        for tensor in tensors_in((args, kwargs or {})):
            if tensor.layout is torch.strided:
                self._note(tensor, count=False)
        return super().__torch_dispatch__(function, types, args, kwargs)


def _measure(model: torch.nn.Module, step: Any, fixed: int) -> int:
    """The most bytes that live in a real step; kernels' own included on a GPU."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with _unchanged(model):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            before: int = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            step().backward()
            torch.cuda.synchronize(device)
            most: int = torch.cuda.max_memory_allocated(device)
            return fixed + most - before
        with _Live([*model.parameters(), *model.buffers()]) as live:
            step().backward()
        return fixed + int(live.peak)
