"""The C interface of share.h."""

from __future__ import annotations

from .words import *

#: Bytes of the message that describes an exported block.
SHARE_MESSAGE_BYTES = 128

functions(
    memopt_export_create=(CHECKED, HANDLE, ADDRESS, OUT_HANDLE),
    memopt_export_destroy=(CHECKED, HANDLE),
    memopt_export_describe=(CHECKED, HANDLE, ADDRESS, OUT_U64),
    memopt_export_open_files=(CHECKED, HANDLE, U64, U64, OUT_I32),
    memopt_export_send=(CHECKED, HANDLE, I32),
    memopt_import_open=(CHECKED, HANDLE, ADDRESS, U64, OUT_I32, U64, OUT_HANDLE),
    memopt_import_receive=(CHECKED, HANDLE, I32, OUT_HANDLE),
    memopt_import_get=(CHECKED, HANDLE, OUT_ADDRESS, OUT_U64),
    memopt_import_destroy=(CHECKED, HANDLE),
)
