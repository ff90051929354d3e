"""The C interface of allocator.h, allocator_report.h and allocator_steps.h."""

from __future__ import annotations

import enum
from ctypes import CFUNCTYPE, POINTER

from .words import *


@enumeration("MEMOPT_TAG_")
class Tag(enum.IntEnum):
    """What a block is for; registered tags are plain numbers from ``USER`` on."""

    OTHER = 0
    WEIGHTS = 1
    GRADIENTS = 2
    OPTIMIZER = 3
    ACTIVATIONS = 4
    USER = 5


PressureCallback = CFUNCTYPE(U64, ADDRESS, U64)
OomCallback = CFUNCTYPE(None, ADDRESS, U64, U64, TEXT)


ProviderAlloc = CFUNCTYPE(I32, ADDRESS, U64, OUT_ADDRESS)
ProviderFree = CFUNCTYPE(I32, ADDRESS, ADDRESS, U64)


@struct("memopt_memory_provider")
class MemoryProvider(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("alloc", ProviderAlloc),
        ("free", ProviderFree),
        ("user", ADDRESS),
    ]


@struct("memopt_allocator_options")
class AllocatorOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("limit", U64),
        ("pressure", PressureCallback),
        ("pressure_user", ADDRESS),
        ("oom", OomCallback),
        ("oom_user", ADDRESS),
        ("memory", U32),
        ("provider", POINTER(MemoryProvider)),
    ]


@struct("memopt_allocator_info")
class AllocatorInfo(Struct):
    _fields_ = [("struct_size", SIZE), ("device", ADDRESS), ("name", TEXT), ("paused_tags", U64)]


@struct("memopt_pool_options")
class PoolOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("name", TEXT),
        ("config", TEXT),
        ("limit", U64),
        ("retain", U32),
    ]


@enumeration("MEMOPT_PAUSE_")
class Pause(enum.IntEnum):
    """What happens to the contents of a pool's blocks while it is paused."""

    DISCARD = 0
    KEEP = 1
    FILE = 2


@struct("memopt_pause_options")
class PauseOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("tags", U64),
        ("path", TEXT),
        ("how", U32),
    ]


@struct("memopt_pause_report")
class PauseReport(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "released_bytes shared_bytes kept_bytes"),
    ]


@enumeration("MEMOPT_MEMORY_")
class AllocatorMemory(enum.IntEnum):
    """What kind of memory an allocator caches."""

    DEVICE = 0
    PINNED = 1


@enumeration("MEMOPT_RANGE_")
class RangeKind(enum.IntEnum):
    """What happens to a range of addresses."""

    MAPPED = 1
    UNMAPPING = 2


@struct("memopt_range_event")
class RangeEventStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("kind", U32),
        ("allocator", ADDRESS),
        ("address", ADDRESS),
        ("bytes", U64),
        ("generation", U64),
    ]


RangeObserver = CFUNCTYPE(I32, ADDRESS, POINTER(RangeEventStruct))


@struct("memopt_tag_stats")
class TagStatsStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("name", TEXT),
        *each(U64, "current_bytes peak_bytes blocks outside_bytes"),
    ]


@enumeration("MEMOPT_BLOCK_")
class BlockState(enum.IntEnum):
    """The state of a block in a snapshot."""

    INACTIVE = 0
    ACTIVE_ALLOCATED = 1
    ACTIVE_PENDING_FREE = 2
    UNMAPPED = 3


@struct("memopt_block_info")
class BlockInfoStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("segment_address", ADDRESS),
        ("segment_bytes", U64),
        ("stream", ADDRESS),
        ("segment_large", U32),
        ("segment_expandable", U32),
        ("address", ADDRESS),
        ("bytes", U64),
        ("requested_bytes", U64),
        ("state", U32),
        ("tag", U32),
        ("context", U32),
        ("age", U64),
    ]


@enumeration("MEMOPT_OOM_")
class OomCause(enum.IntEnum):
    """What would have served an allocation that has failed."""

    GROWTH = 0
    FRAGMENTATION = 1
    SEGMENTS = 2
    LEAK = 3
    STREAM = 4
    ROUNDING = 5
    POOL = 6
    LIMIT = 7
    OUTSIDE = 8
    REQUEST = 9


@struct("memopt_oom_report")
class OomReportStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "number clock"),
        *each(U32, "cause tag"),
        *each(
            U64,
            "asked_bytes missing_bytes total_bytes free_bytes limit_bytes held_bytes live_bytes "
            "requested_bytes pending_bytes cached_bytes spare_bytes largest_free_bytes "
            "rounding_bytes unsplit_bytes leaked_bytes pool_bytes outside_bytes",
        ),
        ("holder_tag", U32),
        *each(U64, "holder_bytes holder_blocks holder_oldest holder_newest"),
    ]


@enumeration("MEMOPT_HISTORY_")
class HistoryAction(enum.IntEnum):
    """What happened in an event of a history."""

    ALLOC = 1
    FREE = 2
    FAILED = 3
    RECORD_STREAM = 4
    COMPLETED = 5
    MAP = 6
    UNMAP = 7


HistoryContext = CFUNCTYPE(U32, ADDRESS)


@struct("memopt_history_event")
class HistoryEventStruct(Struct):
    _fields_ = [
        ("time_ns", U64),
        ("address", ADDRESS),
        ("bytes", U64),
        ("stream", ADDRESS),
        *each(U32, "action tag context thread"),
    ]


@struct("memopt_history_options")
class HistoryOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("events", U64),
        ("context", HistoryContext),
        ("context_user", ADDRESS),
    ]


@enumeration("MEMOPT_STEP_")
class Step(enum.IntEnum):
    """What a mark between steps says."""

    NEXT = 0
    LEARN = 1
    END = 2


@struct("memopt_step_plan")
class StepPlanStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "steps planned_steps plans active allocations unplanned least_bytes bytes"),
        *each(U64, "served missed"),
    ]


BlockVisitor = CFUNCTYPE(I32, ADDRESS, POINTER(BlockInfoStruct))


functions(
    memopt_allocator_create=(CHECKED, HANDLE, TEXT, AllocatorOptions, OUT_HANDLE),
    memopt_allocator_check_config=(CHECKED, TEXT),
    memopt_allocator_destroy=(CHECKED, HANDLE),
    memopt_allocator_destroy_force=(CHECKED, HANDLE),
    memopt_allocator_get_info=(CHECKED, HANDLE, AllocatorInfo),
    memopt_allocator_alloc=(CHECKED, HANDLE, U64, U32, STREAM, OUT_ADDRESS),
    memopt_allocator_free=(CHECKED, HANDLE, ADDRESS),
    memopt_allocator_record_stream=(CHECKED, HANDLE, ADDRESS, STREAM),
    memopt_allocator_get_block=(CHECKED, HANDLE, ADDRESS, OUT_ADDRESS, OUT_U64),
    memopt_allocator_trim_sync=(CHECKED, HANDLE, U64, OUT_U64),
    memopt_allocator_set_limit=(CHECKED, HANDLE, U64),
    memopt_allocator_set_outside=(CHECKED, HANDLE, U32, U64),
    memopt_allocator_register_tag=(CHECKED, HANDLE, TEXT, OUT_U32),
    memopt_allocator_get_tag_stats=(CHECKED, HANDLE, U32, TagStatsStruct),
    memopt_allocator_get_stats=(CHECKED, HANDLE, U64, OUT_TEXT, OUT_U64, OUT_U64),
    memopt_allocator_get_stat=(CHECKED, HANDLE, TEXT, OUT_U64),
    memopt_allocator_reset_peaks=(CHECKED, HANDLE),
    memopt_allocator_trace=(CHECKED, HANDLE, TEXT, OUT_U64),
    memopt_allocator_get_oom_report=(CHECKED, HANDLE, OomReportStruct),
    memopt_allocator_set_history=(CHECKED, HANDLE, HistoryOptions),
    memopt_allocator_read_history=(CHECKED, HANDLE, U64, U64, HistoryEventStruct, OUT_U64, OUT_U64),
    memopt_pool_create=(CHECKED, HANDLE, PoolOptions, OUT_HANDLE),
    memopt_pool_pause_sync=(CHECKED, HANDLE, PauseOptions, PauseReport),
    memopt_pool_resume_sync=(CHECKED, HANDLE, U64),
    memopt_allocator_add_range_observer=(CHECKED, HANDLE, RangeObserver, ADDRESS, OUT_U64),
    memopt_allocator_remove_range_observer=(CHECKED, HANDLE, U64),
    memopt_allocator_mark_step=(CHECKED, HANDLE, U32),
    memopt_allocator_get_step_plan=(CHECKED, HANDLE, StepPlanStruct),
    memopt_allocator_snapshot=(CHECKED, HANDLE, BlockVisitor, ADDRESS),
)
