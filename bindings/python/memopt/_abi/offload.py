"""The C interface of offload.h."""

from __future__ import annotations

import enum

from .words import *


@enumeration("MEMOPT_OVERFLOW_")
class Overflow(enum.IntEnum):
    """What an offloader does when a value does not fit below the host limit."""

    KEEP = 0
    WAIT = 1
    FAIL = 2
    SPILL = 3


@enumeration("MEMOPT_OFFLOADER_")
class OffloaderFlags(enum.IntEnum):
    """How an offloader copies."""

    NULL_STREAM = 1


@struct("memopt_offloader_options")
class OffloaderOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("host_limit", U64),
        ("min_bytes", U64),
        ("overflow", U32),
        ("flags", U32),
        ("disk_path", TEXT),
        ("disk_limit", U64),
    ]


@struct("memopt_offloader_request")
class OffloadRequest(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("offloader", HANDLE),
        ("stream", STREAM),
        ("data", ADDRESS),
        ("bytes", U64),
        ("ticket", U64),
        ("kept", U64),
    ]


@struct("memopt_offloader_stats")
class OffloaderStats(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("tickets", U64),
        ("host_bytes", U64),
        ("host_bytes_peak", U64),
        ("host_bytes_used", U64),
        ("kept_bytes", U64),
        ("copied_out_bytes", U64),
        ("copied_back_bytes", U64),
        ("packs", U64),
        ("kept_small", U64),
        ("kept_overflow", U64),
        ("prefetch_hits", U64),
        ("waits", U64),
        ("disk_tickets", U64),
        ("disk_bytes_used", U64),
        ("disk_bytes", U64),
        ("disk_bytes_peak", U64),
        ("disk_written_bytes", U64),
        ("disk_read_bytes", U64),
        ("disk_waits", U64),
    ]


functions(
    memopt_offloader_create=(CHECKED, HANDLE, HANDLE, OffloaderOptions, OUT_HANDLE),
    memopt_offloader_destroy=(CHECKED, HANDLE),
    memopt_offloader_destroy_force=(CHECKED, HANDLE),
    memopt_offloader_pack=(CHECKED, HANDLE, ADDRESS, U64, STREAM, OUT_U64),
    memopt_offloader_pack_borrowed=(CHECKED, HANDLE, ADDRESS, U64, STREAM, OUT_U64, OUT_I32),
    memopt_offloader_wait_packed=(CHECKED, HANDLE, U64, STREAM),
    memopt_offloader_query_packed=(I32, HANDLE, U64),
    memopt_offloader_prefetch=(CHECKED, HANDLE, U64),
    memopt_offloader_unpack=(CHECKED, HANDLE, U64, STREAM, OUT_ADDRESS),
    memopt_offloader_unpack_into=(CHECKED, HANDLE, U64, ADDRESS, U64, STREAM),
    memopt_offloader_prefetch_into=(CHECKED, HANDLE, U64, ADDRESS, U64, STREAM),
    memopt_offloader_wait_unpacked=(CHECKED, HANDLE, U64, STREAM),
    memopt_offloader_release=(CHECKED, HANDLE, U64, STREAM),
    memopt_offloader_release_many=(CHECKED, HANDLE, OUT_U64, U64, STREAM, OUT_U64),
    memopt_offloader_request_pack=(CHECKED, OffloadRequest),
    memopt_offloader_request_unpack=(CHECKED, OffloadRequest),
    memopt_offloader_trim_sync=(CHECKED, HANDLE, OUT_U64),
    memopt_offloader_get_stats=(CHECKED, HANDLE, OffloaderStats),
)
