"""Samples of devices and the processes on them, as schemas/monitor.json describes them."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ...errors import MemoptError
from ...tools import Monitor, Process, Published, PublishedAllocator, Reading, _host_memory
from ...tools.published import Reader
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
        self._published = Reader()
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
        published = self._published.read()
        lists = self._processes(published)
        total, available = _host_memory.total(), _host_memory.available()
        return {
            "sample": self._count,
            "time": round(time.time(), 3),
            "note": self.note or None,
            "devices": [self._device(target, lists, published) for target in self.targets],
            "host": {
                "memory_total": total,
                "memory_available": available,
                "memory_used": None if total is None or available is None else total - available,
            },
        }

    def _processes(self, published: List[Published]) -> "Dict[Target, _Processes]":
        """Of the targets, and of other devices needed to match allocators."""
        wanted: List[Target] = list(self.targets)
        for backend, monitor in self._monitors.items():
            if any(len(_groups(one, backend)) > 1 for one in published):
                wanted += [Target(backend, index) for index in range(len(monitor))]
        return {target: self._list(target) for target in dict.fromkeys(wanted)}

    def _list(self, target: Target) -> "_Processes":
        try:
            return _Processes(self._monitors[target.backend].processes(target.number), None)
        except MemoptError as error:
            return _Processes([], str(error))

    def _device(
        self,
        target: Target,
        lists: "Dict[Target, _Processes]",
        published: List[Published],
    ) -> Dict[str, Any]:
        device: Dict[str, Any] = {
            "device": target.name,
            "backend": target.backend,
            "index": target.number,
            "error": None,
        }
        device.update(dict.fromkeys(_READING))
        try:
            reading = self._monitors[target.backend].read(target.number)
        except MemoptError as error:  # one broken device does not hide the others
            device["error"] = {"status": error.name, "message": str(error)}
        else:
            device.update((field, getattr(reading, field)) for field in _READING)
        found = lists[target]
        caches = _caches(target, lists, published)
        device["processes"] = [_process(one, caches.get(one.pid)) for one in found.processes]
        device["processes_error"] = found.error
        return device


class _Processes(NamedTuple):
    processes: List[Process]
    error: Optional[str]


def _process(process: Process, allocators: Optional[List[PublishedAllocator]]) -> Dict[str, Any]:
    told: Dict[str, Any] = dict.fromkeys(("allocated", "cached", "reserved", "reserved_peak"))
    if allocators is not None:
        told = {field: sum(getattr(one, field) for one in allocators) for field in told}
    return {
        "pid": process.pid,
        "name": printable(process.name),
        "kinds": list(process.kinds),
        "used": process.used_bytes,
        **told,
    }


# --- whose allocator is whose ---------------------------------------------------------------------


def _groups(one: Published, backend: str) -> Dict[str, List[PublishedAllocator]]:
    """The allocators of a process on devices of a back end, in the order of its own numbers."""
    found: Dict[str, List[PublishedAllocator]] = {}
    for allocator in one.allocators:
        if allocator.device.partition(":")[0] == backend:
            found.setdefault(allocator.device, []).append(allocator)
    return {name: found[name] for name in sorted(found, key=lambda text: (len(text), text))}


def _caches(
    target: Target, lists: Dict[Target, _Processes], published: List[Published]
) -> Dict[int, List[PublishedAllocator]]:
    """The allocators on a device, by process.

    A process numbers devices in its own way (CUDA_VISIBLE_DEVICES). One device is unambiguous; as
    many as the driver reports for it are in the same order; else nothing is shown.
    """
    result = {}
    for one in published:
        groups = list(_groups(one, target.backend).values())
        places = [
            place
            for place in sorted(lists)
            if place.backend == target.backend and _has(lists[place], one.pid)
        ]
        if target not in places:
            continue
        if len(groups) == 1 and len(places) == 1:
            result[one.pid] = groups[0]
        elif len(groups) == len(places):
            result[one.pid] = groups[places.index(target)]
    return result


def _has(found: _Processes, pid: int) -> bool:
    return any(process.pid == pid for process in found.processes)
