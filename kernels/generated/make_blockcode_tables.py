#!/usr/bin/env python3
"""Writes blockcode_tables.h (the dynamic maps, their thresholds, and the cells of the fast search)
and blockcode_planes.h (the same as byte planes, and the lines of the search, for AVX-512).

    python3 kernels/generated/make_blockcode_tables.py        # rewrites both headers beside this file

The headers are committed; the optimizer's tests check them against the definition, so this script is
needed only to change them. It uses only the standard library, and rounds every float operation to
fp32 on its own (no fused operation): that makes the maps the canonical ones.
"""
import os
import struct
import zlib

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


HEAD = "/* Written by make_blockcode_tables.py; do not edit. See %s. */\n#ifndef %s\n#define %s\n\n%s\n"


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    guard = "MO_KERNELS_GENERATED_BLOCKCODE_%s_H"
    tables = HEAD % ("kernels/optim/state_codes.h", guard % "TABLES", guard % "TABLES",
                     '#include "kernels/core/host_device.h"\n')
    fast = HEAD % ("kernels/optim/state_codes_avx512.h", guard % "PLANES", guard % "PLANES",
                   "#include <stdint.h>\n\n"
                   "#define MO_PLANES static __attribute__((aligned(64), unused))\n")
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
        tables += array("uint32_t", "mo_threshold_" + word, "[%d]" % len(table), table, "0x%08x", 8)
        tables += ("/* By upper half of |x| - 0x%04x: the only magnitude code whose threshold may "
                   "lie in the cell. */\n" % umin)
        tables += array("uint8_t", "mo_cell_" + word, "[%d]" % (len(cells) + 3), cells + [0] * 3,
                        "%d", 20)
        if signed:
            fast += planes("mo_plane_map_signed", [bits(x) for x in levels[:128]])
            fast += planes("mo_plane_threshold_signed", table[1:129])
        else:
            fast += planes("mo_plane_map_unsigned", [bits(x) for x in levels])
            fast += planes("mo_plane_threshold_unsigned", table)
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


if __name__ == "__main__":
    main()
