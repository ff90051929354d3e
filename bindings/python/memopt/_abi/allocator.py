"""The C interface of allocator.h."""

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
        *each(U64, "current_bytes peak_bytes blocks"),
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
    ]


BlockVisitor = CFUNCTYPE(I32, ADDRESS, POINTER(BlockInfoStruct))


functions(
    memopt_allocator_create=(CHECKED, HANDLE, TEXT, AllocatorOptions, OUT_HANDLE),
    memopt_allocator_check_config=(CHECKED, TEXT),
    memopt_allocator_destroy=(CHECKED, HANDLE),
    memopt_allocator_destroy_force=(CHECKED, HANDLE),
    memopt_allocator_get_device=(HANDLE, HANDLE),
    memopt_allocator_alloc=(CHECKED, HANDLE, U64, U32, STREAM, OUT_ADDRESS),
    memopt_allocator_free=(CHECKED, HANDLE, ADDRESS),
    memopt_allocator_record_stream=(CHECKED, HANDLE, ADDRESS, STREAM),
    memopt_allocator_get_block=(CHECKED, HANDLE, ADDRESS, OUT_ADDRESS, OUT_U64),
    memopt_allocator_trim_sync=(CHECKED, HANDLE, OUT_U64),
    memopt_allocator_trim_to_sync=(CHECKED, HANDLE, U64, OUT_U64),
    memopt_allocator_set_limit=(CHECKED, HANDLE, U64),
    memopt_allocator_register_tag=(CHECKED, HANDLE, TEXT, OUT_U32),
    memopt_allocator_get_tag_stats=(CHECKED, HANDLE, U32, TagStatsStruct),
    memopt_allocator_stat_name=(TEXT, U64),
    memopt_allocator_get_stats=(CHECKED, HANDLE, U64, OUT_U64, OUT_U64),
    memopt_allocator_get_stat=(CHECKED, HANDLE, TEXT, OUT_U64),
    memopt_allocator_reset_peaks=(CHECKED, HANDLE),
    memopt_allocator_start_trace=(CHECKED, HANDLE, TEXT),
    memopt_allocator_stop_trace=(CHECKED, HANDLE, OUT_U64),
    memopt_pool_create=(CHECKED, HANDLE, PoolOptions, OUT_HANDLE),
    memopt_pool_get_parent=(HANDLE, HANDLE),
    memopt_pool_get_name=(TEXT, HANDLE),
    memopt_pool_pause_sync=(CHECKED, HANDLE, U32, OUT_U64),
    memopt_pool_resume_sync=(CHECKED, HANDLE),
    memopt_pool_is_paused=(I32, HANDLE),
    memopt_allocator_add_range_observer=(CHECKED, HANDLE, RangeObserver, ADDRESS, OUT_U64),
    memopt_allocator_remove_range_observer=(CHECKED, HANDLE, U64),
    memopt_allocator_snapshot=(CHECKED, HANDLE, BlockVisitor, ADDRESS),
)
