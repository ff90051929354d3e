"""The C interface of pluggable.h."""

from __future__ import annotations

from ctypes import CFUNCTYPE

from .allocator import HistoryOptions
from .words import *

PluggableRaise = CFUNCTYPE(None, TEXT, TEXT, U32, TEXT)
PluggableObserver = CFUNCTYPE(None, I32, U64, U64, U64)

functions(
    memopt_pluggable_find_torch=(CHECKED, TEXT, OUT_HANDLE),
    memopt_pluggable_configure=(CHECKED, TEXT, TEXT, PluggableRaise),
    memopt_pluggable_alloc=(ADDRESS, U64, I32, STREAM),
    memopt_pluggable_alloc_or_raise=(ADDRESS, U64, I32, STREAM),
    memopt_pluggable_set_tag=(CHECKED, TEXT, OUT_TEXT),
    memopt_pluggable_free=(None, ADDRESS, U64, I32, STREAM),
    memopt_pluggable_record_stream=(None, ADDRESS, STREAM),
    memopt_pluggable_empty_cache=(None,),
    memopt_pluggable_trim_to_sync=(CHECKED, I32, U64, OUT_U64),
    memopt_pluggable_memory_fraction=(None, F64, I32),
    memopt_pluggable_begin_pool=(None, I32, U64, U64, ADDRESS),
    memopt_pluggable_end_pool=(None, I32, U64, U64),
    memopt_pluggable_release_pool=(None, I32, U64, U64),
    memopt_pluggable_get_allocator=(CHECKED, I32, U64, OUT_HANDLE),
    memopt_pluggable_get_pool=(CHECKED, I32, U64, OUT_U64, OUT_U64),
    memopt_pluggable_base_alloc=(ADDRESS, ADDRESS, OUT_U64),
    memopt_pluggable_observe=(None, PluggableObserver),
    memopt_pluggable_trace=(CHECKED, TEXT),
    memopt_pluggable_history=(CHECKED, HistoryOptions),
    memopt_pluggable_end=(CHECKED,),
)
