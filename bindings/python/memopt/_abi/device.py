"""The C interface of device.h."""

from __future__ import annotations

import enum
from ctypes import CFUNCTYPE

from .words import *


@enumeration("MEMOPT_STREAM_ORDER_")
class StreamOrder(enum.IntEnum):
    """How the streams of a "cpu" device run."""

    EAGER = 0
    ADVERSARIAL = 1


@enumeration("MEMOPT_RACE_SEARCH_")
class RaceSearch(enum.IntEnum):
    """Whether a "cpu" device finds stream races."""

    DEFAULT = 0
    ON = 1
    OFF = 2
    QUIET = 3


@struct("memopt_device_options")
class DeviceOptions(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("capacity", U64),
        ("threads", U32),
        ("stream_order", U32),
        ("seed", U64),
        ("granularity", U64),
        ("lag", U64),
        *each(U32, "race unified"),
    ]


@struct("memopt_device_properties")
class DevicePropertiesStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("name", CHAR * 64),
        ("backend", CHAR * 8),
        ("isa", CHAR * 24),
        ("index", I32),
        *each(U32, "threads warp_size virtual_memory"),
        ("total_memory", U64),
        ("granularity", U64),
        ("kernels", CHAR * 24),
        ("limit", CHAR * 160),
    ]


@struct("memopt_memory_info")
class MemoryInfoStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U64, "total free used used_peak reserved_va pinned pinned_peak registered"),
    ]


@enumeration("MEMOPT_BACKEND_")
class BackendFeature(enum.IntEnum):
    """What a back end's driver can do; bits of BackendInfoStruct.features."""

    VIRTUAL_MEMORY = 1
    HOST_FUNCTIONS = 2
    GRAPH_CAPTURE = 4
    RUNTIME_COMPILER = 8


@struct("memopt_backend_info")
class BackendInfoStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(I32, "status driver_code driver_version device_count"),
        ("features", U32),
        ("library", CHAR * 256),
        ("tried", CHAR * 512),
        ("problem", CHAR * 512),
        ("missing", CHAR * 512),
        ("targets", CHAR * 512),
        ("compiler", CHAR * 256),
    ]


HostCallback = CFUNCTYPE(None, ADDRESS)


functions(
    memopt_backend_get_info=(CHECKED, TEXT, BackendInfoStruct),
    memopt_device_open=(CHECKED, TEXT, DeviceOptions, OUT_HANDLE),
    memopt_device_close=(CHECKED, HANDLE),
    memopt_device_get_properties=(CHECKED, HANDLE, DevicePropertiesStruct),
    memopt_device_get_race=(CHECKED, HANDLE, OUT_HANDLE),
    memopt_device_set_threads=(CHECKED, HANDLE, U32),
    memopt_device_get_memory_info=(CHECKED, HANDLE, MemoryInfoStruct),
    memopt_device_sync=(CHECKED, HANDLE),
    memopt_stream_create=(CHECKED, HANDLE, OUT_HANDLE),
    memopt_stream_destroy=(CHECKED, HANDLE, STREAM),
    memopt_stream_release_sync=(CHECKED, HANDLE, STREAM),
    memopt_stream_sync=(CHECKED, HANDLE, STREAM),
    memopt_stream_query=(I32, HANDLE, STREAM),
    memopt_stream_uses=(CHECKED, HANDLE, STREAM, TEXT, ADDRESS, U64, U32),
    memopt_stream_wait_event=(CHECKED, HANDLE, STREAM, HANDLE),
    memopt_stream_host_callback=(CHECKED, HANDLE, STREAM, HostCallback, ADDRESS),
    memopt_event_create=(CHECKED, HANDLE, I32, OUT_HANDLE),
    memopt_event_destroy=(CHECKED, HANDLE),
    memopt_event_record=(CHECKED, HANDLE, STREAM),
    memopt_event_query=(I32, HANDLE),
    memopt_event_sync=(CHECKED, HANDLE),
    memopt_event_elapsed=(CHECKED, HANDLE, HANDLE, OUT_F64),
    memopt_copy=(CHECKED, HANDLE, ADDRESS, ADDRESS, U64, STREAM),
    memopt_copy_sync=(CHECKED, HANDLE, ADDRESS, ADDRESS, U64, STREAM),
    memopt_fill=(CHECKED, HANDLE, ADDRESS, I32, U64, STREAM),
    memopt_host_alloc=(CHECKED, HANDLE, U64, OUT_ADDRESS),
    memopt_host_free=(CHECKED, HANDLE, ADDRESS),
    memopt_host_register=(CHECKED, HANDLE, ADDRESS, U64),
    memopt_host_unregister=(CHECKED, HANDLE, ADDRESS),
)
