"""The C interface of share.h."""

from __future__ import annotations

from .words import *

#: Bytes of the message that describes an exported block.
SHARE_MESSAGE_BYTES = 128

functions(
    memopt_export_create=(CHECKED, HANDLE, ADDRESS, OUT_HANDLE),
    memopt_export_destroy=(CHECKED, HANDLE),
    memopt_export_describe=(CHECKED, HANDLE, U64, ADDRESS, OUT_I32, OUT_U64),
    memopt_export_send=(CHECKED, HANDLE, I32),
    memopt_import_open=(CHECKED, HANDLE, ADDRESS, U64, OUT_I32, U64, OUT_ADDRESS, OUT_U64, OUT_HANDLE),
    memopt_import_receive=(CHECKED, HANDLE, I32, OUT_ADDRESS, OUT_U64, OUT_HANDLE),
    memopt_import_destroy=(CHECKED, HANDLE),
)
