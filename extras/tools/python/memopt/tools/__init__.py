"""Tools around the allocator, over libmemopt-tools: watch devices without opening them, and
replay traces of allocations without a GPU.

    from memopt import tools

    with tools.Trace.read("run.pickle") as trace:
        print(trace.find_capacity("expandable_segments:True"))
"""

from .._abi.tools import TraceAction
from ._trace_files import TraceSource
from .monitor import Monitor, MonitorInfo, Process, Reading
from .phases import phase
from .trace import PlannedReplay, Replay, ReplayFailure, Sample, Trace, TraceInfo

__all__ = [
    "Monitor",
    "MonitorInfo",
    "PlannedReplay",
    "Process",
    "Reading",
    "Replay",
    "ReplayFailure",
    "Sample",
    "Trace",
    "TraceAction",
    "TraceInfo",
    "TraceSource",
    "phase",
]
