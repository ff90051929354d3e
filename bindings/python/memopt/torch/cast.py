"""cast_() and accumulate_(): many tensors between element types in one call."""

from __future__ import annotations

import ctypes
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

import torch

from .. import _abi
from .._library import lib
from . import _tensor_lists as _lists
from ._native import native

Tensors = Union[torch.Tensor, Iterable[torch.Tensor]]
MaybeTensors = Union[torch.Tensor, Iterable[Optional[torch.Tensor]]]
#: Destination and source of one element each.
Pair = Tuple[torch.Tensor, torch.Tensor]

_ROUNDINGS = {"nearest": 0, "stochastic": 1}


@torch.no_grad()
def cast_(
    destination: Tensors,
    source: Tensors,
    rounding: str = "nearest",
    seed: Optional[int] = None,
    *,
    saturate: bool = False,
    amax: Optional[torch.Tensor] = None,
) -> None:
    """Writes `source` into `destination` in the latter's type; lists of tensors in one call.

        cast_(half_parameters, master_parameters, rounding="stochastic", seed=step)

    Types: float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz and
    float8_e5m2fnuz in any combination. `rounding`
    "nearest" is to nearest even, as in torch; "stochastic" goes up or down by distance, so that the
    mean is right. Its random numbers depend on `seed` (None: drawn from torch's CPU generator), the
    tensor's number among those of its device and the element's place in memory. With `saturate`, what
    overflows an 8-bit float becomes its largest number; else NaN for float8_e4m3fn and infinity for
    float8_e5m2. `amax` is a float32 tensor of as many elements as there are pairs: each is raised
    in the same pass to the largest magnitude of its source; a NaN is larger than all numbers.

    Shapes are equal in pairs; layouts and devices may differ, at the price of a temporary copy.
    Nothing is written before all tensors are checked.
    """
    if rounding not in _ROUNDINGS:
        raise ValueError("cast_: rounding must be one of %s, not %r" % (", ".join(map(repr, _ROUNDINGS)), rounding))
    into, start = _list(destination), _list(source)
    pairs = _checked("cast_", "destination", "source", into, start, _lists.FLOAT_TYPES)
    if amax is not None:
        _check_cells(amax, len(pairs))
    options = _abi.CastOptions(rounding=_ROUNDINGS[rounding], saturate=int(bool(saturate)))
    if rounding == "stochastic":
        options.seed = _seed(seed)
    work, late = [], []
    for to, given in pairs:
        aim, here = _like(to, given)
        work.append((aim, here))
        if aim is not to:
            late.append((to, aim))
    devices: Dict[torch.device, List[int]] = {}
    for number, pair in enumerate(work):
        devices.setdefault(pair[0].device, []).append(number)
    for device, numbers in devices.items():
        some = [work[number] for number in numbers]
        side = native(device)
        cells = None if amax is None else _cells(amax, numbers, device)
        options.amax = None if cells is None else cells.data_ptr()
        lib.memopt_cast(
            side.device._handle.pointer,
            _lists.array([to for to, _ in some]),
            _lists.array([given for _, given in some]),
            len(some),
            ctypes.byref(options),
            side.stream(),
        )
        if amax is not None and cells is not None and cells is not amax:
            amax[numbers] = cells.to(amax.device)
    for to, aim in late:
        to.copy_(aim, non_blocking=to.is_cuda)
    _lists.changed(into if amax is None else [*into, amax])


@torch.no_grad()
def accumulate_(accumulators: Tensors, gradients: MaybeTensors, scale: float = 1.0) -> None:
    """Adds scale * gradient to each accumulator; lists in one call a device.

        sums = [torch.zeros_like(p, dtype=torch.float32) for p in parameters]
        for batch in micro_batches:
            loss(batch).backward()
            accumulate_(sums, [p.grad for p in parameters], scale=1 / len(micro_batches))

    Each element is one fused multiply-add in float32, rounded once to the accumulator's type
    (float32, bfloat16 or float16; so are the gradients'). Where a gradient is None its accumulator
    stays as it is. Nothing is written before all tensors are checked.
    """
    into, start = _list(accumulators), _list(gradients)
    if len(into) != len(start):
        raise ValueError("accumulate_: %d accumulators, %d gradients" % (len(into), len(start)))
    factor = float(scale)
    kept = [i for i, gradient in enumerate(start) if gradient is not None]
    into, start = [into[i] for i in kept], [start[i] for i in kept]
    pairs = _checked("accumulate_", "accumulator", "gradient", into, start, _lists.GRADIENT_TYPES, kept)
    devices: Dict[torch.device, List[Pair]] = {}
    for number, (to, given) in zip(kept, pairs):
        if not _lists.is_dense(to):
            raise ValueError(
                "accumulate_: accumulator %d of strides %s has gaps or overlaps in memory" % (number, list(to.stride()))
            )
        devices.setdefault(to.device, []).append((to, _with_layout(given, to)))
    for device, some in devices.items():
        side = native(device)
        lib.memopt_accumulate(
            side.device._handle.pointer,
            _lists.array([to for to, _ in some]),
            _lists.array([given for _, given in some]),
            len(some),
            factor,
            side.stream(),
        )
    _lists.changed(into)


def _check_cells(amax: torch.Tensor, count: int) -> None:
    _check("cast_", "amax", 0, amax, (torch.float32,))
    if amax.shape != (count,):
        raise ValueError(
            "cast_: amax has shape %s; it must be [%d], an element for each pair" % (list(amax.shape), count)
        )


def _cells(amax: torch.Tensor, numbers: List[int], device: torch.device) -> torch.Tensor:
    """The elements of some pairs, side by side on their device: `amax` itself if it is so."""
    if amax.device == device and len(numbers) == len(amax) and amax.is_contiguous():
        return amax
    return amax[numbers].to(device)


def _list(tensors: object) -> List[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)  # type: ignore


def _seed(seed: Optional[int]) -> int:
    if seed is None:
        return int(torch.randint(-(1 << 63), (1 << 63) - 1, ())) & (1 << 64) - 1
    if not 0 <= seed < 1 << 64:
        raise ValueError("cast_: seed is %d; it must be from 0 to 2**64 - 1" % seed)
    return int(seed)


def _checked(
    call: str,
    what: str,
    other: str,
    into: Sequence[torch.Tensor],
    start: Sequence[torch.Tensor],
    allowed: Iterable[torch.dtype],
    numbers: Optional[Sequence[int]] = None,
) -> List[Pair]:
    if len(into) != len(start):
        raise ValueError("%s: %d %ss, %d %ss" % (call, len(into), what, len(start), other))
    for place, pair in enumerate(zip(into, start)):
        number = place if numbers is None else numbers[place]
        for name, tensor in zip((what, other), pair):
            _check(call, name, number, tensor, allowed)
        if pair[0].shape != pair[1].shape:
            raise ValueError(
                "%s: %s %d has shape %s, its %s %s"
                % (call, what, number, list(pair[0].shape), other, list(pair[1].shape))
            )
    return list(zip(into, start))


def _check(call: str, name: str, number: int, tensor: torch.Tensor, allowed: Iterable[torch.dtype]) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError("%s: %s %d is a %s, not a tensor" % (call, name, number, type(tensor).__name__))
    if not _lists.is_plain(tensor):
        raise TypeError(
            "%s: %s %d is a %s (%s) on %s; it takes dense tensors on cpu or cuda, no subclasses"
            % (call, name, number, type(tensor).__name__, tensor.layout, tensor.device)
        )
    if tensor.dtype not in allowed:
        raise TypeError(
            "%s: %s %d is of %s; %s can be used"
            % (call, name, number, _lists.name_of(tensor.dtype), ", ".join(sorted(map(_lists.name_of, allowed))))
        )


def _with_layout(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`tensor` where and how `like`, which is dense, lies: itself if it does already."""
    same_order = tensor.stride() == like.stride() or (tensor.is_contiguous() and like.is_contiguous())
    if same_order and tensor.device == like.device:
        return tensor
    copy = torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=like.device)
    return copy.copy_(tensor, non_blocking=copy.is_cuda)


def _like(to: torch.Tensor, given: torch.Tensor) -> Pair:
    """What to cast into what, so that `to`, or else a copy into it, takes the result."""
    aim = to if _lists.is_dense(to) else torch.empty_like(to, memory_format=torch.contiguous_format)
    if given.device != aim.device and given.element_size() > aim.element_size():
        aim = torch.empty_strided(aim.shape, aim.stride(), dtype=aim.dtype, device=given.device)
    return aim, _with_layout(given, aim)
