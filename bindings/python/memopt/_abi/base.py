"""The C interface of base.h."""

from __future__ import annotations

import enum
from ctypes import CFUNCTYPE

from .words import *

#: Version of the headers that all this was written for.
HEADER_VERSION = (0, 9)


@enumeration("MEMOPT_", USER="MEMOPT_STATUS_USER")
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


@struct("memopt_error_info")
class ErrorInfo(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("status", I32),
        ("driver_code", I32),
        ("message", TEXT),
        ("driver_message", TEXT),
    ]


@enumeration("MEMOPT_LOG_")
class LogLevel(enum.IntEnum):
    """How important a log line is."""

    OFF = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    DEBUG = 4


LogCallback = CFUNCTYPE(None, ADDRESS, I32, TEXT)


@enumeration("MEMOPT_DTYPE_")
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
    F8_E4M3FNUZ = 10
    F8_E5M2FNUZ = 11
    I16 = 12

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
    DType.I16: 2,
    DType.I32: 4,
    DType.I64: 8,
    DType.F64: 8,
    DType.F8_E4M3FNUZ: 1,
    DType.F8_E5M2FNUZ: 1,
}


@struct("memopt_tensor")
class TensorStruct(Struct):
    _fields_ = [("data", ADDRESS), ("count", U64), ("dtype", I32)]


#: An array of them, passed by its address.
TENSORS = TensorStruct


functions(
    memopt_version=(U32,),
    memopt_version_string=(TEXT,),
    memopt_status_name=(TEXT, I32),
    memopt_status_message=(TEXT, I32),
    memopt_last_error=(TEXT,),
    memopt_last_error_info=(I32, ErrorInfo),
    memopt_set_log=(CHECKED, LogCallback, ADDRESS, I32),
    memopt_dtype_size=(SIZE, I32),
    memopt_dtype_name=(TEXT, I32),
    memopt_dtype_parse=(CHECKED, TEXT, OUT_I32),
    memopt_parse_size=(CHECKED, TEXT, OUT_U64),
)
