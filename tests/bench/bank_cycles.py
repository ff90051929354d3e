"""How long a warp's look-ups in the code tables keep shared memory busy: each of its 32 banks gives a
word a cycle, to all lanes that ask for that word. Which words a warp asks for depends on the
states, here those of normally distributed gradients after STEPS steps."""
import math
import pathlib
import random
import re
import struct

KERNELS = pathlib.Path(__file__).resolve().parents[2] / "kernels"
STEPS, ELEMENTS, PACK, LANES = 30, 256 * 64, 8, 32


def tables():
    text = (KERNELS / "generated/blockcode_tables.h").read_text()
    return {name: [int(number.rstrip("uU"), 0) for number in re.findall(r"\w+", numbers)]
            for name, numbers in re.findall(r"mo_(\w+)\[\d+\] = \{([^}]*)\}", text)}


def first_cell(name):
    """The upper half of the first cell's numbers."""
    found = re.search(rf"MO_{name}_UMIN = (\d+) << (\d+)", (KERNELS / "optim/state_codes.h").read_text())
    return int(found[1]) << int(found[2])


def moments():
    """m and v, whose own scale does not matter."""
    source = random.Random(1)
    m, v = [0.0] * ELEMENTS, [0.0] * ELEMENTS
    for _ in range(STEPS):
        for i in range(ELEMENTS):
            g = source.gauss(0, 1)
            m[i] += 0.1 * (g - m[i])
            v[i] += 0.001 * (g * g - v[i])
    return m, v


def parts(values, block):
    """(sign, bits of the magnitude as an f32) of each value over the largest of its block."""
    for start in range(0, ELEMENTS, block):
        largest = max(map(abs, values[start:start + block]))
        for value in values[start:start + block]:
            yield value < 0, struct.unpack("<I", struct.pack("<f", abs(value) / largest))[0]


def cycles(words, pack=PACK, width=1):
    """Of a word of a look-up by a warp, whose lanes have `pack` neighbours each: the most different
    words in a bank, on average. width: words that a lane looks up at once, half of a warp a time."""
    lanes, banks, busy = LANES // width, LANES // width, 0
    for start in range(0, len(words), lanes * pack):
        for k in range(start, start + pack):
            asked = [0] * banks
            for word in set(words[k:k + lanes * pack:pack]):
                asked[word % banks] += 1
            busy += max(asked)
    return busy / (len(words) * width // LANES)


def look_ups_8bit(values, name, known):
    """The words of the steps and of the map, as state_codes_gpu.h finds them."""
    steps, first = known[f"steps_{name}"], first_cell(name.upper())
    places, codes = [], []
    for negative, bits in parts(values, 256):
        bits = max(bits, first << 16)
        if name == "signed":
            z = bits ^ 0x3f800000 ^ (-1 if negative else 0)
            place, number = (z >> 17) + 1472, z * 128
        else:
            place, number = (bits >> 16) - first, bits * 256
        places.append(place)
        codes.append((number + steps[place] & 0xffffffff) >> 24)
    return places, codes


def number(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def look_ups_4bit(m, v):
    """The words of the cells, and the bytes of both moments, each of two codes."""
    cells, signed, unsigned = [], [], []
    thresholds = [number(t) for t in (0x3b343959, 0x3c9ba5e5, 0x3d6147af, 0x3e147ae2, 0x3ea66667,
                                      0x3f0cccce, 0x3f466667, 0x3f71999a)]
    for negative, bits in parts(m, 128):
        cells.append((max(bits, 0x3b200000) ^ (0xffffffff if negative else 0)) >> 21 & 127)
        code = sum(number(bits) >= t for t in thresholds)
        signed.append(max(7 - code, 0) if negative else 7 + code)
    unsigned = [max(0, math.ceil(number(bits) * 16 - 0.5) - 1) for _, bits in parts(v, 128)]
    return cells, *([16 * a + b for a, b in zip(c[::2], c[1::2])] for c in (signed, unsigned))


def look_ups_companded(m, v):
    """The codes, near enough: steps of 2y / (1 + |y|), and of the root."""
    signed = [round(127 * 2 * y / (1 + y)) * (-1 if negative else 1) & 255
              for negative, bits in parts(m, 256) for y in [number(bits)]]
    return signed, [max(1, round(255 * math.sqrt(number(bits)))) for _, bits in parts(v, 256)]


def mean_cycles():
    """{format: cycles of a word that a warp looks up, the mean over the format's tables}."""
    known, (m, v) = tables(), moments()
    eight = [*look_ups_8bit(m, "signed", known), *look_ups_8bit(v, "unsigned", known)]
    cells, *pairs = look_ups_4bit(m, v)
    four = [cycles(cells), *(cycles(p, PACK // 2, 2) for p in pairs)]
    companded = look_ups_companded(m, v)
    return {"8bit": sum(map(cycles, eight)) / len(eight), "4bit": sum(four) / len(four),
            "companded": sum(map(cycles, companded)) / len(companded)}
