"""The C interface of monitor.h."""

from __future__ import annotations

import enum
from ctypes import CFUNCTYPE, POINTER

from ..words import *


@enumeration("MEMOPT_MONITOR_")
class MonitorField(enum.IntEnum):
    """What a reading has; bits of MonitorReadingStruct.fields, denied and failed."""

    NAME = 1
    UUID = 2
    PCI = 4
    MEMORY = 8
    UTILIZATION = 16
    MEMORY_UTILIZATION = 32
    TEMPERATURE = 64
    POWER = 128
    POWER_LIMIT = 256
    MEMORY_RESERVED = 512


@struct("memopt_monitor_info")
class MonitorInfoStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(I32, "status driver_code device_count"),
        ("source", CHAR * 16),
        ("library", CHAR * 256),
        ("version", CHAR * 96),
        ("tried", CHAR * 512),
        ("problem", CHAR * 512),
        ("missing", CHAR * 512),
    ]


@struct("memopt_monitor_reading")
class MonitorReadingStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        *each(U32, "fields denied failed"),
        ("driver_code", I32),
        ("name", CHAR * 96),
        ("uuid", CHAR * 96),
        ("pci", CHAR * 32),
        *each(U64, "memory_total memory_used memory_free memory_reserved"),
        *each(F64, "utilization memory_utilization temperature power power_limit"),
        ("problem", CHAR * 256),
    ]


@enumeration("MEMOPT_PROCESS_")
class ProcessKind(enum.IntEnum):
    """What a process uses a device for; bits of ProcessInfoStruct.kind."""

    COMPUTE = 1
    GRAPHICS = 2
    HOST = 4


@struct("memopt_process_info")
class ProcessInfoStruct(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("pid", I32),
        ("kind", U32),
        ("used_bytes", U64),
        ("used_known", U32),
        ("name", CHAR * 64),
    ]


ProcessVisitor = CFUNCTYPE(I32, ADDRESS, POINTER(ProcessInfoStruct))


functions(
    "libmemopt-tools",
    memopt_monitor_get_info=(CHECKED, TEXT, MonitorInfoStruct),
    memopt_monitor_open=(CHECKED, TEXT, OUT_HANDLE),
    memopt_monitor_close=(CHECKED, HANDLE),
    memopt_monitor_get_device_count=(CHECKED, HANDLE, OUT_I32),
    memopt_monitor_get_reading=(CHECKED, HANDLE, I32, MonitorReadingStruct),
    memopt_monitor_processes=(CHECKED, HANDLE, I32, ProcessVisitor, ADDRESS),
)
