"""The C interface as ctypes sees it: enumerations, structs and prototypes, one table each.

A test compiles a C program against the headers and compares every size, offset, enumerator and
parameter list with what is written here, so a change of the headers cannot pass unnoticed.
"""

from __future__ import annotations

import enum
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Dict, List, Tuple, Type

from . import _abi_plan
from ._abi_base import CHECKED as CHECKED
from ._abi_base import Struct as Struct

#: Version of the headers that this table was written for: major must match, minor is the least.
HEADER_VERSION = (1, 0)


# --- enumerations ---------------------------------------------------------------------------------


class Status(enum.IntEnum):
    """The library's status codes; a callback may return any value from ``USER`` on."""

    OK = 0
    INVALID_ARGUMENT = 1
    UNSUPPORTED = 2
    OUT_OF_HOST_MEMORY = 3
    OUT_OF_DEVICE_MEMORY = 4
    LIMIT_REACHED = 5
    DRIVER_MISSING = 6
    DRIVER_ERROR = 7
    DEVICE_LOST = 8
    DEVICE_FAULT = 9
    BUSY = 10
    NOT_READY = 11
    NOT_FOUND = 12
    CORRUPT = 13
    IO_ERROR = 14
    MISMATCH = 15
    INTERNAL = 16
    USER = 0x10000


class LogLevel(enum.IntEnum):
    """How important a log line is."""

    OFF = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    DEBUG = 4


class DType(enum.IntEnum):
    """An element type."""

    F32 = 1
    F16 = 2
    BF16 = 3
    F8_E4M3 = 4
    F8_E5M2 = 5
    U8 = 6
    I32 = 7
    I64 = 8
    F64 = 9

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEM_SIZES[self]


_ITEM_SIZES = {
    DType.F32: 4,
    DType.F16: 2,
    DType.BF16: 2,
    DType.F8_E4M3: 1,
    DType.F8_E5M2: 1,
    DType.U8: 1,
    DType.I32: 4,
    DType.I64: 8,
    DType.F64: 8,
}


class BackendFeature(enum.IntEnum):
    """What a back end's driver can do; bits of BackendInfoStruct.features."""

    VIRTUAL_MEMORY = 1
    HOST_FUNCTIONS = 2
    GRAPH_CAPTURE = 4
    RUNTIME_COMPILER = 8


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


class ProcessKind(enum.IntEnum):
    """What a process uses a device for; bits of ProcessInfoStruct.kind."""

    COMPUTE = 1
    GRAPHICS = 2
    HOST = 4


class StreamOrder(enum.IntEnum):
    """How the streams of a "cpu" device run."""

    EAGER = 0
    ADVERSARIAL = 1


class Tag(enum.IntEnum):
    """What a block is for; registered tags are plain numbers from ``USER`` on."""

    OTHER = 0
    WEIGHTS = 1
    GRADIENTS = 2
    OPTIMIZER = 3
    ACTIVATIONS = 4
    USER = 5


class BlockState(enum.IntEnum):
    """The state of a block in a snapshot."""

    INACTIVE = 0
    ACTIVE_ALLOCATED = 1
    ACTIVE_PENDING_FREE = 2
    UNMAPPED = 3


class TraceAction(enum.IntEnum):
    """What an event of a trace does."""

    ALLOC = 1
    FREE = 2
    FAILED = 3


class Rounding(enum.IntEnum):
    """How a value between two representable ones is rounded."""

    NEAREST_EVEN = 0
    STOCHASTIC = 1


class OptimizerKind(enum.IntEnum):
    """The update rule."""

    ADAMW = 1
    LION = 2
    SGD = 3


class StateFormat(enum.IntEnum):
    """How optimizer states are kept."""

    F32 = 1
    BITS8 = 2
    BITS4 = 3
    F8 = 4


class Overflow(enum.IntEnum):
    """What an offloader does when a value does not fit below the host limit."""

    KEEP = 0
    WAIT = 1
    FAIL = 2
    SPILL = 3


class OffloaderFlags(enum.IntEnum):
    """How an offloader copies."""

    NULL_STREAM = 1


class Pass(enum.IntEnum):
    """Why a region's callback is called."""

    FORWARD = 0
    RECOMPUTE = 1


class RegionMode(enum.IntEnum):
    """What a region does with its leases."""

    RECOMPUTE = 0
    KEEP = 1


class CheckMode(enum.IntEnum):
    """How recomputed values are compared with those of the first run."""

    NONE = 0
    HASH = 1
    EXACT = 2


class ScheduleOperation(enum.IntEnum):
    """What a step of a schedule does with its stage."""

    FORWARD = 1
    FORWARD_KEEP = 2
    FORWARD_SAVE = 3
    BACKWARD = 4


#: Prefix of the C enumerators of each enumeration; names that differ are in ENUM_SPELLINGS.
ENUM_PREFIXES: Dict[Type[enum.IntEnum], str] = {
    Status: "MEMOPT_",
    LogLevel: "MEMOPT_LOG_",
    DType: "MEMOPT_DTYPE_",
    BackendFeature: "MEMOPT_BACKEND_",
    MonitorField: "MEMOPT_MONITOR_",
    ProcessKind: "MEMOPT_PROCESS_",
    StreamOrder: "MEMOPT_STREAM_ORDER_",
    Tag: "MEMOPT_TAG_",
    BlockState: "MEMOPT_BLOCK_",
    TraceAction: "MEMOPT_TRACE_",
    Rounding: "MEMOPT_ROUND_",
    OptimizerKind: "MEMOPT_OPTIMIZER_",
    StateFormat: "MEMOPT_STATE_",
    Overflow: "MEMOPT_OVERFLOW_",
    OffloaderFlags: "MEMOPT_OFFLOADER_",
    Pass: "MEMOPT_PASS_",
    RegionMode: "MEMOPT_REGION_",
    CheckMode: "MEMOPT_CHECK_",
    ScheduleOperation: "MEMOPT_SCHEDULE_",
    **_abi_plan.ENUM_PREFIXES,
}
ENUM_SPELLINGS: Dict[Tuple[Type[enum.IntEnum], str], str] = {
    (Status, "USER"): "MEMOPT_STATUS_USER",
    (StateFormat, "BITS8"): "MEMOPT_STATE_8BIT",
    (StateFormat, "BITS4"): "MEMOPT_STATE_4BIT",
    **_abi_plan.ENUM_SPELLINGS,
}


# --- callbacks ------------------------------------------------------------------------------------

LogCallback = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
HostCallback = CFUNCTYPE(None, c_void_p)
PressureCallback = CFUNCTYPE(c_uint64, c_void_p, c_uint64)
OomCallback = CFUNCTYPE(None, c_void_p, c_uint64, c_uint64, c_char_p)
RegionRun = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_int32, c_void_p)
RandomState = CFUNCTYPE(c_int32, c_void_p, c_void_p)
PluggableRaise = CFUNCTYPE(None, c_char_p, c_char_p, c_uint32, c_char_p)


# --- structs --------------------------------------------------------------------------------------


class ErrorInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int32),
        ("driver_code", c_int32),
        ("message", c_char_p),
        ("driver_message", c_char_p),
    ]


class TensorStruct(Struct):
    _fields_ = [
        ("data", c_void_p),
        ("count", c_uint64),
        ("dtype", c_int32),
        ("reserved", c_int32),
    ]


class DeviceOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity", c_uint64),
        ("threads", c_uint32),
        ("stream_order", c_uint32),
        ("seed", c_uint64),
        ("granularity", c_uint64),
    ]


class BackendInfoStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int32),
        ("driver_code", c_int32),
        ("driver_version", c_int32),
        ("device_count", c_int32),
        ("features", c_uint32),
        ("library", c_char * 256),
        ("tried", c_char * 512),
        ("problem", c_char * 512),
        ("missing", c_char * 512),
        ("targets", c_char * 512),
        ("compiler", c_char * 256),
    ]


class DevicePropertiesStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char * 64),
        ("backend", c_char * 8),
        ("isa", c_char * 24),
        ("index", c_int32),
        ("threads", c_uint32),
        ("warp_size", c_uint32),
        ("virtual_memory", c_uint32),
        ("total_memory", c_uint64),
        ("granularity", c_uint64),
        ("kernels", c_char * 24),
    ]


class MemoryInfoStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("total", c_uint64),
        ("free", c_uint64),
        ("used", c_uint64),
        ("used_peak", c_uint64),
        ("reserved_va", c_uint64),
        ("pinned", c_uint64),
        ("pinned_peak", c_uint64),
        ("registered", c_uint64),
    ]


class MonitorInfoStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int32),
        ("driver_code", c_int32),
        ("device_count", c_int32),
        ("reserved", c_int32),
        ("source", c_char * 16),
        ("library", c_char * 256),
        ("version", c_char * 96),
        ("tried", c_char * 512),
        ("problem", c_char * 512),
        ("missing", c_char * 512),
    ]


class MonitorReadingStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fields", c_uint32),
        ("denied", c_uint32),
        ("failed", c_uint32),
        ("driver_code", c_int32),
        ("name", c_char * 96),
        ("uuid", c_char * 96),
        ("pci", c_char * 32),
        ("memory_total", c_uint64),
        ("memory_used", c_uint64),
        ("memory_free", c_uint64),
        ("memory_reserved", c_uint64),
        ("utilization", c_double),
        ("memory_utilization", c_double),
        ("temperature", c_double),
        ("power", c_double),
        ("power_limit", c_double),
        ("problem", c_char * 256),
    ]


class ProcessInfoStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pid", c_int32),
        ("kind", c_uint32),
        ("used_bytes", c_uint64),
        ("used_known", c_uint32),
        ("reserved", c_uint32),
        ("name", c_char * 64),
    ]


ProcessVisitor = CFUNCTYPE(c_int32, c_void_p, POINTER(ProcessInfoStruct))


class AllocatorOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("limit", c_uint64),
        ("pressure", PressureCallback),
        ("pressure_user", c_void_p),
        ("oom", OomCallback),
        ("oom_user", c_void_p),
    ]


class TagStatsStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("current_bytes", c_uint64),
        ("peak_bytes", c_uint64),
        ("blocks", c_uint64),
    ]


class BlockInfoStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("segment_address", c_void_p),
        ("segment_bytes", c_uint64),
        ("stream", c_void_p),
        ("segment_large", c_uint32),
        ("segment_expandable", c_uint32),
        ("address", c_void_p),
        ("bytes", c_uint64),
        ("requested_bytes", c_uint64),
        ("state", c_uint32),
        ("tag", c_uint32),
    ]


BlockVisitor = CFUNCTYPE(c_int32, c_void_p, POINTER(BlockInfoStruct))


class TraceOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("with_failed", c_uint32),
        ("reserved", c_uint32),
    ]


class TraceEventStruct(Struct):
    _fields_ = [
        ("id", c_uint64),
        ("bytes", c_uint64),
        ("stream", c_uint64),
        ("action", c_uint32),
        ("reserved", c_uint32),
    ]


class TraceInfoStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("events", c_uint64),
        ("allocations", c_uint64),
        ("streams", c_uint64),
        ("peak_live_bytes", c_uint64),
        ("peak_live_blocks", c_uint64),
        ("live_bytes", c_uint64),
        ("live_blocks", c_uint64),
        ("lines", c_uint64),
        ("unknown_frees", c_uint64),
        ("first_unknown", c_uint64),
        ("double_frees", c_uint64),
        ("first_double", c_uint64),
        ("lost_frees", c_uint64),
        ("first_lost", c_uint64),
        ("empty_allocations", c_uint64),
        ("failed_allocations", c_uint64),
        ("failed_bytes", c_uint64),
    ]


class ReplayProgressStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("done", c_uint64),
        ("total", c_uint64),
        ("capacity", c_uint64),
    ]


ReplayProgress = CFUNCTYPE(c_int32, c_void_p, POINTER(ReplayProgressStruct))


class ReplaySampleStruct(Struct):
    _fields_ = [
        ("event", c_uint64),
        ("live_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
    ]


class ReplayOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("config", c_char_p),
        ("capacity", c_uint64),
        ("warm_passes", c_uint64),
        ("samples", POINTER(ReplaySampleStruct)),
        ("sample_room", c_uint64),
        ("progress", ReplayProgress),
        ("progress_user", c_void_p),
    ]


class ReplayResultStruct(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity", c_uint64),
        ("events", c_uint64),
        ("peak_live_bytes", c_uint64),
        ("peak_reserved_bytes", c_uint64),
        ("ratio", c_double),
        ("first_ns_per_event", c_double),
        ("ns_per_event", c_double),
        ("device_allocs", c_uint64),
        ("device_frees", c_uint64),
        ("retries", c_uint64),
        ("sample_count", c_uint64),
        ("out_of_memory", c_uint32),
        ("reserved", c_uint32),
        ("failed_bytes", c_uint64),
        ("failed_stream", c_uint64),
        ("failed_live_bytes", c_uint64),
        ("failed_reserved_bytes", c_uint64),
    ]


class CastOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rounding", c_uint32),
        ("saturate", c_uint32),
        ("seed", c_uint64),
        ("sequence", c_uint64),
    ]


class ScalerOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("init_scale", c_double),
        ("growth_factor", c_double),
        ("backoff_factor", c_double),
        ("growth_interval", c_uint32),
        ("disabled", c_uint32),
    ]


class ScalerState(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("scale", c_double),
        ("growth_factor", c_double),
        ("backoff_factor", c_double),
        ("growth_interval", c_uint32),
        ("growth_tracker", c_uint32),
    ]


class OptimizerOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("state_format", c_uint32),
        ("block_size", c_uint32),
        ("stochastic_rounding", c_uint32),
        ("min_8bit_size", c_uint64),
        ("seed", c_uint64),
    ]


class OptimizerGroup(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("lr", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("eps", c_double),
        ("weight_decay", c_double),
        ("maximize", c_uint32),
        ("reserved", c_uint32),
        ("momentum", c_double),
        ("dampening", c_double),
        ("nesterov", c_uint32),
        ("reserved2", c_uint32),
        ("device_lr", c_void_p),
    ]


class StepOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("scaler", c_void_p),
        ("max_norm", c_double),
        ("skip_non_finite", c_uint32),
        ("already_unscaled", c_uint32),
        ("out_norm", c_void_p),
        ("grad_scale", c_void_p),
        ("found_inf", c_void_p),
    ]


class StateView(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("tensor", TensorStruct),
    ]


class OffloaderOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("host_limit", c_uint64),
        ("min_bytes", c_uint64),
        ("overflow", c_uint32),
        ("flags", c_uint32),
        ("disk_path", c_char_p),
        ("disk_limit", c_uint64),
    ]


class OffloaderStats(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tickets", c_uint64),
        ("host_bytes", c_uint64),
        ("host_bytes_peak", c_uint64),
        ("host_bytes_used", c_uint64),
        ("kept_bytes", c_uint64),
        ("copied_out_bytes", c_uint64),
        ("copied_back_bytes", c_uint64),
        ("packs", c_uint64),
        ("kept_small", c_uint64),
        ("kept_overflow", c_uint64),
        ("prefetch_hits", c_uint64),
        ("waits", c_uint64),
        ("disk_tickets", c_uint64),
        ("disk_bytes_used", c_uint64),
        ("disk_bytes", c_uint64),
        ("disk_bytes_peak", c_uint64),
        ("disk_written_bytes", c_uint64),
        ("disk_read_bytes", c_uint64),
        ("disk_waits", c_uint64),
    ]


class RegionCallbacks(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("run", RegionRun),
        ("random_save", RandomState),
        ("random_restore", RandomState),
        ("user", c_void_p),
    ]


class RegionOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("mode", c_uint32),
        ("check", c_uint32),
        ("random_bytes", c_uint64),
    ]


class RegionStats(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("forwards", c_uint64),
        ("recomputes", c_uint64),
        ("leased_bytes", c_uint64),
        ("dropped_bytes", c_uint64),
        ("checked_bytes", c_uint64),
    ]


class ChainStage(Struct):
    _fields_ = [
        ("forward_seconds", c_double),
        ("backward_seconds", c_double),
        ("output_bytes", c_uint64),
        ("saved_bytes", c_uint64),
        ("forward_extra_bytes", c_uint64),
        ("backward_extra_bytes", c_uint64),
    ]


class ScheduleOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("budget", c_uint64),
        ("input_bytes", c_uint64),
        ("input_gradient", c_uint32),
        ("slots", c_uint32),
    ]


class ScheduleStep(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("operation", c_uint32),
        ("reserved", c_uint32),
        ("stage", c_uint64),
    ]


class ScheduleInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("steps", c_uint64),
        ("peak_bytes", c_uint64),
        ("minimum_budget", c_uint64),
        ("recomputed", c_uint64),
        ("seconds", c_double),
        ("seconds_plain", c_double),
    ]


#: C name of every struct.
STRUCTS: Dict[str, Type[Struct]] = {
    "memopt_error_info": ErrorInfo,
    "memopt_tensor": TensorStruct,
    "memopt_device_options": DeviceOptions,
    "memopt_backend_info": BackendInfoStruct,
    "memopt_device_properties": DevicePropertiesStruct,
    "memopt_memory_info": MemoryInfoStruct,
    "memopt_monitor_info": MonitorInfoStruct,
    "memopt_monitor_reading": MonitorReadingStruct,
    "memopt_process_info": ProcessInfoStruct,
    "memopt_allocator_options": AllocatorOptions,
    "memopt_tag_stats": TagStatsStruct,
    "memopt_block_info": BlockInfoStruct,
    "memopt_trace_options": TraceOptions,
    "memopt_trace_event": TraceEventStruct,
    "memopt_trace_info": TraceInfoStruct,
    "memopt_replay_progress_info": ReplayProgressStruct,
    "memopt_replay_sample": ReplaySampleStruct,
    "memopt_replay_options": ReplayOptions,
    "memopt_replay_result": ReplayResultStruct,
    "memopt_cast_options": CastOptions,
    "memopt_scaler_options": ScalerOptions,
    "memopt_scaler_state": ScalerState,
    "memopt_optimizer_options": OptimizerOptions,
    "memopt_optimizer_group": OptimizerGroup,
    "memopt_step_options": StepOptions,
    "memopt_state_view": StateView,
    "memopt_offloader_options": OffloaderOptions,
    "memopt_offloader_stats": OffloaderStats,
    "memopt_region_callbacks": RegionCallbacks,
    "memopt_region_options": RegionOptions,
    "memopt_region_stats": RegionStats,
    "memopt_chain_stage": ChainStage,
    "memopt_schedule_options": ScheduleOptions,
    "memopt_schedule_step": ScheduleStep,
    "memopt_schedule_info": ScheduleInfo,
    **_abi_plan.STRUCTS,
}


# --- functions ------------------------------------------------------------------------------------


_HANDLE = c_void_p  # every opaque handle, stream and untyped address
_OUT_HANDLE = POINTER(c_void_p)
_U64 = c_uint64
_OUT_U64 = POINTER(c_uint64)
_OUT_I32 = POINTER(c_int32)
_TENSORS = POINTER(TensorStruct)

#: name: (result, parameters). c_int32 as a result is a status that the caller looks at itself.
PROTOTYPES: Dict[str, Tuple[Any, List[Any]]] = {
    # base.h
    "memopt_version": (c_uint32, []),
    "memopt_version_string": (c_char_p, []),
    "memopt_status_name": (c_char_p, [c_int32]),
    "memopt_status_message": (c_char_p, [c_int32]),
    "memopt_last_error": (c_char_p, []),
    "memopt_last_error_info": (c_int32, [POINTER(ErrorInfo)]),
    "memopt_set_log": (CHECKED, [LogCallback, c_void_p, c_int32]),
    "memopt_dtype_size": (c_size_t, [c_int32]),
    "memopt_dtype_name": (c_char_p, [c_int32]),
    "memopt_dtype_parse": (CHECKED, [c_char_p, _OUT_I32]),
    "memopt_parse_size": (CHECKED, [c_char_p, _OUT_U64]),
    # device.h
    "memopt_device_count": (CHECKED, [c_char_p, _OUT_I32]),
    "memopt_backend_get_info": (CHECKED, [c_char_p, POINTER(BackendInfoStruct)]),
    "memopt_device_open": (CHECKED, [c_char_p, POINTER(DeviceOptions), _OUT_HANDLE]),
    "memopt_device_close": (CHECKED, [_HANDLE]),
    "memopt_device_get_properties": (CHECKED, [_HANDLE, POINTER(DevicePropertiesStruct)]),
    "memopt_device_memory_info": (CHECKED, [_HANDLE, POINTER(MemoryInfoStruct)]),
    "memopt_device_sync": (CHECKED, [_HANDLE]),
    "memopt_stream_create": (CHECKED, [_HANDLE, _OUT_HANDLE]),
    "memopt_stream_destroy": (CHECKED, [_HANDLE, _HANDLE]),
    "memopt_stream_release": (CHECKED, [_HANDLE, _HANDLE]),
    "memopt_stream_sync": (CHECKED, [_HANDLE, _HANDLE]),
    "memopt_stream_query": (c_int32, [_HANDLE, _HANDLE]),
    "memopt_stream_wait_event": (CHECKED, [_HANDLE, _HANDLE, _HANDLE]),
    "memopt_stream_host_callback": (CHECKED, [_HANDLE, _HANDLE, HostCallback, c_void_p]),
    "memopt_event_create": (CHECKED, [_HANDLE, c_int32, _OUT_HANDLE]),
    "memopt_event_destroy": (CHECKED, [_HANDLE]),
    "memopt_event_record": (CHECKED, [_HANDLE, _HANDLE]),
    "memopt_event_query": (c_int32, [_HANDLE]),
    "memopt_event_sync": (CHECKED, [_HANDLE]),
    "memopt_event_elapsed": (CHECKED, [_HANDLE, _HANDLE, POINTER(c_double)]),
    "memopt_copy": (CHECKED, [_HANDLE, c_void_p, c_void_p, _U64, _HANDLE]),
    "memopt_fill": (CHECKED, [_HANDLE, c_void_p, c_int32, _U64, _HANDLE]),
    "memopt_host_alloc": (CHECKED, [_HANDLE, _U64, _OUT_HANDLE]),
    "memopt_host_free": (CHECKED, [_HANDLE, c_void_p]),
    "memopt_host_register": (CHECKED, [_HANDLE, c_void_p, _U64]),
    "memopt_host_unregister": (CHECKED, [_HANDLE, c_void_p]),
    # monitor.h
    "memopt_monitor_get_info": (CHECKED, [c_char_p, POINTER(MonitorInfoStruct)]),
    "memopt_monitor_open": (CHECKED, [c_char_p, _OUT_HANDLE]),
    "memopt_monitor_close": (CHECKED, [_HANDLE]),
    "memopt_monitor_device_count": (CHECKED, [_HANDLE, _OUT_I32]),
    "memopt_monitor_read": (CHECKED, [_HANDLE, c_int32, POINTER(MonitorReadingStruct)]),
    "memopt_monitor_processes": (CHECKED, [_HANDLE, c_int32, ProcessVisitor, c_void_p]),
    # allocator.h
    "memopt_allocator_create": (
        CHECKED,
        [_HANDLE, c_char_p, POINTER(AllocatorOptions), _OUT_HANDLE],
    ),
    "memopt_allocator_check_config": (CHECKED, [c_char_p]),
    "memopt_allocator_destroy": (CHECKED, [_HANDLE]),
    "memopt_allocator_destroy_force": (CHECKED, [_HANDLE]),
    "memopt_allocator_device": (c_void_p, [_HANDLE]),
    "memopt_allocator_alloc": (CHECKED, [_HANDLE, _U64, c_uint32, _HANDLE, _OUT_HANDLE]),
    "memopt_allocator_free": (CHECKED, [_HANDLE, c_void_p]),
    "memopt_allocator_record_stream": (CHECKED, [_HANDLE, c_void_p, _HANDLE]),
    "memopt_allocator_block": (CHECKED, [_HANDLE, c_void_p, _OUT_HANDLE, _OUT_U64]),
    "memopt_allocator_trim": (CHECKED, [_HANDLE, _OUT_U64]),
    "memopt_allocator_set_limit": (CHECKED, [_HANDLE, _U64]),
    "memopt_allocator_register_tag": (CHECKED, [_HANDLE, c_char_p, POINTER(c_uint32)]),
    "memopt_allocator_tag_stats": (CHECKED, [_HANDLE, c_uint32, POINTER(TagStatsStruct)]),
    "memopt_allocator_stat_name": (c_char_p, [_U64]),
    "memopt_allocator_stats": (CHECKED, [_HANDLE, _OUT_U64, _U64, _OUT_U64]),
    "memopt_allocator_stat": (CHECKED, [_HANDLE, c_char_p, _OUT_U64]),
    "memopt_allocator_reset_peaks": (CHECKED, [_HANDLE]),
    "memopt_allocator_snapshot": (CHECKED, [_HANDLE, BlockVisitor, c_void_p]),
    # trace.h
    "memopt_trace_create": (CHECKED, [POINTER(TraceOptions), _OUT_HANDLE]),
    "memopt_trace_destroy": (CHECKED, [_HANDLE]),
    "memopt_trace_add": (CHECKED, [_HANDLE, POINTER(TraceEventStruct), _U64]),
    "memopt_trace_parse_csv": (CHECKED, [_HANDLE, c_char_p, _U64]),
    "memopt_trace_end_csv": (CHECKED, [_HANDLE]),
    "memopt_trace_read_csv": (CHECKED, [_HANDLE, c_int32]),
    "memopt_trace_get_info": (CHECKED, [_HANDLE, POINTER(TraceInfoStruct)]),
    "memopt_trace_replay": (
        CHECKED,
        [_HANDLE, POINTER(ReplayOptions), POINTER(ReplayResultStruct)],
    ),
    "memopt_trace_find_capacity": (CHECKED, [_HANDLE, POINTER(ReplayOptions), _OUT_U64]),
    # pluggable.h
    "memopt_pluggable_configure": (CHECKED, [c_char_p, c_char_p, PluggableRaise]),
    "memopt_pluggable_alloc": (c_void_p, [_U64, c_int32, _HANDLE]),
    "memopt_pluggable_alloc_or_raise": (c_void_p, [_U64, c_int32, _HANDLE]),
    "memopt_pluggable_free": (None, [c_void_p, _U64, c_int32, _HANDLE]),
    "memopt_pluggable_record_stream": (None, [c_void_p, _HANDLE]),
    "memopt_pluggable_empty_cache": (None, []),
    "memopt_pluggable_memory_fraction": (None, [c_double, c_int32]),
    "memopt_pluggable_begin_pool": (None, [c_int32, _U64, _U64, c_void_p]),
    "memopt_pluggable_end_pool": (None, [c_int32, _U64, _U64]),
    "memopt_pluggable_release_pool": (None, [c_int32, _U64, _U64]),
    "memopt_pluggable_allocator": (CHECKED, [c_int32, _U64, _OUT_HANDLE]),
    "memopt_pluggable_end": (CHECKED, []),
    # publish.h
    "memopt_publisher_open": (CHECKED, [c_char_p, _OUT_HANDLE]),
    "memopt_publisher_close": (CHECKED, [_HANDLE]),
    "memopt_publisher_add": (CHECKED, [_HANDLE, _HANDLE]),
    "memopt_publisher_add_pluggable": (CHECKED, [_HANDLE]),
    "memopt_publisher_remove": (CHECKED, [_HANDLE, _HANDLE]),
    "memopt_publisher_path": (c_char_p, [_HANDLE]),
    "memopt_publisher_get_fd": (CHECKED, [_HANDLE, _OUT_I32]),
    "memopt_publisher_serve": (CHECKED, [_HANDLE, c_int32, _OUT_U64]),
    # cast.h
    "memopt_cast": (
        CHECKED,
        [_HANDLE, _TENSORS, _TENSORS, _U64, POINTER(CastOptions), _HANDLE],
    ),
    "memopt_accumulate": (CHECKED, [_HANDLE, _TENSORS, _TENSORS, _U64, c_float, _HANDLE]),
    "memopt_scale": (CHECKED, [_HANDLE, _TENSORS, _U64, c_void_p, c_void_p, _HANDLE]),
    "memopt_check_finite": (CHECKED, [_HANDLE, _TENSORS, _U64, c_void_p, _HANDLE]),
    "memopt_scaler_create": (CHECKED, [_HANDLE, POINTER(ScalerOptions), _OUT_HANDLE]),
    "memopt_scaler_destroy": (CHECKED, [_HANDLE]),
    "memopt_scaler_device_scale": (c_void_p, [_HANDLE]),
    "memopt_scaler_device_found_inf": (c_void_p, [_HANDLE]),
    "memopt_scaler_unscale": (CHECKED, [_HANDLE, _TENSORS, _U64, _HANDLE]),
    "memopt_scaler_check": (CHECKED, [_HANDLE, _TENSORS, _U64, _HANDLE]),
    "memopt_scaler_norm": (CHECKED, [_HANDLE, _TENSORS, _U64, c_void_p, _HANDLE]),
    "memopt_scaler_clip": (CHECKED, [_HANDLE, _TENSORS, _U64, c_double, c_void_p, _HANDLE]),
    "memopt_scaler_update": (CHECKED, [_HANDLE, _HANDLE]),
    "memopt_scaler_get_state_sync": (CHECKED, [_HANDLE, POINTER(ScalerState), _HANDLE]),
    "memopt_scaler_set_state_sync": (CHECKED, [_HANDLE, POINTER(ScalerState), _HANDLE]),
    # optim.h
    "memopt_optimizer_create": (CHECKED, [_HANDLE, POINTER(OptimizerOptions), _OUT_HANDLE]),
    "memopt_optimizer_destroy": (CHECKED, [_HANDLE]),
    "memopt_optimizer_add_group": (
        CHECKED,
        [_HANDLE, POINTER(OptimizerGroup), POINTER(c_uint32)],
    ),
    "memopt_optimizer_set_group": (CHECKED, [_HANDLE, c_uint32, POINTER(OptimizerGroup)]),
    "memopt_optimizer_get_group": (CHECKED, [_HANDLE, c_uint32, POINTER(OptimizerGroup)]),
    "memopt_optimizer_add_parameter": (
        CHECKED,
        [_HANDLE, c_uint32, _TENSORS, _TENSORS, _HANDLE, _OUT_U64],
    ),
    "memopt_optimizer_add_parameter_with_state": (
        CHECKED,
        [_HANDLE, c_uint32, _TENSORS, _TENSORS, _TENSORS, _U64, c_void_p, _HANDLE, _OUT_U64],
    ),
    "memopt_optimizer_step": (CHECKED, [_HANDLE, _TENSORS, _U64, POINTER(StepOptions), _HANDLE]),
    "memopt_optimizer_state": (CHECKED, [_HANDLE, _U64, _U64, POINTER(StateView)]),
    "memopt_optimizer_get_steps_sync": (CHECKED, [_HANDLE, _U64, _HANDLE, _OUT_U64]),
    "memopt_optimizer_set_steps_sync": (CHECKED, [_HANDLE, _U64, _HANDLE, _U64]),
    "memopt_optimizer_export_size": (CHECKED, [_HANDLE, _OUT_U64]),
    "memopt_optimizer_export_sync": (CHECKED, [_HANDLE, c_void_p, _U64, _HANDLE]),
    "memopt_optimizer_import_sync": (CHECKED, [_HANDLE, c_void_p, _U64, _HANDLE]),
    "memopt_quantize_blockwise": (
        CHECKED,
        [_HANDLE, _TENSORS, _TENSORS, _TENSORS, c_int32, c_uint32, _HANDLE],
    ),
    "memopt_dequantize_blockwise": (
        CHECKED,
        [_HANDLE, _TENSORS, _TENSORS, _TENSORS, c_int32, c_uint32, _HANDLE],
    ),
    "memopt_quantize_state": (
        CHECKED,
        [_HANDLE, c_uint32, _TENSORS, _TENSORS, _TENSORS, c_int32, _HANDLE],
    ),
    "memopt_dequantize_state": (
        CHECKED,
        [_HANDLE, c_uint32, _TENSORS, _TENSORS, _TENSORS, c_int32, _HANDLE],
    ),
    "memopt_state_map": (CHECKED, [c_uint32, c_int32, POINTER(c_float)]),
    "memopt_dynamic_map": (CHECKED, [c_int32, POINTER(c_float)]),
    # offload.h
    "memopt_offloader_create": (
        CHECKED,
        [_HANDLE, _HANDLE, POINTER(OffloaderOptions), _OUT_HANDLE],
    ),
    "memopt_offloader_destroy": (CHECKED, [_HANDLE]),
    "memopt_offloader_destroy_force": (CHECKED, [_HANDLE]),
    "memopt_offload_pack": (CHECKED, [_HANDLE, c_void_p, _U64, _HANDLE, _OUT_U64]),
    "memopt_offload_pack_borrowed": (
        CHECKED,
        [_HANDLE, c_void_p, _U64, _HANDLE, _OUT_U64, _OUT_I32],
    ),
    "memopt_offload_wait_packed": (CHECKED, [_HANDLE, _U64, _HANDLE]),
    "memopt_offload_query_packed": (c_int32, [_HANDLE, _U64]),
    "memopt_offload_prefetch": (CHECKED, [_HANDLE, _U64]),
    "memopt_offload_unpack": (CHECKED, [_HANDLE, _U64, _HANDLE, _OUT_HANDLE]),
    "memopt_offload_unpack_into": (CHECKED, [_HANDLE, _U64, c_void_p, _U64, _HANDLE]),
    "memopt_offload_prefetch_into": (CHECKED, [_HANDLE, _U64, c_void_p, _U64, _HANDLE]),
    "memopt_offload_wait_unpacked": (CHECKED, [_HANDLE, _U64, _HANDLE]),
    "memopt_offload_release": (CHECKED, [_HANDLE, _U64, _HANDLE]),
    "memopt_offload_release_many": (CHECKED, [_HANDLE, _OUT_U64, _U64, _HANDLE, _OUT_U64]),
    "memopt_offloader_trim": (CHECKED, [_HANDLE, _OUT_U64]),
    "memopt_offloader_get_stats": (CHECKED, [_HANDLE, POINTER(OffloaderStats)]),
    # checkpoint.h
    "memopt_region_create": (
        CHECKED,
        [_HANDLE, _HANDLE, POINTER(RegionCallbacks), POINTER(RegionOptions), _OUT_HANDLE],
    ),
    "memopt_region_destroy": (CHECKED, [_HANDLE]),
    "memopt_region_forward": (CHECKED, [_HANDLE, _HANDLE]),
    "memopt_region_recompute": (CHECKED, [_HANDLE, _HANDLE]),
    "memopt_region_release": (CHECKED, [_HANDLE]),
    "memopt_region_alloc": (CHECKED, [_HANDLE, _U64, _OUT_HANDLE]),
    "memopt_region_check": (CHECKED, [_HANDLE, c_char_p, _TENSORS]),
    "memopt_region_get_stats": (CHECKED, [_HANDLE, POINTER(RegionStats)]),
    "memopt_content_hash": (CHECKED, [_HANDLE, _TENSORS, _OUT_U64, _HANDLE]),
    "memopt_schedule_create": (
        CHECKED,
        [POINTER(ChainStage), _U64, POINTER(ScheduleOptions), _OUT_HANDLE],
    ),
    "memopt_schedule_destroy": (CHECKED, [_HANDLE]),
    "memopt_schedule_get_info": (CHECKED, [_HANDLE, POINTER(ScheduleInfo)]),
    "memopt_schedule_next": (c_int32, [_HANDLE, POINTER(ScheduleStep)]),
    "memopt_schedule_rewind": (CHECKED, [_HANDLE]),
    # plan.h
    **_abi_plan.PROTOTYPES,
}
