"""What block-scaled formats are, from their specifications, one number after the other.

Values are Python's doubles, which hold products of two f32 exactly; codes are found in tables of
all values. Nothing of the library is used.
"""

from __future__ import annotations

import bisect
import math
import struct
from typing import List, NamedTuple, Tuple


def f32(x: float) -> float:
    """Rounded to f32, to nearest even."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def f32_bits(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def narrow(bits: int, dtype: str) -> float:
    """The value of a code of a type."""
    if dtype == "f32":
        return from_bits(bits)
    if dtype == "bf16":
        return from_bits(bits << 16)
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def rounded(x: float, dtype: str) -> int:
    """The code of an f32 value in a type, to nearest even; every NaN is one."""
    if math.isnan(x):
        return {"f32": 0x7FC00000, "bf16": 0x7FC0, "f16": 0x7E00}[dtype]
    if dtype == "f32":
        return f32_bits(x)
    if dtype == "bf16":
        bits = f32_bits(x)
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    try:
        return struct.unpack("<H", struct.pack("<e", x))[0]
    except OverflowError:
        return 0x7C00 | (0x8000 if x < 0 else 0)


class Codes(NamedTuple):
    """A format of codes: its magnitudes by code, up to the largest; the code of a NaN."""

    values: List[float]
    bits: int
    nan: int
    emax: int


def _codes(mantissa: int, bias: int, largest: int, bits: int, nan: int, emax: int) -> Codes:
    values = []
    for code in range(largest + 1):
        exponent, fraction = code >> mantissa, code & (1 << mantissa) - 1
        whole = fraction + ((1 << mantissa) if exponent else 0)
        values.append(math.ldexp(whole, max(exponent, 1) - bias - mantissa))
    return Codes(values, bits, nan, emax)


E4M3 = _codes(3, 7, 0x7E, 8, 0x7F, 8)
E5M2 = _codes(2, 15, 0x7B, 8, 0x7F, 15)
E2M1 = _codes(1, 1, 7, 4, 7, 2)

#: name: (codes, block rows, block columns, scale)
FORMATS = {
    "mxfp8_e4m3": (E4M3, 1, 32, "e8m0"),
    "mxfp8_e5m2": (E5M2, 1, 32, "e8m0"),
    "mxfp4": (E2M1, 1, 32, "e8m0"),
    "nvfp4": (E2M1, 1, 16, "e4m3"),
    "e4m3_1x128": (E4M3, 1, 128, "f32"),
    "e4m3_128x128": (E4M3, 128, 128, "f32"),
    "e4m3_tensor": (E4M3, 2**40, 2**40, "one"),
    "e5m2_tensor": (E5M2, 2**40, 2**40, "one"),
}


def nearest(codes: Codes, magnitude: float) -> int:
    """The code of a magnitude; of two at the same distance the even one; beyond the last the last."""
    if math.isnan(magnitude):
        return codes.nan
    if magnitude >= codes.values[-1]:
        return len(codes.values) - 1
    upper = bisect.bisect_right(codes.values, magnitude)
    below, above = codes.values[upper - 1], codes.values[upper]
    down, up = magnitude - below, above - magnitude
    if down == up:
        return upper - 1 if upper % 2 else upper
    return upper - 1 if down < up else upper


def stochastic(codes: Codes, magnitude: float, random: int) -> int:
    if math.isnan(magnitude):
        return codes.nan
    if magnitude >= codes.values[-1]:
        return len(codes.values) - 1
    upper = bisect.bisect_right(codes.values, magnitude)
    below, above = codes.values[upper - 1], codes.values[upper]
    share = math.floor(65536 * ((magnitude - below) / (above - below)))  # exact: a power of two
    return upper if share + random >= 65536 else upper - 1


def philox(counter: List[int], key: List[int]) -> List[int]:
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & mask, p0 >> 32 ^ c3 ^ k1, p0 & mask
        k0, k1 = k0 + 0x9E3779B9 & mask, k1 + 0xBB67AE85 & mask
    return [c0, c1, c2, c3]


class Random:
    """The random halfwords of a tensor of a call."""

    def __init__(self, seed: int, sequence: int, tensor: int) -> None:
        mask = 0xFFFFFFFF
        key = [seed & mask, seed >> 32]
        words = philox([tensor, 0, sequence & mask, sequence >> 32], key)
        self.key, self.high = words[:2], words[2:]

    def __call__(self, element: int) -> int:
        block = element // 8
        words = philox([block & 0xFFFFFFFF, block >> 32, *self.high], self.key)
        return words[element % 8 // 2] >> element % 2 * 16 & 0xFFFF


LEAST = 2.0**-100


def tensor_scale(amax: float) -> float:
    """NVFP4's scale of the whole tensor."""
    if amax == 0:
        return 1.0
    if not math.isfinite(amax):
        return math.nan
    return f32(max(abs(amax), LEAST) / 2688)


def block_scale(name: str, amax: float, whole: float, power_of_two: bool) -> Tuple[int, float]:
    """A scale's code, and the factor of the block's magnitudes."""
    codes, _, _, kind = FORMATS[name]
    bad = not math.isfinite(amax)
    if kind == "e8m0":
        if bad:
            return 255, 0.0
        exponent = math.frexp(amax)[1] - 1 if amax else -1000  # floor(log2(amax))
        exponent = max(exponent - codes.emax, -127)
        return exponent + 127, math.ldexp(1.0, -exponent)
    if kind in ("f32", "one"):
        largest = codes.values[-1]
        if kind == "one":  # from the tensor's magnitude alone
            amax, bad = abs(whole), not math.isfinite(whole)
            if amax == 0:
                return f32_bits(1.0), 1.0
        if bad:
            return 0x7FC00000, 0.0
        amax = max(amax, LEAST)
        scale = f32(amax / largest)
        if power_of_two:
            fraction, exponent = math.frexp(scale)
            scale = math.ldexp(1.0, exponent - 1 if fraction == 0.5 else exponent)
            return f32_bits(scale), 1 / scale
        return f32_bits(scale), f32(largest / amax)
    if bad or math.isnan(whole):
        return 0x7F, 0.0
    code = nearest(E4M3, f32(f32(amax / 6) / whole))
    factor = f32(f32(1 / whole) / E4M3.values[code]) if code else 0.0
    return code, factor


def value_of(codes: Codes, code: int) -> float:
    sign = -1.0 if code >> codes.bits - 1 else 1.0
    magnitude = code & (1 << codes.bits - 1) - 1
    if magnitude >= len(codes.values):
        infinity = codes is E5M2 and magnitude == 0x7C
        return sign * math.inf if infinity else math.nan
    return sign * codes.values[magnitude]


def scale_value(name: str, code: int, whole: float) -> float:
    kind = FORMATS[name][3]
    if kind in ("f32", "one"):
        return from_bits(code)
    if kind == "e8m0":
        return math.nan if code == 255 else math.ldexp(1.0, code - 127)
    return f32(whole * value_of(E4M3, code))


def quantize(name, values, signs, rows, columns, *, whole=1.0, power_of_two=False, random=None):
    """Codes and scales of a matrix of floats, a list each; `signs` has the NaNs' too."""
    codes, height, width, _ = FORMATS[name]
    across = -(-columns // width)
    amax = [0.0] * (-(-rows // height) * across)
    for i, x in enumerate(values):
        block = i // columns // height * across + i % columns // width
        worst = math.isnan(amax[block]) or math.isnan(x)
        amax[block] = math.nan if worst else max(amax[block], abs(x))
    scales = [block_scale(name, a, whole, power_of_two) for a in amax]
    found = []
    for i, x in enumerate(values):
        row, column = divmod(i, columns)
        factor = scales[row // height * across + column // width][1]
        if math.isinf(x) and factor == 0:
            scaled = math.nan
        else:
            scaled = f32(abs(x) * factor)
        if random is None:
            code = nearest(codes, scaled)
        else:
            code = stochastic(codes, scaled, random(row * (-(-columns // 128) * 128) + column))
        found.append(code | signs[i] << codes.bits - 1)
    return found, [code for code, _ in scales]


def dequantize(name, found, scales, rows, columns, *, whole=1.0):
    """The values, each an f32."""
    codes, height, width, _ = FORMATS[name]
    across = -(-columns // width)
    result = []
    for i, code in enumerate(found):
        row, column = divmod(i, columns)
        scale = scale_value(name, scales[row // height * across + column // width], whole)
        result.append(f32(value_of(codes, code) * scale))
    return result


def packed(name, found, rows, columns) -> bytes:
    """The codes as bytes, row by row."""
    if FORMATS[name][0].bits == 8:
        return bytes(found)
    out = bytearray()
    for row in range(rows):
        line = found[row * columns : (row + 1) * columns]
        line += [0] * (len(line) % 2)
        out += bytes(line[k] | line[k + 1] << 4 for k in range(0, len(line), 2))
    return bytes(out)
