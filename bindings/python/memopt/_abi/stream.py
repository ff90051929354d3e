"""The C interface of stream.h."""

from __future__ import annotations

from .words import *


@struct("memopt_stream_part")
class StreamPart(Struct):
    _fields_ = each(U64, "ticket bytes")


@struct("memopt_stream_plan")
class StreamPlan(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "budget layers layer_bytes largest_bytes resident copies copied_bytes"),
    ]


@struct("memopt_stream_stats")
class StreamStats(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(
            U64,
            "resident resident_bytes resident_bytes_peak begins late copies copied_bytes written_bytes",
        ),
    ]


functions(
    memopt_streamer_create=(CHECKED, HANDLE, HANDLE, U64, OUT_HANDLE),
    memopt_streamer_destroy=(CHECKED, HANDLE),
    memopt_streamer_destroy_force=(CHECKED, HANDLE),
    memopt_streamer_add=(CHECKED, HANDLE, StreamPart, U32, OUT_U32),
    memopt_streamer_expect=(CHECKED, HANDLE, ADDRESS, U32),
    memopt_streamer_begin=(CHECKED, HANDLE, U32, STREAM, OUT_ADDRESS),
    memopt_streamer_end=(CHECKED, HANDLE, U32, STREAM),
    memopt_streamer_write=(CHECKED, HANDLE, U32, STREAM),
    memopt_streamer_evict=(CHECKED, HANDLE, U32),
    memopt_streamer_get_limit=(CHECKED, HANDLE, ADDRESS, U32, ADDRESS, F64, ADDRESS),
    memopt_streamer_get_plan=(CHECKED, HANDLE, ADDRESS, U32, StreamPlan),
    memopt_streamer_rehearse=(CHECKED, ADDRESS, U32, U64, ADDRESS, F64, StreamPlan, ADDRESS),
    memopt_streamer_get_stats=(CHECKED, HANDLE, StreamStats),
)
