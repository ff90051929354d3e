"""The C interface of plan.h, what comes out: what a training step needs, and what fits."""

from __future__ import annotations

import enum
from ctypes import CFUNCTYPE, POINTER

from .plan_description import *
from .words import *


@enumeration("MEMOPT_PLAN_PHASE_")
class PlanPhase(enum.IntEnum):
    """The moments of a step."""

    LOAD = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    STEP = 4


@struct("memopt_plan_bytes")
class PlanBytes(Struct):
    _fields_ = [
        ("parameters", U64),
        ("gradients", U64),
        ("optimizer", U64),
        ("activations", U64),
        ("logits", U64),
        ("batch", U64),
        ("overhead", U64),
        ("total", U64),
    ]


@struct("memopt_plan_report")
class PlanReport(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("peak", PlanBytes),
        ("phases", PlanBytes * 5),
        ("peak_phase", U32),
        ("fits", U32),
        ("limit_bytes", U64),
        ("mean_bytes", U64),
        ("parameter_count", U64),
        ("trainable_count", U64),
        ("buffer_bytes", U64),
        ("activation_bytes", U64),
        ("host_bytes", U64),
        ("host_pinned_bytes", U64),
        ("disk_bytes", U64),
        ("link_bytes", U64),
        ("samples", U64),
        ("layer_count", U64),
        ("recomputed_layers", U64),
        ("forward_flops", F64),
        ("time_factor", F64),
        ("recompute_factor", F64),
        ("offload_factor", F64),
        ("step_seconds", F64),
        ("peak_reason", CHAR * 256),
        ("time_assumption", CHAR * 256),
        ("overhead_reason", CHAR * 256),
        ("held_bytes", U64),
        ("activation_peak_bytes", U64),
    ]


@enumeration("MEMOPT_PLAN_LAYER_")
class PlanLayerKind(enum.IntEnum):
    """What an entry of the list of layers is."""

    EMBEDDING = 0
    BLOCK = 1
    VISION = 2
    HEAD = 3


@struct("memopt_plan_layer")
class PlanLayer(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("name", CHAR * 48),
        ("kind", U32),
        ("recomputed", U32),
        ("parameter_count", U64),
        ("parameter_bytes", U64),
        ("gradient_bytes", U64),
        ("optimizer_bytes", U64),
        ("output_bytes", U64),
        ("saved_bytes", U64),
        ("plain_saved_bytes", U64),
        ("forward_bytes", U64),
        ("backward_bytes", U64),
        ("forward_flops", F64),
    ]


@struct("memopt_plan_target_options")
class PlanTargetOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("effective_batch", U64),
        ("max_micro_batch", U64),
        ("min_sequence", U64),
        ("keep_batch", U32),
        ("keep_dtype", U32),
        ("keep_optimizer", U32),
        ("keep_weights", U32),
        ("all_changes", U32),
        ("reserved", U32),
    ]


@enumeration("MEMOPT_PLAN_CHANGE_")
class PlanChangeKind(enum.IntEnum):
    """A kind of change."""

    MICRO_BATCH = 0
    DTYPE = 1
    OPTIMIZER = 2
    CHECKPOINTING = 3
    OFFLOAD = 4
    ATTENTION = 5
    LOSS = 6
    SEQUENCE = 7
    SHARDING = 8
    LORA = 9
    ALLOCATOR = 10
    BUCKET = 11


@struct("memopt_plan_change")
class PlanChange(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("kind", U32),
        ("applied", U32),
        ("change", CHAR * 96),
        ("option", CHAR * 48),
        ("saves_bytes", U64),
        ("peak_bytes", U64),
        ("time_factor", F64),
    ]


@struct("memopt_plan_fit")
class PlanFit(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("fits", U32),
        ("fits_after", U32),
        ("micro_batch", U64),
        ("largest_micro_batch", U64),
        ("accumulation", U64),
        ("effective_batch", U64),
        ("target_batch", U64),
        ("remainder", I64),
        ("peak_bytes", U64),
        ("floor_bytes", U64),
        ("limit_bytes", U64),
        ("change_count", U64),
        ("time_factor", F64),
        ("start_batch", U64),
        ("start_accumulation", U64),
        ("start_peak_bytes", U64),
    ]


PlanMeasure = CFUNCTYPE(I32, ADDRESS, POINTER(PlanRun), POINTER(PlanBytes))


functions(
    PLAN,
    memopt_plan_create=(CHECKED, PlanModel, PlanRun, PlanCard, OUT_HANDLE),
    memopt_plan_create_measured=(CHECKED, PlanBytes, PlanRun, PlanCard, OUT_HANDLE),
    memopt_plan_destroy=(CHECKED, HANDLE),
    memopt_plan_get_report=(CHECKED, HANDLE, PlanReport),
    memopt_plan_get_layer=(CHECKED, HANDLE, U64, PlanLayer),
    memopt_plan_get_settings=(CHECKED, HANDLE, PlanModel, PlanRun, PlanCard),
    memopt_plan_add_overhead=(CHECKED, PlanCard, PlanBytes, OUT_U64),
    memopt_plan_phase_name=(TEXT, U32),
    memopt_plan_split_batch=(CHECKED, U64, U64, U64, OUT_U64, OUT_U64),
    memopt_plan_solve=(CHECKED, PlanModel, PlanRun, PlanCard, PlanTargetOptions, OUT_HANDLE),
    memopt_plan_solve_measured=(
        *(CHECKED, PlanMeasure, ADDRESS, PlanRun, PlanCard, PlanTargetOptions),
        OUT_HANDLE,
    ),
    memopt_plan_solution_destroy=(CHECKED, HANDLE),
    memopt_plan_solution_get_fit=(CHECKED, HANDLE, PlanFit),
    memopt_plan_solution_get_change=(CHECKED, HANDLE, U64, PlanChange),
    memopt_plan_solution_get_settings=(CHECKED, HANDLE, PlanModel, PlanRun),
)
