"""The C interface of trust.h."""

from __future__ import annotations

from .base import TENSORS
from .words import *


@struct("memopt_trust")
class TrustStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(F64, "lr weight_decay max_ratio"),
        *each(U32, "clip negated"),
        ("found_inf", ADDRESS),
    ]


functions(
    memopt_trust_get_scratch=(CHECKED, TENSORS, U64, OUT_U64),
    memopt_trust_squares=(
        CHECKED, HANDLE, TrustStruct, TENSORS, TENSORS, U64, ADDRESS, ADDRESS, U64, STREAM,
    ),
    memopt_trust_apply=(
        CHECKED, HANDLE, TrustStruct, TENSORS, TENSORS, U64, ADDRESS, ADDRESS, U64, STREAM,
    ),
)
