"""Samples of devices and the processes on them, as schemas/monitor.json describes them."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ...errors import MemoptError
from ... import _host_memory
from ...tools import Monitor, Process, Reading
from ..layout import printable
from ..standard_streams import drivers_quiet

GPUS = ("cuda", "hip")
_DEVICE = re.compile(r"(cpu|cuda|hip)(?::(\d{1,4}))?")

#: The note if no device was requested and there is no GPU.
NO_GPU = (
    "no GPU was found: this is the CPU device, which is the machine's memory; `memopt info` tells "
    "what was tried"
)

#: What a reading has of a device, without what could not be had.
_READING = Reading._fields[: Reading._fields.index("denied")]


class Target(NamedTuple):
    """A device that is watched."""

    backend: str
    number: int

    @property
    def name(self) -> str:
        """Such as "cuda:0"."""
        return "%s:%d" % self


def parse_device(text: str) -> Tuple[str, Optional[int]]:
    """ "cuda:1" or, for all of them, "cuda"; ValueError where it is neither."""
    found = _DEVICE.fullmatch(text)
    if found is None:
        raise ValueError(
            "%r is not a device: write cpu, cuda, hip, or one of them with a number, such as cuda:0"
            % text
        )
    return found.group(1), None if found.group(2) is None else int(found.group(2))


class Sampler:
    """Reads the requested devices, or every GPU, or the CPU if there is no GPU."""

    def __init__(self, wanted: Sequence[Tuple[str, Optional[int]]] = ()) -> None:
        self._monitors: Dict[str, Monitor] = {}
        self._count = 0
        self.note = ""
        self.targets: List[Target] = []
        try:
            with drivers_quiet():
                if wanted:
                    self._choose(wanted)
                else:
                    self._find()
        except BaseException:
            self.close()
            raise

    def _choose(self, wanted: Sequence[Tuple[str, Optional[int]]]) -> None:
        for backend, index in wanted:
            if backend not in self._monitors:
                self._monitors[backend] = Monitor(backend)
            monitor = self._monitors[backend]
            if index is not None:
                monitor.read(index)  # NotFoundError says how many there are
            for one in range(len(monitor)) if index is None else [index]:
                if Target(backend, one) not in self.targets:
                    self.targets.append(Target(backend, one))

    def _find(self) -> None:
        for backend in GPUS:
            try:
                monitor = Monitor(backend)
            except MemoptError:
                continue
            if len(monitor) == 0:
                monitor.close()
                continue
            self._monitors[backend] = monitor
            self.targets += [Target(backend, index) for index in range(len(monitor))]
        if not self.targets:
            self.note = NO_GPU
            self._choose([("cpu", None)])

    def close(self) -> None:
        """Ends the monitors."""
        for monitor in self._monitors.values():
            monitor.close()

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    # --- sampling ---

    def sample(self) -> Dict[str, Any]:
        """All devices now."""
        self._count += 1
        total, available = _host_memory.total(), _host_memory.available()
        return {
            "sample": self._count,
            "time": round(time.time(), 3),
            "note": self.note or None,
            "devices": [self._device(target) for target in self.targets],
            "host": {
                "memory_total": total,
                "memory_available": available,
                "memory_used": None if total is None or available is None else total - available,
            },
        }

    def _device(self, target: Target) -> Dict[str, Any]:
        monitor = self._monitors[target.backend]
        device: Dict[str, Any] = {
            "device": target.name,
            "backend": target.backend,
            "index": target.number,
            "error": None,
        }
        device.update(dict.fromkeys(_READING))
        try:
            reading = monitor.read(target.number)
        except MemoptError as error:  # one broken device does not hide the others
            device["error"] = {"status": error.name, "message": str(error)}
        else:
            device.update((field, getattr(reading, field)) for field in _READING)
        device["processes"], device["processes_error"] = [], None
        try:
            device["processes"] = [_process(one) for one in monitor.processes(target.number)]
        except MemoptError as error:
            device["processes_error"] = str(error)
        return device


def _process(process: Process) -> Dict[str, Any]:
    return {
        "pid": process.pid,
        "name": printable(process.name),
        "kinds": list(process.kinds),
        "used": process.used_bytes,
    }
