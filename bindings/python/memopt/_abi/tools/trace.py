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


@struct("memopt_trace_event")
class TraceEventStruct(Struct):
    _fields_ = [
        ("id", U64),
        ("bytes", U64),
        ("stream", U64),
        ("action", U64),
    ]


@struct("memopt_trace_info")
class TraceInfoStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("events", U64),
        ("allocations", U64),
        ("streams", U64),
        ("peak_live_bytes", U64),
        ("peak_live_blocks", U64),
        ("live_bytes", U64),
        ("live_blocks", U64),
        ("lines", U64),
        ("unknown_frees", U64),
        ("first_unknown", U64),
        ("double_frees", U64),
        ("first_double", U64),
        ("lost_frees", U64),
        ("first_lost", U64),
        ("empty_allocations", U64),
        ("failed_allocations", U64),
        ("failed_bytes", U64),
    ]


@struct("memopt_trace_options")
class TraceOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("with_failed", U32),
    ]


@struct("memopt_replay_progress_info")
class ReplayProgressStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("done", U64),
        ("total", U64),
        ("capacity", U64),
    ]


@struct("memopt_replay_sample")
class ReplaySampleStruct(Struct):
    _fields_ = [
        ("event", U64),
        ("live_bytes", U64),
        ("reserved_bytes", U64),
    ]


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
    ]


@struct("memopt_replay_result")
class ReplayResultStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("capacity", U64),
        ("events", U64),
        ("peak_live_bytes", U64),
        ("peak_reserved_bytes", U64),
        ("ratio", F64),
        ("first_ns_per_event", F64),
        ("ns_per_event", F64),
        ("device_allocs", U64),
        ("device_frees", U64),
        ("retries", U64),
        ("sample_count", U64),
        ("out_of_memory", U32),
        ("failed_bytes", U64),
        ("failed_stream", U64),
        ("failed_live_bytes", U64),
        ("failed_reserved_bytes", U64),
    ]


functions(
    TOOLS,
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
