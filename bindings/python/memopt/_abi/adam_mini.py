"""The C interface of adam_mini.h."""

from __future__ import annotations

from .base import TensorStruct
from .words import *


@struct("memopt_adam_mini")
class AdamMiniStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(TensorStruct, "parameter gradient mean"),
        *each(ADDRESS, "scales square_mean"),
        *each(U64, "rows columns step"),
        *each(F64, "lr beta1 beta2 eps weight_decay gradient_scale"),
        ("maximize", U32),
        ("found_inf", ADDRESS),
    ]


functions(
    memopt_adam_mini_get_scratch=(CHECKED, AdamMiniStruct, OUT_U64),
    memopt_adam_mini_step=(CHECKED, HANDLE, AdamMiniStruct, ADDRESS, U64, STREAM),
)
