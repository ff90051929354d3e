"""Traces a training step of a module without weights: sizes are followed, nothing is computed.

The module lies on the meta device (or anywhere: its values are not used). Its parameters become
fake tensors of the CPU, for which torch runs every operation as shapes and dtypes only, in the
forms that they have on a real device: a meta tensor's attention, for example, would not be fused.
Fakes of a GPU cannot go backward where there is none; what its kernels keep is told by rule.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from ._fakes import not_packed
from ._features import Features, attention_again, changed
from ._layers import Layers
from ._optimizer_bytes import OptimizerBlocks, optimizer_blocks
from ._step import StepRecorder
from ._step_bytes import Line, Series, StepBytes, step_bytes
from ._target import Target, TargetError, target_of


class Trace:
    """What steps of a module need, by its sizes alone.

        trace = Trace(target_of((module, inputs)))
        trace.at(8).peak_bytes
        trace.line().at(64).peak_bytes

    `optimizer` is one of `OPTIMIZERS`, `autocast` a dtype, `gpu` whose kernels to count, `features`
    what is changed of the module or shared with other devices. Series are traced once; `progress`
    is told the batch and the part of it that is done. Of many equal layers four are run. The module's own tensors and gradients are as they were afterwards.
    """

    def __init__(
        self,
        target: Any,
        *,
        sequence: Optional[int] = None,
        optimizer: str = "adamw",
        autocast: Optional[torch.dtype] = None,
        accumulation: int = 1,
        gpu: bool = False,
        features: Features = Features(),
        progress: Optional[Callable[[int, float], None]] = None,
    ) -> None:
        self._plain: Target = target_of(target, sequence)
        self.features = features
        self._optimizer = optimizer
        self._autocast = autocast
        self._accumulation = accumulation
        self._gpu = gpu
        self._progress = progress or (lambda batch, part: None)
        self.target: Target = self._changed()
        self._layers = Layers(self.target.module)
        self._known: Dict[int, Series] = {}

    def _changed(self) -> Target:
        return changed(self._plain, self.features, self._autocast, self._gpu)

    def at(self, batch: int, optimizer: Optional[str] = None) -> StepBytes:
        """What a batch size needs, traced."""
        return step_bytes(batch, self.series(batch).highest(), self.optimizer(optimizer).total())

    def optimizer(self, name: Optional[str] = None) -> OptimizerBlocks:
        """What an optimizer takes on the device that keeps most, by default the trace's."""
        features, parameters = self.features, list(self.target.module.parameters())
        if "optimizer" in features.offload:
            return OptimizerBlocks([], [])  # its step is elsewhere
        taken = [parameters]
        if features.divides:
            taken = [_shards().parts_of(parameters, features.world_size)]
        elif features.sharding == "zero1":
            learning = [p for p in parameters if p.requires_grad]
            taken = _shards().partition(learning, features.world_size)
        each = [optimizer_blocks(name or self._optimizer, part, self._gpu) for part in taken]
        return max(each, key=lambda of: of.total())

    def line(self, batches: Tuple[int, int] = (2, 4), optimizer: Optional[str] = None) -> Line:
        """Traces two batch sizes; the others follow from them. 1 is often special: not copied."""
        taken = self.optimizer(optimizer).total()
        first, second = ((batch, self.series(batch)) for batch in batches)
        return Line(first, second, taken)

    def series(self, batch: int) -> Series:
        """Every moment of a step."""
        if batch not in self._known:
            if batch < 1:
                raise ValueError("the batch size is %d; it must be at least 1" % batch)
            self._progress(batch, 0.0)
            self._known[batch] = self._few(batch) or self._trace(batch)
        return self._known[batch]

    def _few(self, batch: int) -> Optional[Series]:
        """From a few layers; None where they do not tell of the others."""
        if not self._layers.few:
            return None
        try:
            return self._trace(batch, self._layers)
        except Exception:  # as NotRepeated, and of a model that asks for all of its layers
            self._layers.few = False
            return None

    def _trace(self, batch: int, layers: Optional[Layers] = None) -> Series:
        target = self.target
        if self.features.divides:
            target, layers = self._changed(), None
        module = target.module
        mode = _Fakes(allow_non_fake_inputs=True)  # constants that a model makes itself
        quiet, random = _quiet(), torch.random.fork_rng(devices=[])
        kernels = _GpuRules() if self._gpu else contextlib.nullcontext()
        recurrent = any(isinstance(part, torch.nn.RNNBase) for part in module.modules())
        spaces: Any = contextlib.nullcontext()
        if recurrent:
            spaces = _Workspaces()  # type: ignore[no-untyped-call]
        again = attention_again(self.features)
        with _fakes_in(module, mode), mode, not_packed(), quiet, random, kernels, spaces, again:
            try:
                with self._recorder(target) as recorder:
                    if layers is not None:
                        self._run_few(recorder, layers, batch)
                    if self.features.divides:  # buffers that it keeps are those of later steps
                        recorder.run(lambda: _fake(target.inputs(1)))
                        module.zero_grad(set_to_none=True)
                    recorded = recorder.record(lambda: _fake(target.inputs(batch)))
            except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
                raise TargetError(
                    "%s cannot be traced without data, since %s depends on values (experts and"
                    " other routing do). Measure it instead: --profile"
                    % (type(module).__name__, getattr(error, "func", error))
                ) from error
            return Series(recorded.account, layers)

    def _run_few(self, recorder: StepRecorder, layers: Layers, batch: int) -> None:
        recorder.around = lambda live: layers.run(live, lambda done: self._progress(batch, done / self._accumulation))

    @contextlib.contextmanager
    def _recorder(self, target: Target) -> Iterator[StepRecorder]:
        """Of the device's step."""
        features = self.features
        if features.world_size <= 1:
            yield StepRecorder(target, self._autocast, self._accumulation)
            return
        with _shards().devices(target.module, features) as devices:
            yield devices.recorder(target, self._autocast, self._accumulation)


def _shards() -> Any:
    """Made for several devices alone: it loads torch.distributed."""
    from . import _shards

    return _shards


#: What takes a part of a tensor by its index, and at which place that is. Every index makes tensors
#: of the same bytes.
_INDEXED = {torch.ops.aten.select.int: 2, torch.ops.aten.select_backward.default: 3}


class _Fakes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensors, whose cache knows what has run at another index: a loop over tokens."""

    def dispatch(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        place = _INDEXED.get(func)
        if place is not None and len(args) > place and args[place]:
            args = (*args[:place], 0, *args[place + 1 :])
        with torch._C.DisableTorchFunction():  # `_GpuRules` needs not see how sizes are read
            return super().dispatch(func, types, args, kwargs)

    def _cache_key(self, *given: Any) -> Any:
        """torch's own lists all that there is of a tensor, which takes a third of a trace."""
        func, args, kwargs = given[-3:]
        try:
            values = self._key(args), self._key(kwargs or {})
        except _Unusual:
            return super()._cache_key(*given)
        inference = torch.is_inference_mode_enabled()
        return _Fakes, func, values, torch.get_default_dtype(), inference

    def _key(self, value: Any) -> Any:
        """What of an argument decides what an operation makes."""
        if isinstance(value, FakeTensor):
            return self._tensor_key(value)
        kind = type(value)
        if kind is dict:
            return tuple(value), *map(self._key, value.values())
        if kind in (list, tuple):
            return kind, *map(self._key, value)
        if kind in _PLAIN or kind is torch.device and value.type == "cpu":
            return kind, value
        raise _Unusual()

    def _tensor_key(self, tensor: Any) -> Any:
        plain = tensor.layout is torch.strided and not (tensor.is_complex() or tensor.is_neg())
        if tensor.fake_mode is not self or tensor.constant is not None or not plain:
            raise _Unusual()
        return (
            tuple(tensor.shape),
            tensor.stride(),
            tensor.storage_offset(),
            tensor.dtype,
            tensor.fake_device,
            tensor.requires_grad,
        )


class _Unusual(Exception):
    """An argument that is left to torch's own key."""


#: Types whose values say all, together with the type.
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format)


#: What autocast computes in fp32 on a GPU, and not on a CPU.
_WIDE = frozenset(("layer_norm", "group_norm", "softmax", "log_softmax", "pow", "exp", "rsqrt"))


class _GpuRules(TorchFunctionMode):
    """Operations on a CPU's fakes that keep what a GPU's keep: dropout a mask of bytes, attention
    under dropout no scores, and autocast more in fp32."""

    def __torch_function__(self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if function is functional.dropout:
            return _gpu_dropout(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            args = args[:4] + (0.0,) * (len(args) > 4) + args[5:]
            kwargs.pop("dropout_p", None)
        elif name in _WIDE and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map(_wide, (args, kwargs))
        return function(*args, **kwargs)


def _gpu_dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p in (0, 1) or inplace:
        return functional.dropout(x, p, training, inplace)
    return torch.native_dropout(x, p, True)[0]


def _wide(value: Any) -> Any:
    narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if narrow else value


class _Workspaces(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A recurrent layer's workspace, whose size its kernel alone knows: a run with zeros tells."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is not torch.ops.aten.mkldnn_rnn_layer.default:
            return result
        with _disable_current_modes():
            size = function(*tree_map(_zeros, args))[3].numel()
        return (*result[:3], result[3].new_empty(size))


def _zeros(value: Any) -> Any:
    return torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """An operation that refuses its inputs raises; torch would also print a traceback."""
    log = logging.getLogger(FakeTensorMode.__module__)
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _fake(inputs: Any) -> Any:
    return tree_map(_of_cpu, inputs)


def _of_cpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


@contextlib.contextmanager
def _fakes_in(module: torch.nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Fake tensors in place of parameters and buffers; shared ones stay shared."""
    fakes: Dict[int, Any] = {}
    places: List[Tuple[Dict[str, Any], str, Any]] = []
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            places += [(tensors, name, t) for name, t in tensors.items() if t is not None]
    with mode:
        for _, _, tensor in places:
            if id(tensor) not in fakes:
                fakes[id(tensor)] = _fake_of(tensor)
    try:
        for tensors, name, tensor in places:
            tensors[name] = fakes[id(tensor)]
        yield
    finally:
        for tensors, name, tensor in places:
            tensors[name] = tensor


def _fake_of(tensor: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _of_cpu(tensor.detach())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made
