"""The C interface of publish.h."""

from __future__ import annotations

from ..words import *

functions(
    TOOLS,
    memopt_publisher_open=(CHECKED, TEXT, OUT_HANDLE),
    memopt_publisher_close=(CHECKED, HANDLE),
    memopt_publisher_add=(CHECKED, HANDLE, HANDLE),
    memopt_publisher_add_pluggable=(CHECKED, HANDLE),
    memopt_publisher_remove=(CHECKED, HANDLE, HANDLE),
    memopt_publisher_get_path=(TEXT, HANDLE),
    memopt_publisher_get_fd=(CHECKED, HANDLE, OUT_I32),
    memopt_publisher_serve=(CHECKED, HANDLE, I32, OUT_U64),
)
