"""What a series of samples shows: peaks, the course, a creeping floor, a half-empty device."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from ...tools._leaks import LeakDetector, UseWatch
from ...sizes import format_size

_KEPT = 400  # samples for the course
_FOLLOWED = 64  # processes of a device, the greatest users

#: Shares and samples of the warning about a device that is hardly used.
UNDERUSE, UNDERUSE_AFTER = 0.5, 100

Key = Tuple[str, Optional[int]]  # a device, and one of its processes


class Course:
    """One figure over time."""

    def __init__(self) -> None:
        self.values: Deque[int] = deque(maxlen=_KEPT)
        self.peak = 0
        self.least: Optional[int] = None
        self.name = ""
        self.last_sample = 0
        self._sum = 0
        self._count = 0
        self._leak = LeakDetector()

    def add(self, sample: int, value: int) -> Optional[float]:
        """The bytes a sample by which the floor rises, if this sample shows it."""
        self.values.append(value)
        self.peak = max(self.peak, value)
        self.least = value if self.least is None else min(self.least, value)
        self.last_sample = sample
        self._sum += value
        self._count += 1
        return self._leak.add(sample, value)

    @property
    def mean(self) -> int:
        """The mean of all values so far."""
        return self._sum // max(self._count, 1)


class Watch:
    """Follows samples; puts "peak" and "warnings" into each."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self.courses: Dict[Key, Course] = {}
        self.warnings: Dict[Tuple[str, str, Optional[int]], Dict[str, Any]] = {}
        self._uses: Dict[str, UseWatch] = {}
        self.first_time: Optional[float] = None
        self.last_time = 0.0
        self.samples = 0

    def add(self, sample: Dict[str, Any]) -> Dict[str, Any]:
        """The sample with what is known of the time before."""
        self.samples = sample["sample"]
        self.last_time = sample["time"]
        self.first_time = self.last_time if self.first_time is None else self.first_time
        present = set()
        for device in sample["devices"]:
            self._device(device, sample["sample"])
            for number, process in enumerate(device["processes"]):
                present.add((device["device"], process["pid"]))
                self._process(device, process, sample["sample"], number < _FOLLOWED)
        self._drop(present)
        sample["warnings"] = list(self.warnings.values())
        return sample

    def course(self, device: str, pid: Optional[int] = None) -> Course:
        """The course of a device or of one of its processes."""
        return self.courses.setdefault((device, pid), Course())

    def _device(self, device: Dict[str, Any], number: int) -> None:
        used, total = device["memory_used"], device["memory_total"]
        name, slope = device["device"], None
        course = self.course(name)
        course.name = device["name"] or ""
        if used is not None:
            slope = course.add(number, used)
        device["memory_peak"] = course.peak if course.values else None
        # If processes' bytes are known, each is checked.
        if slope is not None and not any(p["used"] is not None for p in device["processes"]):
            self._warn_leak(device, None, slope, used)
        if device["backend"] == "cpu" or not total or used is None:
            return
        if device["processes"] or device["utilization"]:
            use = self._uses.setdefault(name, UseWatch(UNDERUSE, UNDERUSE_AFTER))
            if use.add(used / total):
                self._warn(
                    "under-use",
                    name,
                    None,
                    "%s: at most %.0f %% of its %s were used in %d samples; a larger batch, or less"
                    " checkpointing or offloading, may be faster"
                    % (name, 100 * use.most, format_size(total), number),
                )
            elif use.most >= UNDERUSE:
                self.warnings.pop(("under-use", name, None), None)

    def _process(
        self, device: Dict[str, Any], process: Dict[str, Any], number: int, followed: bool
    ) -> None:
        key = (device["device"], process["pid"])
        process["peak"] = None
        if process["used"] is None or not (followed or key in self.courses):
            return
        course = self.course(*key)
        if course.name and course.name != process["name"]:  # the number was given anew
            course = self.courses[key] = Course()
        course.name = process["name"]
        slope = course.add(number, process["used"])
        process["peak"] = course.peak
        if slope is not None:
            self._warn_leak(device, process, slope, process["used"])

    def _warn_leak(
        self, device: Dict[str, Any], process: Optional[Dict[str, Any]], slope: float, used: int
    ) -> None:
        who = device["device"]
        if process is not None:
            who = "%s on %s" % (describe(process), who)
        minute = slope * 60 / self._interval
        text = "%s: its floor creeps up by %s a minute, to %s now" % (
            who,
            format_size(round(minute)),
            format_size(used),
        )
        free = device["memory_free"]
        if free:
            text += "; the %s that are free last for %s" % (
                format_size(free),
                duration(60 * free / minute),
            )
        text += ". Does it keep tensors, such as a loss that is summed up with its graph?"
        self._warn("leak", device["device"], process["pid"] if process else None, text)

    def _warn(self, cause: str, device: str, pid: Optional[int], message: str) -> None:
        self.warnings[(cause, device, pid)] = {
            "cause": cause,
            "device": device,
            "pid": pid,
            "message": message,
        }

    def _drop(self, present: "set[Tuple[str, int]]") -> None:
        """Processes that have ended: their warnings go, and of many courses the oldest."""
        for warned in list(self.warnings):
            _cause, device, pid = warned
            if pid is not None and (device, pid) not in present:
                del self.warnings[warned]
        ended = [key for key in self.courses if key[1] is not None and key not in present]
        for key in sorted(ended, key=lambda key: self.courses[key].last_sample)[:-_FOLLOWED]:
            del self.courses[key]

    def ranking(self) -> List[Tuple[Key, Course]]:
        """The processes by their peaks, the greatest first."""
        found = [(key, course) for key, course in self.courses.items() if key[1] is not None]
        return sorted(found, key=lambda item: -item[1].peak)


def describe(process: Dict[str, Any]) -> str:
    """ "python (4711)"."""
    return "%s (%d)" % (process["name"] or "process", process["pid"])


def duration(seconds: float) -> str:
    """ "0.5 s", "45 s", "12 min", "3.5 h" or "4 days"."""
    if seconds < 9.95:
        return "%.1f s" % seconds
    if seconds < 90:
        return "%d s" % round(seconds)
    if seconds < 5400:
        return "%d min" % round(seconds / 60)
    if seconds < 48 * 3600:
        return "%.1f h" % (seconds / 3600)
    return "%d days" % round(seconds / 86400)
