"""The report of `memopt profile`: one object (schemas/profile.json), and tables of it."""

from __future__ import annotations

import shlex
from typing import Any, Dict, List, Optional, Tuple

from ... import _host_memory
from ...sizes import format_size
from ..monitor.trends import UNDERUSE, UNDERUSE_AFTER, Course, duration
from ..output import Cell, Output, Text
from .program import End
from .recorder import Figures, Recorder

#: Figures of the host, with their names for people.
HOST = (
    ("rss", "host memory, resident"),
    ("pss", "host memory, shared parts counted once"),
    ("locked", "host memory, page-locked"),
)


def columns_of(figures: Figures) -> List[str]:
    """Every figure that a record may have, in the order of the report."""
    devices = [name for target in figures.devices for name in (target.name, target.name + " device")]
    return [name for name, _ in HOST] + devices + ["largest"]


def build(
    command: List[str], end: End, interval: float, figures: Figures, recorder: Recorder, seconds: float
) -> Dict[str, Any]:
    """What --json prints."""
    return {
        "command": command,
        "exit_code": end.code,
        "signal": end.signal,
        "seconds": round(seconds, 3),
        "user_seconds": round(end.user_seconds, 3),
        "system_seconds": round(end.system_seconds, 3),
        "interval": interval,
        "samples": recorder.samples,
        "processes": len(figures.seen),
        "largest_process_bytes": _largest(end, recorder),
        "host_memory_total": _host_memory.total(),
        "peaks": {name: _peak(recorder, name) for name, _ in HOST if name in recorder.peaks},
        "devices": [_device(target.name, figures, recorder) for target in figures.devices],
        "phases": _phases(figures, recorder),
        "course": [_course(record, figures) for record in recorder.records],
    }


def _largest(end: End, recorder: Recorder) -> Optional[int]:
    """The kernel counts exactly, but for a small program its figure is memopt's at the fork."""
    sampled = recorder.peaks["largest"].bytes if "largest" in recorder.peaks else 0
    exact = end.rss_peak if end.rss_peak > _host_memory.rss_peak() else 0
    return max(sampled, exact) or None


def _peak(recorder: Recorder, name: str) -> Optional[Dict[str, Any]]:
    peak = recorder.peaks.get(name)
    if peak is None:
        return None
    return {"bytes": peak.bytes, "seconds": peak.seconds, "phase": peak.phase or None}


def _device(name: str, figures: Figures, recorder: Recorder) -> Dict[str, Any]:
    return {
        "device": name,
        "name": figures.names[name] or None,
        "memory_total": figures.totals[name] or None,
        "program": _peak(recorder, name),
        "everybody": _peak(recorder, name + " device"),
    }


def _phases(figures: Figures, recorder: Recorder) -> List[Dict[str, Any]]:
    found = []
    for name, seconds in recorder.phase_seconds.items():
        if not name and len(recorder.phase_seconds) == 1:  # nothing was marked
            return []
        at = recorder.by_phase.get(name, {})
        found.append(
            {
                "phase": name or None,
                "seconds": round(seconds, 4),
                "samples": recorder.phase_samples.get(name, 0),
                "rss": at.get("rss"),
                "devices": {t.name: at.get(t.name) for t in figures.devices},
            }
        )
    return found


def _course(record: Dict[str, Any], figures: Figures) -> Dict[str, Any]:
    value = {"seconds": record["time"], "phase": record["phase"] or None}
    value.update((name, record.get(name)) for name, _ in HOST)
    value["devices"] = {
        target.name: {"program": record.get(target.name), "everybody": record.get(target.name + " device")}
        for target in figures.devices
    }
    return value


def one_line(command: List[str]) -> str:
    """A command as a shell takes it, without characters that break a line or control a terminal."""
    return "".join(one if one.isprintable() else " " for one in shlex.join(command))


# --- for people -----------------------------------------------------------------------------------


def show(report: Dict[str, Any], output: Output) -> None:
    """Prints the report."""
    how = "exit code %d" % report["exit_code"]
    if report["signal"] is not None:
        how = "killed by signal %d" % report["signal"]
    output.pairs(
        "memopt profile",
        [
            ("command", one_line(report["command"])),
            ("ended", Cell(how, "" if report["exit_code"] == 0 else "bad")),
            (
                "time",
                "%s (%s user, %s system)"
                % tuple(duration(report[k]) for k in ("seconds", "user_seconds", "system_seconds")),
            ),
            (
                "samples",
                "%d, every %g s; %d process%s"
                % (
                    report["samples"],
                    report["interval"],
                    report["processes"],
                    "" if report["processes"] == 1 else "es",
                ),
            ),
        ],
    )
    rows = _peak_rows(report)
    marked = any(row[-1] for row in rows)
    columns = ("memory", "peak", "of", "at", "phase")[: 5 if marked else 4]
    output.table("Peaks", columns, [row[: len(columns)] for row in rows])
    if report["phases"]:
        _show_phases(report, output)
    notes = _notes(report)
    if notes:
        output.pairs("Notes", notes)


def _peak_rows(report: Dict[str, Any]) -> List[List[Text]]:
    def row(name: str, peak: Optional[Dict[str, Any]], total: Optional[int]) -> List[Text]:
        if peak is None:
            return [name, "-", "-" if total is None else format_size(total), "-", ""]
        at = "%.2f s" % peak["seconds"]
        of = "" if total is None else format_size(total)
        return [name, format_size(peak["bytes"]), of, at, peak["phase"] or ""]

    rows: List[List[Text]] = []
    for device in report["devices"]:
        title = "%s, the program" % device["device"]
        rows.append(row(title, device["program"], device["memory_total"]))
        title = "%s, everybody" % device["device"]
        rows.append(row(title, device["everybody"], device["memory_total"]))
    for name, title in HOST:
        if report["peaks"].get(name) is not None:
            rows.append(row(title, report["peaks"][name], _total_of(name, report)))
    largest = report["largest_process_bytes"]
    if largest is not None:
        rows.append(["largest process, as the kernel counts", format_size(largest), "", "", ""])
    return rows


def _total_of(name: str, report: Dict[str, Any]) -> Optional[int]:
    total: Optional[int] = report["host_memory_total"]
    return total if name in dict(HOST) else None


def _show_phases(report: Dict[str, Any], output: Output) -> None:
    used = [
        device["device"]
        for device in report["devices"]
        if device["program"] is not None and device["program"]["bytes"] > 0
    ]
    rows: List[List[Text]] = []
    for phase in report["phases"]:
        figures = [phase["devices"][name] for name in used] + [phase["rss"]]
        cells = ["-" if value is None else format_size(value) for value in figures]
        rows.append([phase["phase"] or "(none)", "%.2f s" % phase["seconds"], str(phase["samples"])] + cells)
    columns = ["phase", "time", "samples"] + used + ["host"]
    output.table("Most in each phase", columns, rows)


def _trends(report: Dict[str, Any]) -> List[Tuple[str, Text]]:
    """A floor that rises to the end, and a device that is hardly used."""
    notes: List[Tuple[str, Text]] = []
    course = report["course"]
    series = {d["device"]: [one["devices"][d["device"]]["program"] for one in course] for d in report["devices"]}
    series = {name: of for name, of in series.items() if any(of)} or {"host": [one["rss"] for one in course]}
    for name, values in series.items():
        follow, slope = Course(), None
        for number, value in enumerate(values):
            slope = follow.add(number, value or 0) or slope
        if slope is not None and follow.values[-1] > 0.9 * follow.peak:
            text = "its floor creeps up, to %s at the end, %s a sample: does it keep tensors, such as a loss with its graph?"
            notes.append((name, Cell(text % (format_size(follow.values[-1]), format_size(round(slope))), "warn")))
    for device in report["devices"]:
        of, total = device["program"], device["memory_total"]
        if of and total and len(course) >= UNDERUSE_AFTER and of["bytes"] < UNDERUSE * total:
            text = "at most %.0f %% were used: memopt plan --fill finds a larger micro-batch" % (
                100 * of["bytes"] / total
            )
            notes.append((device["device"], text))
    return notes


def _notes(report: Dict[str, Any]) -> List[Tuple[str, Text]]:
    notes: List[Tuple[str, Text]] = []
    for device in report["devices"]:
        if device["program"] is None:
            text = (
                "the driver does not tell this program's bytes, or counts processes as the host of "
                "this container does: look at everybody's"
            )
            notes.append((device["device"], text))
    notes += _trends(report)
    if any(phase["samples"] == 0 for phase in report["phases"]):
        notes.append(("phases", "some were too short for a sample: a smaller --interval sees them"))
    blind = report["samples"] and not report["peaks"]  # the reason is reported elsewhere
    if report["samples"] < 5 and not blind:
        notes.append(
            (
                "samples",
                "the program was too quick for more: peaks between them are not seen; a smaller --interval helps",
            )
        )
    return notes
