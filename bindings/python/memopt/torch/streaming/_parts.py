"""What streams of a model's layers, and what stays: decided before anything changes."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import torch

from .. import _tensor_lists
from . import _four_bits
from ..optim._layout import is_flattened, is_sharded

#: Smaller parameters stay.
MIN_BYTES = 4096
#: Where parts begin in a layer; the streamer's own.
STEP = 256


def rounded(nbytes: int) -> int:
    """The bytes that a part takes in the arena."""
    return -(-nbytes // STEP) * STEP


class Part:
    """A streamed parameter: the object, and where its elements lie in the layer's memory."""

    __slots__ = (
        "parameter", "name", "own_name", "shape", "stride", "dtype", "device", "nbytes", "offset",
        "absent", "version", "stored",
    )  # fmt: skip

    def __init__(self, parameter: torch.Tensor, name: str, own_name: str, offset: int, device: torch.device) -> None:
        self.parameter, self.name, self.own_name, self.offset = parameter, name, own_name, offset
        self.shape, self.stride, self.dtype = parameter.shape, parameter.stride(), parameter.dtype
        #: Where it was.
        self.device = device if parameter.is_meta else parameter.device
        self.nbytes = parameter.numel() * parameter.element_size()
        #: What the parameter has while its weights are not there: a read of it gives NaN.
        nan = float("nan") if parameter.is_floating_point() or parameter.is_complex() else 0
        one = torch.full((1,), nan, dtype=self.dtype, device=device)
        self.absent = one.as_strided(self.shape, (0,) * len(self.shape))
        if _four_bits.is_four_bits(parameter) or not isinstance(parameter, torch.nn.Parameter):
            self.absent = one[:0]  # codes have no NaN, and kernels of others read without strides: an error of shapes
        #: The parameter's, when its weights came.
        self.version = 0
        #: What the store knows of it.
        self.stored: Any = None

    def of(self, flat: torch.Tensor, offset: Optional[int] = None) -> torch.Tensor:
        """The weights in the layer's bytes, or in others."""
        start = (self.offset if offset is None else offset) // self.dtype.itemsize + flat.storage_offset()
        whole = torch.empty(0, dtype=self.dtype, device=flat.device)
        return whole.set_(flat.untyped_storage(), start, self.shape, self.stride)


class Found(NamedTuple):
    """The layers' modules with what streams of each, and the bytes that stay by reason."""

    layers: List[Tuple[str, torch.nn.Module, List[Part]]]
    kept: Dict[str, int]
    device: torch.device


def find(layers: Any, device: Optional[torch.device], trained: bool) -> Found:
    """Raises where a layer cannot stream, and tells why."""
    named = _named(layers)
    _check(named)
    places = Counter(id(p) for p in _places(named))
    owners: Dict[int, set[int]] = {}
    for number, (_, module) in enumerate(named):
        for parameter in module.parameters():
            owners.setdefault(id(parameter), set()).add(number)
    where = _device_of(named) if device is None else device
    kept: Counter[str] = Counter()
    result = []
    counted: set[int] = set()
    for number, (name, module) in enumerate(named):
        parts: List[Part] = []
        offset = 0
        for own_name, p in _tensors(module):
            reason = _reason(p, trained, len(owners.get(id(p), ())))
            if reason:
                kept[reason] += 0 if id(p) in counted else p.nbytes
                counted.add(id(p))
                continue
            parts.append(Part(p, "%s.%s" % (name, own_name), own_name, offset, where))
            offset += rounded(p.nbytes)
        result.append((name, module, parts))
    if not any(parts for _, _, parts in result):
        raise ValueError(
            "stream_weights: no parameter of the %d layers can stream: of %d places none is %s, of %d bytes or more and"
            " of one layer alone%s"
            % (len(named), sum(places.values()), "dense" if trained else "frozen (requires_grad=False)", MIN_BYTES,
               "" if trained else '; train="host" streams those that are trained')
        )
    return Found(result, dict(kept), where)


def _tensors(module: torch.nn.Module) -> Iterable[Tuple[str, torch.Tensor]]:
    """Parameters, and the states of those of 4 bits."""
    for name, p in module.named_parameters():
        yield name, p
        if _four_bits.is_four_bits(p):
            for inner, tensor in _four_bits.tensors_of(p).items():
                yield "%s.%s" % (name, inner), tensor


def _reason(p: torch.Tensor, trained: bool, layers: int) -> str:
    """Why a parameter stays; "" if it streams."""
    if p.requires_grad and not trained:
        return "trained"
    if layers > 1:
        return "tied"
    if p.nbytes < MIN_BYTES or not _tensor_lists.is_dense(p):
        return "small" if p.nbytes < MIN_BYTES else "not dense"
    return ""


def _named(layers: Any) -> List[Tuple[str, torch.nn.Module]]:
    if isinstance(layers, (torch.nn.ModuleList, torch.nn.Sequential)):
        return list(layers.named_children())
    if isinstance(layers, torch.nn.Module) or not isinstance(layers, Iterable):
        raise TypeError(
            "stream_weights: layers must be a ModuleList or several modules, such as model.model.layers, not a %s"
            % type(layers).__name__
        )
    found = list(layers)
    wrong = [value for value in found if not isinstance(value, torch.nn.Module)]
    if wrong:
        raise TypeError("stream_weights: a layer must be a module, not a %s" % type(wrong[0]).__name__)
    return [(str(number), module) for number, module in enumerate(found)]


def _places(named: List[Tuple[str, torch.nn.Module]]) -> Iterable[torch.Tensor]:
    for _, layer in named:
        for module in layer.modules():
            yield from module.parameters(recurse=False)


def _check(named: List[Tuple[str, torch.nn.Module]]) -> None:
    if not named:
        raise ValueError("stream_weights: there are no layers")
    names: Dict[int, str] = {}
    for name, layer in named:
        for inner in layer.modules():
            if getattr(inner, "_compiled_call_impl", None) is not None or type(inner).__name__ == "OptimizedModule":
                raise NotImplementedError("stream_weights: layer %s is compiled; call it before torch.compile" % name)
            if isinstance(inner, torch.jit.ScriptModule):
                raise NotImplementedError("stream_weights: layer %s is a ScriptModule, which has no hooks" % name)
            if id(inner) in names and inner is layer:
                raise ValueError("stream_weights: layer %s is also in layer %s" % (name, names[id(inner)]))
        names.update((id(inner), name) for inner in layer.modules())
        if getattr(layer, "_memopt_streams", False):
            raise RuntimeError("stream_weights: layer %s streams already; call remove() of that first" % name)
        for own_name, p in layer.named_parameters():
            _check_parameter(p, "%s.%s" % (name, own_name))


def _check_parameter(p: torch.nn.Parameter, name: str) -> None:
    what = ""
    if is_sharded(p) or is_flattened(p):
        what = "is sharded by FSDP, which brings it itself; stream on one device, or let FSDP offload"
    elif hasattr(p, "ds_id"):
        what = "is of DeepSpeed's ZeRO-3, which brings it itself"
    elif _four_bits.is_four_bits(p):
        what = _four_bits.why_not(p)
    elif type(p) is not torch.nn.Parameter or p.layout is not torch.strided:
        what = "is a %s (%s), whose memory is not one dense tensor" % (type(p).__name__, p.layout)
    elif p.device.type not in ("cpu", "cuda", "meta"):
        what = "is on %s; cpu, cuda and meta can stream" % p.device
    if what:
        raise NotImplementedError("stream_weights: %s %s" % (name, what))


def _device_of(named: List[Tuple[str, torch.nn.Module]]) -> torch.device:
    devices = {p.device for _, layer in named for p in layer.parameters() if not p.is_meta}
    if len(devices) > 1:
        raise ValueError(
            "stream_weights: the layers are on %s; name the device: device=(%r, bytes)"
            % (" and ".join(sorted(map(str, devices))), "cuda")
        )
    return next(iter(devices), torch.device("cpu"))
