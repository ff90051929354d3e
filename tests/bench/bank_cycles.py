"""How long a warp's look-ups in the code tables keep shared memory busy: each of its 32 banks gives a
word a cycle, to all lanes that ask for that word. Which words a warp asks for depends on the
states, here those of normally distributed gradients after STEPS steps."""
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


def cycles(words):
    """Of a look-up by a warp, whose lanes have eight neighbours each: the most different words in a
    bank, on average."""
    busy = 0
    for start in range(0, ELEMENTS, LANES * PACK):
        for k in range(start, start + PACK):
            banks = [0] * LANES
            for word in set(words[k:k + LANES * PACK:PACK]):
                banks[word % LANES] += 1
            busy += max(banks)
    return busy / (ELEMENTS // LANES)


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


def look_ups_4bit(values):
    """The words of the cell; the map's 16 words are in different banks."""
    return [(max(bits, 0x3b200000) ^ (0xffffffff if negative else 0)) >> 21 & 127
            for negative, bits in parts(values, 128)]


def mean_cycles():
    """{bits of a code: cycles of a look-up, the mean over the format's tables}."""
    known, (m, v) = tables(), moments()
    eight = [*look_ups_8bit(m, "signed", known), *look_ups_8bit(v, "unsigned", known)]
    return {8: sum(map(cycles, eight)) / len(eight), 4: (1 + cycles(look_ups_4bit(m))) / 2}
