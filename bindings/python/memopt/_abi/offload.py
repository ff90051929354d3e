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


@enumeration("MEMOPT_HOST_")
class HostAccess(enum.IntEnum):
    """What the host does with the memory of a value."""

    READ = 1
    WRITE = 2


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
        ("pinned_limit", U64),
    ]


@struct("memopt_offloader_request")
class OffloadRequest(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("offloader", HANDLE),
        ("stream", STREAM),
        ("data", ADDRESS),
        *each(U64, "bytes ticket kept"),
    ]


@struct("memopt_offloader_stats")
class OffloaderStats(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(
            U64,
            "tickets host_bytes host_bytes_peak host_bytes_used kept_bytes copied_out_bytes "
            "copied_back_bytes packs kept_small kept_overflow prefetch_hits waits "
            "disk_tickets disk_bytes_used disk_bytes disk_bytes_peak disk_written_bytes "
            "disk_read_bytes disk_waits pageable_bytes",
        ),
    ]


functions(
    memopt_offloader_create=(CHECKED, HANDLE, HANDLE, OffloaderOptions, OUT_HANDLE),
    memopt_offloader_destroy=(CHECKED, HANDLE),
    memopt_offloader_destroy_force=(CHECKED, HANDLE),
    memopt_offloader_pack=(CHECKED, HANDLE, ADDRESS, U64, STREAM, OUT_U64),
    memopt_offloader_wait_packed=(CHECKED, HANDLE, U64, STREAM),
    memopt_offloader_query_packed=(I32, HANDLE, U64),
    memopt_offloader_prefetch=(CHECKED, HANDLE, U64),
    memopt_offloader_unpack=(CHECKED, HANDLE, U64, STREAM, OUT_ADDRESS),
    memopt_offloader_prefetch_into=(CHECKED, HANDLE, U64, ADDRESS, U64, STREAM),
    memopt_offloader_wait_unpacked=(CHECKED, HANDLE, U64, STREAM),
    memopt_offloader_release=(CHECKED, HANDLE, U64, STREAM),
    memopt_offloader_release_many=(CHECKED, HANDLE, OUT_U64, U64, STREAM, OUT_U64),
    memopt_offloader_request_pack=(CHECKED, OffloadRequest),
    memopt_offloader_request_unpack=(CHECKED, OffloadRequest),
    memopt_offloader_reserve=(CHECKED, HANDLE, U64, OUT_U64, OUT_ADDRESS),
    memopt_offloader_map_file=(CHECKED, HANDLE, TEXT, U64, U64, OUT_U64),
    memopt_offloader_host=(CHECKED, HANDLE, U64, U32, OUT_ADDRESS),
    memopt_offloader_host_end=(CHECKED, HANDLE, U64),
    memopt_offloader_rewrite=(CHECKED, HANDLE, U64, ADDRESS, STREAM),
    memopt_offloader_evict=(CHECKED, HANDLE, U64, STREAM),
    memopt_offloader_trim_sync=(CHECKED, HANDLE, OUT_U64),
    memopt_offloader_give_way=(CHECKED, HANDLE, U64, OUT_U64),
    memopt_offloader_get_stats=(CHECKED, HANDLE, OffloaderStats),
)
