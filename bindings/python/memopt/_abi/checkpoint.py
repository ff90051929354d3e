"""The C interface of checkpoint.h."""

from __future__ import annotations

import enum
from ctypes import CFUNCTYPE

from .base import TENSORS
from .words import *


@enumeration("MEMOPT_PASS_")
class Pass(enum.IntEnum):
    """Why a region's callback is called."""

    FORWARD = 0
    RECOMPUTE = 1


@enumeration("MEMOPT_REGION_")
class RegionMode(enum.IntEnum):
    """What a region does with its leases."""

    RECOMPUTE = 0
    KEEP = 1


@enumeration("MEMOPT_CHECK_")
class CheckMode(enum.IntEnum):
    """How recomputed values are compared with those of the first run."""

    NONE = 0
    HASH = 1
    EXACT = 2


RegionRun = CFUNCTYPE(I32, ADDRESS, ADDRESS, I32, ADDRESS)
RandomState = CFUNCTYPE(I32, ADDRESS, ADDRESS)


@struct("memopt_region_callbacks")
class RegionCallbacks(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("run", RegionRun),
        ("random_save", RandomState),
        ("random_restore", RandomState),
        ("user", ADDRESS),
    ]


@struct("memopt_region_options")
class RegionOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("name", TEXT),
        ("mode", U32),
        ("check", U32),
        ("random_bytes", U64),
    ]


@struct("memopt_region_stats")
class RegionStats(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "forwards recomputes leased_bytes dropped_bytes checked_bytes"),
    ]


@struct("memopt_chain_stage")
class ChainStage(Struct):
    _fields_ = [
        ("forward_seconds", F64),
        ("backward_seconds", F64),
        *each(U64, "output_bytes saved_bytes forward_extra_bytes backward_extra_bytes"),
    ]


@struct("memopt_schedule_options")
class ScheduleOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("budget", U64),
        ("input_bytes", U64),
        ("input_gradient", U32),
        ("slots", U32),
    ]


@enumeration("MEMOPT_SCHEDULE_")
class ScheduleOperation(enum.IntEnum):
    """What a step of a schedule does with its stage."""

    FORWARD = 1
    FORWARD_KEEP = 2
    FORWARD_SAVE = 3
    BACKWARD = 4


@struct("memopt_schedule_step")
class ScheduleStep(Struct):
    _fields_ = [("struct_size", SIZE), ("operation", U32), ("stage", U64)]


@struct("memopt_schedule_info")
class ScheduleInfo(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "steps peak_bytes minimum_budget recomputed"),
        ("seconds", F64),
        ("seconds_plain", F64),
    ]


functions(
    memopt_region_create=(CHECKED, HANDLE, HANDLE, RegionCallbacks, RegionOptions, OUT_HANDLE),
    memopt_region_destroy=(CHECKED, HANDLE),
    memopt_region_forward=(CHECKED, HANDLE, STREAM),
    memopt_region_recompute=(CHECKED, HANDLE, STREAM),
    memopt_region_release=(CHECKED, HANDLE),
    memopt_region_reset=(CHECKED, HANDLE),
    memopt_region_alloc=(CHECKED, HANDLE, U64, OUT_ADDRESS),
    memopt_region_check=(CHECKED, HANDLE, TEXT, TENSORS),
    memopt_region_get_stats=(CHECKED, HANDLE, RegionStats),
    memopt_content_hash=(CHECKED, HANDLE, OUT_U64, TENSORS, STREAM),
    memopt_schedule_create=(CHECKED, ChainStage, U64, ScheduleOptions, OUT_HANDLE),
    memopt_schedule_destroy=(CHECKED, HANDLE),
    memopt_schedule_get_info=(CHECKED, HANDLE, ScheduleInfo),
    memopt_schedule_next=(I32, HANDLE, ScheduleStep),
)
