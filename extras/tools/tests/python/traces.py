"""Traces and snapshots for tests, made and not recorded; and what they add up to."""

from __future__ import annotations

import random

MIB = 1 << 20
COLUMNS = ("Thread", "Time", "Action", "Pointer", "Size", "Stream")


def training(steps=8, seed=1):
    """Events (action, pointer, size, stream) of something like training with varying lengths:
    weights, activations that grow and shrink, states that appear in the first step."""
    draw = random.Random(seed)
    events, addresses, free_addresses = [], iter(range(0x7F0000000000, 1 << 47, 512)), []

    def alloc(size, stream=0):
        pointer = free_addresses.pop() if free_addresses else next(addresses)
        events.append(("allocate", pointer, size, stream))
        return pointer, size, stream

    def free(block):
        events.append(("free", *block))
        free_addresses.append(block[0])

    weights = [alloc(draw.choice((40000, 700000, 3 * MIB))) for _ in range(30)]
    states = []
    for step in range(steps):
        length = draw.randrange(1, 9)
        saved = [alloc(length * draw.choice((3000, 90000, MIB))) for _ in range(40)]
        for block in reversed(saved):
            gradient = alloc(block[1])
            free(block)
            free(gradient)
        if step == 0:
            states = [alloc(2 * size) for _, size, _ in weights]
        gathered = alloc(5 * MIB, stream=2)
        free(gathered)
    for block in states:
        free(block)
    return events


def csv(events, columns=COLUMNS, end="\n"):
    """The text of events."""
    lines = [",".join(columns)]
    for time, (action, pointer, size, stream) in enumerate(events):
        values = dict(zip(COLUMNS, ("0", str(time), action, hex(pointer), str(size), str(stream))))
        lines.append(",".join(values.get(column, "") for column in columns))
    return end.join(lines) + end


def peaks(events):
    """The most bytes alive at once, and those alive at the end."""
    alive, live, peak = {}, 0, 0
    for action, pointer, size, _ in events:
        if action == "allocate":
            alive[pointer] = size
            live += size
        else:
            live -= alive.pop(pointer, 0)
        peak = max(peak, live)
    return peak, live


def entry(action, pointer, size, stream=0):
    """An entry of a snapshot's trace, with all that torch puts in."""
    return {
        "action": action,
        "addr": pointer,
        "size": size,
        "stream": stream,
        "time_us": 1,
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
        "pool_id": (0, 0),
    }


def trace_entries(events):
    """Entries of the same events, and such as are no events."""
    entries = [entry("segment_alloc", 0x1000, 20 * MIB)]
    for action, pointer, size, stream in events:
        if action == "allocate":
            entries.append(entry("alloc", pointer, size, stream))
        else:
            entries.append(entry("free_requested", pointer, size, stream))
            entries.append(entry("free_completed", pointer, size, stream))
    return entries + [entry("snapshot", 0, 0)]


def segment(device, address, blocks, stream=0):
    """A segment of blocks (size, requested, state)."""
    sizes = [size for size, _, _ in blocks]
    places = [address + sum(sizes[:i]) for i in range(len(sizes))]
    return {
        "device": device,
        "address": address,
        "total_size": sum(sizes),
        "stream": stream,
        "segment_type": "large",
        "blocks": [
            {"address": place, "size": size, "requested_size": asked, "state": state, "frames": []}
            for place, (size, asked, state) in zip(places, blocks)
        ],
    }


def snapshot(*traces, segments=()):
    """A snapshot with one trace a device."""
    return {"segments": list(segments), "device_traces": list(traces), "allocator_settings": {}}
