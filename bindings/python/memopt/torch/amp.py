"""Loss scaling and gradient clipping: GradScaler and clip_grad_norm_.

Both are torch's with the work on gradients done by the library: one call for all gradients of a
device, whatever their types, in stream order. Only one thing waits for a device, as in torch: the
step of an optimizer that does not take a scale reads the found-inf flag.
"""

from __future__ import annotations

import math
import operator
import types
import warnings
from typing import Any, Dict, Iterable, List, Optional, Union

import torch

from .._library import lib
from . import _tensor_lists
from ._native import Native, native
from .optim import _layout

Parameters = Union[torch.Tensor, Iterable[torch.Tensor]]
PerDevice = Dict[torch.device, torch.Tensor]

_NOT_FINITE = (
    "The total norm of order %s for gradients from `parameters` is non-finite, so it cannot be"
    " clipped. To disable this error and scale the gradients by the non-finite norm anyway, set"
    " `error_if_nonfinite=False`"
)
_grad = operator.attrgetter("grad")
_MISSING: Any = object()
_WITHOUT_FP16 = _tensor_lists.GRADIENT_TYPES - {torch.float16}


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler with unscaling and checks of all gradients in one call a device.

        scaler = GradScaler()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Arguments, methods, state dict and errors are torch's: it is a subclass, and the scale, the
    growth tracker and the flags are torch tensors on the device. Gradients of float32, float16 and
    bfloat16 go to the library; those of other types, and of tensor subclasses such as DTensor, to
    torch. A gradient that several parameters share is unscaled once.
    """

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> PerDevice:
        return _visit(optimizer, inv_scale, found_inf, True, allow_fp16)

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> Dict[Any, Any]:
        scale, _ = self._check_scale_growth_tracker("_check_inf_per_device")
        found_inf = torch.zeros((), dtype=torch.float32, device=scale.device)
        ones = torch.ones((), dtype=torch.float32, device=scale.device)
        found = _visit(optimizer, ones, found_inf, False, True)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found
        return found

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Optional[float]:
        """Steps the optimizer, unless a gradient is not finite.

        As torch's, which leaves what it told the optimizer there if the step raises (an error, or a
        signal), and multiplies it into the next step's.
        """
        told = [(name, vars(optimizer).get(name, _MISSING)) for name in ("grad_scale", "found_inf")]
        try:
            return super().step(optimizer, *args, **kwargs)
        except BaseException:
            for name, value in told:
                if value is _MISSING:
                    vars(optimizer).pop(name, None)
                else:
                    setattr(optimizer, name, value)
            raise

    def update(self, new_scale: Union[None, float, torch.Tensor] = None) -> None:
        """Ends an iteration: shrinks or grows the scale, or sets a new one.

        As torch's, which fails for a tensor of shape (1,) and for an int.
        """
        if isinstance(new_scale, torch.Tensor) and new_scale.numel() == 1:
            new_scale = new_scale.reshape(())
        elif isinstance(new_scale, int):
            new_scale = float(new_scale)
        super().update(new_scale)


def _gradients_of(optimizer: torch.optim.Optimizer, allow_fp16: bool) -> List[torch.Tensor]:
    """Each gradient once; of sparse ones the values."""
    found: Dict[int, torch.Tensor] = {}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if not isinstance(parameter, torch.Tensor):
                raise AssertionError("expected param to be torch.Tensor, got %s" % type(parameter).__name__)
            gradient = parameter.grad
            if gradient is None or id(gradient) in found:
                continue
            if gradient.dtype is torch.float16 and not allow_fp16:
                raise ValueError(
                    "Attempting to unscale FP16 gradients. (param_groups[%d]['params'][%d], of"
                    " shape %s; keep such parameters in float32 and let autocast convert them)"
                    % (number, place, list(parameter.shape))
                )
            if _tensor_lists.is_freed(gradient):
                raise RuntimeError(
                    "param_groups[%d]['params'][%d], of shape %s: its gradient's storage was freed"
                    % (number, place, list(parameter.shape))
                )
            found[id(gradient)] = _values(parameter, gradient) if gradient.is_sparse else gradient
    return list(found.values())


def _values(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """What of a sparse gradient is scaled and checked."""
    if gradient.dtype is torch.float16:
        # Values of one index are added first: their sum may overflow even if none of them does.
        gradient = gradient.coalesce()
        parameter.grad = gradient
    return gradient._values()


def _plain_gradients(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """The gradients of the parameters if none is special; else none."""
    found: List[torch.Tensor] = []
    for group in optimizer.param_groups:
        params = group["params"]
        if not _tensor_lists.PLAIN.issuperset(map(type, params)):
            return []
        found += [gradient for gradient in map(_grad, params) if gradient is not None]
    return found


@torch.no_grad()
def _visit(
    optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, scale: bool, allow_fp16: bool
) -> PerDevice:
    """Multiplies the gradients if wanted; the found-inf flag of each device that has some."""
    gradients = _plain_gradients(optimizer)
    types = _tensor_lists.GRADIENT_TYPES if allow_fp16 else _WITHOUT_FP16
    alike = _tensor_lists.alike(gradients, types)
    if alike is not None and alike[0] == found_inf.device:
        _visit_ours(native(alike[0]), gradients, alike[1], inv_scale, found_inf, scale)
        return {alike[0]: found_inf}
    return _visit_each(_gradients_of(optimizer, allow_fp16), inv_scale, found_inf, scale)


def _visit_each(
    gradients: List[torch.Tensor], inv_scale: torch.Tensor, found_inf: torch.Tensor, scale: bool
) -> PerDevice:
    """Gradients of several devices, types and kinds."""
    flags: PerDevice = {}
    for device, some in _tensor_lists.by_device(gradients).items():
        here = device == found_inf.device
        flag = found_inf if here else found_inf.to(device, non_blocking=True, copy=True)
        factor = inv_scale if here else inv_scale.to(device, non_blocking=True, copy=True)
        flags[device] = flag
        ours, theirs = _tensor_lists.parted(some)
        if ours:
            _visit_ours(native(device), ours, _tensor_lists.array(ours), factor, flag, scale)
        for one_type in _tensor_lists.by_type(theirs).values():
            torch._amp_foreach_non_finite_check_and_unscale_(one_type, flag, factor)
    return flags


def _visit_ours(
    side: Native, gradients: List[torch.Tensor], array: Any, factor: torch.Tensor, flag: torch.Tensor, scale: bool
) -> None:
    handle, stream, count = side.device._handle.pointer, side.stream(), len(gradients)
    if not scale:
        lib.memopt_check_finite(handle, array, count, _tensor_lists.cell(flag), stream)
        return
    factor_cell, flag_cell = _tensor_lists.cell(factor), _tensor_lists.cell(flag)
    lib.memopt_scale(handle, array, count, factor_cell, flag_cell, stream)
    _tensor_lists.changed(gradients)


# --- clipping -------------------------------------------------------------------------------------


@torch.no_grad()
def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: Optional[bool] = None,
) -> torch.Tensor:
    """Scales all gradients by min(1, max_norm / (norm + 1e-6)); the norm before that.

    As torch.nn.utils.clip_grad_norm_, with these differences: the sum is in double and in a fixed
    order, so that the result is the same bits each time, on each device; the norm is float32 also
    where all gradients are of half precision, so that it does not overflow there. torch computes
    norms other than the Euclidean, and norms of gradients that are sparse, DTensors or of other
    types; `foreach` has an effect only there. The largest element of DTensors is found here, also
    if a process has no part of one.
    """
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    else:
        generated = isinstance(parameters, types.GeneratorType)
        parameters = list(parameters)
        if generated and not parameters:
            warnings.warn("`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=3)
    gradients = [gradient for gradient in map(_grad, parameters) if gradient is not None]
    if float(norm_type) == 2.0 and 0.0 < float(max_norm) < math.inf and not error_if_nonfinite:
        alike = _tensor_lists.alike(gradients)
        if alike is not None:
            return _clip_here(native(alike[0]), gradients, alike[1], float(max_norm))
    gradients = list({id(gradient): gradient for gradient in gradients}.values())
    if float(norm_type) == math.inf and _are_shards(gradients):
        return _clip_largest(gradients, float(max_norm), error_if_nonfinite)
    if float(norm_type) != 2.0 or _tensor_lists.parted(gradients)[1]:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    if not gradients:
        return torch.tensor(0.0)
    return _clip(gradients, float(max_norm), error_if_nonfinite)


def _clip(gradients: List[torch.Tensor], max_norm: float, careful: bool) -> torch.Tensor:
    devices = _tensor_lists.by_device(gradients)
    first = gradients[0].device
    if len(devices) == 1 and 0.0 < max_norm < math.inf and not careful:
        return _clip_here(native(first), gradients, _tensor_lists.array(gradients), max_norm)
    norms = [_norm(native(device), some).to(first) for device, some in devices.items()]
    norm = norms[0] if len(norms) == 1 else torch.stack(norms).double().norm().float()
    if careful and not bool(torch.isfinite(norm)):
        raise RuntimeError(_NOT_FINITE % "2.0")
    coefficient = (max_norm / (norm.double() + 1e-6)).clamp(max=1.0).float()
    for device, some in devices.items():
        side, factor = native(device), coefficient.to(device)
        lib.memopt_scale(
            side.device._handle.pointer,
            _tensor_lists.array(some),
            len(some),
            _tensor_lists.cell(factor),
            None,
            side.stream(),
        )
    _tensor_lists.changed(gradients)
    return norm


def _are_shards(gradients: List[torch.Tensor]) -> bool:
    """Whether there are sharded ones among them, and none that is yet to be summed."""
    sharded: List[Any] = [gradient for gradient in gradients if _layout.is_sharded(gradient)]
    return bool(sharded) and not any(p.is_partial() for g in sharded for p in g.placements)


def _clip_largest(gradients: List[torch.Tensor], max_norm: float, careful: bool) -> torch.Tensor:
    """By the largest element of sharded gradients. In torch a process without a part of one of them
    raises, and the others wait for it."""
    shards: Dict[Any, List[torch.Tensor]] = {}
    for gradient in gradients:
        place = None
        if _layout.is_sharded(gradient):
            place = (gradient.device_mesh, tuple(gradient.placements))  # type: ignore[attr-defined]
        shards.setdefault(place, []).append(_layout.local(gradient))
    first = _layout.local(gradients[0]).device
    found = [_largest(some, place).to(first) for place, some in shards.items()]
    norm = torch.stack(found).max()
    if careful and not bool(torch.isfinite(norm)):
        raise RuntimeError(_NOT_FINITE % "inf")
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for some in shards.values():
        for shard in some:
            shard.mul_(factor.to(shard.device, shard.dtype))
    meshes = {place[0] for place in shards if place is not None}
    return _layout.same_in_all(norm, meshes.pop()) if len(meshes) == 1 else norm


def _largest(shards: List[torch.Tensor], place: Any) -> torch.Tensor:
    """The largest element of all processes, or NaN if any is NaN (which a maximum would miss)."""
    zero = shards[0].new_zeros((), dtype=torch.float32)
    found = [torch.linalg.vector_norm(s, math.inf).float() for s in shards if s.numel()]
    largest = torch.stack([zero, *found]).max()
    facts = torch.stack([largest.nan_to_num(nan=0.0, posinf=math.inf), largest.isnan().float()])
    if place is not None:
        for dimension, placement in enumerate(place[1]):
            if hasattr(placement, "dim"):
                group = place[0].get_group(dimension)
                torch.distributed.all_reduce(facts, torch.distributed.ReduceOp.MAX, group=group)
    return torch.where(facts[1] > 0, math.nan, facts[0])


def _clip_here(side: Native, gradients: List[torch.Tensor], array: Any, max_norm: float) -> torch.Tensor:
    norm = torch.empty((), dtype=torch.float32, device=side.torch_device)
    cell, handle = _tensor_lists.cell(norm), side.device._handle.pointer
    lib.memopt_norm(handle, cell, array, len(gradients), max_norm, side.stream())
    _tensor_lists.changed(gradients)
    return norm


def _norm(side: Native, gradients: List[torch.Tensor]) -> torch.Tensor:
    norm = torch.empty((), dtype=torch.float32, device=side.torch_device)
    array = _tensor_lists.array(gradients)
    cell, handle = _tensor_lists.cell(norm), side.device._handle.pointer
    lib.memopt_norm(handle, cell, array, len(gradients), 0.0, side.stream())
    return norm
