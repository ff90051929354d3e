"""Casts, and the dynamic loss scaler."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from . import _abi, _lifetime
from ._abi import DType, Rounding
from ._arguments import choice, unsigned
from ._library import lib, output
from .device import Device
from .memory import Part
from .streams import StreamLike, stream_pointer
from .tensors import TensorLike, one_f32, tensor_array, tensor_list
from .views import Tensor

Tensors = Union[TensorLike, Sequence[TensorLike]]


def cast(
    device: Device,
    destinations: Tensors,
    sources: Tensors,
    *,
    rounding: Union[str, Rounding] = Rounding.NEAREST_EVEN,
    saturate: bool = False,
    seed: int = 0,
    sequence: int = 0,
    amax: Optional[TensorLike] = None,
    stream: StreamLike = None,
) -> None:
    """Casts tensors between the floating-point types, many in one call.

    `rounding` is "nearest_even" or "stochastic"; the latter is a function of `seed`, `sequence` (a
    number such as the step) and the element's place. With `saturate`, what overflows an 8-bit float
    becomes its largest number. `amax` is as many f32 as there are tensors: each is raised to the
    largest magnitude of its source.
    """
    into, outputs = tensor_array(tensor_list(destinations), device, "destination", writable=True)
    start, inputs = tensor_array(tensor_list(sources), device, "source")
    if len(outputs) != len(inputs):
        raise ValueError("cast: %d destinations, %d sources" % (len(outputs), len(inputs)))
    options = _abi.CastOptions(
        rounding=choice(Rounding, rounding, "rounding"),
        saturate=int(bool(saturate)),
        seed=unsigned(seed, 64, "seed"),
        sequence=unsigned(sequence, 64, "sequence"),
    )
    cells = None if amax is None else amax_cells(device, amax, len(inputs))
    if cells is not None:
        options.amax = cells.pointer
    lib.memopt_cast(device._handle.pointer, into, start, len(inputs), options, stream_pointer(stream))
    device._keep(stream, outputs, inputs, cells)


def amax(device: Device, amax: TensorLike, tensors: Tensors, *, stream: StreamLike = None) -> None:
    """Raises `amax`, as many f32 as there are tensors, to the largest magnitude of each."""
    array, views = tensor_array(tensor_list(tensors), device, "tensor")
    cells = amax_cells(device, amax, len(views))
    at = stream_pointer(stream)
    options = _abi.CastOptions(amax=cells.pointer)
    lib.memopt_cast(device._handle.pointer, None, array, len(views), options, at)
    device._keep(stream, views, cells)


def amax_cells(device: Device, amax: TensorLike, count: int) -> Tensor:
    """A view of as many f32 as there are tensors."""
    view = one_f32(amax, device, "amax")
    if view.count != count:
        raise ValueError("amax must be %d f32 elements, not %d" % (count, view.count))
    return view


class Scaler(_lifetime.Closing):
    """The dynamic loss scaler, with torch's GradScaler's rules and state.

    Scale and found-inf flag live in device memory; only calls that read a value back wait for the
    device: get_scale(), found_inf(), state_dict() and load_state_dict().
    """

    __slots__ = ("device", "_handle", "__weakref__")

    def __init__(
        self,
        device: Device,
        *,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        for name, value in (
            ("init_scale", init_scale),
            ("growth_factor", growth_factor),
            ("backoff_factor", backoff_factor),
            ("growth_interval", growth_interval),
        ):
            if not value > 0:  # 0 would mean the default to the library
                raise ValueError("%s must be greater than 0, not %r" % (name, value))
        options = _abi.ScalerOptions(
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=unsigned(growth_interval, 32, "growth_interval"),
            disabled=int(not enabled),
        )
        #: The device it lives on.
        self.device = device
        self._handle = _lifetime.create(
            self,
            "scaler",
            lib.memopt_scaler_destroy,
            lib.memopt_scaler_create,
            device._handle.pointer,
            options,
            parents=(device._handle,),
        )

    def scale_tensor(self) -> Tensor:
        """The scale in device memory (one f32), to multiply a loss by. Not to be written."""
        pointer = lib.memopt_scaler_get_scale(self._handle.pointer)
        return self._cell(pointer, readonly=True)

    def found_inf_tensor(self) -> Tensor:
        """The flag in device memory (one f32); checks of your own may set it to 1.0."""
        pointer = lib.memopt_scaler_get_found_inf(self._handle.pointer)
        return self._cell(pointer, readonly=False)

    def _cell(self, pointer: int, readonly: bool) -> Tensor:
        part = Part(self.device, pointer, DType.F32.itemsize, self._handle, self)
        cell = part.tensor(DType.F32)
        cell.readonly = readonly
        return cell

    def unscale(self, gradients: Tensors, stream: StreamLike = None) -> None:
        """Multiplies gradients by 1 / scale in place and notes non-finite ones."""
        array, views = self._tensors(gradients, "gradient", writable=True)
        lib.memopt_scaler_unscale(self._handle.pointer, array, len(views), stream_pointer(stream))
        self.device._keep(stream, views)

    def check(self, gradients: Tensors, stream: StreamLike = None) -> None:
        """Notes non-finite gradients without changing them."""
        array, views = self._tensors(gradients, "gradient")
        flag = lib.memopt_scaler_get_found_inf(self._handle.pointer)
        handle, at = self.device._handle.pointer, stream_pointer(stream)
        lib.memopt_check_finite(handle, array, len(views), flag, at)
        self.device._keep(stream, views)

    def update(self, stream: StreamLike = None) -> None:
        """Ends a step: shrinks or grows the scale and clears the flag."""
        lib.memopt_scaler_update(self._handle.pointer, stream_pointer(stream))

    def get_scale(self, stream: StreamLike = None) -> float:
        """The scale after the stream's work so far."""
        return float(self._state(stream).scale)

    def found_inf(self, stream: StreamLike = None) -> bool:
        """Whether a check since the last update found a non-finite gradient."""
        cell = (ctypes.c_float * 1)()
        self.device.copy(cell, self.found_inf_tensor(), stream=stream)
        self.device.sync_stream(stream)
        return bool(cell[0])

    def state_dict(self, stream: StreamLike = None) -> Dict[str, Any]:
        """The state under the keys of torch's GradScaler."""
        state = self._state(stream)
        return {
            "scale": state.scale,
            "growth_factor": state.growth_factor,
            "backoff_factor": state.backoff_factor,
            "growth_interval": state.growth_interval,
            "_growth_tracker": state.growth_tracker,
        }

    def load_state_dict(self, state: Dict[str, Any], stream: StreamLike = None) -> None:
        """Sets the state; every value is checked before anything changes."""
        raw = _abi.ScalerState(
            scale=state["scale"],
            growth_factor=state["growth_factor"],
            backoff_factor=state["backoff_factor"],
            growth_interval=unsigned(state["growth_interval"], 32, "growth_interval"),
            growth_tracker=unsigned(state["_growth_tracker"], 32, "_growth_tracker"),
        )
        lib.memopt_scaler_set_state_sync(self._handle.pointer, raw, stream_pointer(stream))

    def _state(self, stream: StreamLike) -> _abi.ScalerState:
        raw: _abi.ScalerState = output(lib.memopt_scaler_get_state_sync, self._handle.pointer, stream_pointer(stream))
        return raw

    def _tensors(self, sources: Tensors, what: str, writable: bool = False) -> Tuple[Any, Any]:
        return tensor_array(tensor_list(sources), self.device, what, writable=writable)
