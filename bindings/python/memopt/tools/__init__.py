"""Tools around the allocator, over libmemopt-tools: watch devices without opening them, publish
allocators for `memopt monitor`, and replay traces of allocations without a GPU.

    from memopt import tools

    tools.publish(allocator)
    with tools.Trace.read("run.pickle") as trace:
        print(trace.find_capacity("expandable_segments:True"))
"""

from .._abi.tools import TraceAction
from ._trace_files import TraceSource
from .monitor import Monitor, MonitorInfo, Process, Reading
from .peaks import Peak, PeakDifference, PeakGroup, compare_peaks
from .phases import phase
from .published import Published, PublishedAllocator, read_published
from .publisher import Publisher, publish
from .trace import PlannedReplay, Replay, ReplayFailure, Sample, Trace, TraceInfo

__all__ = [
    "Monitor",
    "MonitorInfo",
    "Peak",
    "PeakDifference",
    "PeakGroup",
    "PlannedReplay",
    "Process",
    "Published",
    "PublishedAllocator",
    "Publisher",
    "Reading",
    "Replay",
    "ReplayFailure",
    "Sample",
    "Trace",
    "TraceAction",
    "TraceInfo",
    "TraceSource",
    "compare_peaks",
    "phase",
    "publish",
    "read_published",
]
