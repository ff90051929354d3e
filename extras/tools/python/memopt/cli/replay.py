"""Replays a trace of allocations through the allocator on the CPU device, without a GPU: what the
run needs of memory, what the allocator holds for it, and whether that fits a card.

TRACE is CSV with a header such as Thread,Time,Action,Pointer,Size,Stream (columns in any order;
Action, Pointer and Size are needed), or a memory snapshot of PyTorch, as
torch.cuda.memory._dump_snapshot writes it; either may be compressed with gzip. "-" reads standard
input. The exit code is 1 where the trace runs out of memory at the given --capacity.

Several --config are replayed one after the other and shown in one table, with the smallest device of
each."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from .._library import lib
from ..errors import InvalidArgumentError, MemoptError
from ..sizes import format_size
from ..tools import PlannedReplay, Replay, Trace, TraceInfo, TraceSource
from ..tools.trace import LAG_WITHOUT_END
from . import FAILURE, SUCCESS, UsageError
from .option_types import integer, size
from .output import Cell, Output, Text
from .progress import Progress
from .replay_plot import Plot

#: The CPU device's pages: a smaller capacity holds nothing.
_GRANULE = 2 << 20


def _capacity(text: str) -> int:
    bytes_ = size(text)
    if bytes_ < _GRANULE:
        raise argparse.ArgumentTypeError("%s is less than a page of 2 MiB" % text)
    return bytes_


def _lag(text: str) -> Union[int, str]:
    if text == "inf":
        return LAG_WITHOUT_END
    return text if text == "step" else int(integer(0, LAG_WITHOUT_END)(text))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    add = parser.add_argument
    add("trace", metavar="TRACE", help="a CSV file or a PyTorch snapshot, .gz too; - for stdin")
    add(
        "--config",
        action="append",
        metavar="STRING",
        help="the allocator's configuration, as in PYTORCH_CUDA_ALLOC_CONF: "
        "expandable_segments:True (default: none); several are compared in a table",
    )
    add(
        "--capacity",
        type=_capacity,
        metavar="SIZE",
        help="the device's memory: 24GiB, 512MiB (default: more than the trace takes)",
    )
    add(
        "--find-capacity",
        action="store_true",
        help="find the smallest device that the trace completes on, by bisection",
    )
    add(
        "--plot", metavar="FILE", help="plot live and reserved memory over events: .png, .svg, .pdf"
    )
    add(
        "--device", type=int, metavar="N", help="of a snapshot: which device (default: the busiest)"
    )
    add(
        "--recorded-only",
        action="store_true",
        help="of a snapshot: leave out blocks from before the recording",
    )
    add(
        "--with-failed",
        action="store_true",
        help="replay allocations, too, that failed when the trace was recorded",
    )
    add(
        "--partial",
        action="store_true",
        help="of CSV: replay what stands before a malformed line or a cut-off end",
    )
    add(
        "--max-unpacked",
        type=size,
        metavar="SIZE",
        help="what a gzip file may unpack to (default: 100 times its size, at least 64MiB)",
    )
    add(
        "--passes",
        type=integer(0, 1000),
        default=5,
        metavar="N",
        help="replays with a filled cache, for the time of an event (default: 5)",
    )
    add(
        "--steps",
        type=integer(0, 1000),
        default=0,
        metavar="N",
        help="replay it as a step that repeats, too: once to learn it, N times with the plan",
    )
    add(
        "--lag",
        type=_lag,
        default=0,
        metavar="N|step|inf",
        help="the device works N events behind the host, as a busy GPU does (1000 is usual); step: as "
        "many as the trace has; inf: it does nothing before it is waited for (default: 0, idle)",
    )


class _Run(NamedTuple):
    """One configuration."""

    config: str
    replay: Replay
    smallest: Optional[int]


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Replays and prints; the exit code says whether it completed."""
    configs: List[str] = arguments.config or [""]
    for config in configs:
        try:
            lib.memopt_allocator_check_config(os.fsencode(config))
        except InvalidArgumentError as error:
            raise UsageError("--config: %s" % error) from None
    plot = None if arguments.plot is None else Plot(arguments.plot)
    with _read(arguments) as trace:
        if trace.info.allocations == 0:
            output.error("%s: the trace has no allocation to replay" % _name(arguments))
            return FAILURE
        runs = [_replay(trace, config, arguments, plot is not None) for config in configs]
        assert trace.source is not None
        info, source, first = trace.info, trace.source, runs[0]
        arguments.config = first.config
        found = (info, source, first.replay, first.smallest, arguments)
        if output.wants_json:
            output.json({**collect(*found), "configurations": [_row(info, r) for r in runs]})
        elif len(runs) > 1:
            _show_table(output, info, source, runs, arguments)
        else:
            _show(output, *found)
        if plot:  # last: if it cannot be written, the figures are printed
            plot.draw(_name(arguments), info, first.replay, arguments, first.smallest)
    return FAILURE if any(run.replay.out_of_memory for run in runs) else SUCCESS


def _replay(trace: Trace, config: str, arguments: argparse.Namespace, plot: bool) -> _Run:
    several = len(arguments.config or ()) > 1
    lag = trace.info.events if arguments.lag == "step" else arguments.lag
    with Progress("replaying") as bar:
        replay = trace.replay(
            config,
            capacity=arguments.capacity,
            warm_passes=arguments.passes,
            samples=Plot.SAMPLES if plot else 0,
            steps=arguments.steps,
            lag=lag,
            progress=bar,
        )
    smallest: Optional[int] = None
    if arguments.find_capacity or several:
        with Progress("finding the smallest device") as bar:
            smallest = trace.find_capacity(config, lag=lag, progress=bar)
    return _Run(config, replay, smallest)


def _name(arguments: argparse.Namespace) -> str:
    return "standard input" if arguments.trace == "-" else os.path.basename(arguments.trace)


def _read(arguments: argparse.Namespace) -> Trace:
    file: Any = sys.stdin.buffer if arguments.trace == "-" else arguments.trace
    try:
        with Progress("reading") as bar:
            return Trace.read(
                file,
                device=arguments.device,
                partial=arguments.partial,
                recorded_only=arguments.recorded_only,
                with_failed=arguments.with_failed,
                progress=bar,
                max_unpacked=arguments.max_unpacked,
            )
    except MemoptError as error:
        error.args = ("%s: %s" % (_name(arguments), error.message),)
        error.message = error.args[0]
        raise


# --- JSON -----------------------------------------------------------------------------------------


def collect(
    info: TraceInfo,
    source: TraceSource,
    replay: Replay,
    smallest: Optional[int],
    arguments: argparse.Namespace,
) -> Dict[str, Any]:
    """What ``--json`` prints; schemas/replay.json describes it."""
    failure = replay.failure
    return {
        "trace": arguments.trace,
        "format": source.format,
        "device": source.device,
        "events_by_device": list(source.events_by_device),
        "config": arguments.config,
        "capacity_bytes": arguments.capacity,
        "lag": "inf" if arguments.lag == LAG_WITHOUT_END else arguments.lag,
        "events": info.events,
        "allocations": info.allocations,
        "streams": info.streams,
        "peak_live_bytes": info.peak_live_bytes,
        "peak_live_blocks": info.peak_live_blocks,
        "live_at_end_bytes": info.live_bytes,
        "live_at_end_blocks": info.live_blocks,
        "peak_reserved_bytes": replay.peak_reserved_bytes,
        "ratio": replay.ratio,
        "out_of_memory": replay.out_of_memory,
        "failure": None
        if failure is None
        else {
            "event": failure.event,
            "asked_bytes": failure.nbytes,
            "stream": failure.stream,
            "live_bytes": failure.live_bytes,
            "reserved_bytes": failure.reserved_bytes,
        },
        "ns_per_event": replay.ns_per_event,
        "first_ns_per_event": replay.first_ns_per_event,
        "device_allocs": replay.device_allocs,
        "device_frees": replay.device_frees,
        "retries": replay.retries,
        "smallest_capacity_bytes": smallest,
        "smallest_capacity_ratio": None if smallest is None else smallest / info.peak_live_bytes,
        "earlier_blocks": source.earlier_blocks,
        "earlier_bytes": source.earlier_bytes,
        "unknown_frees": {"count": info.unknown_frees, "first": info.first_unknown or None},
        "double_frees": {"count": info.double_frees, "first": info.first_double or None},
        "lost_frees": {"count": info.lost_frees, "first": info.first_lost or None},
        "empty_allocations": info.empty_allocations,
        "failed_allocations": {
            "count": info.failed_allocations,
            "largest_bytes": info.failed_bytes,
        },
        "cut": source.cut,
        "plot": arguments.plot,
        "planned": _planned(replay),
    }


def _planned(replay: Replay) -> Optional[Dict[str, Any]]:
    return None if replay.planned is None else replay.planned._asdict()


def _row(info: TraceInfo, run: _Run) -> Dict[str, Any]:
    replay, smallest = run.replay, run.smallest
    return {
        "config": run.config,
        "peak_reserved_bytes": replay.peak_reserved_bytes,
        "ratio": replay.ratio,
        "out_of_memory": replay.out_of_memory,
        "smallest_capacity_bytes": smallest,
        "smallest_capacity_ratio": None if smallest is None else smallest / info.peak_live_bytes,
        "device_allocs": replay.device_allocs,
        "device_frees": replay.device_frees,
        "retries": replay.retries,
        "ns_per_event": replay.ns_per_event,
        "first_ns_per_event": replay.first_ns_per_event,
        "planned": _planned(replay),
    }


# --- text -----------------------------------------------------------------------------------------


def _show_table(
    output: Output,
    info: TraceInfo,
    source: TraceSource,
    runs: List[_Run],
    arguments: argparse.Namespace,
) -> None:
    output.pairs("Trace " + _name(arguments), _trace_lines(info, source))
    rows: List[List[Text]] = []
    for run in runs:
        replay = run.replay
        assert run.smallest is not None
        completes = Cell("yes", "good")
        if replay.out_of_memory:
            completes = Cell("no, event {:,}".format(replay.events + 1), "bad")
        rows.append(
            [
                run.config or "default",
                completes,
                format_size(replay.peak_reserved_bytes),
                "%.3f" % replay.ratio,
                format_size(run.smallest),
                "%.3f" % (run.smallest / info.peak_live_bytes),
                "{:,}".format(replay.device_allocs + replay.device_frees),
                _time(replay.ns_per_event),
                *(_planned_cells(replay) if arguments.steps else []),
            ]
        )
    columns = ["config", "completes", "peak reserved", "× live", "smallest device", "× live"]
    columns += ["device calls", "time an event"]
    if arguments.steps:
        columns += ["planned", "× live", "device calls", "time an event"]
    output.table("Replays", columns, rows)
    notes = _notes(info, source, arguments)
    if notes:
        output.pairs("Notes", notes, "warn")


def _planned_cells(replay: Replay) -> List[Text]:
    planned = replay.planned
    if planned is None:
        return ["", "", "", ""]
    return [
        format_size(planned.reserved_bytes),
        "%.4f" % planned.ratio,
        "{:,}".format(planned.device_calls),
        _time(planned.ns_per_event),
    ]


def _many(number: int, noun: str) -> str:
    return "{:,} {}{}".format(number, noun, "" if number == 1 else "s")


def _time(ns: float) -> str:
    return "%.1f µs" % (ns / 1000) if ns >= 1000 else "%.0f ns" % ns


def _show(
    output: Output,
    info: TraceInfo,
    source: TraceSource,
    replay: Replay,
    smallest: Optional[int],
    arguments: argparse.Namespace,
) -> None:
    output.pairs("Trace " + _name(arguments), _trace_lines(info, source))
    output.pairs("Replay", _replay_lines(info, replay, smallest, arguments))
    if replay.planned is not None:
        output.pairs("As a step that repeats", _planned_lines(replay.planned))
    if replay.failure is not None:
        output.pairs("Out of memory", _failure_lines(info, replay, arguments), "bad")
    notes = _notes(info, source, arguments)
    if notes:
        output.pairs("Notes", notes, "warn")


def _trace_lines(info: TraceInfo, source: TraceSource) -> List[Tuple[str, Text]]:
    events = "{:,}, {:,} of them allocations".format(info.events, info.allocations)
    where = ""
    if source.format == "pytorch":
        where = "%d of a PyTorch snapshot" % source.device if source.device is not None else ""
        if sum(1 for count in source.events_by_device if count) > 1:
            others = ", ".join("%d: %s" % (i, n) for i, n in enumerate(source.events_by_device))
            where += " (events of device %s)" % others
    live = "%s in %s" % (format_size(info.live_bytes), _many(info.live_blocks, "block"))
    peak = "%s in %s" % (format_size(info.peak_live_bytes), _many(info.peak_live_blocks, "block"))
    earlier = format_size(source.earlier_bytes), _many(source.earlier_blocks, "block")
    return [
        ("device", where),
        ("events", events + (" on %d streams" % info.streams if info.streams > 1 else "")),
        ("peak live", peak),
        ("at the end", live if info.live_blocks else "nothing is left"),
        ("from before", "%s in %s, allocated first" % earlier if source.earlier_blocks else ""),
    ]


def _replay_lines(
    info: TraceInfo, replay: Replay, smallest: Optional[int], arguments: argparse.Namespace
) -> List[Tuple[str, Text]]:
    reserved = format_size(replay.peak_reserved_bytes)
    completes, least, retries = Cell("yes", "good"), "", ""
    if replay.out_of_memory:
        completes = Cell("no: event {:,} does not fit".format(replay.events + 1), "bad")
    if smallest is not None:
        least = "%s (%.3f × live)" % (format_size(smallest), smallest / info.peak_live_bytes)
    if replay.retries:
        retries = _many(replay.retries, "allocation") + " only after giving the cache back"
    return [
        ("config", arguments.config or "default (classic segments)"),
        ("capacity", format_size(replay.capacity) if arguments.capacity else "no limit"),
        ("completes", completes),
        ("peak reserved", "%s (%.3f × live)" % (reserved, replay.ratio)),
        ("smallest device", least),
        ("time an event", _times(replay)),
        ("retries", retries),
        ("plot", arguments.plot or ""),
    ]


def _planned_lines(planned: PlannedReplay) -> List[Tuple[str, Text]]:
    reserved = format_size(planned.reserved_bytes)
    plan = format_size(planned.plan_bytes), format_size(planned.least_bytes)
    return [
        ("plan", "%s for at least %s" % plan),
        ("as planned", "{:,} of {:,} steps after the first".format(planned.as_planned, planned.steps)),
        ("peak reserved", "%s (%.4f × live)" % (reserved, planned.ratio)),
        ("device calls", "{:,}".format(planned.device_calls)),
        ("time an event", _time(planned.ns_per_event)),
    ]


def _times(replay: Replay) -> str:
    calls = _many(replay.device_allocs + replay.device_frees, "device call")
    first = "%s in the first pass, with %s" % (_time(replay.first_ns_per_event), calls)
    if replay.ns_per_event == replay.first_ns_per_event:
        return first
    return "%s; %s" % (_time(replay.ns_per_event), first)


def _failure_lines(
    info: TraceInfo, replay: Replay, arguments: argparse.Namespace
) -> List[Tuple[str, Text]]:
    failure = replay.failure
    assert failure is not None
    stream = " on stream %d" % failure.stream if info.streams > 1 else ""
    if info.peak_live_bytes > replay.capacity:
        why = "the trace has %s alive at its peak: no configuration makes that fit" % format_size(
            info.peak_live_bytes
        )
        hint = "a smaller batch, checkpointing, 8-bit states, or a larger device"
    else:
        lost = failure.reserved_bytes - failure.live_bytes
        why = "%s are held but lie in holes that are too small" % format_size(lost)
        hint = "--config expandable_segments:True" if "expandable" not in arguments.config else ""
        if not hint:
            hint = "--find-capacity tells the smallest device that does"
    return [
        (
            "event",
            "{:,} of {:,} asks for {}{}".format(
                failure.event, info.events, format_size(failure.nbytes), stream
            ),
        ),
        ("alive", format_size(failure.live_bytes)),
        (
            "held",
            "%s of %s" % (format_size(failure.reserved_bytes), format_size(replay.capacity)),
        ),
        ("why", why),
        ("try", hint),
    ]


def _notes(
    info: TraceInfo, source: TraceSource, arguments: argparse.Namespace
) -> List[Tuple[str, Text]]:
    where = "line" if source.format == "csv" else "event"

    def first(number: int) -> str:
        return "first in %s %s" % (where, "{:,}".format(number))

    unknown = _many(info.unknown_frees, "free"), first(info.first_unknown)
    double = _many(info.double_frees, "free"), first(info.first_double)
    lost = _many(info.lost_frees, "allocation"), first(info.first_lost)
    failed = "%s failed in the recording, up to %s: %s" % (
        _many(info.failed_allocations, "allocation"),
        format_size(info.failed_bytes),
        "replayed and freed at once"
        if arguments.with_failed
        else "left out (--with-failed replays them)",
    )
    told = [
        (source.cut, "cut off", "%s; what stands before it was replayed" % source.cut),
        (
            info.unknown_frees,
            "unknown frees",
            "%s of blocks from before the recording, left out; %s" % unknown,
        ),
        (info.double_frees, "double frees", "%s of what was freed before, left out; %s" % double),
        (
            info.lost_frees,
            "lost frees",
            "%s at the address of a living block: the missing free was put before; %s" % lost,
        ),
        (info.failed_allocations, "failed", failed),
    ]
    return [(name, text) for present, name, text in told if present]
