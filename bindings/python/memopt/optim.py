"""Optimizers over tensors: AdamW with 32-bit or 8-bit states, one fused call a step.

:class:`Optimizer` is the library's: groups, parameters, gradients by parameter number.
:class:`AdamW` and :class:`AdamW8bit` add torch's manners: parameters or groups on construction, and
gradients taken from each parameter's ``.grad``.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from . import _abi, _lifetime, errors
from ._abi import DType, OptimizerKind, StateFormat, TensorStruct
from ._library import lib
from .allocator import Allocator
from .cast import Scaler
from .device import Device, StreamLike, choice, stream_pointer, unsigned
from .memory import Part
from .sizes import Size, parse_size
from .tensors import Tensor, TensorLike, fill_struct, naming, passing, tensor

_FORMAT_NAMES = {"f32": StateFormat.F32, "32bit": StateFormat.F32, "8bit": StateFormat.BITS8}


class Group:
    """The hyperparameters of a group, read and set like torch's: ``group.lr = 3e-4``."""

    __slots__ = ("_optimizer", "index")

    def __init__(self, optimizer: "Optimizer", index: int) -> None:
        self._optimizer = optimizer
        #: The group's number.
        self.index = index

    def _get(self) -> _abi.OptimizerGroup:
        raw = _abi.OptimizerGroup()
        lib.memopt_optimizer_get_group(
            self._optimizer._handle.pointer, self.index, ctypes.byref(raw)
        )
        return raw

    def set(self, **values: Any) -> None:
        """Changes some hyperparameters at once, for later steps; all are checked first."""
        raw = self._get()
        _set_group(raw, values)
        lib.memopt_optimizer_set_group(
            self._optimizer._handle.pointer, self.index, ctypes.byref(raw)
        )

    def as_dict(self) -> Dict[str, Any]:
        """All hyperparameters under torch's names."""
        raw = self._get()
        return {
            "lr": raw.lr,
            "betas": (raw.beta1, raw.beta2),
            "eps": raw.eps,
            "weight_decay": raw.weight_decay,
            "maximize": bool(raw.maximize),
        }

    def __repr__(self) -> str:
        return "<memopt.Group %d %s>" % (self.index, self.as_dict())


def _group_property(name: str, text: str) -> property:
    def get(self: Group) -> Any:
        return self.as_dict()[name]

    def set_(self: Group, value: Any) -> None:
        self.set(**{name: value})

    return property(get, set_, doc=text)


for _name, _text in (
    ("lr", "Learning rate."),
    ("betas", "Decays of the first and second moment."),
    ("eps", "Added to the root."),
    ("weight_decay", "Decoupled weight decay."),
    ("maximize", "Whether steps climb."),
):
    setattr(Group, _name, _group_property(_name, _text))


def _set_group(raw: _abi.OptimizerGroup, values: Dict[str, Any]) -> None:
    for name, value in values.items():
        if name == "betas":
            raw.beta1, raw.beta2 = value
        elif name == "maximize":
            raw.maximize = int(bool(value))
        elif name in ("lr", "eps", "weight_decay"):
            setattr(raw, name, float(value))
        else:
            raise TypeError(
                "a group has no %r; it has lr, betas, eps, weight_decay and maximize" % name
            )


class _Parameter:
    """What the binding knows of a parameter."""

    __slots__ = ("view", "source", "copy")

    def __init__(self, view: Tensor, source: TensorLike, copy: Optional[Tensor]) -> None:
        self.view = view  # keeps the memory
        self.source = source
        self.copy = copy


class Optimizer(_lifetime.Closing):
    """An optimizer over groups of parameters; states come from the allocator.

    `states` is "f32" or "8bit"; tensors below `min_8bit_size` elements keep 32-bit states.
    `stochastic_rounding` is for bf16 and f16 parameters. One thread at a time.
    """

    __slots__ = ("_allocator", "_device", "_handle", "_parameters", "groups", "__weakref__")

    def __init__(
        self,
        allocator: Allocator,
        *,
        states: Union[str, StateFormat] = "f32",
        min_8bit_size: Size = 4096,
        block_size: int = 256,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        if states in _FORMAT_NAMES:
            states = _FORMAT_NAMES[str(states)]
        options = _abi.OptimizerOptions(
            kind=OptimizerKind.ADAMW,
            state_format=choice(StateFormat, states, "states"),
            block_size=unsigned(block_size, 32, "block_size"),
            stochastic_rounding=int(bool(stochastic_rounding)),
            min_8bit_size=max(parse_size(min_8bit_size), 1),  # to C, 0 would be the default
            seed=unsigned(seed, 64, "seed"),
        )
        out = ctypes.c_void_p()
        lib.memopt_optimizer_create(
            allocator._handle.pointer, ctypes.byref(options), ctypes.byref(out)
        )
        self._allocator = allocator
        self._device = allocator.device
        self._handle = _lifetime.Handle(
            "optimizer", out.value or 0, _end_optimizer, (allocator._handle,)
        )
        _lifetime.finalize(self, self._handle)
        self._parameters: List[_Parameter] = []
        #: The groups by number.
        self.groups: List[Group] = []

    @property
    def allocator(self) -> Allocator:
        """Where states come from."""
        return self._allocator

    @property
    def device(self) -> Device:
        """Where parameters live."""
        return self._device

    def close(self) -> None:
        """Frees the states, and lets go of the parameters."""
        self._handle.close()
        self._parameters.clear()

    def __len__(self) -> int:
        """Parameters."""
        return len(self._parameters)

    # --- setting up ---

    def add_group(self, **values: Any) -> Group:
        """Adds a group: lr, betas, eps, weight_decay, maximize; torch's AdamW defaults."""
        raw = _abi.OptimizerGroup(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=1e-2)
        _set_group(raw, values)
        out = ctypes.c_uint32()
        lib.memopt_optimizer_add_group(self._handle.pointer, ctypes.byref(raw), ctypes.byref(out))
        group = Group(self, out.value)
        self.groups.append(group)
        return group

    def add_parameter(
        self,
        parameter: TensorLike,
        group: Union[Group, int] = 0,
        *,
        model_copy: Optional[TensorLike] = None,
        stream: StreamLike = None,
    ) -> int:
        """Adds a parameter (f32, f16 or bf16) with states of zero; its number.

        `model_copy` is an f16 or bf16 tensor that receives the rounded parameter at each step, for
        mixed precision with an f32 master.
        """
        view, struct = self._struct(parameter, "parameter", writable=True)
        copy = copy_struct = None
        if model_copy is not None:
            copy, copy_struct = self._struct(model_copy, "model copy of parameter", writable=True)
        out = ctypes.c_uint64()
        lib.memopt_optimizer_add_parameter(
            self._handle.pointer,
            group.index if isinstance(group, Group) else unsigned(group, 32, "group"),
            ctypes.byref(struct),
            None if copy_struct is None else ctypes.byref(copy_struct),
            stream_pointer(stream),
            ctypes.byref(out),
        )
        self._parameters.append(_Parameter(view, parameter, copy))
        return out.value

    def _struct(
        self, source: TensorLike, what: str, writable: bool = False
    ) -> Tuple[Tensor, TensorStruct]:
        with naming(what, len(self)):
            view = tensor(source, writable=writable)
            self._device._check_tensor(view)
        struct = TensorStruct()
        fill_struct(struct, view)
        return view, struct

    # --- stepping ---

    def step(
        self,
        gradients: Optional[Sequence[Optional[TensorLike]]] = None,
        *,
        scaler: Optional[Scaler] = None,
        max_norm: float = 0.0,
        skip_non_finite: bool = False,
        already_unscaled: bool = False,
        out_norm: Optional[TensorLike] = None,
        stream: StreamLike = None,
    ) -> None:
        """One fused step over all parameters that have a gradient; it never waits for the device.

        `gradients` go by parameter number, None where there is none; without them each parameter's
        ``.grad`` is taken. `scaler`: gradients are scaled by it and are unscaled in the step.
        `max_norm`: clip the global norm. `skip_non_finite`: a non-finite gradient leaves everything
        as it is (always so with a scaler or max_norm). `out_norm`: one f32 in device memory that
        receives the norm before clipping.
        """
        if gradients is None:
            gradients = [getattr(p.source, "grad", None) for p in self._parameters]
        if len(gradients) != len(self._parameters):
            raise ValueError(
                "step: %d gradients for %d parameters" % (len(gradients), len(self._parameters))
            )
        array, views = self._gradients(gradients)
        options = _abi.StepOptions(
            scaler=None if scaler is None else scaler._handle.pointer,
            max_norm=max_norm,
            skip_non_finite=int(bool(skip_non_finite)),
            already_unscaled=int(bool(already_unscaled)),
        )
        if out_norm is not None:
            norm = _one_f32(out_norm, self._device)
            views.append(norm)
            options.out_norm = norm.pointer
        lib.memopt_optimizer_step(
            self._handle.pointer,
            array,
            len(gradients),
            ctypes.byref(options),
            stream_pointer(stream),
        )
        self._device._keep(stream, views)

    def _gradients(self, gradients: Sequence[Optional[TensorLike]]) -> Tuple[Any, List[Tensor]]:
        array = (TensorStruct * max(len(gradients), 1))()
        views: List[Tensor] = []
        for i, (gradient, parameter) in enumerate(zip(gradients, self._parameters)):
            self._check_in_place(i, parameter)
            if gradient is None:
                array[i].dtype = parameter.view.dtype
                array[i].count = parameter.view.count
                continue
            view = self._gradient(i, gradient)
            fill_struct(array[i], view)
            if view.count != parameter.view.count:
                raise ValueError(
                    "gradient %d has %d elements, its parameter %d"
                    % (i, view.count, parameter.view.count)
                )
            views.append(view)
        return array, views

    def _gradient(self, index: int, gradient: TensorLike) -> Tensor:
        with naming("gradient", index):
            view = passing(gradient)
            self._device._check_tensor(view)
            return view

    @staticmethod
    def _check_in_place(index: int, parameter: _Parameter) -> None:
        """A framework may give a tensor other memory (p.data = …), which a step would not see."""
        data_ptr = getattr(parameter.source, "data_ptr", None)
        if data_ptr is not None and data_ptr() != parameter.view._pointer:
            raise ValueError(
                "parameter %d is not where it was when it was added; make a new optimizer after"
                " moving a model" % index
            )

    # --- states ---

    def state(self, parameter: int) -> Dict[str, Tensor]:
        """A parameter's state tensors by name, to read or write in stream order.

        "exp_avg" and "exp_avg_sq"; for 8-bit states these are u8 codes, with "absmax1" and
        "absmax2" per block.
        """
        result: Dict[str, Tensor] = {}
        while True:
            raw = _abi.StateView()
            try:
                lib.memopt_optimizer_state(
                    self._handle.pointer,
                    unsigned(parameter, 64, "parameter"),
                    len(result),
                    ctypes.byref(raw),
                )
            except errors.NotFoundError:
                return result
            dtype = DType(raw.tensor.dtype)
            part = Part(
                self._device,
                raw.tensor.data,
                raw.tensor.count * dtype.itemsize,
                self._handle,
                self,
            )
            result[raw.name.decode()] = part.tensor(dtype, raw.tensor.count)

    @property
    def state_bytes(self) -> int:
        """Bytes of all state tensors."""
        return sum(view.nbytes for i in range(len(self)) for view in self.state(i).values())

    def steps(self, parameter: int, stream: StreamLike = None) -> int:
        """Steps that a parameter has taken. Waits for the stream."""
        out = ctypes.c_uint64()
        lib.memopt_optimizer_get_steps_sync(
            self._handle.pointer,
            unsigned(parameter, 64, "parameter"),
            stream_pointer(stream),
            ctypes.byref(out),
        )
        return out.value

    def set_steps(self, parameter: int, steps: int, stream: StreamLike = None) -> None:
        """Sets the steps that a parameter has taken. Waits for the stream."""
        lib.memopt_optimizer_set_steps_sync(
            self._handle.pointer,
            unsigned(parameter, 64, "parameter"),
            stream_pointer(stream),
            unsigned(steps, 64, "steps"),
        )

    def export_bytes(self, stream: StreamLike = None) -> bytearray:
        """Groups, step counts and states, in a checksummed format that is the same everywhere."""
        size = ctypes.c_uint64()
        lib.memopt_optimizer_export_size(self._handle.pointer, ctypes.byref(size))
        data = bytearray(size.value)
        lib.memopt_optimizer_export_sync(
            self._handle.pointer, tensor(data).pointer, size.value, stream_pointer(stream)
        )
        return data

    def import_bytes(self, data: TensorLike, stream: StreamLike = None) -> None:
        """Reads what export_bytes() gave; everything is checked before anything changes."""
        view = tensor(data)
        lib.memopt_optimizer_import_sync(
            self._handle.pointer, view.pointer, view.nbytes, stream_pointer(stream)
        )


def _end_optimizer(pointer: int, force: bool) -> None:
    lib.memopt_optimizer_destroy(pointer)


def _one_f32(out: TensorLike, device: Device) -> Tensor:
    view = tensor(out, writable=True)
    device._check_tensor(view)
    if view.dtype is not DType.F32 or view.count < 1:
        raise ValueError("out_norm is one f32, not %d of %s" % (view.count, view.dtype.name))
    return view


Parameters = Iterable[Union[TensorLike, Dict[str, Any]]]


class AdamW(Optimizer):
    """AdamW with 32-bit states over parameters, or over dicts {"params": …, "lr": …, …}."""

    __slots__ = ()

    _states = StateFormat.F32

    def __init__(
        self,
        allocator: Allocator,
        params: Parameters,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
        stream: StreamLike = None,
        **options: Any,
    ) -> None:
        super().__init__(
            allocator,
            states=self._states,
            stochastic_rounding=stochastic_rounding,
            seed=seed,
            **options,
        )
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)
        try:
            self._add_all(list(params), defaults, stream)
        except BaseException:
            self.close()
            raise

    def _add_all(self, params: List[Any], defaults: Dict[str, Any], stream: StreamLike) -> None:
        if not params:
            raise ValueError("the optimizer got no parameters")
        groups = params if isinstance(params[0], dict) else [{"params": params}]
        for values in groups:
            own = {key: value for key, value in values.items() if key != "params"}
            group = self.add_group(**{**defaults, **own})
            for parameter in values["params"]:
                self.add_parameter(parameter, group, stream=stream)


class AdamW8bit(AdamW):
    """AdamW with 8-bit block-wise states; the same arguments, and `min_8bit_size`."""

    __slots__ = ()

    _states = StateFormat.BITS8
