#!/usr/bin/env python3
"""What the loops of the optimizer's GPU kernels take, counted in the machine code that a user's GPU runs.

    kernel_report.py [--target sm_90 gfx942...] [--write]

Compiles the text that the library carries, one kernel at a time as at its first launch, with nvcc and clang, and
disassembles it (nvdisasm, from CUDA or from pip's nvidia-cuda-nvdisasm). The kernel of a format is that which steps.def
names, as for the library. A row is a loop over the whole blocks of a class of types: two blocks a turn, in which a
thread has eight elements each. Instructions are those of the shortest way through the loop that reads and writes all;
repairs of rare values lie beside it.
"""
import argparse
import bisect
import math
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/kernels_build")]
from compilers import HIP_FLAGS, NVCC_FLAGS, ptxas_kernels, run  # noqa: E402
from gpu_text import flattened  # noqa: E402

PAGE = ROOT / "docs/benchmarks/kernels.md"
FORMATS = {"COMPANDED": "companded 8-bit", "8BIT": "dynamic 8-bit", "COMPANDED4": "companded 4-bit"}
TARGETS = ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "gfx1030", "gfx1100", "gfx90a", "gfx942"]
# By vectors of 16 bytes that a turn reads: the class, and bytes of an element beside the states.
CLASSES = {4: ("bf16", 6), 6: ("f32, gradients and copy bf16", 12), 8: ("f32", 12)}
ELEMENTS = 16  # of a thread in a turn
THREADS = 256


class Card(NamedTuple):
    """Clock in GHz, memory in TB/s and what a copy reaches of it, ns of a load under load."""
    target: str
    units: int
    clock: float
    memory: float
    copy: float
    latency: int


CARDS = {"T4": Card("sm_75", 40, 1.35, .32, .80, 600), "RTX 4090": Card("sm_89", 128, 2.52, 1.008, .92, 600),
         "A100": Card("sm_80", 108, 1.41, 2.04, .88, 600), "H100": Card("sm_90", 132, 1.70, 3.35, .91, 700),
         "H200": Card("sm_90", 132, 1.70, 4.8, .90, 750), "B200": Card("sm_100", 148, 1.85, 8.0, .90, 800),
         "RX 6750 XT": Card("gfx1030", 40, 2.60, .432, .85, 600), "MI300X": Card("gfx942", 304, 2.10, 5.3, .80, 800)}


class Loop(NamedTuple):
    name: str
    beside: int       # bytes of an element beside the states
    instructions: float  # an element
    issued: float     # ... in turns of the unit that is busiest with them
    flight: int       # bytes of a thread on their way
    spills: int       # instructions that move registers to a thread's memory and back


class Kernel(NamedTuple):
    symbol: str
    registers: int
    spilled: int
    shared: int
    loops: list


# --- machine code ---------------------------------------------------------------------------------

NVIDIA = {"label": r"(\.L_x_\d+):", "branch": r"\bBRA\b.*?(\.L_x_\d+)", "always": r"BRA(\.U)? `",
          "load": r"LDG\.E(?:\.(64|128))?\b", "store": r"STG\b", "reduce": r"REDUX|SHFL",
          "spill": r"\b(?:LDL|STL)\b"}
AMD = {"label": r"(\.LBB\d+_\d+):", "branch": r"s_c?branch\w* (\.LBB\d+_\d+)", "always": r"s_branch ",
       "load": r"global_load_(?:dword|b)(x2|x4|64|128|32)?\b", "store": r"global_store_",
       "reduce": r"ds_bpermute|_dpp|v_permlane|row_", "spill": r"scratch_|v_(?:read|write)lane"}
WIDTH = {"64": 8, "x2": 8, "128": 16, "x4": 16}


def compiled(text, symbol, target, nvdisasm):
    """(listing, registers, bytes spilled, shared memory)"""
    with tempfile.TemporaryDirectory() as folder:
        source, out = pathlib.Path(folder, "kernel.cu"), pathlib.Path(folder, "out")
        source.write_text(text)
        only = ["-DMO_ONLY", f"-DMO_ONLY_{symbol}"]
        if target.startswith("gfx"):
            run(shutil.which("clang-19") or "clang", *HIP_FLAGS, *only, f"--offload-arch={target}", "-S", source, "-o", out)
            listing = out.read_text()
            number = {key: int(value) for key, value in re.findall(r"\.(\w+): +(\d+)\s", listing)}
            return listing, number["vgpr_count"], number["private_segment_fixed_size"], number["group_segment_fixed_size"]
        report = run("nvcc", *NVCC_FLAGS, *only, f"-arch={target}", "-Xptxas", "-v", "-cubin", source, "-o", out)
        found = ptxas_kernels(report)[symbol]
        registers = int(re.search(r"Used (\d+) registers", report)[1])
        return run(nvdisasm, "-c", out), registers, found["spill"], found["shared"]


def instructions(listing, symbol, words):
    """The function's instructions, and where labels stand."""
    found, labels, inside = [], {}, False
    for line in listing.splitlines():
        text = re.split(r"//|;", re.sub(r"/\*.*?\*/", "", line))[0].strip()
        if re.match(rf"(\.text\.)?{symbol}:", text) or text.startswith(".Lfunc_end"):
            inside = not text.startswith(".Lfunc_end")
        elif label := re.fullmatch(words["label"], text):
            labels[label[1]] = len(found)
        elif inside and text and text[0] != "." and not text.endswith(":"):
            found.append(text)
    return found, labels


def target_of(text, labels, words):
    branch = re.search(words["branch"], text)
    return labels.get(branch[1]) if branch else None


def shortest(code, labels, words, start, end):
    """The shortest way from the loop's first instruction to its last. None jumps over loads or stores."""
    before, front = {start: None}, [start]
    moves = [bool(re.search(words["load"] + "|" + words["store"], text)) for text in code]
    while front:
        behind = []
        for at in front:
            if at == end:
                way = []
                while at is not None:
                    way.append(at)
                    at = before[at]
                return way[::-1]
            to = target_of(code[at], labels, words)
            always = to is not None and re.match(words["always"], code[at])
            steps = [] if always else [at + 1]
            if to is not None and (always or not (at < to <= end and any(moves[at + 1:to]))):
                steps.append(to)
            for following in steps:
                if start <= following <= end and following not in before:
                    before[following] = at
                    behind.append(following)
        front = behind
    return []


def turns(text, amd):
    """Of the unit that issues it: on AMD the vector unit, four times for roots and reciprocals."""
    if not amd:
        return 1
    return 4 if re.match(r"v_(rcp|sqrt|rsq|log|exp)_", text) else int(text.startswith("v_"))


def loops(code, labels, words):
    """The loops over whole blocks: those that read vectors and reduce."""
    for end, text in enumerate(code):
        start = target_of(text, labels, words)
        if start is None or start > end:
            continue
        loads = [(i, WIDTH.get(found[1], 4)) for i, line in enumerate(code[start:end + 1])
                 if (found := re.search(words["load"], line))]
        name, beside = CLASSES.get(sum(width == 16 for _, width in loads), (None, 0))
        if name is None or not any(re.search(words["reduce"], line) for line in code[start:end + 1]):
            continue
        way = shortest(code, labels, words, start, end)
        if way:
            flight = sum(width for _, width in loads) // 2 - 8  # scales are shared by a warp
            yield Loop(name, beside, len(way) / ELEMENTS,
                       sum(turns(code[i], words is AMD) for i in way) / ELEMENTS, flight,
                       sum(bool(re.search(words["spill"], code[i])) for i in way))


def kernel(text, symbol, target, nvdisasm):
    listing, registers, spilled, shared = compiled(text, symbol, target, nvdisasm)
    words = AMD if target.startswith("gfx") else NVIDIA
    code, labels = instructions(listing, symbol, words)
    found = sorted(loops(code, labels, words), key=lambda loop: loop.instructions)  # a part of one is shorter
    return Kernel(symbol, registers, spilled, shared, list({loop.name: loop for loop in found}.values()))


def symbol_of(form):
    """The kernel of AdamW and a format: the line from which the library's table is made too."""
    steps = (ROOT / "kernels/optim/steps.def").read_text()
    return "mo_step_" + re.search(r"X\((\w+), ADAMW, %s\)" % form, steps)[1]


# --- shared memory --------------------------------------------------------------------------------


def wavefronts(places, draws=2000):
    """Turns of 32 banks for a look-up of 32 threads, in the mean. places: byte addresses of the words of one thread."""
    total = 0
    for _ in range(draws):
        banks = {}
        for place in (place for _ in range(32) for place in places()):
            banks.setdefault(place // 4 % 32, set()).add(place)
        total += max(map(len, banks.values()))
    return total / draws


def lookups(build):
    """{format: {table: wavefronts}} of moments of normal gradients: a mean, and a mean of 20 squares."""
    made = (build / "made/kernels/generated/blockcode_tables.h").read_text()
    values = {name: [struct.unpack("f", struct.pack("I", int(x, 16)))[0] for x in
                     re.findall("0x[0-9a-f]+", re.search(r"mo_map_%s\[256\] = \{(.*?)\}" % name, made, re.S)[1])]
              for name in ("signed", "unsigned")}
    draw = random.Random(1)

    def first():
        return max(-1.0, min(1.0, draw.gauss(0, 1 / 2.8)))

    def second():
        return min(1.0, sum(draw.gauss(0, 1) ** 2 for _ in range(20)) / 50)

    def nearest(name, y):
        return bisect.bisect_left(values[name], y)

    def bits(y):
        return struct.unpack("I", struct.pack("f", abs(y)))[0]

    def cube(y, top):
        return round(math.copysign(abs(y) ** (1 / 3) * top, y))

    eight = {"first": lambda: [cube(first(), 127) % 256 * 4],
             "second": lambda: [max(0, int(second() ** .25 * 258 - 3 + draw.random())) * 4]}
    dynamic = {"first": lambda: [nearest("signed", first()) * 4], "second": lambda: [nearest("unsigned", second()) * 4],
               "codes of first": lambda: [(bits(first()) >> 17) * 4], "codes of second": lambda: [(bits(second()) >> 16) * 4]}

    def pair(code):
        return lambda: [(code() * 16 + code()) * 8 + half for half in (0, 4)]

    four = {"first": pair(lambda: 7 + cube(first(), 7)), "second": pair(lambda: min(15, int(second() * 16)))}
    return {form: {name: wavefronts(places) for name, places in tables.items()}
            for form, tables in zip(FORMATS, (eight, dynamic, four))}


def shared_turns(form, tables):
    """Of a multiprocessor for an element's look-ups."""
    return sum(tables.values()) / 32 / (2 if form == "COMPANDED4" else 1)  # a byte has two codes


# --- the model --------------------------------------------------------------------------------------


def warps_of(card, kernel):
    """Warps of 32 threads that a multiprocessor holds, by registers and threads."""
    if card.target.startswith("gfx9"):
        return 4 * min(8, 512 // max(kernel.registers, 1)) * 2  # of 64
    if card.target.startswith("gfx"):
        return 2 * min(16, 1024 // max(kernel.registers, 1))
    return min(65536 // (kernel.registers * THREADS), 3) * THREADS // 32


def share_of_copy(card, kernel, loop, form, tables):
    """What limits: a copy's time, instructions, look-ups, or bytes on their way; in this order of copies."""
    state = 0.5 if form == "COMPANDED4" else 1.0
    moved = loop.beside + 4 * state + 16 / (128 if form == "COMPANDED4" else 256)
    rate = card.memory * card.copy * 1e3 / moved / card.units  # elements a ns and multiprocessor
    lanes = 64 if card.target.startswith("gfx") else 128
    issue = loop.issued * rate / (lanes * card.clock)
    looked = (shared_turns(form, tables) + moved / 128) * rate / card.clock
    waits = rate * moved * card.latency / (loop.flight * 32 * warps_of(card, kernel))
    return 1 / max(1.0, issue, looked, waits), issue


# --- the page ---------------------------------------------------------------------------------------

HEAD = """# GPU kernels: what a step's loop takes

Written by `tests/bench/kernel_report.py --write` with nvcc {nvcc} and {clang}: counted in the machine
code of the kernels that the library launches for AdamW, in their loops over whole blocks of aligned tensors. Loads are
those of the next block, so that none waits for another. No card has run them yet.

"""


def rows(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2),
                      *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def page(kernels, tables, targets):
    """kernels: {(format, target): Kernel}"""
    classes, cards = [name for name, _ in CLASSES.values()], {n: c for n, c in CARDS.items() if c.target in targets}
    counts, limits, room = [], [], []
    for form, words in FORMATS.items():
        loop_of = {(target, loop.name): loop for target in targets for loop in kernels[form, target].loops}
        for name in classes:
            found = [loop_of.get((target, name)) for target in targets]
            counts.append([words, name, *("%.1f" % loop.instructions if loop else "–" for loop in found)])
            limits.append([words, name, *("–" if (c.target, name) not in loop_of else "%.2f (%.2f)" % share_of_copy(
                c, kernels[form, c.target], loop_of[c.target, name], form, tables[form]) for c in cards.values())])
        room.append([words, "registers; bytes spilled", *("%d; %d" % (kernels[form, t].registers, kernels[form, t].spilled)
                                                         for t in targets)])
        room.append(["", "KiB in flight, bf16", *("%d" % (loop_of[t, "bf16"].flight * warps_of(
            Card(t, 0, 0, 0, 0, 0), kernels[form, t]) // 32) if (t, "bf16") in loop_of else "–" for t in targets)])
    looked = [[FORMATS[form], name, "%.1f" % turns] for form, found in tables.items() for name, turns in found.items()]
    return "\n".join([
        "## Instructions an element\n\nOf the shortest way through the loop; repairs of rare values lie beside it.\n",
        rows(["states", "types", *targets], counts),
        "## Room\n\nFor each multiprocessor or compute unit.\n", rows(["states", "", *targets], room),
        "## Share of a copy's speed, by a model\n\nA step takes the longest of: memory's time at a copy's speed; that of "
        "instructions, one a cycle of each scheduler\n(on AMD the vector unit's, four cycles for a root or a reciprocal); "
        "shared memory's; that of the bytes in flight at a\nloaded memory's latency. In brackets: instructions' time by "
        "memory's.\n",
        rows(["states", "types", *cards], limits),
        "## Shared memory\n\nTurns of the 32 banks for a look-up of 32 threads, with states of normal gradients.\n",
        rows(["states", "table", "turns"], looked)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", nargs="+", default=TARGETS)
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/test", help="a build folder, for its tables")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm") or "nvdisasm")
    options = parser.parse_args()
    text = flattened(options.cmake, options.build)
    kernels = {(form, target): kernel(text, symbol_of(form), target, options.nvdisasm)
               for form in FORMATS for target in options.target}
    head = HEAD.format(nvcc=re.search(r"V([\d.]+)", run("nvcc", "--version"))[1],
                       clang=run(shutil.which("clang-19") or "clang", "--version").splitlines()[0].split("(")[0].strip())
    found = head + page(kernels, lookups(options.build), options.target)
    if options.write:
        PAGE.write_text(found)
    else:
        print(found)


if __name__ == "__main__":
    main()
