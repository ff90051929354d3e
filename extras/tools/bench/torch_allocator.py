#!/usr/bin/env python3
"""Memory held for recorded traces: PyTorch's own allocator beside ours.

    MEMOPT_LIBRARY=build/extras/prefix/lib/libmemopt.so.1 PYTHONPATH=build/extras/python \\
        python extras/tools/bench/torch_allocator.py TRACE.csv.gz... [--lag 1000|inf] [--scale 0.6 0.83] \\
        [--json FILE]

The operations of each trace go through libc10_cuda (a PyTorch built for CUDA) on the simulated driver,
with its classic and its expandable segments, and through `Trace.replay()` with expandable segments. The
device is as many allocations, frees and uses behind the host as --lag says (0: idle). "reserved" is the peak of what the allocator held with room, "device" the smallest
memory that the trace completes in (bisection by 2 MiB, by the memory fraction in PyTorch); both over the
peak of live requested bytes. Prints a table and writes JSON; nothing passes or fails.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python", "tests", "with_torch"))

from simulated import run  # noqa: E402

import memopt.tools.trace  # noqa: E402

PAGE = 2 << 20

PROGRAM = """
import json

def play(operations):
    "The peak that was held; None: memory ran out."
    torch.cuda.reset_peak_memory_stats()
    live, used = {}, set()
    try:
        for kind, block, value in operations:
            if kind == "free":
                del live[block]
                if idle and block in used:
                    torch.cuda.synchronize()
            elif kind == "use":
                live[block].record_stream(streams[value])
                used.add(block)
            else:
                nbytes, stream = value
                torch.cuda.set_stream(streams[stream])
                live[block] = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            driver.memopt_sim_advance(1)
        return torch.cuda.max_memory_reserved()
    except torch.OutOfMemoryError:
        return None
    finally:
        live.clear()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

def smallest(operations, low, high):
    "The smallest memory that suffices, in bytes."
    total = torch.cuda.mem_get_info()[1]
    while low < high:
        middle = (low + high) // 2
        torch.cuda.set_per_process_memory_fraction((middle * %(page)d + 1) / total)
        low, high = (middle + 1, high) if play(operations) is None else (low, middle)
    torch.cuda.set_per_process_memory_fraction(1.0)
    return low * %(page)d

torch.cuda.init()
driver.memopt_sim_advance.argtypes = [ctypes.c_uint64]
with open(%(trace)r) as file:
    operations, peak = json.load(file)
idle = %(idle)r
streams = {value[1] for kind, _, value in operations if kind == "alloc"}
streams |= {value for kind, _, value in operations if kind == "use"}
streams = {i: torch.cuda.Stream() if i else torch.cuda.default_stream() for i in streams}
found = {}
for name, value in (("classic", "False"), ("expandable", "True")):
    torch._C._accelerator_setAllocatorSettings("expandable_segments:" + value)
    held = play(operations)
    found[name] = [held, smallest(operations, peak // %(page)d, -(-held // %(page)d))]
with open(%(trace)r, "w") as file:
    json.dump(found, file)
"""


def operations_of(path, scale):
    """("alloc", block, (bytes, stream)), ("use", block, stream) and ("free", block, None) of a CSV trace."""
    alive, streams, made = {}, {"0": 0}, 0
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as file:
        for row in csv.DictReader(file):
            stream = streams.setdefault(row["Stream"], len(streams))
            if row["Action"] == "allocate":
                alive[row["Pointer"]] = made
                yield "alloc", made, (max(1, round(int(row["Size"]) * scale)), stream)
                made += 1
            elif row["Pointer"] in alive and row["Action"] == "record stream":
                yield "use", alive[row["Pointer"]], stream
            elif row["Pointer"] in alive:
                yield "free", alive.pop(row["Pointer"]), None


def traced(operations):
    """The same as a trace of ours."""
    trace = memopt.tools.Trace()
    for kind, block, value in operations:
        if kind == "alloc":
            trace.alloc(block, *value)
        elif kind == "use":
            trace.record_stream(block, value)
        else:
            trace.free(block)
    return trace


def torch_figures(operations, peak, memory, lag):
    """{"classic": [reserved, device], "expandable": …} of PyTorch, in bytes."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([operations, peak], file)
        file.flush()
        program = PROGRAM % {"trace": file.name, "page": PAGE, "idle": lag == 0}
        settings = {"MEMOPT_SIM_FILL": "0", "MEMOPT_SIM_MEMORY": "%dM" % (memory >> 20), "MEMOPT_SIM_LAG": str(lag)}
        run(program, torch_too=True, **settings)
        with open(file.name) as found:
            return json.load(found)


def figures(path, scale, lag):
    """All of one trace, over its peak."""
    operations = list(operations_of(path, scale))
    with traced(operations) as trace:
        peak = trace.info.peak_live_bytes
        config = "expandable_segments:True"
        row = {
            "ours": [trace.replay(config, lag=lag).peak_reserved_bytes, trace.find_capacity(config, lag=lag)],
            **torch_figures(operations, peak, 6 * peak, lag),
        }
    return {name: [nbytes / peak for nbytes in pair] for name, pair in row.items()}


def mean(values):
    """The geometric one."""
    return math.exp(sum(map(math.log, values)) / len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--scale", nargs="+", type=float, default=[1.0], help="factors of all sizes")
    parser.add_argument("--lag", default="0", help="operations by which the device is behind, or inf")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    columns = [(name, i) for i in (0, 1) for name in ("classic", "expandable", "ours")]
    print("| trace | reserved: torch, classic | torch, expandable | ours | device: torch, classic | torch, expandable | ours |")
    print("|---|---|---|---|---|---|---|")
    rows, lag = {}, memopt.tools.trace.LAG_WITHOUT_END if arguments.lag == "inf" else int(arguments.lag)
    for path in arguments.traces:
        for scale in arguments.scale:
            name = os.path.basename(path).split(".")[0] + (" × %g" % scale if scale != 1 else "")
            rows[name] = found = figures(path, scale, lag)
            print("|", name, "|", " | ".join("%.4f" % found[of][i] for of, i in columns), "|", flush=True)
    cells = [mean([row[of][i] for row in rows.values()]) for of, i in columns]
    print("| geometric mean |", " | ".join("%.4f" % cell for cell in cells), "|")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
