"""The C interface of race.h."""

from __future__ import annotations

import enum
from ctypes import POINTER

from .words import *

RACE_HOST, RACE_MOST_STREAMS, RACE_MOST_DIMS = 0, 1023, 64


@enumeration("MEMOPT_RACE_")
class RaceMode(enum.IntEnum):
    """What an access does; bits."""

    READ = 1
    WRITE = 2


@enumeration("MEMOPT_RACE_")
class RaceMemory(enum.IntEnum):
    """Whose allocator a block is of."""

    OUTSIDE = 0
    DEVICE = 1
    PINNED = 2


@enumeration("MEMOPT_RACE_")
class RaceKind(enum.IntEnum):
    """What a report is about."""

    READ_AFTER_WRITE = 1
    WRITE_AFTER_READ = 2
    WRITE_AFTER_WRITE = 3
    FREED_IN_USE = 4


@struct("memopt_race_options")
class RaceOptions(Struct):
    _fields_ = [("struct_size", SIZE), *each(U64, "max_bytes max_reports"), *each(U32, "inherit reserved")]


@struct("memopt_race_access")
class RaceAccess(Struct):
    _fields_ = [
        *each(U64, "address bytes"),
        *each(POINTER(I64), "shape strides"),
        *each(U32, "dims mode"),
    ]


@struct("memopt_race_side")
class RaceSide(Struct):
    _fields_ = [("tag", U64), *each(U32, "actor write")]


@struct("memopt_race_report")
class RaceReport(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U32, "kind memory"),
        *each(U64, "address bytes block_address block_bytes"),
        *each(RaceSide, "first second"),
        ("freed_tag", U64),
        *each(U32, "waiter waited"),
    ]


@struct("memopt_race_stats")
class RaceStats(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "operations blocks ranges bytes bytes_peak forgotten reports"),
    ]


functions(
    memopt_race_create=(CHECKED, RaceOptions, OUT_HANDLE),
    memopt_race_destroy=(CHECKED, HANDLE),
    memopt_race_add_stream=(CHECKED, HANDLE, OUT_U32),
    memopt_race_allocate=(CHECKED, HANDLE, U64, U64, U32, U32, U64),
    memopt_race_free=(CHECKED, HANDLE, U64, U64),
    memopt_race_record_stream=(CHECKED, HANDLE, U64, U32),
    memopt_race_run=(CHECKED, HANDLE, U32, U64, RaceAccess, U32),
    memopt_race_wait=(CHECKED, HANDLE, U32, U32),
    memopt_race_record=(CHECKED, HANDLE, U32, OUT_U64),
    memopt_race_wait_event=(CHECKED, HANDLE, U32, U64),
    memopt_race_drop_event=(CHECKED, HANDLE, U64),
    memopt_race_get_stats=(CHECKED, HANDLE, RaceStats),
    memopt_race_get_report=(CHECKED, HANDLE, U64, RaceReport),
)
