"""Watching devices and the processes on them without opening a device: no context is made.

with memopt.tools.Monitor("cuda") as monitor:
    for index in range(len(monitor)):
        reading = monitor.read(index)
        print(reading.name, reading.memory_used, reading.utilization)
        for process in monitor.processes(index):
            print(process.pid, process.name, process.used_bytes)
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple, Union

from .. import _lifetime, errors
from .._abi import Status
from .._abi import tools as _abi
from .._abi.tools import MonitorField, ProcessKind
from .._interrupt import Interruptible
from .._library import c_text, output, values_of
from ..backends import info_of, names_of
from ._library import lib


class MonitorInfo(NamedTuple):
    """The source of readings; ``status`` is what opening a monitor would return."""

    status: Union[Status, int]
    driver_code: int
    device_count: int
    source: str
    library: str
    version: str
    tried: Tuple[str, ...]
    problem: str
    missing: Tuple[str, ...]

    @property
    def available(self) -> bool:
        """Whether a monitor can be opened."""
        return self.status == Status.OK


class Reading(NamedTuple):
    """One device at one moment.

    None: not available. ``denied`` names what this user may not read, ``failed`` what the driver
    failed to read, with ``problem`` for the first of them; the device does not report the others.
    Memory is in bytes, utilization in percent, temperature in degrees Celsius, power in watts.
    """

    name: Optional[str]
    uuid: Optional[str]
    pci: Optional[str]
    memory_total: Optional[int]
    memory_used: Optional[int]
    memory_free: Optional[int]
    memory_reserved: Optional[int]
    utilization: Optional[float]
    memory_utilization: Optional[float]
    temperature: Optional[float]
    power: Optional[float]
    power_limit: Optional[float]
    denied: Tuple[str, ...]
    failed: Tuple[str, ...]
    driver_code: int
    problem: str


class Process(NamedTuple):
    """A process that uses a device; ``used_bytes`` is None if the driver does not report it.

    ``kinds`` has "compute", "graphics" or both; on "cpu" it is ("host",).
    """

    pid: int
    name: str
    used_bytes: Optional[int]
    kinds: Tuple[str, ...]


class Monitor(_lifetime.Closing):
    """Reads the devices of "cuda" (NVML), "hip" (ROCm SMI or the driver's files) or "cpu" (the
    machine itself). One thread at a time."""

    __slots__ = ("_handle", "_backend", "__weakref__")

    def __init__(self, backend: str) -> None:
        self._handle = _lifetime.create(
            self,
            "monitor %s" % backend,
            lib.memopt_monitor_close,
            lib.memopt_monitor_open,
            c_text(backend, "a back end"),
        )
        self._backend = backend

    @staticmethod
    def info(backend: str) -> MonitorInfo:
        """The source; a missing one is a result, not an exception."""
        raw = output(lib.memopt_monitor_get_info, c_text(backend, "a back end"))
        info: MonitorInfo = info_of(MonitorInfo, raw)
        return info

    @property
    def backend(self) -> str:
        """ "cuda", "hip" or "cpu"."""
        return self._backend

    def __repr__(self) -> str:
        return "<memopt.Monitor %s%s>" % (self._backend, " (closed)" if self.closed else "")

    def __len__(self) -> int:
        """The number of devices when it was opened."""
        return int(output(lib.memopt_monitor_get_device_count, self._handle.pointer))

    def read(self, index: int = 0) -> Reading:
        """Reads one device. NotFoundError if no device has this index."""
        raw = output(lib.memopt_monitor_get_reading, self._handle.pointer, index)
        values = values_of(raw, Reading._fields)
        for field in Reading._fields[: Reading._fields.index("denied")]:
            if not raw.fields & MonitorField.__members__.get(field.upper(), MonitorField.MEMORY):
                values[field] = None
        values["denied"] = names_of(MonitorField, raw.denied)
        values["failed"] = names_of(MonitorField, raw.failed)
        return Reading(**values)

    def processes(self, index: int = 0) -> List[Process]:
        """The processes that use a device, the greatest user first."""
        found: List[Process] = []

        def visit(_user: object, pointer: Any) -> int:
            def call() -> int:
                raw = pointer.contents
                found.append(
                    Process(
                        pid=raw.pid,
                        name=raw.name.decode("utf-8", "replace"),
                        used_bytes=raw.used_bytes if raw.used_known else None,
                        kinds=names_of(ProcessKind, raw.kind),
                    )
                )
                return Status.OK

            return errors.run_callback(call, lambda error: Status.USER)

        visitor = _abi.ProcessVisitor(visit)
        with Interruptible():
            lib.memopt_monitor_processes(self._handle.pointer, index, visitor, None)
        return found
