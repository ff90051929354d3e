"""Random operations under random configurations, through libc10_cuda on the simulated driver and through
the library's allocator on the same driver: the two differ only as the guide says.

Where they cannot differ (block sizes; classic segments while there is room), they must be equal after
each operation. Where the library does better (expandable segments; the limit), it must never do worse."""

from __future__ import annotations

import collections
import json
import random

import pytest

from simulated import run

MIB = 1 << 20
#: The simulated driver gives out each address once, so a process has room for so many.
CASES_A_PROCESS = 300
STREAMS = 2
#: Requests up to 64 KiB have pages of their own here, up to 1 MiB in torch: one more for each stream.
PAGE = 2 * MIB
#: Bytes around which sizes are drawn: rounding, classes and segments change there.
BOUNDS = (512, 4096, 64 << 10, MIB, 2 * MIB, 10 * MIB, 20 * MIB)

PROGRAM = """
import json

#: What a process starts with. torch forgets no key by itself; garbage collection cannot be set to "off",
#: and does nothing here because no fraction of the memory is set.
INITIAL = (
    "expandable_segments:False,large_segment_size_mb:20,max_split_size_mb:1000000,"
    "max_non_split_rounding_mb:1000,throw_on_cudamalloc_oom:False,roundup_power2_divisions:1,"
    "garbage_collection_threshold:0.999"
)

class Torch:
    failure = torch.OutOfMemoryError

    def __init__(self, config):
        torch.cuda.empty_cache()
        torch._C._accelerator_setAllocatorSettings(INITIAL)
        torch._C._accelerator_setAllocatorSettings(config)
        self.released = self.state()["num_device_free"]

    def state(self):
        return torch._C._cuda_memoryStats(0)

    def alloc(self, nbytes, stream):
        return torch._C._cuda_cudaCachingAllocator_raw_alloc(nbytes, streams[stream])

    def free(self, block):
        torch._C._cuda_cudaCachingAllocator_raw_delete(block)

    def trim(self):
        torch.cuda.empty_cache()

    def stats(self):
        state = self.state()
        return (
            [state[name]["all"]["current"] for name in ("allocated_bytes", "reserved_bytes")],
            state["num_device_free"] - self.released,
        )

    def close(self):
        pass

class Ours:
    failure = memopt.MemoptError

    def __init__(self, config):
        self.allocator = allocator = memopt.Allocator(device, config)
        self.free, self.trim, self.close = allocator.free, allocator.trim, allocator.close

    def alloc(self, nbytes, stream):
        return self.allocator.alloc(nbytes, stream=streams[stream])

    def stats(self):
        state = self.allocator.stats()
        return [state[name + ".all.current"] for name in ("allocated_bytes", "reserved_bytes")], 0

def play(make, config, operations, failed):
    "After each operation what is allocated and held, and the segments given back; None where memory ran out."
    try:
        allocator = make(config)
    except Exception as error:
        return str(error).splitlines()[0]
    live, seen = {}, []
    for number, (what, *operation) in enumerate(operations):
        if what == "alloc":
            block, nbytes, stream = operation
            try:
                live[block] = allocator.alloc(nbytes, stream)
            except allocator.failure:
                seen.append(None)
                continue
            if number in failed:  # keeps the live blocks of both alike
                allocator.free(live.pop(block))
        elif what == "free" and operation[0] in live:
            allocator.free(live.pop(operation[0]))
        elif what == "trim":
            allocator.trim()
        seen.append(allocator.stats())
    for block in live.values():
        allocator.free(block)
    allocator.trim()
    allocator.close()
    return seen

torch.cuda.init()
streams = [0, torch.cuda.Stream().cuda_stream]
with open(%r) as file:
    cases = json.load(file)
results = []
with memopt.Device("cuda") as device:
    for config, operations in cases:
        theirs = play(Torch, config, operations, ())
        torch.cuda.empty_cache()
        failed = {i for i, seen in enumerate(theirs) if seen is None}
        results.append((theirs, play(Ours, config, operations, failed)))
with open(%r, "w") as file:
    json.dump(results, file)
"""


def configuration(source):
    """A valid one."""
    large = source.choice((20, 20, 12, 32, 64))
    keys = ["large_segment_size_mb:%d" % large] if large != 20 else []

    def sometimes(share, key, *values):
        if source.random() < share:
            keys.append("%s:%s" % (key, source.choice(values)))

    sometimes(0.5, "expandable_segments", True, True, False)
    sometimes(0.4, "max_split_size_mb", large, large + 1, 2 * large, 128)
    sometimes(0.3, "max_non_split_rounding_mb", large, large + 5, 3 * large)
    sometimes(0.2, "garbage_collection_threshold", 0.05, 0.3, 0.6, 0.95)
    sizes = [source.choice([">", *(1 << i for i in range(8))]) for _ in range(source.randint(0, 5))]
    divisions = ",".join("%s:%d" % (size, source.choice([0, 1, 2, 4, 8, 16])) for size in sizes)
    sometimes(0.3, "roundup_power2_divisions", 1, 2, 4, 8, "[%s]" % divisions, "[%s]" % divisions)
    sometimes(0.2, "throw_on_cudamalloc_oom", True)
    source.shuffle(keys)
    return ",".join(keys)


def nbytes(source):
    """A size: anything, or just at a bound."""
    if source.random() < 0.3:
        return max(1, source.choice(BOUNDS) + source.choice((-1, 0, 1, 512)))
    low, high = source.choice(((1, 4096), (4096, MIB), (MIB, 12 * MIB), (10 * MIB, 40 * MIB)))
    return source.randint(low, high)


def sequence(source, count):
    """Allocations and frees of less than so many bytes alive, in part more than the device has."""
    most = source.choice((120, 200, 300)) * MIB
    share = source.uniform(0.45, 0.6)
    alive, made = {}, 0
    for _ in range(count):
        draw = source.random()
        if draw < 0.01:
            yield ["trim"]
        elif draw < share or not alive:
            size = nbytes(source)
            while alive and sum(alive.values()) + size > most:
                yield ["free", drop(source, alive)]
            alive[made] = size
            yield ["alloc", made, size, source.choice((0, 0, 0, STREAMS - 1))]
            made += 1
        else:
            yield ["free", drop(source, alive)]


def drop(source, alive):
    """One of those alive, no longer so."""
    block = source.choice(list(alive))
    del alive[block]
    return block


def compare(config, operations, theirs, ours, counts):
    """Asserts what may not differ, and counts what may."""
    assert isinstance(theirs, str) == isinstance(ours, str), (config, theirs, ours)
    if isinstance(theirs, str):
        counts["refused"] += 1
        return
    expandable = "expandable_segments:True" in config
    collected = "garbage_collection_threshold" in config
    alike, peaks = True, [0, 0]
    for number, (their, mine) in enumerate(zip(theirs, ours)):
        what = (config, number, operations[number], their, mine)
        if their is None:
            counts["both run out" if mine is None else "torch alone runs out"] += 1
            alike = False
        elif mine is None:
            assert not expandable and not alike, what
            counts["the library alone runs out"] += 1
            return
        else:
            alike = alike and not expandable and not collected and their[1] == 0
            if alike:
                assert mine[0] == their[0], what
                counts["equal, classic"] += 1
            if expandable:
                assert mine[0][0] == their[0][0], what
                peaks = [max(peak, state[0][1]) for peak, state in zip(peaks, (mine, their))]
                counts["equal blocks, expandable"] += 1
        if expandable and None not in theirs[: number + 1]:
            assert peaks[0] <= peaks[1] + STREAMS * PAGE, what


@pytest.mark.parametrize("cases", [pytest.param(40, id="40"), pytest.param(1500, id="1500", marks=pytest.mark.long)])
def test_random_configurations(tmp_path, cases):
    source = random.Random(1)
    asked, given = tmp_path / "cases.json", tmp_path / "results.json"
    counts = collections.Counter()
    for first in range(0, cases, CASES_A_PROCESS):
        number = min(CASES_A_PROCESS, cases - first)
        drawn = [(configuration(source), list(sequence(source, 150))) for _ in range(number)]
        asked.write_text(json.dumps(drawn))
        run(PROGRAM % (str(asked), str(given)), torch_too=True, MEMOPT_SIM_FILL="0")
        for case, result in zip(drawn, json.loads(given.read_text())):
            compare(*case, *result, counts)
    print(dict(counts))
    assert counts["equal, classic"] > 20 * cases
    assert counts["equal blocks, expandable"] > 20 * cases
    assert counts["both run out"] > 0
    assert counts["the library alone runs out"] <= counts["torch alone runs out"] / 20
