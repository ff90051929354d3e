"""report(): where the memory of a model, its optimizer and a training step goes."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch

from .. import _host_memory
from ..sizes import format_size
from . import _storages
from ._timeline import CATEGORIES, Peak, Timeline
from .allocator import enabled_allocator


class DeviceMemory(NamedTuple):
    """One device, in bytes; None is not measured or not reported by the device.

    ``weights`` are parameters and buffers, ``other`` is what else is allocated now. ``at_peak`` has
    the bytes by category at the moment when most was alive: there ``activations`` are what autograd
    has saved for backward, ``other`` the rest, such as the batch and temporaries. ``reserved`` is
    what the allocator holds, ``free`` what can still be allocated beyond that.
    """

    weights: int
    gradients: int
    optimizer: int
    other: Optional[int]
    peak: Optional[int]
    at_peak: Optional[Dict[str, int]]
    reserved: Optional[int]
    free: Optional[int]
    total: Optional[int]


class ModuleMemory(NamedTuple):
    """A module with everything below it; what modules share counts for the first."""

    name: str
    kind: str
    weights: int
    gradients: int
    optimizer: int


class MemoryReport:
    """What :func:`report` found. ``str()`` is the table; rich prints its own."""

    def __init__(
        self, devices: Dict[str, DeviceMemory], dtypes: Dict[str, Dict[str, int]], modules: List[ModuleMemory]
    ) -> None:
        #: By device name.
        self.devices = devices
        #: Bytes by category and dtype, of all devices.
        self.dtypes = dtypes
        #: Where they were asked for.
        self.modules = modules
        #: Host memory of this process, now and at most.
        self.rss, self.rss_peak = _host_memory.rss(), _host_memory.rss_peak()

    def as_dict(self) -> Dict[str, Any]:
        """Everything as plain dicts, lists and ints."""
        return {
            "devices": {name: memory._asdict() for name, memory in self.devices.items()},
            "dtypes": self.dtypes,
            "modules": [module._asdict() for module in self.modules],
            "host": {"rss": self.rss, "rss_peak": self.rss_peak},
        }

    def table(self) -> str:
        """The breakdown as text."""
        return "\n\n".join([_text(*rows) for rows in self._tables()] + [self._notes()])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return "<memopt.torch.reports.MemoryReport of %s>" % ", ".join(self.devices)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.table import Table

        for header, rows in self._tables():
            table = Table(title=header[0])
            table.add_column("")
            for name in header[1:]:
                table.add_column(name, justify="right")
            for row in rows:
                table.add_row(*row)
            yield table
        yield self._notes()

    def _notes(self) -> str:
        """What stands below the tables."""
        sizes = format_size(self.rss), format_size(self.rss_peak)
        notes = ["host memory of this process: %s, at most %s" % sizes]
        if all(memory.at_peak is None for memory in self.devices.values()):
            notes.append("activations and the peak of a step: report(..., step=f), f runs one training step")
        return "\n".join(notes)

    def _tables(self) -> Iterator[Tuple[List[str], List[List[str]]]]:
        for name, memory in self.devices.items():
            yield _device_table(name, memory)
        if self.modules:
            header = ["modules", "weights", "gradients", "optimizer"]
            yield (
                header,
                [
                    ["%s (%s)" % (module.name or ".", module.kind), *map(format_size, module[2:])]
                    for module in self.modules
                ],
            )


def report(
    model: torch.nn.Module, optimizer: Any = None, *, step: Optional[Callable[[], Any]] = None, modules: int = 0
) -> MemoryReport:
    """The memory of a model by what it is for: live values of the tensors that there are.

    Storages count once, whatever views and ties there are. `optimizer` is one, or several in a
    list. With `step`, a function that runs one training step, that step is run and watched: the
    peak and its parts are exact then, on the CPU as well. `modules` adds a row for each module down
    to this depth.

    Without `step`, activations are not known apart from the rest, and the peak is that of the
    device's allocator (if the device has one that reports it); the table then says how to get them.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError("report: model must be a torch.nn.Module, not %s" % type(model).__name__)
    optimizers = _optimizers(optimizer)
    peaks = None if step is None else _measure(model, optimizers, step)
    counted = _Count()
    counted.add("weights", _storages.parameters_and_buffers(model))
    counted.add("gradients", _storages.gradients(model.parameters()))
    for one in optimizers:
        counted.add("gradients", _storages.gradients(_optimized(one)))
        counted.add("optimizer", _storages.states(one))
    names = sorted(set(counted.devices) | set(peaks or ()), key=lambda name: (name != "cpu", name))
    devices = {name: _device(name, counted.of(name), peaks) for name in names}
    return MemoryReport(devices, counted.dtypes, _modules(model, optimizers, modules))


class _Count:
    """Bytes by device and category, each storage once."""

    def __init__(self) -> None:
        self.seen: Set[int] = set()
        self.devices: Dict[str, Dict[str, int]] = {}
        self.dtypes: Dict[str, Dict[str, int]] = {}

    def add(self, category: str, tensors: Iterable[torch.Tensor]) -> int:
        """Counts what was not counted before, and says how much that was."""
        total = 0
        for tensor in tensors:
            for part in _storages.plain_tensors(tensor):
                total += self._add(category, part)
        return total

    def _add(self, category: str, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata in self.seen:
            return 0
        self.seen.add(storage._cdata)
        size = storage.nbytes()
        device = self.devices.setdefault(str(tensor.device), {})
        device[category] = device.get(category, 0) + size
        dtypes = self.dtypes.setdefault(category, {})
        name = str(tensor.dtype).replace("torch.", "")
        dtypes[name] = dtypes.get(name, 0) + size
        return size

    def of(self, device: str) -> Dict[str, int]:
        found = self.devices.get(device, {})
        return {name: found.get(name, 0) for name in CATEGORIES[:3]}


def _optimizers(optimizer: Any) -> List[Any]:
    if optimizer is None:
        return []
    many = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for one in many:
        if not (hasattr(one, "state") and hasattr(one, "param_groups")):
            raise TypeError(
                "report: optimizer must be a torch.optim.Optimizer or a list of them, not %s" % type(one).__name__
            )
    return many


def _optimized(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _measure(model: torch.nn.Module, optimizers: List[Any], step: Callable[[], Any]) -> Dict[str, Peak]:
    timeline = Timeline()
    parameters: List[torch.Tensor] = list(model.parameters())
    known = set(map(id, parameters))
    for one in optimizers:
        parameters += [p for p in _optimized(one) if id(p) not in known]
    timeline.know(_storages.parameters_and_buffers(model), "weights")
    timeline.know(parameters, "weights")
    timeline.know(_storages.gradients(parameters), "gradients")
    for one in optimizers:
        timeline.know(_storages.states(one), "optimizer")
    timeline.watch_gradients(parameters)
    try:
        with timeline:
            step()
        for one in optimizers:
            timeline.know(_storages.states(one), "optimizer")
        return timeline.peaks()
    finally:
        timeline.end()


def _device(name: str, known: Dict[str, int], peaks: Optional[Dict[str, Peak]]) -> DeviceMemory:
    allocated = peak = reserved = free = total = other = at_peak = None
    if name == "cpu":
        free, total = _host_memory.available(), _host_memory.total()
    elif name.startswith("cuda"):
        allocated, peak, reserved = _gpu_statistics(name)
        free, total = torch.cuda.mem_get_info(name)
        free += max(reserved - allocated, 0)
    if allocated is not None:
        other = max(allocated - sum(known.values()), 0)
    if peaks is not None and name in peaks:
        peak, at_peak = peaks[name]
    return DeviceMemory(
        known["weights"], known["gradients"], known["optimizer"], other, peak, at_peak, reserved, free, total
    )


def _gpu_statistics(device: str) -> Tuple[int, int, int]:
    """Allocated, most allocated and reserved bytes."""
    ours = enabled_allocator()
    stats = torch.cuda.memory_stats(device) if ours is None else ours.stats(device)
    return (
        stats.get("allocated_bytes.all.current", 0),
        stats.get("allocated_bytes.all.peak", 0),
        stats.get("reserved_bytes.all.current", 0),
    )


def _modules(model: torch.nn.Module, optimizers: List[Any], depth: int) -> List[ModuleMemory]:
    if depth <= 0:
        return []
    states: Dict[Any, Any] = {}
    for one in optimizers:
        states.update(one.state)
    rows = []
    known: Dict[int, _Count] = {}
    for name, module in model.named_modules():
        level = name.count(".") + 1 if name else 0
        if level > depth:
            continue
        # Siblings share one count, so that shared storages count once.
        count = known.setdefault(level, _Count())
        parameters = list(module.parameters())
        owned = _State([states[p] for p in parameters if p in states])
        rows.append(
            ModuleMemory(
                name,
                type(module).__name__,
                count.add("weights", _storages.parameters_and_buffers(module)),
                count.add("gradients", _storages.gradients(parameters)),
                count.add("optimizer", _storages.states(owned)),
            )
        )
    return rows


class _State:
    """Some of an optimizer's states."""

    def __init__(self, values: List[Any]) -> None:
        self.state = dict(enumerate(values))


# --- text -----------------------------------------------------------------------------------------


def _device_table(name: str, memory: DeviceMemory) -> Tuple[List[str], List[List[str]]]:
    at_peak = memory.at_peak
    live = [getattr(memory, category, None) for category in CATEGORIES]
    rows = []
    for category, value in zip(CATEGORIES, live):
        rows.append([category, _size(value), _size(at_peak[category] if at_peak else None)])
    rows.append(["together", format_size(sum(value or 0 for value in live)), _size(memory.peak)])
    for title in ("reserved", "free", "total"):
        value = getattr(memory, title)
        if value is not None:
            rows.append([title, format_size(value), ""])
    return [name, "now", "at the peak"], rows


def _size(value: Optional[int]) -> str:
    return "-" if value is None else format_size(value)


def _text(header: List[str], rows: List[List[str]]) -> str:
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:])]).rstrip()
        for line in lines
    )
