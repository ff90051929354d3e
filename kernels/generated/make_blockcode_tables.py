#!/usr/bin/env python3
"""Writes blockcode_tables.h (the dynamic maps, their thresholds, and the cells of the fast search),
blockcode_planes.h (the same as byte planes, and the lines of the search, for AVX-512) and
blockcode_lines.h (the lines of the search for AVX2, with the bound of their error).

    python3 kernels/generated/make_blockcode_tables.py        # rewrites the headers beside this file

The headers are committed; the optimizer's tests check them against the definition, so this script is
needed only to change them. It uses only the standard library, and rounds every float operation to
fp32 on its own (no fused operation): that makes the maps the canonical ones.
"""
import math
import os
import struct
import zlib
from fractions import Fraction

UMIN = {True: 105 << 7, False: 106 << 7}  # upper halves of |x| below this need no cell of their own
UMAX = 0x3F80  # upper half of 1.0f


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def value(b):
    return struct.unpack("<f", struct.pack("<I", b))[0]


def linspace(n):
    """0.1 … 1 in n points as torch.linspace computes it: from both ends towards the middle."""
    start, end = f32(0.1), 1.0
    step = f32(f32(end - start) / (n - 1))
    return [f32(start + f32(step * j)) if j < n // 2 else f32(end - f32(step * (n - 1 - j)))
            for j in range(n)]


def dynamic_map(signed):
    data = [0.0, 1.0]
    for i in range(7):
        count = 2 ** i if signed else 2 ** (i + 1)
        edges = linspace(count + 1)
        for j in range(count):
            x = f32(f32(10.0 ** (i - 6)) * f32(f32(edges[j] + edges[j + 1]) / 2))
            data += [x, -x] if signed else [x]
    return sorted(data)


def thresholds(levels):
    """thresholds[g]: bits of the smallest fp32 strictly above the midpoint of levels g-1 and g."""
    out = [0]
    for low, high in zip(levels, levels[1:]):
        middle = (low + high) / 2  # exact in double
        b = bits(f32(middle))
        while value(b) > middle:
            b -= 1
        while value(b) <= middle:
            b += 1
        out.append(b)
    return out


def code_of(table, b):
    lo, hi = 0, len(table) - 1
    while lo < hi:
        mid = (lo + hi + 1) // 2
        lo, hi = (mid, hi) if b >= table[mid] else (lo, mid - 1)
    return lo


def cell_range(table, u, umin):
    first = code_of(table, 0 if u == umin else u << 16)
    last = code_of(table, (u << 16) | 0xFFFF)
    assert last - first <= 1, (hex(u), first, last)
    return first, last


def line_for(bounds, ks):
    """A slope and offset with lo*256 <= slope*k + offset < (hi+1)*256 for all k of ks, or None."""
    best = None
    for slope in range(0, 1024):
        low = max(bounds[k][0] * 256 - slope * k for k in ks)
        high = min(bounds[k][1] * 256 + 255 - slope * k for k in ks)
        if low <= high and (best is None or high - low > best[2]):
            best = (slope, (low + high) // 2, high - low)
    return best


def lines_of_octave(bounds):
    """Two lines whose minimum lies within bounds for each cell (concave staircases only)."""
    one = line_for(bounds, range(len(bounds)))
    if one:
        return (one[0], one[1]), (0, 0xFFFF)
    for split in range(1, len(bounds)):
        a, b = line_for(bounds, range(split)), line_for(bounds, range(split, len(bounds)))
        if not a or not b:
            continue
        values = [min(a[0] * k + a[1], b[0] * k + b[1]) for k in range(len(bounds))]
        tops = [max(a[0] * k + a[1], b[0] * k + b[1]) for k in range(len(bounds))]
        if max(tops) < 65536 and min(values) >= 0 and all(
                lo <= v >> 8 <= hi for v, (lo, hi) in zip(values, bounds)):
            return a[:2], b[:2]
    raise SystemExit("no two lines fit an octave")


def lines(table, signed):
    """16-bit slopes and offsets by the low five bits of the exponent; signed: for code G - 1."""
    umin, base = UMIN[signed], 1 if signed else 0
    out = [[0] * 32 for _ in range(4)]
    for exponent in range(umin >> 7, 128):
        cells = range(exponent << 7, (exponent << 7) + (128 if exponent < 127 else 1))
        bounds = []
        for u in cells:
            first, last = cell_range(table, u, umin)
            top = min(first + 1, len(table) - 1)
            bounds.append((max(last, 1) - base, max(top, 1) - base))
        for n, (slope, offset) in enumerate(lines_of_octave(bounds)):
            out[2 * n][exponent & 31] = slope
            out[2 * n + 1][exponent & 31] = (offset - slope * (exponent << 7)) & 0xFFFF
            if slope == 0:
                out[2 * n + 1][exponent & 31] = offset
    return out


def array(kind, name, dims, values, form, per_line):
    body = ""
    for i in range(0, len(values), per_line):
        body += "    " + ", ".join(form % v for v in values[i:i + per_line]) + ",\n"
    return "MO_LOOKUP_TABLE %s %s%s = {\n%s};\n\n" % (kind, name, dims, body)


def planes(name, table):
    text = ""
    rows = []
    for p in range(4):
        row = [(b >> (8 * p)) & 255 for b in table]
        body = "".join("     " + ", ".join("0x%02x" % v for v in row[i:i + 16]) + ",\n"
                       for i in range(0, len(row), 16))
        rows.append("    {\n%s    },\n" % body)
    text = "MO_PLANES const uint8_t %s[4][%d] = {\n%s};\n\n" % (name, len(table), "".join(rows))
    return text


# The 4-bit signed map's thresholds, see kernels/optim/state_codes.h.
THRESHOLD4 = [0x3B343959, 0x3C9BA5E5, 0x3D6147AF, 0x3E147AE2, 0x3EA66667, 0x3F0CCCCE, 0x3F466667,
              0x3F71999A]


def code4(z):
    """The code of the float whose bits are z or, of negative numbers, ~z with the sign."""
    magnitude = sum((~z & 0x7FFFFFFF if z >> 31 else z) >= t for t in THRESHOLD4)
    return max(7 - magnitude, 0) if z >> 31 else 7 + magnitude


def cells4():
    """[z >> 21 & 127]: what makes of 128 * z a number whose upper 4 bits are the code. z grows with
    its float, and at most one threshold lies in a cell."""
    cells = [0] * 128
    lowest = THRESHOLD4[0] >> 21
    for cell in [*range(lowest, (0x3F800000 >> 21) + 1), *range(0x7FF - (0x3F800000 >> 21), 0x800 - lowest)]:
        first, last = cell << 21, (cell << 21) + (1 << 21) - 1
        low, high = first, last  # the first z of the cell's last code
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if code4(middle) == code4(last) else (middle + 1, high)
        assert code4(first) >= code4(last) - 1 and cells[cell & 127] == 0
        cells[cell & 127] = (code4(last) << 28) - (low << 7) & 0xFFFFFFFF
    return cells


def step_word(code, first, bits, shift):
    """Of the 2^bits numbers z from `first` on, among which the code grows once at most: the word with
    ((z << shift) + word) >> 24 = code(z)."""
    low, high = first, first + (1 << bits) - 1  # to the first z of the last code
    last = code(high)
    assert last - code(first) <= 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if code(middle) == last else (middle + 1, high)
    return (last << 24) - (low << shift) & 0xFFFFFFFF


def steps_signed(table):
    """By (z >> 17) + 1472, with the bits of 1.0 inverted in z, which is otherwise the bits of a
    magnitude from the first cell to 1, all inverted for negative numbers: within a cell the number
    grows with z, and all cells are between -1472 and 1471."""
    def code(z):
        bits = z ^ 0x3F800000
        if bits >> 31:
            return max(127 - code_of(table, ~bits & 0x7FFFFFFF), 0)
        return 127 + code_of(table, bits)
    steps = [0] * 2944
    for cell in range(UMIN[True] >> 1, (UMAX >> 1) + 1):
        for z in (cell ^ 0x1FC0, cell ^ 0x603F):
            steps[(z + 1472) % 32768] = step_word(code, z << 17, 17, 7)
    return steps


def steps_unsigned(table):
    """By (bits >> 16) - UMIN."""
    return [step_word(lambda b: max(code_of(table, b), 1), u << 16, 16, 8)
            for u in range(UMIN[False], UMAX + 1)]


# --- the code as a real number, for AVX2 ---------------------------------------------------------
#
# A decade i (0 to 6) of the map has K codes from c0 on at distances of d, so its inner thresholds lie
# on a line: t_i(y) = c0 - K / 9 + y / d is c at the threshold of code c. The threshold of c0 itself,
# between two decades, lies at 10^(i-7) + d_(i-1): where the line of decade i - 1 reaches c0 + 1. With
# i added to the line of each decade ("shifted" codes) that is the shifted c0, the lines form a concave
# curve, and the smallest of them all, rounded down, is the shifted code; two shifted codes mean
# c0 - 1. Unit of what follows: 2^-16 of a code.

# The lowest decade of the fast lines; the others are for the values below. Squares reach lower.
FAST = {True: 3, False: 2}
UNIT = 65536


def decade(signed, i):
    """K, c0, d."""
    k = 2 ** (i if signed else i + 1)
    return k, k - (not signed), Fraction(9, 10) * Fraction(10) ** (i - 6) / k


def line(signed, i, shift):
    k, c0, d = decade(signed, i)
    return 1 / d * UNIT, (c0 - Fraction(k, 9) + i - shift) * UNIT


def top_line(signed, shift):
    """Reaches the top code at its threshold, and half a code more at 1."""
    k, c0, _ = decade(signed, 6)
    at = 1 - Fraction(225, 1000) / k
    slope = Fraction(UNIT, 2) / (1 - at)
    return slope, (c0 + k + 6 - shift) * UNIT - slope * at


def zero_line(table):
    """From 0.1 at 0 to 1 at the threshold of code 1 of the signed map."""
    at = Fraction(value(table[1]))
    return Fraction(9, 10) / at * UNIT, Fraction(UNIT, 10)


def ulp(x):
    return Fraction(2) ** (math.frexp(float(x))[1] - 24)


def error_bound(table, first, last, line_of, shifted):
    """How far the number computed for a y may be on the wrong side of the threshold of a code from
    first to last: where the threshold really lies, three roundings of the slope's part (the slope,
    its product with the inverse, and y itself, which is not computed), and those of the offset, the
    fused addition and the conversion to an integer, all but the first at most half a unit together
    with the distance of numbers there."""
    worst = 0
    for c in range(first, last + 1):
        slope, offset = line_of(c)
        above, below = Fraction(value(table[c])), Fraction(value(table[c] - 1))
        goal = shifted(c) * UNIT
        placed = max(goal - (slope * above + offset), slope * below + offset - goal)
        rounded = slope * above * Fraction(301, 100) / 2 ** 24 + (ulp(offset) + ulp(goal)) / 2
        worst = max(worst, placed + rounded + Fraction(1, 2))
    return math.ceil(worst)


def decade_of(signed, c):
    """Of the line that has the threshold of c."""
    i = max(i for i in range(7) if decade(signed, i)[1] <= c)
    return i - 1 if decade(signed, i)[1] == c and i > 0 else i


def real_lines(table, signed):
    """The constants of mo_encode32's two sets of lines: see kernels/optim/state_codes_avx2.h."""
    word, top = ("signed", 128) if signed else ("unsigned", 255)
    lowest = FAST[signed]
    bias = 4 if signed else 5  # so that shifted codes fit into a byte (signed map: 7 bits)
    low_top = decade(signed, lowest)[1]  # the last code of the low lines

    def shifted(c, first):
        return c + max(i for i in range(7) if decade(signed, i)[1] <= c) - first

    def fast_line(c):
        return line(signed, decade_of(signed, c), lowest + bias) if c < top else \
            top_line(signed, lowest + bias)

    def low_line(c):
        return zero_line(table) if c == 1 else line(signed, decade_of(signed, c), 0)

    eps = max(error_bound(table, low_top + 1, top, fast_line, lambda c: shifted(c, lowest + bias)),
              error_bound(table, 1 if signed else 2, low_top, low_line, lambda c: shifted(c, 0)))
    fast = [line(signed, i, lowest + bias) for i in range(lowest, 7)] + [top_line(signed, lowest + bias)]
    low = [line(signed, i, 0) for i in range(lowest)] + ([zero_line(table)] if signed else [])
    assert max(s for s, _ in fast + low) < 2 ** 38  # times an inverse below 2^88: no overflow
    assert min(s for s, _ in fast + low) > 2 ** 22  # times a subnormal inverse: not subnormal
    steps = [[decade(signed, i)[1] + i - 1 - shift for i in range(first + 1, last + 1)]
             for first, last, shift in ((lowest, 6, lowest + bias), (0, lowest, 0))]
    clamp = (shifted(low_top, 0)) * UNIT + UNIT // 2

    def numbers(values):
        return "{%s}" % ", ".join(str(v) for v in values + [256] * (4 - len(values)))

    def number(value):
        return "%.9gf" % f32(float(value)) if value % 1 else "%d.0f" % f32(float(value))

    def floats(values):
        return "{%s}" % ", ".join(number(f32(float(v))) for v in values)

    return ("static const mo_lines mo_lines_%s = {\n"
            "    %d,\n    %s,\n    %s,\n    %s,\n    %s,\n    %s,\n    %d, %d, %d,\n    %s,\n    %s,\n};\n\n" % (
                word, len(fast) - 1, floats(s for s, _ in fast), floats(o + eps for _, o in fast),
                floats([s for s, _ in low] + [low[0][0]] * (4 - len(low))),
                floats([o + eps for _, o in low] + [low[0][1] + eps] * (4 - len(low))),
                number(clamp), eps, bias, low_top - bias, numbers(steps[0]), numbers(steps[1])))


LINES_TYPE = """/* Lines in units of 2^-16 of a shifted code, y = 1 being the absmax; each offset includes
 * epsilon. */
typedef struct mo_lines {
    int decades;                         /* of the fast lines: 4 if signed, else 5 */
    float fast_slope[6], fast_offset[6]; /* decades up to 6, and behind them the top code: the larger */
    float low_slope[4], low_offset[4];   /* the decades below, and zero if signed */
    float low_most;                      /* the most that the low lines give */
    int epsilon;                         /* bound of the error, in the same unit */
    int bias;                            /* shifted code 0 of the fast lines means this */
    int low_top; /* the fast lines tell codes above this one (less the bias) */
    int fast_step[4], low_step[4]; /* shifted codes from which on one is to be taken off */
} mo_lines;

"""

HEAD = "/* Written by make_blockcode_tables.py; do not edit. See %s. */\n#ifndef %s\n#define %s\n\n%s\n"


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    guard = "MO_KERNELS_GENERATED_BLOCKCODE_%s_H"
    tables = HEAD % ("kernels/optim/state_codes.h", guard % "TABLES", guard % "TABLES",
                     '#include "kernels/core/host_device.h"\n')
    fast = HEAD % ("kernels/optim/state_codes_avx512.h", guard % "PLANES", guard % "PLANES",
                   "#include <stdint.h>\n\n"
                   "#define MO_PLANES static __attribute__((aligned(64), unused))\n")
    real = HEAD % ("kernels/optim/state_codes_avx2.h", guard % "LINES", guard % "LINES",
                   '#include "kernels/core/host_device.h"\n')
    real = real.rstrip() + "\n\n/* clang-format off */\n" + LINES_TYPE
    tables += "/* clang-format off */\n"
    fast += "/* clang-format off */\n"
    for signed in (True, False):
        word = "signed" if signed else "unsigned"
        full = dynamic_map(signed)
        crc = zlib.crc32(b"".join(struct.pack("<f", x) for x in full))
        assert crc == (0x416941E6 if signed else 0x9495592E), hex(crc)
        levels = [x for x in full if x >= 0]
        table = thresholds(levels)
        if not signed:
            table[1] = 1  # a positive value never gets code 0
        umin = UMIN[signed]
        cells = [max(cell_range(table, u, umin)[1], 1) for u in range(umin, UMAX + 1)]
        tables += "/* The %s map, as fp32 bits; CRC32 %08x. */\n" % (word, crc)
        tables += array("uint32_t", "mo_map_" + word, "[256]", [bits(x) for x in full], "0x%08x", 8)
        tables += ("/* [g]: the smallest fp32 that gets magnitude code g; [0] is unused. */\n")
        fill = [0] * (-len(table) % 4)
        tables += array("uint32_t", "mo_threshold_" + word, "[%d]" % (len(table) + len(fill)),
                        table + fill, "0x%08x", 8)
        tables += ("/* By upper half of |x| - 0x%04x: the only magnitude code whose threshold may "
                   "lie in the cell. */\n" % umin)
        cells += [0] * (-len(cells) % 16)
        tables += array("uint8_t", "mo_cell_" + word, "[%d]" % len(cells), cells, "%d", 20)
        steps = (steps_signed if signed else steps_unsigned)(table)
        tables += "/* The same cells as one word each, see mo_step_code_%s. */\n" % word
        tables += array("uint32_t", "mo_steps_" + word, "[%d]" % (len(steps) + -len(steps) % 4),
                        steps + [0] * (-len(steps) % 4), "0x%08x", 8)
        if signed:
            fast += planes("mo_plane_map_signed", [bits(x) for x in levels[:128]])
            fast += planes("mo_plane_threshold_signed", table[1:129])
        else:
            fast += planes("mo_plane_map_unsigned", [bits(x) for x in levels])
            fast += planes("mo_plane_threshold_unsigned", table)
        real += real_lines(table, signed)
        both = lines(table, signed)
        fast += "/* Slope and offset of the first line, then of the second, by exponent & 31. */\n"
        fast += "MO_PLANES const uint16_t mo_lines_%s[4][32] = {\n" % word
        for row in both:
            fast += "    {\n"
            for i in range(0, 32, 8):
                fast += "     " + ", ".join("0x%04x" % v for v in row[i:i + 8]) + ",\n"
            fast += "    },\n"
        fast += "};\n\n"
    tables += "/* Of the 4-bit signed map, see mo_cell4_code: by bits 21 to 27 of z. */\n"
    tables += array("uint32_t", "mo_cell4_signed", "[128]", cells4(), "0x%08x", 8)
    end = "/* clang-format on */\n#endif\n"
    with open(os.path.join(folder, "blockcode_tables.h"), "w") as f:
        f.write(tables + end)
    with open(os.path.join(folder, "blockcode_planes.h"), "w") as f:
        f.write(fast + end)
    with open(os.path.join(folder, "blockcode_lines.h"), "w") as f:
        f.write(real + end)


if __name__ == "__main__":
    main()
