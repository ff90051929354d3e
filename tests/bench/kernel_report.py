#!/usr/bin/env python3
"""What the loops of the GPU kernels take, counted in the machine code that a user's GPU runs.

    kernel_report.py [--target sm_90 gfx942...] [--write]

Compiles the text that the library carries, one kernel at a time as at its first launch, with nvcc and clang, and
disassembles it (nvdisasm, from CUDA or from pip's nvidia-cuda-nvdisasm). The kernel of a format is that which steps.def
names, as for the library. A row is a loop over the whole blocks of a class of types, in each of which a thread has eight
elements. Instructions are those of the shortest way through the loop that reads and writes all;
repairs of rare values lie beside it. A loop of casts, norms or blocks is for many types: its way is the shortest that
reads and writes vectors of a row's widths.
"""
import argparse
import bisect
import collections
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
PLAIN = ["bf16", "32-bit"]  # states without scales, of one kernel
BF16, F32 = "bf16", "f32"
# By vectors of 16 bytes that a turn reads and writes: the states and the class. That of f32 has the moves of its copy.
CLASSES = {(4, 2): ("coded", BF16), (4, 3): ("coded", F32), (8, 6): ("bf16", BF16), (6, 5): ("bf16", F32),
           (12, 10): ("32-bit", BF16), (8, 7): ("32-bit", F32)}
BESIDE = {BF16: 6, F32: 12}  # bytes of an element beside the states; of f32 either gradients or these and a copy are bf16
BLOCKS = {BF16: 2, F32: 1}   # of a turn
THREADS = 256


class Stream(NamedTuple):
    """A loop that is no step. moves: bytes of a pack's loads (positive) and stores (negative), without scales."""
    words: str
    symbol: str
    moves: tuple
    elements: int
    threads: int = 256
    packs: int = 1  # of a turn, which are read together


STREAMS = [Stream("cast, f32 to 16 bits", "mo_cast", (16, -8), 4), Stream("cast, 16 bits to f32", "mo_cast", (8, -16), 4),
           Stream("cast, f32 to 8 bits", "mo_cast", (16, 16, -8), 8),
           Stream("cast, 8 bits to f32", "mo_cast", (8, -16, -16), 8),
           Stream("norm, f32", "mo_square_sum", (4,) * 8, 8, 512), Stream("norm, bf16", "mo_square_sum", (2,) * 8, 8, 512),
           Stream("unscale, f32", "mo_scale", (16, -16), 4),
           Stream("unscale, 16 bits", "mo_scale", (16, -16), 8),
           Stream("blocks, f32 to 8 bits", "mo_blocks_quantize", (16, 16, -8), 8, packs=2),
           Stream("blocks, 16 bits to 8", "mo_blocks_quantize", (16, -8), 8, packs=2),
           Stream("blocks, f32 to 4 bits", "mo_blocks_quantize", (16, 16, -4), 8, packs=2),
           Stream("blocks, 16 bits to 4", "mo_blocks_quantize", (16, -4), 8, packs=2),
           Stream("blocks, 8 bits to f32", "mo_blocks_dequantize", (8, -16, -16), 8, packs=2),
           Stream("blocks, 8 bits to 16", "mo_blocks_dequantize", (8, -16), 8, packs=2),
           Stream("blocks, 4 bits to 16", "mo_blocks_dequantize", (4, -16), 8, packs=2)]


class Card(NamedTuple):
    """Clock in GHz, memory in TB/s and what a copy reaches of it, ns of a load under load, additions in double a cycle of
    a unit."""
    target: str
    units: int
    clock: float
    memory: float
    copy: float
    latency: int
    doubles: int


CARDS = {"T4": Card("sm_75", 40, 1.35, .32, .80, 600, 2), "RTX 4090": Card("sm_89", 128, 2.52, 1.008, .92, 600, 2),
         "A100": Card("sm_80", 108, 1.41, 2.04, .88, 600, 32), "H100": Card("sm_90", 132, 1.70, 3.35, .91, 700, 64),
         "H200": Card("sm_90", 132, 1.70, 4.8, .90, 750, 64), "B200": Card("sm_100", 148, 1.85, 8.0, .90, 800, 64),
         "RX 6750 XT": Card("gfx1030", 40, 2.60, .432, .85, 600, 4), "MI300X": Card("gfx942", 304, 2.10, 5.3, .80, 800, 64)}


class Loop(NamedTuple):
    states: str
    name: str
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
          "load": r"LDG\.E(?:\.(U8|U16|64|128))?\b", "store": r"STG\.E(?:\.(U8|U16|64|128))?\b",
          "spill": r"\b(?:LDL|STL)\b", "double": r"\bD(?:ADD|MUL|FMA)\b"}
AMD = {"label": r"(\.LBB\d+_\d+):", "branch": r"s_c?branch\w* (\.LBB\d+_\d+)", "always": r"s_branch ",
       "load": r"global_load_(?:dword|[bui](?=\d)|(?=short|ubyte|ushort|d16))(\w+?)?(?:_d16\w*)?\b",
       "store": r"global_store_(?:dword|b(?=\d)|(?=short|byte))(\w+?)?(?:_d16\w*)?\b",
       "spill": r"scratch_|v_(?:read|write)lane", "double": r"v_(?:add|mul|fma)_f64"}
WIDTH = {"U8": 1, "ubyte": 1, "byte": 1, "8": 1, "U16": 2, "ushort": 2, "short": 2, "short_d16": 2, "short_d16_hi": 2, "16": 2,
         "64": 8, "x2": 8, "128": 16, "x4": 16}


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


def widths(code, words):
    """Bytes that each instruction loads (positive) or stores (negative), or 0."""
    found = []
    for text in code:
        load, store = re.search(words["load"], text), re.search(words["store"], text)
        found.append(WIDTH.get(load[1], 4) if load else -WIDTH.get(store[1], 4) if store else 0)
    return found


def following(code, labels, words, at):
    """Where a program may go on behind an instruction. A call is of a slow way."""
    if re.match(r"EXIT|RET|s_endpgm", code[at]):
        return []
    to = target_of(code[at], labels, words)
    always = to is not None and re.match(words["always"], code[at])
    steps = ([] if always else [at + 1]) + ([] if to is None else [to])
    return [step for step in steps if step < len(code) and not re.match(r"CALL|s_swappc", code[step])]


def shortest(code, labels, words, loop, moves, strict=False):
    """The shortest way from a loop's first instruction to its last whose loads and stores are of these widths; smaller
    ones do not count, nor others on a condition unless strict."""
    start, end, body = loop
    least = min(map(abs, moves))

    def left_behind(left, at):
        width = body[at]
        if abs(width) < least or not strict and code[at].startswith("@") and width not in left:
            return left
        return left[:left.index(width)] + left[left.index(width) + 1:] if width in left else None

    first = (start, left_behind(tuple(moves), start))
    before, front = {first: None}, collections.deque([first])
    while front:
        at, left = state = front.popleft()
        if at == end and not left:
            way = []
            while state is not None:
                way.append(state[0])
                state = before[state]
            return way[::-1]
        for step in following(code, labels, words, at) if at != end else ():
            rest = left_behind(left, step) if step in body else None
            if rest is not None and (step, rest) not in before:
                before[step, rest] = state
                front.append((step, rest))
    return []


def turns(text, amd):
    """Of the unit that issues it: on AMD the vector unit, four times for roots and reciprocals."""
    if not amd:
        return 1
    return 4 if re.match(r"v_(rcp|sqrt|rsq|log|exp)_", text) else int(text.startswith("v_"))


def reached(edges, place, allowed):
    """What is reached from a place over these edges."""
    found, front = {place}, [place]
    while front:
        new = [at for at in edges[front.pop()] if at in allowed and at not in found]
        found.update(new)
        front += new
    return found


def whole_loops(code, labels, words):
    """Of a loop: where it is entered, from where one goes there again, and all its instructions, wherever they lie, with
    the bytes that each moves. Jumps back alone do not tell: code that lies apart has them to places in the middle."""
    everything, moved = range(len(code)), widths(code, words)
    to, back = [following(code, labels, words, at) for at in everything], collections.defaultdict(list)
    for at in everything:
        for step in to[at]:
            back[step].append(at)
    known = set()
    for end, text in enumerate(code):
        start = target_of(text, labels, words)
        if start is None or start > end or end in known:
            continue
        part = reached(back, end, reached(to, end, everything))
        known.update(part)
        for entry in [at for at in part if not part.issuperset(back[at])]:
            for last in part.intersection(back[entry]):
                yield entry, last, {at: moved[at] for at in part}


def loops(code, labels, words):
    """The loops over whole blocks: those that move the vectors of a class."""
    for loop in whole_loops(code, labels, words):
        moved = [width for width in loop[2].values() if width]
        states, name = CLASSES.get((moved.count(16), moved.count(-16)), (None, None))
        vectors = [width for width in moved if abs(width) == 16]
        way = states and (shortest(code, labels, words, loop, moved) or shortest(code, labels, words, loop, vectors))
        if way:
            blocks, elements = BLOCKS[name], BLOCKS[name] * 8
            flight = sum(width for width in moved if width > 0) // blocks - (8 if states == "coded" else 0)  # scales: a warp's
            yield Loop(states, name, len(way) / elements, sum(turns(code[i], words is AMD) for i in way) / elements, flight,
                       sum(bool(re.search(words["spill"], code[i])) for i in way))


class Counted(NamedTuple):
    """A stream's loop: an element's instructions, turns of the busiest unit and numbers in double, and registers."""
    instructions: float
    issued: float
    doubles: float
    registers: int


def counted(stream, machine_code, amd):
    """None where no loop has a way with these moves."""
    code, labels, registers = machine_code
    words = AMD if amd else NVIDIA
    found = [(len(way) / n / times, way, n * times) for n in [stream.elements]
             for times in ((1, 2) if min(stream.moves) > 0 else (stream.packs,))  # sums may be unrolled twice
             for loop in whole_loops(code, labels, words)
             if (way := shortest(code, labels, words, loop, stream.moves * times, stream.packs > 1))]
    if not found:
        return None
    count, way, n = min(found)
    return Counted(count, sum(turns(code[i], amd) for i in way) / n,
                   sum(bool(re.search(words["double"], code[i])) for i in way) / n, registers)


def machine_code(text, symbol, target, nvdisasm):
    listing, registers, _, _ = compiled(text, symbol, target, nvdisasm)
    return *instructions(listing, symbol, AMD if target.startswith("gfx") else NVIDIA), registers


def streams(text, target, nvdisasm):
    """{words: Counted or None}"""
    codes = {symbol: machine_code(text, symbol, target, nvdisasm) for symbol in {s.symbol for s in STREAMS}}
    return {s.words: counted(s, codes[s.symbol], target.startswith("gfx")) for s in STREAMS}


def kernel(text, symbol, target, nvdisasm):
    listing, registers, spilled, shared = compiled(text, symbol, target, nvdisasm)
    words = AMD if target.startswith("gfx") else NVIDIA
    code, labels = instructions(listing, symbol, words)
    found = sorted(loops(code, labels, words), key=lambda loop: -loop.instructions)  # the last of a class counts
    return Kernel(symbol, registers, spilled, shared, list({(loop.states, loop.name): loop for loop in found}.values()))


def symbol_of(form):
    """The kernel of AdamW and a format: the line from which the library's table is made too."""
    steps = (ROOT / "kernels/optim/steps.def").read_text()
    if form == "F32":
        return "mo_step_" + re.search(r"X\(ADAMW, .*, (\w+)\)", steps)[1]
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


def warps_of(target, registers, threads=THREADS, blocks=3):
    """Warps of 32 threads that a multiprocessor holds, by registers and threads."""
    if target.startswith("gfx9"):
        return 4 * min(8, 512 // max(registers, 1)) * 2  # of 64
    if target.startswith("gfx"):
        return 2 * min(16, 1024 // max(registers, 1))
    return min(65536 // (registers * threads), blocks) * threads // 32


def share_of_copy(card, moved, issued, looked, flight, warps, doubles=0.0):
    """What limits: a copy's time, instructions, look-ups, numbers in double, or bytes on their way; in this order of
    copies. moved, issued, doubles: of an element; flight: a thread's, and the part of what is moved that it is."""
    rate = card.memory * card.copy * 1e3 / moved / card.units  # elements a ns and multiprocessor
    lanes = 64 if card.target.startswith("gfx") else 128
    issue = issued * rate / (lanes * card.clock)
    shared = (looked + moved / 128) * rate / card.clock
    numbers = doubles * rate / (card.doubles * card.clock)
    waits = rate * moved * card.latency * flight[1] / (flight[0] * 32 * warps)
    return 1 / max(1.0, issue, shared, numbers, waits), issue


def share_of_step(card, kernel, loop, form, tables):
    state = {"COMPANDED4": 0.5, "bf16": 2.0, "32-bit": 4.0}.get(form, 1.0)
    scales = 0 if form in PLAIN else 16 / (128 if form == "COMPANDED4" else 256)
    moved = BESIDE[loop.name] + 4 * state + scales
    return share_of_copy(card, moved, loop.issued, shared_turns(form, tables), (loop.flight, loop.flight / 8 / moved),
                         warps_of(card.target, kernel.registers))


def share_of_stream(card, stream, found):
    reads = sum(width for width in stream.moves if width > 0)
    moved = sum(map(abs, stream.moves))
    most = 1024 if card.target == "sm_75" else 1536 if card.target == "sm_89" else 2048
    warps = warps_of(card.target, found.registers, stream.threads, most // stream.threads)
    return share_of_copy(card, moved / stream.elements, found.issued, 0.0, (reads * stream.packs, reads / moved), warps,
                         found.doubles)


# --- the page ---------------------------------------------------------------------------------------

HEAD = """# GPU kernels: what a step's loop takes

Written by `tests/bench/kernel_report.py --write` with nvcc {nvcc} and {clang}: counted in the machine
code of the kernels that the library launches: for AdamW in their loops over whole blocks of aligned tensors, whose loads
are those of the next block, so that none waits for another. No card has run them yet.

"""


WHY = """The loop of f32 is one for all that may be beside the parameters; counted with 12 bytes of gradient and parameter:
gradients of f32, or of bf16 and a copy of bf16.

Of the 58 for bf16 and companded states on sm_90 the formats' own arithmetic takes 50, each result of which is a
bit of what is stored: codes to numbers 6 (a place, a look-up and a scale for each moment), bf16 to f32 2, moments 6, the
block's largest 1.4, the parameter 9.4 (root, reciprocal, quotient, decay, and two candidates whose codes must agree), the
first moment's code 10.8, the second's 14.3. Loads and stores are 1.4; the rest scales, addresses, constants and the loop.
So 45 needs a processor with two products in an instruction, as sm_100 (`fma.rn.f32x2`) and gfx90a have. f32 takes 13 more:
its root and quotient are corrected until they are exact, and what is beside a parameter is tested.

"""


def rows(head, lines, named=2):
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * named + "|" + "---:|" * (len(head) - named),
                      *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def moved_registers(kernels, targets):
    """What of the spilled bytes is in the loops."""
    words = FORMATS | {"bf16": "bf16 and 32-bit"}
    found = ["%s on %s %s" % (words[form], target, ", ".join("%d of %d (%s)" % (
        loop.spills, round(loop.instructions * BLOCKS[loop.name] * 8), loop.name) for loop in kernels[form, target].loops))
             for form in words for target in targets if kernels[form, target].spilled]
    return "Instructions of a turn that move spilled registers: " + ("; ".join(found) or "none") + ".\n"


def page(kernels, found_streams, tables, targets):
    """kernels: {(format, target): Kernel}; found_streams: {target: {words: Counted}}"""
    classes, cards = [BF16, F32], {n: c for n, c in CARDS.items() if c.target in targets}
    counts, limits, room = [], [], []
    for form, words in (FORMATS | {form: form for form in PLAIN}).items():
        loop_of = {(target, loop.name): loop for target in targets for loop in kernels[form, target].loops
                   if loop.states == (form if form in PLAIN else "coded")}
        for name in classes:
            found = [loop_of.get((target, name)) for target in targets]
            counts.append([words, name, *("%.1f" % loop.instructions if loop else "–" for loop in found)])
            limits.append([words, name, *("–" if (c.target, name) not in loop_of else "%.2f (%.2f)" % share_of_step(
                c, kernels[form, c.target], loop_of[c.target, name], form, tables.get(form, {})) for c in cards.values())])
        room.append([words, "registers; bytes spilled", *("%d; %d" % (kernels[form, t].registers, kernels[form, t].spilled)
                                                         for t in targets)])
        room.append(["", "KiB in flight, bf16", *("%d" % (loop_of[t, BF16].flight * warps_of(
            t, kernels[form, t].registers) // 32) if (t, BF16) in loop_of else "–" for t in targets)])
    loads = [[s.words, *("%.1f" % found.instructions if (found := found_streams[t][s.words]) else "–" for t in targets)]
             for s in STREAMS]
    shares = [[s.words, *("%.2f (%.2f)" % share_of_stream(c, s, found) if (found := found_streams[c.target][s.words])
                          else "–" for c in cards.values())] for s in STREAMS]
    looked = [[FORMATS[form], name, "%.1f" % turns] for form, found in tables.items() for name, turns in found.items()]
    return "\n".join([
        "## Instructions an element\n\nOf the shortest way through the loop; repairs of rare values lie beside it.\n",
        rows(["states", "types", *targets], counts),
        WHY,
        "## Room\n\nFor each multiprocessor or compute unit. By the model a companded step needs 2 KiB in flight on a T4, 6 on an "
        "A100, 14 on\nan H200, 23 on a B200 and 7 on an MI300X, so a wave more or less of AMD's costs nothing.\n",
        rows(["states", "", *targets], room), moved_registers(kernels, targets),
        "## Share of a copy's speed, by a model\n\nA step takes the longest of: memory's time at a copy's speed; that of "
        "instructions, one a cycle of each scheduler\n(on AMD the vector unit's, four cycles for a root or a reciprocal); "
        "shared memory's; that of the bytes in flight at a\nloaded memory's latency. In brackets: instructions' time by "
        "memory's.\n",
        rows(["states", "types", *cards], limits),
        "## Casts, norms, blocks\n\nInstructions an element, and the share of a copy's speed. Blocks' loops are those over "
        "whole packs of aligned matrices, two a\nturn, to nearest: 8 bits with one scale (scales of 32 or 128 take 2 more on "
        "sm_90), 4 bits with one of 32 (NVFP4's of 16 takes\n2 more there: from bf16 16.4, 0.98 of a copy's time on an H200). "
        "A count is of the shortest way through branches over types,\nof 8 bits that of e5m2 where a processor does not convert "
        "e4m3, on AMD perhaps of one that no type takes.\n", rows(["loop", *targets], loads, 1), rows(["loop", *cards], shares, 1),
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
    for target in options.target:
        plain = kernel(text, symbol_of("F32"), target, options.nvdisasm)
        kernels |= {(form, target): plain for form in PLAIN}
    found_streams = {target: streams(text, target, options.nvdisasm) for target in options.target}
    head = HEAD.format(nvcc=re.search(r"V([\d.]+)", run("nvcc", "--version"))[1],
                       clang=run(shutil.which("clang-19") or "clang", "--version").splitlines()[0].split("(")[0].strip())
    found = head + page(kernels, found_streams, lookups(options.build), options.target)
    if options.write:
        PAGE.write_text(found)
    else:
        print(found)


if __name__ == "__main__":
    main()
