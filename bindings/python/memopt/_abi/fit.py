"""The C interface of fit.h."""

from __future__ import annotations

import enum

from .words import *


@enumeration("MEMOPT_FIT_")
class FitEventKind(enum.IntEnum):
    """What happens in an event of a tape."""

    BIRTH = 1
    DEATH = 2
    PACK = 3
    UNPACK = 4
    RELEASE = 5
    ENTER = 6
    LEAVE = 7
    BACKWARD = 8


@struct("memopt_fit_event")
class FitEvent(Struct):
    _fields_ = each(U32, "kind subject storage")


@enumeration("MEMOPT_FIT_")
class FitChoiceKind(enum.IntEnum):
    """What a choice does."""

    RECOMPUTE = 1
    REMAKE = 2
    OFFLOAD = 3
    DISK = 4


FIT_NONE = 0xFFFFFFFF


@struct("memopt_fit_choice")
class FitChoice(Struct):
    _fields_ = [
        *each(U32, "kind module storage first_pack first_input input_count"),
        ("extra_bytes", U64),
        ("seconds", F64),
    ]


@struct("memopt_fit_tape")
class FitTape(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("events", ADDRESS),
        ("event_count", U64),
        ("storage_bytes", ADDRESS),
        ("storage_count", U64),
        ("choices", ADDRESS),
        ("choice_count", U64),
        ("inputs", ADDRESS),
        ("input_count", U64),
        ("fixed_bytes", U64),
    ]


@struct("memopt_fit_result")
class FitResult(Struct):
    _fields_ = [
        ("struct_size", SIZE),
        ("peak_bytes", U64),
        ("host_bytes", U64),
        ("seconds", F64),
        ("peak_event", U64),
        ("peak_module", U32),
        ("peak_storage", U32),
        ("disk_bytes", U64),
    ]


@struct("memopt_fit_options")
class FitOptions(Struct):
    _fields_ = [("struct_size", SIZE), ("budget", U64), ("host_limit", U64), ("disk_limit", U64)]


functions(
    memopt_fit_create=(CHECKED, FitTape, OUT_HANDLE),
    memopt_fit_destroy=(CHECKED, HANDLE),
    memopt_fit_replay=(CHECKED, HANDLE, OUT_U32, U64, FitResult),
    memopt_fit_solve=(CHECKED, HANDLE, FitOptions, OUT_U32, OUT_U64, FitResult),
)
