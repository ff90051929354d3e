"""Makes the pictures of the guide's page about the allocator anew, from what it does:

    cmake --build build/dev
    MEMOPT_LIBRARY=build/dev/libmemopt.so PYTHONPATH=bindings/python python docs/images/allocator.py

segments.svg: what is held after 8 blocks of 16 MiB are freed and 4 of 32 MiB are allocated.
pools.svg: two pools under one limit, one of which is paused.
plan.svg: the places of a step's blocks, without a plan and with it.
ranges.svg: the ranges that an observer is told of while sizes change.
"""

import pathlib
import random

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import memopt
from matplotlib.patches import Rectangle

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
LIVE, FREE, HELD = "#4e79a7", "#d5dbe3", "#f28e2b"
EXPANDABLE = "expandable_segments:True"
STEP = 72

plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "memopt", "font.size": 9})


def save(figure, name):
    figure.tight_layout()
    figure.savefig(HERE / name, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    lines = (HERE / name).read_text().split("\n")
    (HERE / name).write_text(" ".join(line.strip() for line in lines) + "\n")


def segments():
    figure, both = plt.subplots(2, 1, figsize=(8, 2.6), sharex=True)
    for axes, config in zip(both, ("", EXPANDABLE)):
        with memopt.Device("cpu", capacity="1GiB") as device, memopt.Allocator(device, config) as own:
            for block in [own.alloc(16 * MIB) for _ in range(8)]:
                own.free(block)
            kept = [own.alloc(32 * MIB) for _ in range(4)]
            left = 0
            for segment in sorted(own.snapshot(), key=lambda one: one["address"]):
                first = left
                for block in segment["blocks"]:
                    live = block["state"] == "active_allocated"
                    size = block["size"] / MIB
                    axes.add_patch(Rectangle((left, 0), size, 1, color=LIVE if live else FREE))
                    axes.plot([left, left], [0, 1], color="white", linewidth=0.8)
                    left += size
                axes.add_patch(Rectangle((first, 0), left - first, 1, fill=False, color="black"))
            del kept
            axes.text(left + 4, 0.5, "%d MiB held" % left, va="center")
        axes.set(yticks=[], xlim=(0, 300), ylim=(-0.1, 1.1))
        axes.set_ylabel("classic" if not config else "expandable", rotation=0, ha="right")
        axes.spines[["top", "right", "left"]].set_visible(False)
    both[1].set_xlabel("MiB; blue: live, grey: cached, a frame: a segment")
    save(figure, "segments.svg")


def pools():
    """Each step: what the generator and the trainer hold."""
    held = {"generator": [], "trainer": []}
    with memopt.Device("cpu", capacity="1GiB") as device:
        parent = memopt.Allocator(device, EXPANDABLE, limit=200 * MIB)
        owners = {name: parent.pool(name) for name in held}
        generator, trainer = owners["generator"], owners["trainer"]
        weights, cache, activations = generator.alloc(60 * MIB), [], []

        def note():
            for name, pool in owners.items():
                held[name].append(pool.stat("reserved_bytes.all.current") / MIB)

        for _ in range(2):
            for _ in range(6):
                cache.append(generator.alloc(16 * MIB))
                note()
            cache = [block.free() for block in cache][:0]
            generator.pause(keep=True)
            note()
            for _ in range(6):
                activations.append(trainer.alloc(30 * MIB))
                note()
            activations = [block.free() for block in activations][:0]
            note()
            generator.resume()
            note()
        weights.free()
        for pool in owners.values():
            pool.close()
        parent.close()
    figure, axes = plt.subplots(figsize=(8, 2.6))
    steps = range(len(held["trainer"]))
    axes.stackplot(steps, held.values(), labels=list(held), colors=[LIVE, HELD], step="post")
    axes.axhline(200, color="black", linestyle="--", linewidth=0.8)
    axes.text(0.2, 203, "the parent's limit")
    axes.set(xlabel="allocations, pauses and resumes, in their order", ylabel="MiB held", ylim=(0, 230))
    axes.set_xlim(0, len(steps) - 1)
    axes.legend(loc="lower right")
    save(figure, "pools.svg")


def one_step(own, lives):
    """Blocks of a step by (first, last, size), in operations; as (first, last, address, size)."""
    done, live = [], {}
    for clock in range(STEP + 1):
        for life in lives:
            if life[1] == clock:
                block = live.pop(life)
                done.append((life[0], life[1], block.pointer, life[2]))
                own.free(block)
        for life in lives:
            if life[0] == clock:
                live[life] = own.alloc(life[2])
    return done


def plan():
    chance = random.Random(5)
    lives = []
    for first in range(1, STEP - 8):
        last = min(STEP, first + chance.choice((2, 5, 9, 20, 40)))
        lives.append((first, last, chance.randrange(4, 40) * MIB))
    figure, both = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
    for axes, planned in zip(both, (False, True)):
        with memopt.Device("cpu", capacity="2GiB") as device, memopt.Allocator(device, EXPANDABLE) as own:
            for _ in range(4):
                one_step(own, lives)
                own.reset_peaks()
                if planned:
                    own.mark_step()
            blocks = one_step(own, lives)
            held = own.stat("reserved_bytes.all.peak") / MIB
            live = own.stat("allocated_bytes.all.peak") / MIB
        base = min(address for _, _, address, _ in blocks)
        for first, last, address, size in blocks:
            where = (first, (address - base) / MIB)
            axes.add_patch(Rectangle(where, last - first, size / MIB, facecolor=LIVE, edgecolor="white"))
        axes.set(xlim=(0, STEP + 1), ylim=(0, 480), xlabel="allocations and frees of a step")
        title = "with a plan" if planned else "without a plan"
        axes.set_title("%s: %.3f of what is alive" % (title, held / live))
    both[0].set_ylabel("address, MiB")
    save(figure, "plan.svg")


def ranges():
    """Blocks of growing sizes on a device of 96 MiB: pages move."""
    told, clock, chance = [], 0, random.Random(3)
    with memopt.Device("cpu", capacity="96MiB") as device, memopt.Allocator(device, EXPANDABLE) as own:
        own.add_range_observer(lambda event: told.append((clock, event)))
        live = []
        for clock in range(120):
            size = chance.randrange(4, 10 + clock // 4) * MIB
            while sum(block.nbytes for block in live) + size > 88 * MIB:
                own.free(live.pop(chance.randrange(len(live))))
            live.append(own.alloc(size))
        for block in live:
            own.free(block)
        base = min(event.address for _, event in told)
        mapped = {}  # pages: since when
        figure, axes = plt.subplots(figsize=(8, 3))
        for when, event in told + [(clock, None)]:
            first, last = (event.address, event.address + event.bytes) if event else (base, base + 2**40)
            if event and event.mapped:
                mapped.update((page, when) for page in range(first, last, 2 * MIB))
                continue
            for page in sorted(page for page in mapped if first <= page < last):
                since = mapped.pop(page)
                where = (since, (page - base) / MIB)
                axes.add_patch(Rectangle(where, max(when - since, 0.1), 2, color=LIVE, linewidth=0))
    axes.set(xlim=(0, clock), ylim=(0, 216), xlabel="allocations", ylabel="address, MiB")
    save(figure, "ranges.svg")


if __name__ == "__main__":
    segments()
    pools()
    plan()
    ranges()
