"""The C interface of optim.h and optim_files.h."""

from __future__ import annotations

import enum
from ctypes import CFUNCTYPE, POINTER

from .base import TENSORS, TensorStruct
from .words import *


@enumeration("MEMOPT_OPTIMIZER_")
class OptimizerKind(enum.IntEnum):
    """The update rule."""

    ADAMW = 1
    LION = 2
    SGD = 3
    ADAM = 4
    SCHEDULE_FREE = 5
    RMSPROP = 6
    ADAGRAD = 7
    RMSPROP_MOMENTUM = 8
    ADEMAMIX = 9
    ADAFACTOR = 10


@enumeration(
    "MEMOPT_STATE_",
    BITS8="MEMOPT_STATE_8BIT",
    BITS8_DYNAMIC="MEMOPT_STATE_8BIT_DYNAMIC",
    BITS4="MEMOPT_STATE_4BIT",
)
class StateFormat(enum.IntEnum):
    """How optimizer states are kept."""

    F32 = 1
    BF16 = 6
    BITS8 = 8
    BITS8_DYNAMIC = 2
    BITS4 = 7


@struct("memopt_optimizer_options")
class OptimizerOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U32, "kind state_format stochastic_rounding split_weights"),
        ("min_8bit_size", U64),
        ("seed", U64),
        ("page_bytes", U64),
        ("trust", U32),
    ]


@struct("memopt_optimizer_group")
class OptimizerGroup(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(F64, "lr beta1 beta2 eps weight_decay"),
        ("maximize", U32),
        ("nesterov", U32),
        ("momentum", F64),
        ("dampening", F64),
        ("device_lr", ADDRESS),
        *each(F64, "average beta3 alpha t_alpha t_beta3"),
        ("min_8bit_size", U64),
        *each(F64, "beta2_decay eps2 d max_ratio"),
        *each(U32, "trust_clip uncorrected"),
    ]


@struct("memopt_shard")
class Shard(Struct):
    _fields_ = each(U64, "first whole")


@struct("memopt_parameter_options")
class ParameterOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("model_copy", TensorStruct),
        ("states", ADDRESS),
        ("state_count", U64),
        ("steps", ADDRESS),
        *each(U64, "rows columns"),
        ("shard", Shard),
    ]


@struct("memopt_step_options")
class StepOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("scaler", ADDRESS),
        ("max_norm", F64),
        ("skip_non_finite", U32),
        ("already_unscaled", U32),
        *each(ADDRESS, "out_norm grad_scale found_inf square_sum squares"),
        ("half", U32),
    ]


@struct("memopt_state_view")
class StateView(Struct):
    _fields_ = [("struct_size", SIZE), ("name", TEXT), ("tensor", TensorStruct)]


ExportWriter = CFUNCTYPE(I32, ADDRESS, ADDRESS, U64)
ExportReader = CFUNCTYPE(I32, ADDRESS, U64, U64, ADDRESS)


@struct("memopt_export_source")
class ExportSource(Struct):
    _fields_ = [("reader", ExportReader), ("user", ADDRESS), ("bytes", U64)]


functions(
    memopt_optimizer_create=(CHECKED, HANDLE, OptimizerOptions, OUT_HANDLE),
    memopt_optimizer_destroy=(CHECKED, HANDLE),
    memopt_optimizer_add_group=(CHECKED, HANDLE, OptimizerGroup, OUT_U32),
    memopt_optimizer_set_group=(CHECKED, HANDLE, U32, OptimizerGroup),
    memopt_optimizer_get_group=(CHECKED, HANDLE, U32, OptimizerGroup),
    memopt_optimizer_add_parameter=(CHECKED, HANDLE, U32, TENSORS, ParameterOptions, STREAM, OUT_U64),
    memopt_optimizer_step=(CHECKED, HANDLE, TENSORS, U64, StepOptions, STREAM),
    memopt_optimizer_get_state=(CHECKED, HANDLE, U64, U64, StateView),
    memopt_optimizer_get_steps_sync=(CHECKED, HANDLE, U64, STREAM, OUT_U64),
    memopt_optimizer_set_steps_sync=(CHECKED, HANDLE, U64, U64, STREAM),
    memopt_optimizer_export_pieces_sync=(CHECKED, HANDLE, ExportWriter, ADDRESS, STREAM),
    memopt_optimizer_export_sync=(CHECKED, HANDLE, U64, STREAM, ADDRESS, OUT_U64),
    memopt_optimizer_import_sync=(CHECKED, HANDLE, ADDRESS, U64, U32, STREAM),
    memopt_optimizer_import_pieces_sync=(CHECKED, HANDLE, ExportSource, U64, U32, STREAM),
    memopt_optimizer_save_sync=(CHECKED, HANDLE, TEXT, STREAM),
    memopt_optimizer_load_sync=(CHECKED, HANDLE, POINTER(TEXT), U64, U32, STREAM),
    memopt_quantize=(CHECKED, HANDLE, U32, TENSORS, TENSORS, TENSORS, I32, STREAM),
    memopt_dequantize=(CHECKED, HANDLE, U32, TENSORS, TENSORS, TENSORS, I32, STREAM),
    memopt_state_map=(CHECKED, U32, I32, OUT_F32),
)
