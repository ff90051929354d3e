"""The C interface of plan.h: settings go in as text, results come out as JSON."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER

from .words import *

#: Phases and categories of the bytes that a measuring function gives, in their order.
PLAN_PHASES = ("load", "forward", "loss", "backward", "step")
PLAN_CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "batch", "overhead")

PlanMeasure = CFUNCTYPE(I32, ADDRESS, TEXT, POINTER(U64))


@struct("memopt_plan_event")
class PlanEventStruct(Struct):
    _fields_ = each(U64, "id bytes")


functions(
    "libmemopt-plan",
    memopt_plan_create=(CHECKED, TEXT, PlanMeasure, ADDRESS, OUT_HANDLE),
    memopt_plan_solve=(CHECKED, TEXT, PlanMeasure, ADDRESS, OUT_HANDLE),
    memopt_plan_destroy=(CHECKED, HANDLE),
    memopt_plan_get_json=(TEXT, HANDLE),
    memopt_plan_get_value=(CHECKED, HANDLE, TEXT, OUT_F64),
    memopt_plan_get_events=(CHECKED, HANDLE, POINTER(PlanEventStruct), U64, OUT_U64),
    memopt_plan_get_key=(I32, U64, POINTER(TEXT), POINTER(TEXT), POINTER(TEXT), POINTER(TEXT)),
)
