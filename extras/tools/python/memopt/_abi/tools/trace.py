"""The C interface of trace.h."""

from __future__ import annotations

import enum
from ctypes import CFUNCTYPE, POINTER

from ..words import *


@enumeration("MEMOPT_TRACE_")
class TraceAction(enum.IntEnum):
    """What an event of a trace does."""

    ALLOC = 1
    FREE = 2
    FAILED = 3
    RECORD_STREAM = 4


@struct("memopt_trace_event")
class TraceEventStruct(Struct):
    _fields_ = each(U64, "id bytes stream action")


@struct("memopt_trace_info")
class TraceInfoStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(
            U64,
            "events allocations streams peak_live_bytes peak_live_blocks live_bytes "
            "live_blocks lines unknown_frees first_unknown double_frees first_double "
            "lost_frees first_lost empty_allocations failed_allocations failed_bytes",
        ),
    ]


@struct("memopt_trace_options")
class TraceOptions(Struct):
    _fields_ = [("struct_size", SIZE), ("with_failed", U32)]


@struct("memopt_replay_progress_info")
class ReplayProgressStruct(Struct):
    _fields_ = [("struct_size", SIZE), *each(U64, "done total capacity")]


@struct("memopt_replay_sample")
class ReplaySampleStruct(Struct):
    _fields_ = each(U64, "event live_bytes reserved_bytes")


ReplayProgress = CFUNCTYPE(I32, ADDRESS, POINTER(ReplayProgressStruct))


@struct("memopt_replay_options")
class ReplayOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("config", TEXT),
        ("capacity", U64),
        ("warm_passes", U64),
        ("samples", POINTER(ReplaySampleStruct)),
        ("sample_room", U64),
        ("progress", ReplayProgress),
        ("progress_user", ADDRESS),
        ("steps", U64),
        ("lag", U64),
    ]


@struct("memopt_replay_result")
class ReplayResultStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "capacity events peak_live_bytes peak_reserved_bytes"),
        *each(F64, "ratio first_ns_per_event ns_per_event"),
        *each(U64, "device_allocs device_frees retries sample_count"),
        ("out_of_memory", U32),
        *each(U64, "failed_bytes failed_stream failed_live_bytes failed_reserved_bytes"),
        *each(U64, "planned_steps planned_reserved_bytes"),
        *each(F64, "planned_ratio planned_ns_per_event"),
        *each(U64, "planned_device_calls plan_bytes plan_least_bytes"),
    ]


functions(
    "libmemopt-tools",
    memopt_trace_create=(CHECKED, TraceOptions, OUT_HANDLE),
    memopt_trace_destroy=(CHECKED, HANDLE),
    memopt_trace_add=(CHECKED, HANDLE, TraceEventStruct, U64),
    memopt_trace_parse_csv=(CHECKED, HANDLE, TEXT, U64),
    memopt_trace_end_csv=(CHECKED, HANDLE),
    memopt_trace_read_csv=(CHECKED, HANDLE, I32),
    memopt_trace_get_info=(CHECKED, HANDLE, TraceInfoStruct),
    memopt_trace_replay=(CHECKED, HANDLE, ReplayOptions, ReplayResultStruct),
    memopt_trace_find_capacity=(CHECKED, HANDLE, ReplayOptions, OUT_U64),
)
