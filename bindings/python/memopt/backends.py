"""What was found of a back end: its driver, what that lacks, the kernels built in."""

from __future__ import annotations

import ctypes
import enum
from typing import Any, NamedTuple, Tuple, Type, Union

from . import _nvrtc
from ._abi import BackendFeature, Status
from ._library import c_text, lib, output, values_of
from .errors import known

#: Every back end that this version knows.
BACKENDS: Tuple[str, ...] = ("cpu", "cuda", "hip")


class BackendInfo(NamedTuple):
    """What was found of a back end; ``status`` is what opening a device of it would return."""

    status: Union[Status, int]
    driver_code: int
    driver_version: int
    device_count: int
    features: Tuple[str, ...]
    library: str
    tried: Tuple[str, ...]
    problem: str
    missing: Tuple[str, ...]
    targets: Tuple[str, ...]
    compiler: str

    @property
    def available(self) -> bool:
        """Whether devices can be opened, if there are any."""
        return self.status == Status.OK


def backend_info(backend: str) -> BackendInfo:
    """Asks about "cpu", "cuda" or "hip"; a missing driver is an answer, not an exception.

    Where "cuda" has no run-time compiler, one of a wheel is loaded (`nvidia-cuda-nvrtc`).
    """
    name = c_text(backend, "a back end")
    raw = output(lib.memopt_backend_get_info, name)
    if backend == "cuda" and raw.status == Status.OK and not raw.compiler:
        if _nvrtc.load(raw.driver_version):
            raw = output(lib.memopt_backend_get_info, name)
    info: BackendInfo = info_of(BackendInfo, raw)
    return info._replace(features=names_of(BackendFeature, raw.features))


def info_of(kind: Any, raw: ctypes.Structure) -> Any:
    """What a struct of the library tells, as a named tuple; its lists have commas between items."""
    values = values_of(raw, kind._fields)
    for name in ("tried", "missing", "targets"):
        if name in values:
            values[name] = tuple(values[name].split(", ")) if values[name] else ()
    values["status"] = known(values["status"])
    return kind(**values)


def names_of(kind: Type[enum.IntEnum], bits: int) -> Tuple[str, ...]:
    """The bits of an enumeration by name, in its order; those of a later library are left out."""
    return tuple(member.name.lower() for member in kind if bits & member)
