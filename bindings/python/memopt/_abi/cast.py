"""The C interface of cast.h."""

from __future__ import annotations

import enum

from .base import TENSORS
from .words import *


@enumeration("MEMOPT_ROUND_")
class Rounding(enum.IntEnum):
    """How a value between two representable ones is rounded."""

    NEAREST_EVEN = 0
    STOCHASTIC = 1


@struct("memopt_cast_options")
class CastOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("rounding", U32),
        ("saturate", U32),
        ("seed", U64),
        ("sequence", U64),
        ("amax", ADDRESS),
    ]


@enumeration("MEMOPT_BLOCKS_")
class BlockFormat(enum.IntEnum):
    """A block-scaled format of a matrix."""

    MXFP8_E4M3 = 1
    MXFP8_E5M2 = 2
    MXFP4 = 3
    NVFP4 = 4
    E4M3_1X128 = 5
    E4M3_128X128 = 6
    E4M3_TENSOR = 7
    E5M2_TENSOR = 8
    NF4_32 = 9
    NF4 = 10
    NF4_128 = 11
    NF4_256 = 12
    NF4_512 = 13
    NF4_1024 = 14
    NF4_2048 = 15
    NF4_4096 = 16
    DYNAMIC8 = 17


@struct("memopt_blocks_layout")
class BlocksLayout(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "block_rows block_columns code_bits code_row_bytes code_bytes"),
        *each(U64, "scale_size scale_rows scale_columns scale_bytes"),
    ]


@struct("memopt_blocks")
class BlocksStruct(Struct):
    _fields_ = [
        *each(ADDRESS, "codes scales tensor_amax"),
        *each(U64, "rows columns"),
        ("format", U32),
    ]


@struct("memopt_blocks_options")
class BlocksOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U32, "rounding power_of_two"),
        *each(U64, "seed sequence"),
        ("amax", ADDRESS),
    ]


@struct("memopt_scaler_options")
class ScalerOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(F64, "init_scale growth_factor backoff_factor"),
        ("growth_interval", U32),
        ("disabled", U32),
        ("allocator", HANDLE),
        ("tag", U32),
    ]


@struct("memopt_scaler_state")
class ScalerState(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(F64, "scale growth_factor backoff_factor"),
        ("growth_interval", U32),
        ("growth_tracker", U32),
    ]


functions(
    memopt_cast=(CHECKED, HANDLE, TENSORS, TENSORS, U64, CastOptions, STREAM),
    memopt_blocks_get_layout=(CHECKED, U32, U64, U64, BlocksLayout),
    memopt_blocks_quantize=(CHECKED, HANDLE, BlocksStruct, TENSORS, U64, BlocksOptions, STREAM),
    memopt_blocks_dequantize=(CHECKED, HANDLE, TENSORS, BlocksStruct, U64, STREAM),
    memopt_accumulate=(CHECKED, HANDLE, TENSORS, TENSORS, U64, F32, STREAM),
    memopt_scale=(CHECKED, HANDLE, TENSORS, U64, ADDRESS, ADDRESS, STREAM),
    memopt_check_finite=(CHECKED, HANDLE, TENSORS, U64, ADDRESS, STREAM),
    memopt_scaler_create=(CHECKED, HANDLE, ScalerOptions, OUT_HANDLE),
    memopt_scaler_destroy=(CHECKED, HANDLE),
    memopt_scaler_get_scale=(ADDRESS, HANDLE),
    memopt_scaler_get_found_inf=(ADDRESS, HANDLE),
    memopt_scaler_unscale=(CHECKED, HANDLE, TENSORS, U64, STREAM),
    memopt_square_sum=(CHECKED, HANDLE, ADDRESS, TENSORS, U64, STREAM),
    memopt_norm=(CHECKED, HANDLE, ADDRESS, TENSORS, U64, F64, STREAM),
    memopt_scaler_update=(CHECKED, HANDLE, STREAM),
    memopt_scaler_get_state_sync=(CHECKED, HANDLE, STREAM, ScalerState),
    memopt_scaler_set_state_sync=(CHECKED, HANDLE, ScalerState, STREAM),
)
