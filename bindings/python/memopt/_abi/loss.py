"""The C interface of loss.h."""

from __future__ import annotations

from .words import *


@struct("memopt_logits")
class Logits(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("data", ADDRESS),
        *each(U64, "rows columns stride first_class"),
        ("dtype", I32),
    ]


@struct("memopt_cross_entropy_row")
class CrossEntropyRow(Struct):
    _fields_ = [("sum", F64), *each(F32, "largest target"), *each(U32, "found reserved")]


functions(
    memopt_cross_entropy_add=(CHECKED, HANDLE, Logits, ADDRESS, CrossEntropyRow, STREAM),
    memopt_cross_entropy_losses=(CHECKED, HANDLE, CrossEntropyRow, ADDRESS, U64, OUT_F32, STREAM),
    memopt_cross_entropy_gradient=(CHECKED, HANDLE, Logits, ADDRESS, CrossEntropyRow, F32, STREAM),
)
