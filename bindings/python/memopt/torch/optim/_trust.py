"""LAMB (You et al. 2020) and LARS (You et al. 2017): an update is not longer than a share of its
parameter.

Parameters are stepped in two passes. The first is a step of the library, AdamW's or SGD's, on scratch
memory of zeros: it brings the moments up to date and leaves minus the updates there. Then both norms are
known, and the second pass takes each update from its parameter (memopt_trust_squares()). Of shards the processes
add up the squares of both norms: they step as the whole.

States are Adam's and SGD's, in 32 or 8 bits. In state dicts groups have "max_unorm".
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from ..._abi import OptimizerKind, TrustStruct
from ..._library import lib
from .. import _tensor_lists
from .._native import native
from . import _format, _fused, _layout, _options, _other_rules
from ._facts import Facts
from ._facts import factor_of
from ._options import number
from ._team import Team
from ._whole import Task, WholeOptimizer, round_to, write

(_BUFFER,) = _format.MOMENTS[_format.OwnKind.LARS]


class _Trust(WholeOptimizer):
    """What the two have in common."""

    _takes_shards = True
    _together = True
    _step_kind: OptimizerKind  #: of the library, whose step on zeros leaves minus the update
    _decays = False  #: the decay is part of the update; else of the gradient

    def _update_values(self, group: Dict[str, Any], steps: int) -> _fused.Values:
        """The hyperparameters of that step, with a learning rate of 1."""
        raise NotImplementedError

    def _check_trust(self, group: Dict[str, Any]) -> None:
        _options.check_lr(group["lr"])
        for key in ("weight_decay", "max_unorm"):
            value = number("%s value" % key, group[key])
            if not 0.0 <= value < math.inf:
                raise ValueError("Invalid %s value: %s" % (key, value))
        _options.check_states(group)

    def _check_saved_group(self, group: Dict[str, Any], index: int) -> None:
        theirs = "t_alpha" in group and not _other_rules.has_three_betas(group)  # bitsandbytes'
        if "max_unorm" not in group and not theirs:
            what = "group %d has no max_unorm" % index
            raise _other_rules.refused(what, "another rule", _other_rules.name_of(self._kind))

    def _step_tasks(self, tasks: List[Task], facts: Facts) -> None:
        """In the order of the tasks: processes that share parameters add up norms together."""
        runs = [_fused.whole(task) for task in tasks]
        try:
            most = max((run.parameter.numel() for run in runs), default=0)
            for batch in _fused.batches(runs, max(most, _fused.BATCH)):
                updates = self._updates([run for run in batch if run.parameter.numel()], facts)
                pairs = []
                for run in batch:
                    if run.parameter.numel():
                        pairs.append((run.task, updates.pop(0)))
                    else:  # other processes have elements
                        pairs.append((run.task, torch.zeros_like(run.parameter, dtype=torch.float32)))
                        run.state["step"].add_(1)
                for task, exact in _bounded(pairs, self._decays, negated=True):
                    if exact is not task.parameter:
                        round_to(task, task.parameter, exact)
        finally:
            _fused.of(self).release()

    def _updates(self, batch: List[_fused.Run], facts: Facts) -> List[torch.Tensor]:
        """Moves the moments of all; minus the updates, in scratch memory."""
        if not batch:
            return []
        parts = _fused.of(self)
        updates = list(parts.scratch("updates", batch))
        states = [run.state for run in batch]
        part = parts.part("updates", batch, self._step_kind, self._states, states, updates)
        values = [
            self._update_values(run.task.group, _format.steps_taken(run.state["step"]) + 1)
            for run in batch
        ]
        tasks = [run.task for run in batch]
        part.run(self._gradients(tasks, facts), values, facts, type(self).__name__)
        return updates

    def _gradients(self, tasks: List[Task], facts: Facts) -> List[torch.Tensor]:
        """The gradients, perhaps with a part of the parameter."""
        return [task.gradient for task in tasks]


Pair = Tuple[Task, torch.Tensor]


def _bounded(pairs: Sequence[Pair], decays: bool, negated: bool) -> Iterator[Pair]:
    """Takes updates (or what was minus them) from parameters, at most as long as the rule says. What
    is left to do is to round new values, which come with their tasks."""
    for options, together in itertools.groupby(pairs, lambda pair: _options_of(pair[0], decays)):
        direct: List[Pair] = []
        for pair in together:
            if _is_direct(*pair):
                direct.append(pair)
                continue
            yield from _call(direct, options, negated)
            direct = []
            exact = torch.empty_like(pair[1]).copy_(pair[0].parameter)
            yield from _call([pair], options, negated, exact)
        yield from _call(direct, options, negated)


def _options_of(task: Task, decays: bool) -> Tuple[float, float, float, bool, torch.device]:
    group = task.group
    decay = float(group["weight_decay"]) if decays else 0.0
    most, clip = float(group["max_unorm"]), bool(group["trust_clip"])
    return float(group["lr"]), decay, most, clip, task.parameter.device


def _is_direct(task: Task, update: torch.Tensor) -> bool:
    """Whether the library can step the parameter in its memory."""
    parameter = task.parameter
    if task.group["stochastic_rounding"] and parameter.dtype is not torch.float32:
        return False
    return _tensor_lists.is_dense(parameter) and parameter.stride() == update.stride()


def _call(
    pairs: Sequence[Pair],
    options: Tuple[float, float, float, bool, torch.device],
    negated: bool,
    exact: Optional[torch.Tensor] = None,
) -> Iterator[Pair]:
    """memopt_trust_squares(), the sums over processes, memopt_trust_apply()."""
    if not pairs:
        return
    lr, decay, most, clip, device = options
    count, side = len(pairs), native(device)
    what = TrustStruct(lr=lr, weight_decay=decay, max_ratio=most, clip=clip, negated=negated)
    into = [task.parameter.detach() for task, _ in pairs] if exact is None else [exact]
    parameters = _tensor_lists.array(into)
    lists = (parameters, _tensor_lists.array([update for _, update in pairs]), count)
    squares = torch.empty(2, count, dtype=torch.float64, device=device)
    memory = (squares.data_ptr(), side.stream())
    handle = side.device._handle.pointer
    lib.memopt_trust_squares(handle, what, *lists, *memory)
    for i, (task, _) in enumerate(pairs):
        if _layout.is_sharded(task.owner):
            squares[:, i] = Team(task.owner).add(squares[:, i].contiguous())
    lib.memopt_trust_apply(handle, what, *lists, *memory)
    _tensor_lists.changed(into)
    for (task, _), new in zip(pairs, into):
        yield task, task.parameter if exact is None else new


class LAMB(_Trust, rule="LAMB"):
    _kind = _format.OwnKind.LAMB
    _decays = True
    _step_kind = OptimizerKind.ADAMW

    def _check_group(self, group: Dict[str, Any]) -> None:
        if group["amsgrad"] or not group["adam_w_mode"]:
            raise ValueError(
                "%s supports amsgrad=False and adam_w_mode=True only" % type(self).__name__
            )
        _options.check_betas(group["betas"], 2)
        eps = number("epsilon value", group["eps"])
        if not 0.0 <= eps < math.inf:
            raise ValueError("Invalid epsilon value: %s" % eps)
        self._check_trust(group)

    def _update_values(self, group: Dict[str, Any], steps: int) -> _fused.Values:
        betas = tuple(float(beta) for beta in group["betas"])
        eps, rate = float(group["eps"]), 1.0
        if not group["bias_correction"]:  # the library's step corrects: undo it
            means, root = (1 - betas[0] ** steps), math.sqrt(1 - betas[1] ** steps)
            eps, rate = eps / root, means / root
        values = (("lr", rate), ("beta1", betas[0]), ("beta2", betas[1]), ("eps", eps))
        return (*values, ("maximize", int(bool(group["maximize"]))))


class LARS(_Trust, rule="LARS"):
    _kind = _format.OwnKind.LARS
    _step_kind = OptimizerKind.SGD

    def _check_group(self, group: Dict[str, Any]) -> None:
        momentum = number("momentum value", group["momentum"])
        dampening = number("dampening value", group["dampening"])
        if not 0.0 <= momentum < math.inf:
            raise ValueError("Invalid momentum value: %s" % momentum)
        if not abs(dampening) < math.inf:
            raise ValueError("Invalid dampening value: %s" % dampening)
        if group["nesterov"] and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        self._check_trust(group)

    def _update_values(self, group: Dict[str, Any], steps: int) -> _fused.Values:
        momentum, dampening = float(group["momentum"]), float(group["dampening"])
        rate = 1.0
        if momentum == 0.0 and steps > 1:  # the library's step then omits the dampening
            rate = 1.0 - dampening
        values = (("lr", rate), ("momentum", momentum), ("dampening", dampening))
        switches = ("nesterov", int(bool(group["nesterov"]))), ("maximize", int(bool(group["maximize"])))
        return (*values, *switches)

    def _step_tasks(self, tasks: List[Task], facts: Facts) -> None:
        """An fp32 buffer is the update itself: its parameter needs no scratch memory. Which ones
        these are is the same in all processes."""
        factor, others = factor_of(facts), []
        own: List[Pair] = []
        for task in tasks:
            buffer = task.state[_BUFFER]
            if buffer.shape != task.parameter.shape:  # contiguous, from a flat state
                buffer = buffer.view(task.parameter.shape)
            if buffer.dtype is torch.uint8 or task.group["nesterov"]:
                others.append(task)
                continue
            _move(buffer, task, factor)
            own.append((task, buffer))
        for task, exact in _bounded(own, self._decays, negated=False):
            write(task, exact)
        super()._step_tasks(others, facts)

    def _gradients(self, tasks: List[Task], facts: Facts) -> List[torch.Tensor]:
        """With a decay, what the library's step takes for the gradient has it, as if it were scaled."""
        factor = factor_of(facts)
        given = []
        for task in tasks:
            decay = float(task.group["weight_decay"])
            decay = -decay if task.group["maximize"] else decay
            wide = task.gradient
            given.append(wide.float().add(task.parameter, alpha=decay / factor) if decay else wide)
        return given


def _move(buffer: torch.Tensor, task: Task, factor: float) -> None:
    """Brings an fp32 buffer up to date."""
    group, taken = task.group, _format.steps_taken(task.state["step"])
    factor = -factor if group["maximize"] else factor
    decay, kept = float(group["weight_decay"]), float(group["momentum"])
    fresh = 1.0 if taken == 0 else 1.0 - float(group["dampening"])
    if decay:
        buffer.mul_(kept).add_(task.parameter, alpha=fresh * decay)
        buffer.add_(task.gradient, alpha=fresh * factor)
    elif fresh * factor == 1.0 and task.gradient.dtype is torch.float32:
        torch.add(task.gradient, buffer, alpha=kept, out=buffer)
    else:
        buffer.mul_(kept).add_(task.gradient, alpha=fresh * factor)
