"""MemoryMonitor: a log of the memory of every training step, and warnings."""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple, Union

import torch

from .. import errors
from .. import _host_memory
from ..tools import Monitor
from ..tools._leaks import LeakDetector, UseWatch
from .._lock import Guard
from ..tools._log_file import LogFile
from ..sizes import Size, format_size, parse_size
from . import _native
from .allocator import DeviceLike, enabled_allocator

#: What a record has; None if it does not exist or is not reported. Bytes except the first three.
FIELDS = (
    "step",
    "time",
    "seconds",
    "device",
    "allocated",
    "reserved",
    "peak",
    "rss",
    "pinned",
    "device_used",
    "device_free",
    "device_total",
)


class MemoryWarning(UserWarning):
    """Something about memory that costs speed or will end in an out-of-memory error."""


class MemoryMonitor:
    """Notes the memory of a device after each training step.

    ``monitor.step()`` does it, or ``monitor.attach(optimizer)`` after each of its steps. Every
    `interval`-th step becomes a record: kept in ``records`` (the last 1,000), appended to `path`
    (CSV where it ends in .csv, else JSON lines; "{rank}" in it becomes the process's rank) and to
    `tensorboard` (a folder, or a writer with ``add_scalar``). See :data:`FIELDS`.

    A MemoryWarning, once for each cause: the floor of the allocated bytes (or of the host memory
    of this process) rises by `leak` bytes a step or more over 160 records, or 1,280 for a leak that
    strikes rarely; less than `underuse` of a GPU was used by the `underuse_after`-th record; the
    log cannot be written.

    The peak is since the previous record: on a GPU each record resets the allocator's peaks, also
    those of torch.cuda.max_memory_allocated(). `device` is the current GPU, or the CPU where there
    is none.
    """

    def __init__(
        self,
        path: Union[str, "os.PathLike[str]", None] = None,
        interval: int = 1,
        *,
        device: DeviceLike = None,
        tensorboard: Any = None,
        leak: Size = "16KiB",
        underuse: float = 0.5,
        underuse_after: int = 100,
    ) -> None:
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(
                "MemoryMonitor: interval must be an integer of at least 1, not %r" % interval
            )
        if not 0 <= underuse <= 1:
            raise ValueError(
                "MemoryMonitor: underuse must be a number from 0 to 1, not %r" % underuse
            )
        self._interval = interval
        self._use = UseWatch(underuse, underuse_after)
        self._source: Any = _source(_device(device))
        self._leaks = {
            name: LeakDetector(threshold=parse_size(leak)) for name in ("allocated", "rss")
        }
        self._lock = Guard()
        self._steps = 0
        self._last_time = time.time()
        self._told: Dict[str, str] = {}
        self._hooks: List[Any] = []
        #: The last records, as dicts.
        self.records: Deque[Dict[str, Any]] = deque(maxlen=1000)
        self._writer, self._own_writer = _writer(tensorboard)
        self._file = None if path is None else LogFile(_with_rank(path), FIELDS)

    # --- steps ---

    def step(self) -> Optional[Dict[str, Any]]:
        """Ends a training step; returns its record if it becomes one."""
        with self._lock:
            self._steps += 1
            if self._steps % self._interval:
                return None
            record = self._record()
        self._log(record)
        self._judge(record)
        return record

    def attach(self, optimizer: Any) -> Any:
        """Calls :meth:`step` after each step of an optimizer, until close(); the hook's handle."""
        register = getattr(optimizer, "register_step_post_hook", None)
        if register is None:
            raise TypeError(
                "MemoryMonitor.attach: optimizer must be a torch.optim.Optimizer, not %s"
                % type(optimizer).__name__
            )
        handle = register(lambda *unused: self._step_quietly())
        self._hooks.append(handle)
        return handle

    def _step_quietly(self) -> None:
        self.step()

    def close(self) -> None:
        """Ends the log and the hooks; twice is fine."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._own_writer and self._writer is not None:
            self._writer.close()
        self._writer = None
        self._source.close()

    def __enter__(self) -> "MemoryMonitor":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    @property
    def warnings(self) -> Dict[str, str]:
        """The warnings so far, by cause: "leak", "host leak", "under-use", "log"."""
        return dict(self._told)

    def _record(self) -> Dict[str, Any]:
        now = time.time()
        record: Dict[str, Any] = dict.fromkeys(FIELDS)
        record.update(
            step=self._steps,
            time=round(now, 3),
            seconds=round(now - self._last_time, 6),
            rss=_host_memory.rss(),
            **self._source.read(),
        )
        self._last_time = now
        self.records.append(record)
        return record

    def _log(self, record: Dict[str, Any]) -> None:
        if self._writer is not None:
            for name in FIELDS[4:]:
                if record[name] is not None:
                    self._writer.add_scalar("memory/" + name, record[name], record["step"])
        if self._file is None:
            return
        try:
            self._file.write(record)
        except OSError as error:
            self._file.close()
            self._file = None
            self._warn("log", "the log ends here, because it cannot be written: %s" % error)

    # --- what is wrong ---

    def _judge(self, record: Dict[str, Any]) -> None:
        for name, cause in (("allocated", "leak"), ("rss", "host leak")):
            if record[name] is None:
                continue
            slope = self._leaks[name].add(record["step"], record[name])
            if slope is not None:
                self._warn(cause, _leak_text(name, slope, record))
        self._judge_use(record)

    def _judge_use(self, record: Dict[str, Any]) -> None:
        if record["device"] == "cpu" or not record["device_total"]:
            return
        used = max(record["device_used"] or 0, record["reserved"] or 0, record["peak"] or 0)
        if self._use.add(used / record["device_total"]):
            self._warn(
                "under-use",
                "at most %.0f %% of the %s of %s were used in %d steps; a larger batch, or less"
                " checkpointing or offloading, may be faster"
                % (
                    100 * self._use.most,
                    format_size(record["device_total"]),
                    record["device"],
                    record["step"],
                ),
            )

    def _warn(self, cause: str, text: str) -> None:
        if cause not in self._told:
            self._told[cause] = text
            warnings.warn("memory: " + text, MemoryWarning, stacklevel=4)


def _leak_text(name: str, slope: float, record: Dict[str, Any]) -> str:
    what = "allocated bytes" if name == "allocated" else "host memory of this process"
    text = (
        "the %s grow by %s a step and are %s at step %d: does something keep tensors, such as a"
        % (
            what,
            format_size(round(slope)),
            format_size(record[name]),
            record["step"],
        )
    )
    text += " loss that is summed up with its graph?"
    free = record["device_free"]
    if name == "allocated" and free:
        text += " The free %s last for some %d steps" % (format_size(free), free / slope)
    return text


# --- where the figures come from ------------------------------------------------------------------


class _Cpu:
    """The machine itself; torch does not count what it allocates on the CPU."""

    def __init__(self) -> None:
        self._pinned = _Pinned()

    def read(self) -> Dict[str, Any]:
        total, free = _host_memory.total(), _host_memory.available()
        used = None if total is None or free is None else total - free
        return {
            "device": "cpu",
            "pinned": self._pinned.read(),
            "device_used": used,
            "device_free": free,
            "device_total": total,
        }

    def close(self) -> None:
        pass


class _Gpu:
    """torch's allocator (or the library's in its place), and the driver's view of the device."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._name = "cuda:%d" % index
        self._pinned = _Pinned()
        self._monitor, self._place = _find_in_monitor(index)

    def read(self) -> Dict[str, Any]:
        stats = self._allocator()
        used, free, total = self._memory()
        return {
            "device": self._name,
            "allocated": stats.get("allocated_bytes.all.current", 0),
            "reserved": stats.get("reserved_bytes.all.current", 0),
            "peak": stats.get("allocated_bytes.all.peak", 0),
            "pinned": self._pinned.read(),
            "device_used": used,
            "device_free": free,
            "device_total": total,
        }

    def _allocator(self) -> Dict[str, int]:
        ours = enabled_allocator()
        if ours is not None:
            stats = ours.stats(self._index)
            ours.reset_peaks(self._index)
            return stats
        stats = torch.cuda.memory_stats(self._index)
        torch.cuda.reset_peak_memory_stats(self._index)
        return stats

    def _memory(self) -> Tuple[Optional[int], Optional[int], Optional[int]]:
        if self._monitor is not None:
            try:
                reading = self._monitor.read(self._place)
            except errors.MemoptError:
                self._monitor = None
            else:
                if reading.memory_total is not None:
                    return reading.memory_used, reading.memory_free, reading.memory_total
        free, total = torch.cuda.mem_get_info(self._index)
        return total - free, free, total

    def close(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.close()


def _find_in_monitor(index: int) -> Tuple[Optional[Monitor], int]:
    """The vendor's monitor and the device's index in it, which has another order."""
    wanted = str(getattr(torch.cuda.get_device_properties(index), "uuid", "")).lower()
    try:
        monitor = Monitor("hip" if torch.version.hip else "cuda")
    except errors.MemoptError:
        return None, 0
    for place in range(len(monitor)):
        uuid = (monitor.read(place).uuid or "").lower()
        if wanted and uuid.endswith(wanted):
            return monitor, place
    monitor.close()
    return None, 0


class _Pinned:
    """Page-locked bytes of torch and of the library."""

    def read(self) -> int:
        total = 0
        cuda: Any = torch.cuda
        statistics = getattr(cuda, "host_memory_stats", None)
        if statistics is not None and cuda.is_initialized():
            total += statistics().get("allocated_bytes.current", 0)
        for native in list(_native._natives.values()):
            total += native.device.memory_info().pinned
        return total


def _device(device: DeviceLike) -> torch.device:
    if device is None:
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())
    if isinstance(device, int):
        return torch.device("cuda", device)
    return torch.device(device)


def _source(device: torch.device) -> Any:
    if device.type == "cpu":
        return _Cpu()
    if device.type == "cuda":
        return _Gpu(torch.cuda.current_device() if device.index is None else device.index)
    raise ValueError("MemoryMonitor: device must be cpu or cuda, not %s" % device)


def _writer(tensorboard: Any) -> Tuple[Any, bool]:
    if tensorboard is None or hasattr(tensorboard, "add_scalar"):
        return tensorboard, False
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "MemoryMonitor: tensorboard=%r needs the package tensorboard (`pip install"
            " tensorboard`): %s" % (tensorboard, error)
        ) from error
    return SummaryWriter(os.fspath(tensorboard)), True


def _with_rank(path: Union[str, "os.PathLike[str]"]) -> str:
    return os.fspath(path).replace("{rank}", os.environ.get("RANK", "0"))
