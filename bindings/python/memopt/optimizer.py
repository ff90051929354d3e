"""The library's optimizer: groups, parameters, states of 4, 8 or 32 bits, one fused call a step.

Gradients go by parameter number; optim.py adds torch's manners.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _abi, _lifetime
from ._abi import DType, OptimizerKind, ParameterOptions, StateFormat, TensorStruct
from ._arguments import choice, unsigned
from ._library import lib, listed, output
from .allocator import Allocator
from .casts import Scaler
from .codes import format_of, residual_bytes
from .device import Device
from .groups import VALUES, Group, set_values
from .memory import Part
from .rules import MIN_8BIT_SIZE
from .sizes import Size, parse_size
from .streams import StreamLike, stream_pointer
from .tensors import TensorLike, fill_struct, naming, one_f32, passing, tensor
from .views import Tensor


class _Parameter:
    """What the binding knows of a parameter."""

    __slots__ = ("view", "source", "copy")

    def __init__(self, view: Tensor, source: TensorLike, copy: Optional[Tensor]) -> None:
        self.view = view  # keeps the memory
        self.source = source
        self.copy = copy


class Optimizer(_lifetime.Closing):
    """An optimizer over groups of parameters; states come from the allocator.

    `kind` is "adamw", "adam", "lion" or "sgd". `states` is "fp32", "8bit" or StateFormat.BITS8_DYNAMIC (8 bits as
    bitsandbytes'), with AdamW also "bf16" or "4bit"; tensors below `min_8bit_size` elements keep 32-bit states
    whatever it is. `stochastic_rounding` is for bf16 and f16 parameters. `split_weights` (True or 8, or 16) gives
    bf16 parameters a state of so many more bits, in place of an f32 master, which 16 bits keep exactly.
    One thread at a time.
    """

    __slots__ = ("allocator", "device", "_handle", "_parameters", "groups", "kind", "__weakref__")

    def __init__(
        self,
        allocator: Allocator,
        *,
        kind: Union[str, OptimizerKind] = OptimizerKind.ADAMW,
        states: Union[str, StateFormat] = "fp32",
        min_8bit_size: Size = MIN_8BIT_SIZE,
        stochastic_rounding: bool = False,
        seed: int = 0,
        split_weights: Union[bool, int] = False,
    ) -> None:
        #: The update rule.
        self.kind = OptimizerKind(choice(OptimizerKind, kind, "kind"))
        options = _abi.OptimizerOptions(
            kind=self.kind,
            state_format=format_of(states),
            stochastic_rounding=int(bool(stochastic_rounding)),
            min_8bit_size=max(parse_size(min_8bit_size), 1),  # to C, 0 would be the default
            seed=unsigned(seed, 64, "seed"),
            split_weights=residual_bytes(split_weights),
        )
        #: Where states come from.
        self.allocator = allocator
        #: Where parameters live.
        self.device: Device = allocator.device
        self._handle = _lifetime.create(
            self,
            "optimizer",
            lib.memopt_optimizer_destroy,
            lib.memopt_optimizer_create,
            allocator._handle.pointer,
            options,
            parents=(allocator._handle,),
        )
        self._parameters: List[_Parameter] = []
        #: The groups by number.
        self.groups: List[Group] = []

    def close(self) -> None:
        """Frees the states, and lets go of the parameters."""
        self._handle.close()
        self._parameters.clear()

    def __len__(self) -> int:
        """Parameters."""
        return len(self._parameters)

    # --- setting up ---

    def add_group(self, *, min_8bit_size: Optional[Size] = None, **values: Any) -> Group:
        """Adds a group with the kind's hyperparameters: AdamW and Adam have lr, betas, eps and weight_decay,
        Lion lr, betas and weight_decay, SGD lr, momentum, dampening, weight_decay and nesterov;
        schedule-free AdamW AdamW's and average; RMSprop lr, alpha, eps and weight_decay, with momentum that
        too; Adagrad lr, eps and weight_decay; AdEMAMix AdamW's with three betas, alpha, t_alpha and t_beta3;
        Adafactor lr, beta2_decay, two eps, d and weight_decay; each maximize. Defaults are torch's, for Lion
        its paper's. `min_8bit_size` is the group's own."""
        raw = _abi.OptimizerGroup()
        if min_8bit_size is not None:
            raw.min_8bit_size = max(parse_size(min_8bit_size), 1)  # to C, 0 is the optimizer's
        set_values(self.kind, raw, {**VALUES[self.kind], **values})
        number = output(lib.memopt_optimizer_add_group, self._handle.pointer, raw)
        group = Group(self._handle, self.kind, number)
        self.groups.append(group)
        return group

    def add_parameter(
        self,
        parameter: TensorLike,
        group: Union[Group, int] = 0,
        *,
        model_copy: Optional[TensorLike] = None,
        shard: Optional[Tuple[int, int]] = None,
        stream: StreamLike = None,
    ) -> int:
        """Adds a parameter (f32, f16 or bf16) with states of zero; its number. Of one of two dimensions or
        more Adafactor keeps means of rows and columns, which are the last two.

        `model_copy` is an f16 or bf16 tensor that receives the rounded parameter at each step, for
        mixed precision with an f32 master. `shard` (first, whole): the parameter is the elements from
        `first` on of one with `whole` elements, cut at multiples of 256; it may be empty.
        """
        view, struct = self._struct(parameter, "parameter", writable=True)
        copy, options = None, ParameterOptions()
        if model_copy is not None:
            copy, options.model_copy = self._struct(model_copy, "model copy of parameter", writable=True)
        if shard is not None:
            options.shard.first, options.shard.whole = (unsigned(n, 64, "shard") for n in shard)
        if self.kind is OptimizerKind.ADAFACTOR and len(view.shape) > 1:
            options.rows, options.columns = view.shape[-2:]
        number = output(
            lib.memopt_optimizer_add_parameter,
            self._handle.pointer,
            group.index if isinstance(group, Group) else unsigned(group, 32, "group"),
            struct,
            options,
            stream_pointer(stream),
        )
        self._parameters.append(_Parameter(view, parameter, copy))
        return int(number)

    def _struct(
        self, source: TensorLike, what: str, writable: bool = False
    ) -> Tuple[Tensor, TensorStruct]:
        with naming(what, len(self)):
            view = tensor(source, writable=writable)
            self.device._check_tensor(view)
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
            norm = one_f32(out_norm, self.device, "out_norm")
            views.append(norm)
            options.out_norm = norm.pointer
        lib.memopt_optimizer_step(
            self._handle.pointer,
            array,
            len(gradients),
            options,
            stream_pointer(stream),
        )
        self.device._keep(stream, views)

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
            self.device._check_tensor(view)
            return view

    @staticmethod
    def _check_in_place(index: int, parameter: _Parameter) -> None:
        """A framework may give a tensor other memory (p.data = …), which a step would not see."""
        data_ptr = getattr(parameter.source, "data_ptr", None)
        if data_ptr is not None and data_ptr() != parameter.view._pointer:
            raise ValueError(
                "parameter %d was moved after it was added; make a new optimizer after moving a"
                " model" % index
            )

    # --- states ---

    def state(self, parameter: int) -> Dict[str, Tensor]:
        """A parameter's state tensors by name, to read or write in stream order.

        "exp_avg" and, with AdamW, "exp_avg_sq"; "momentum_buffer" with SGD. Coded ones are u8
        codes, or pairs of codes (4-bit), with a scale per block: "absmax1" and "absmax2", of
        companded codes "power1" to "power3", of 4 bits "companded1" and "companded2".
        """
        result: Dict[str, Tensor] = {}
        number = unsigned(parameter, 64, "parameter")
        for raw in listed(lib.memopt_optimizer_get_state, self._handle.pointer, number):
            data, count, dtype = raw.tensor.data, raw.tensor.count, DType(raw.tensor.dtype)
            part = Part(self.device, data, count * dtype.itemsize, self._handle, self)
            result[raw.name.decode()] = part.tensor(dtype, count)
        return result

    @property
    def state_bytes(self) -> int:
        """Bytes of all state tensors."""
        return sum(view.nbytes for i in range(len(self)) for view in self.state(i).values())

    def steps(self, parameter: int, stream: StreamLike = None) -> int:
        """Steps that a parameter has taken. Waits for the stream."""
        return int(
            output(
                lib.memopt_optimizer_get_steps_sync,
                self._handle.pointer,
                unsigned(parameter, 64, "parameter"),
                stream_pointer(stream),
            )
        )

    def set_steps(self, parameter: int, steps: int, stream: StreamLike = None) -> None:
        """Sets the steps that a parameter has taken. Waits for the stream."""
        lib.memopt_optimizer_set_steps_sync(
            self._handle.pointer,
            unsigned(parameter, 64, "parameter"),
            unsigned(steps, 64, "steps"),
            stream_pointer(stream),
        )

    def export_bytes(self, stream: StreamLike = None) -> bytearray:
        """Groups, step counts and states, in a checksummed format that is the same everywhere."""
        write, handle = lib.memopt_optimizer_export_sync, self._handle.pointer
        data = bytearray(output(write, handle, 0, None, None))
        write(handle, len(data), stream_pointer(stream), tensor(data).pointer, None)
        return data

    def import_bytes(
        self, data: TensorLike, stream: StreamLike = None, *, convert: bool = False
    ) -> None:
        """Reads what export_bytes() gave; everything is checked before anything changes. `convert`:
        moments of other state formats are converted, by way of fp32."""
        view = tensor(data)
        handle, at = self._handle.pointer, stream_pointer(stream)
        lib.memopt_optimizer_import_sync(handle, view.pointer, view.nbytes, convert, at)

    def save(self, path: Union[str, "os.PathLike[str]"], stream: StreamLike = None) -> None:
        """Writes what export_bytes() gives into a file, which is the old or the new one whenever the process ends."""
        lib.memopt_optimizer_save_sync(self._handle.pointer, os.fsencode(path), stream_pointer(stream))

    def load(
        self, *paths: Union[str, "os.PathLike[str]"], convert: bool = False, stream: StreamLike = None
    ) -> None:
        """Reads what save() wrote: the files of all processes, or those that have this one's shards, whatever
        their cut. Everything is checked before anything changes."""
        names = (ctypes.c_char_p * len(paths))(*map(os.fsencode, paths))
        at = stream_pointer(stream)
        lib.memopt_optimizer_load_sync(self._handle.pointer, names, len(paths), convert, at)
