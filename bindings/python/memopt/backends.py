"""What was found of a back end: its driver, what that lacks, the kernels built in."""

from __future__ import annotations

import enum
from typing import NamedTuple, Tuple, Type, Union

from . import _abi
from ._abi import BackendFeature, Status
from ._library import c_text, lib, output

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
    """Asks about "cpu", "cuda" or "hip"; a missing driver is an answer, not an exception."""
    raw = output(lib.memopt_backend_get_info, c_text(backend, "a back end"))
    return BackendInfo(
        status=status_of(raw.status),
        driver_code=raw.driver_code,
        driver_version=raw.driver_version,
        device_count=raw.device_count,
        features=names_of(BackendFeature, raw.features),
        library=text(raw.library),
        tried=words(raw.tried),
        problem=text(raw.problem),
        missing=words(raw.missing),
        targets=words(raw.targets),
        compiler=text(raw.compiler),
    )


def status_of(value: int) -> Union[Status, int]:
    """The status, or the number of one that a later library has."""
    try:
        return Status(value)
    except ValueError:
        return value


def text(raw: bytes) -> str:
    """A text of the library."""
    return raw.decode("utf-8", "replace")


def words(raw: bytes) -> Tuple[str, ...]:
    """A list of the library, whose items are separated by commas."""
    return tuple(text(raw).split(", ")) if raw else ()


def names_of(kind: Type[enum.IntEnum], bits: int) -> Tuple[str, ...]:
    """The bits of an enumeration by name, in its order; those of a later library are left out."""
    return tuple(member.name.lower() for member in kind if bits & member)
