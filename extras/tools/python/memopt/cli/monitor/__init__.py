"""Shows the memory of devices and of the processes on them as it changes, without opening a
device: used, peak, load, temperature. Without a GPU it shows the CPU device, which is the machine's memory.

On a terminal it is a live view: q or Ctrl-C ends it and prints a summary. Piped, it is one line for
each device and process; with --json, one object a line, each as schemas/monitor.json says. The exit
code is 0 also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import time
from typing import Any, Dict, Iterator, List, Optional

from ...tools._log_file import LogFile
from ...sizes import format_size
from ..option_types import integer, seconds
from ..output import Output
from ..standard_streams import said
from .signals import Stopped, StopSignals
from .sampling import Sampler, parse_device
from .screen import device_row, host_text, process_row, share, size
from .trends import Watch, describe, duration

JSON_HELP = "print one JSON object a line for each sample; with --once, one object"

EXIT_STATUS = (
    "0: done, also after Ctrl-C; 143 after SIGTERM, 129 after SIGHUP; 1: it could not be done, and "
    "standard error says why; 2: wrong usage."
)

#: What a line of the log has: a device where pid is empty, else one of its processes.
LOG_FIELDS = (
    *("time", "device", "pid", "name", "used", "peak", "total"),
    *("utilization", "temperature", "power"),
)
_MOST_PROCESSES = 10


def _device(text: str) -> Any:
    try:
        return parse_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument(
        "--device",
        action="append",
        type=_device,
        default=[],
        metavar="DEVICE",
        help="watch cuda, hip or cpu, or one device such as cuda:0 (may be given again); without "
        "it, every GPU, or the CPU device where there is none",
    )
    parser.add_argument(
        "--interval",
        type=seconds(0.01, 86400),
        default=1.0,
        metavar="SECONDS",
        help="time between two samples (default: 1)",
    )
    times = parser.add_mutually_exclusive_group()
    times.add_argument("--count", type=integer(1), metavar="N", help="end after N samples")
    times.add_argument(
        "--once",
        dest="count",
        action="store_const",
        const=1,
        help="take one sample and print it as tables",
    )
    parser.add_argument(
        "--processes",
        type=integer(1),
        default=_MOST_PROCESSES,
        metavar="N",
        help="show at most N processes of a device, the greatest first (default: %d); --log and "
        "--json have them all" % _MOST_PROCESSES,
    )
    parser.add_argument(
        "--log",
        metavar="FILE.csv",
        help="append every sample: a line for each device and process, in bytes (JSON lines where "
        "the name does not end in .csv)",
    )


# --- running --------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Watches until the end."""
    watch = Watch(arguments.interval)
    with StopSignals() as ends:
        log: Optional[_Log] = None
        try:
            log = _Log(arguments.log, output)
            with Sampler(arguments.device) as sampler:
                _watch(arguments, output, _samples(sampler, watch, log), watch, ends)
        except Stopped:
            pass
        except OSError:
            if ends.signal != signal.SIGHUP:
                raise  # else the terminal is gone
        finally:
            if log is not None:
                log.close()
        several = arguments.count != 1 and watch.samples > 0
        if several and not output.wants_json and ends.signal != signal.SIGHUP:
            summary(watch, output)
        return ends.code or (1 if log is not None and log.failed else 0)


def _watch(
    arguments: argparse.Namespace,
    output: Output,
    samples: Iterator[Dict[str, Any]],
    watch: Watch,
    ends: StopSignals,
) -> None:
    if arguments.count == 1:
        with ends.held():
            _print_once(next(samples), output, arguments.processes)
    elif output.console is not None:
        _live(arguments, output, samples, watch, ends)
    else:
        _stream(arguments, output, samples, ends)


def _samples(sampler: Sampler, watch: Watch, log: "_Log") -> Iterator[Dict[str, Any]]:
    while True:
        sample = watch.add(sampler.sample())
        log.write(sample)
        yield sample


def _deadlines(interval: float, count: Optional[int]) -> Iterator[Optional[float]]:
    """When the next sample is due, after each sample; None after the last. Late samples, after the
    system slept for instance, are skipped."""
    due, taken = time.monotonic(), 0
    while True:
        taken += 1
        if count is not None and taken >= count:
            yield None
            return
        now = time.monotonic()
        due = due + interval if due + interval > now else now
        yield due


def _live(
    arguments: argparse.Namespace,
    output: Output,
    samples: Iterator[Dict[str, Any]],
    watch: Watch,
    ends: StopSignals,
) -> None:
    from .live import LiveView

    title = "memopt monitor  every %g s  q quits" % arguments.interval
    def go_on() -> None:
        """A function: see Interruptible about a loop at the end of a with in Python 3.13."""
        for due in _deadlines(arguments.interval, arguments.count):
            with ends.held():
                view.show(next(samples))
            if due is None or not view.wait(due):
                return

    with LiveView(output.console, watch, title, arguments.processes).shown() as view:
        go_on()


def _stream(
    arguments: argparse.Namespace,
    output: Output,
    samples: Iterator[Dict[str, Any]],
    ends: StopSignals,
) -> None:
    told: List[Any] = []
    for due in _deadlines(arguments.interval, arguments.count):
        with ends.held():
            sample = next(samples)
            if output.wants_json:
                output.json_line(sample)
            else:
                for text in lines_of(sample, arguments.processes, told):
                    output.line(text)
        if due is None:
            return
        time.sleep(max(due - time.monotonic(), 0))


# --- printing -------------------------------------------------------------------------------------


def lines_of(sample: Dict[str, Any], most: int, told: List[Any]) -> Iterator[str]:
    """A sample for a pipe. `told` keeps what was printed once."""
    clock = time.strftime("%H:%M:%S", time.localtime(sample["time"]))
    for text in [sample["note"]] if sample["note"] else []:
        if text not in told:
            told.append(text)
            yield "%s note: %s" % (clock, text)
    for device in sample["devices"]:
        yield "%s %s %s" % (clock, device["device"], _device_text(device))
        for process in device["processes"][:most]:
            yield "%s %s   %s" % (clock, device["device"], _process_text(process))
        problem = device["processes_error"]
        if problem and problem not in told:
            told.append(problem)
            yield "%s %s note: %s" % (clock, device["device"], problem)
    for one in sample["warnings"]:
        key = (one["cause"], one["device"], one["pid"])
        if key not in told:
            told.append(key)
            yield "%s warning: %s" % (clock, one["message"])


def _device_text(device: Dict[str, Any]) -> str:
    if device["error"] is not None:
        return "%(status)s: %(message)s" % device["error"]
    parts = ["%s of %s used" % (size(device["memory_used"]), size(device["memory_total"]))]
    percent = share(device)
    if percent is not None:
        parts[0] += " (%.0f %%)" % percent
    parts.append("peak " + size(device["memory_peak"]))
    for field, text in (("utilization", "%.0f %% busy"), ("temperature", "%.0f °C")):
        if device[field] is not None:
            parts.append(text % device[field])
    if device["power"] is not None:
        parts.append("%.0f W" % device["power"])
    return ", ".join(parts)


def _process_text(process: Dict[str, Any]) -> str:
    text = "%s: %s" % (describe(process), size(process["used"]))
    if process["peak"] is not None:
        text += ", peak " + format_size(process["peak"])
    return text


def _print_once(sample: Dict[str, Any], output: Output, most: int) -> None:
    if output.wants_json:
        output.json(sample)
        return
    columns = ("device", "name", "used", "of", "%", "util", "temp", "power")
    rows = [device_row(device, None) for device in sample["devices"]]
    output.table("Devices", columns, [row[:5] + row[6:9] for row in rows])  # type: ignore[misc]
    found = [
        process_row(device, process, None)[:4]
        for device in sample["devices"]
        for process in device["processes"][:most]
    ]
    if found:
        names = ("device", "pid", "name", "used")
        output.table("Processes", names, found)  # type: ignore[arg-type]
    notes = [("host", host_text(sample).partition(": ")[2])]
    for device in sample["devices"]:
        if device["error"] is not None:
            notes.append((device["device"], "%(status)s: %(message)s" % device["error"]))
        notes.append((device["device"], device["processes_error"] or ""))
        hidden = len(device["processes"]) - most
        notes.append((device["device"], "%d further processes" % hidden if hidden > 0 else ""))
    notes.append(("note", sample["note"] or ""))
    output.pairs("Notes", notes)


def summary(watch: Watch, output: Output) -> None:
    """The summary at the end."""
    elapsed = watch.last_time - (watch.first_time or watch.last_time)
    rows = []
    for (device, pid), course in watch.courses.items():
        if pid is None and course.values:
            figures = (course.peak, course.mean, course.least or 0)
            rows.append([device, course.name or "-"] + [format_size(one) for one in figures])
    title = "%d samples in %s" % (watch.samples, duration(elapsed))
    output.table(title, ("device", "name", "peak", "mean", "least"), rows)
    rows = [
        [device, str(pid), course.name or "?", format_size(course.peak), format_size(course.mean)]
        for (device, pid), course in watch.ranking()[:_MOST_PROCESSES]
    ]
    if rows:
        output.table("Processes by peak", ("device", "pid", "name", "peak", "mean"), rows)
    if watch.warnings:
        output.pairs(
            "Warnings", [(one["cause"], one["message"]) for one in watch.warnings.values()], "warn"
        )


# --- the log --------------------------------------------------------------------------------------


class _Log:
    """The file of --log. If it cannot be written any more, watching continues without it."""

    def __init__(self, path: Optional[str], output: Output) -> None:
        self._output = output
        self._file = None if path is None else _open_log(path)
        self.failed = False

    def write(self, sample: Dict[str, Any]) -> None:
        """Appends a sample."""
        if self._file is None:
            return
        try:
            for record in records_of(sample):
                self._file.write(record)
        except OSError as error:
            self.close()
            self.failed = True
            self._output.error("the log ends here, because it cannot be written: " + said(error))

    def close(self) -> None:
        """Ends it."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _open_log(path: str) -> LogFile:
    try:
        return LogFile(path, LOG_FIELDS)
    except ValueError as error:
        raise OSError(str(error)) from None


def records_of(sample: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """The lines of the log."""
    for device in sample["devices"]:
        yield {
            "time": sample["time"],
            "device": device["device"],
            "name": device["name"],
            "used": device["memory_used"],
            "peak": device["memory_peak"],
            "total": device["memory_total"],
            **{field: device[field] for field in ("utilization", "temperature", "power")},
        }
        for process in device["processes"]:
            fields = ("pid", "name", "used", "peak")
            yield {
                "time": sample["time"],
                "device": device["device"],
                **{field: process[field] for field in fields},
            }
