"""The C interface of adafactor.h."""

from __future__ import annotations

from .base import TensorStruct
from .words import *


@struct("memopt_adafactor")
class AdafactorStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("parameter", TensorStruct),
        ("gradient", TensorStruct),
        *each(ADDRESS, "row_var column_var"),
        *each(U64, "rows columns step"),
        *each(F64, "lr beta2_decay"),
        ("eps", F64 * 2),
        *each(F64, "d weight_decay gradient_scale"),
        ("maximize", U32),
        ("found_inf", ADDRESS),
    ]


functions(
    memopt_adafactor_get_scratch=(CHECKED, AdafactorStruct, OUT_U64),
    memopt_adafactor_step=(CHECKED, HANDLE, AdafactorStruct, ADDRESS, U64, STREAM),
)
