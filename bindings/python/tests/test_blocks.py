"""Block-scaled matrices, compared with an oracle that is written from the specifications."""

from __future__ import annotations

import array
import os
import random as randomness
import struct
import subprocess
import sys

import blocks_oracle as oracle
import pytest

import memopt

FORMATS = sorted(oracle.FORMATS)
ONE_SCALE = ["e4m3_tensor", "e5m2_tensor"]
SIZES = {"f32": 4, "f16": 2, "bf16": 2}
LETTER = {4: "I", 2: "H"}


def bits_of(dtype, count, seed, kinds=8):
    """Bit patterns: ordinary numbers, some tiny or huge, some zero; kinds=10: not finite ones too."""
    draw = randomness.Random(seed)
    result = []
    for i in range(count):
        kind = 9 - draw.randrange(10) if i % 37 == 0 and kinds == 10 else draw.randrange(8)
        scale = 2.0 ** (i // 16 % 23 - 11)
        if kind == 9:
            value = draw.choice([0x7F800000, 0xFF800000, 0x7FC12345, 0xFF812345])
        elif kind == 8:
            value = draw.getrandbits(32)
        elif kind == 7:
            value = draw.choice([0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000])
        elif kind == 6:
            value = oracle.f32_bits(scale * draw.choice([1, -1, 2, 6, 0.5, 3, -5, 0.25, 448, 1.75]))
        else:
            value = oracle.f32_bits(draw.gauss(0, scale))
        if dtype == "bf16":
            value >>= 16
        elif dtype == "f16":
            x = oracle.from_bits(value)
            nan = x != x
            value = (0x7E01 | value >> 16 & 0x8000) if nan else oracle.rounded(x, "f16")
        result.append(value)
    return result


class Case:
    """One matrix and what the oracle makes of it."""

    def __init__(self, name, dtype, rows, columns, seed, kinds=8, amax=None, bits=None, **how):
        self.name, self.dtype, self.rows, self.columns = name, dtype, rows, columns
        self.bits = bits or bits_of(dtype, rows * columns, seed, kinds)
        values = [oracle.narrow(b, dtype) for b in self.bits]
        signs = [b >> (8 * SIZES[dtype] - 1) for b in self.bits]
        one = oracle.FORMATS[name][3] == "one"
        if amax is None:
            self.whole = 0.0 if one else 1.0
        else:
            self.whole = amax if one else oracle.tensor_scale(amax)
        self.amax = None if amax is None else array.array("f", [amax])
        self.codes, self.scales = oracle.quantize(name, values, signs, rows, columns, whole=self.whole, **how)
        self.layout = memopt.blocks_layout(name, rows, columns)
        self.source = memopt.tensor(bytearray(self.encoded(self.bits)), dtype)
        self.blocks = memopt.Blocks(
            bytearray(self.layout.code_bytes), self.scale_room(), name, rows, columns, self.amax
        )

    def encoded(self, bits):
        return struct.pack("<%d%s" % (len(bits), LETTER[SIZES[self.dtype]]), *bits)

    def scale_room(self):
        if self.layout.scale_size == 4:
            return array.array("f", bytes(self.layout.scale_bytes))
        return bytearray(self.layout.scale_bytes)

    def check_quantized(self):
        letter = "I" if self.layout.scale_size == 4 else "B"
        count = self.layout.scale_rows * self.layout.scale_columns
        scales = list(struct.unpack("<%d%s" % (count, letter), bytes(self.blocks.scales)))
        assert scales == self.scales
        expected = oracle.packed(self.name, self.codes, self.rows, self.columns)
        assert bytes(self.blocks.codes) == expected

    def check_back(self, device, into):
        values = oracle.dequantize(self.name, self.codes, self.scales, self.rows, self.columns, whole=self.whole)
        out = memopt.tensor(bytearray(self.rows * self.columns * SIZES[into]), into)
        memopt.dequantize_blocks(device, out, self.blocks)
        form = "<%d%s" % (len(values), LETTER[SIZES[into]])
        found = struct.unpack(form, bytes(memopt.tensor(out, "u8").tolist()))
        assert list(found) == [oracle.rounded(x, into) for x in values]


#: Whole blocks, ragged rows, rows shorter than a block, odd ones, one element.
SHAPES = [(3, 256), (5, 300), (7, 31), (2, 2177), (1, 1), (130, 129)]


@pytest.mark.parametrize("rows,columns", SHAPES)
@pytest.mark.parametrize("dtype", sorted(SIZES))
@pytest.mark.parametrize("name", FORMATS)
def test_nearest(device, name, dtype, rows, columns):
    case = Case(name, dtype, rows, columns, rows * columns, kinds=10)
    memopt.quantize_blocks(device, case.blocks, case.source)
    case.check_quantized()
    case.check_back(device, dtype)
    case.check_back(device, "f32")


@pytest.mark.parametrize("rows,columns", [(2, 384), (3, 330)])
@pytest.mark.parametrize("name", FORMATS)
def test_stochastic(device, name, rows, columns):
    cases = [
        Case(name, dtype, rows, columns, 5, kinds=10, random=oracle.Random(77, 9, i))
        for i, dtype in enumerate(sorted(SIZES))
    ]
    memopt.quantize_blocks(
        device,
        [case.blocks for case in cases],
        [case.source for case in cases],
        rounding="stochastic",
        seed=77,
        sequence=9,
    )
    for case in cases:
        case.check_quantized()


@pytest.mark.parametrize("name", ["e4m3_1x128", "e4m3_128x128", "e4m3_tensor", "e5m2_tensor"])
def test_power_of_two(device, name):
    amax = 7e4 if name.endswith("tensor") else None
    case = Case(name, "f32", 129, 200, 8, amax=amax, power_of_two=True)
    memopt.quantize_blocks(device, case.blocks, case.source, power_of_two=True)
    case.check_quantized()
    case.check_back(device, "bf16")


@pytest.mark.parametrize("amax", [0.0, 1.0, 5000.0, 3e38, 1e-30, 1e-44, -3.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["nvfp4", *ONE_SCALE])
def test_two_levels(device, name, amax):
    case = Case(name, "f32", 3, 1200, 3, amax=amax)
    memopt.quantize_blocks(device, case.blocks, case.source)
    case.check_quantized()
    case.check_back(device, "f32")


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_pattern_of_16_bits(device, name, dtype):
    """Each in a block of its neighbours, and each beside a number of ordinary size."""
    rows, columns = (128 if dtype == "bf16" else 64), 1024
    bits = list(range(65536))
    if dtype == "bf16":
        bits += [0x3F80 if i % 2 else i // 2 for i in range(65536)]
    case = Case(name, dtype, rows, columns, 1, bits=bits)
    memopt.quantize_blocks(device, case.blocks, case.source)
    case.check_quantized()
    case.check_back(device, dtype)


def test_amax(device):
    """It is raised, not set; a NaN is larger than all."""
    sources = [array.array("f", row) for row in ([1.0, -7.0, 2.0], [0.5] * 40, [1.0, float("nan")])]
    blocks = []
    for source in sources:
        layout = memopt.blocks_layout("mxfp4", 1, len(source))
        blocks.append(
            memopt.Blocks(bytearray(layout.code_bytes), bytearray(layout.scale_bytes), "mxfp4", 1, len(source))
        )
    amax = array.array("f", [3.0, 3.0, 3.0])
    memopt.quantize_blocks(device, blocks, sources, amax=amax)
    assert list(amax)[:2] == [7.0, 3.0]
    assert oracle.f32_bits(amax[2]) == 0x7FC00000
    memopt.quantize_blocks(device, blocks[:2], sources[:2], amax=array.array("f", [0.0, 0.0]))


def test_amax_of_a_cast(device):
    """Of a cast and alone; amax's own refusals."""
    source = array.array("f", [1.0, -7.5, 2.0])
    half = memopt.tensor(bytearray(6), "bf16")
    cells = array.array("f", [0.0])
    memopt.cast(device, half, source, amax=cells)
    assert cells[0] == 7.5
    cells = array.array("f", [0.0, 9.0, 1.0])
    memopt.amax(device, cells, [half, (0, 0, "f32"), array.array("f", [float("nan")])])
    assert list(cells)[:2] == [7.5, 9.0] and oracle.f32_bits(cells[2]) == 0x7FC00000
    with pytest.raises(memopt.InvalidArgumentError, match="overlap"):
        memopt.amax(device, memopt.tensor(cells), [cells, cells, cells])
    with pytest.raises(ValueError, match="amax must be 1 f32"):
        memopt.amax(device, cells, source)


def test_layout():
    layout = memopt.blocks_layout("nvfp4", 5, 33)
    assert layout == (1, 16, 4, 17, 85, 1, 5, 3, 15)
    assert memopt.blocks_layout("e4m3_128x128", 129, 300) == (128, 128, 8, 300, 38700, 4, 2, 3, 24)
    assert memopt.blocks_layout("mxfp8_e5m2", 0, 300).code_bytes == 0
    with pytest.raises(memopt.InvalidArgumentError, match="address space"):
        memopt.blocks_layout("mxfp4", 2**40, 2**30)
    with pytest.raises(ValueError, match="must be one of 'mxfp8_e4m3'"):
        memopt.blocks_layout("fp8", 1, 1)


def test_refusals(device):
    source = array.array("f", [1.0] * 64)
    good = memopt.Blocks(bytearray(64), bytearray(2), "mxfp8_e4m3", 2, 32)
    memopt.quantize_blocks(device, good, source)
    before = bytes(good.codes)
    with pytest.raises(ValueError, match="destination 0: codes of 64 bytes; 96 are needed"):
        memopt.quantize_blocks(device, good._replace(rows=3), source)
    with pytest.raises(memopt.InvalidArgumentError, match=r"has 64 elements; 1 rows of 32"):
        memopt.quantize_blocks(device, good._replace(rows=1), source)
    with pytest.raises(memopt.InvalidArgumentError, match="it is for NVFP4"):
        memopt.quantize_blocks(device, good._replace(tensor_amax=array.array("f", [1.0])), source)
    with pytest.raises(memopt.InvalidArgumentError, match="overlap"):
        memopt.quantize_blocks(device, good._replace(scales=good.codes), source)
    with pytest.raises(ValueError, match="1 destinations, 2 sources"):
        memopt.quantize_blocks(device, good, [source, source])
    with pytest.raises(memopt.UnsupportedError, match="i32"):
        memopt.quantize_blocks(device, good, memopt.tensor(bytearray(256), "i32"))
    with pytest.raises(ValueError, match="amax must be 1 f32"):
        memopt.quantize_blocks(device, good, source, amax=array.array("f", [0, 0]))
    assert bytes(good.codes) == before
    memopt.quantize_blocks(device, [], [])
    empty = memopt.Blocks(bytearray(), bytearray(), "nvfp4", 0, 7)
    memopt.quantize_blocks(device, empty, (0, 0, "f32"))
    memopt.dequantize_blocks(device, (0, 0, "f32"), empty)


@pytest.mark.skipif(os.environ.get("MEMOPT_ISA") is not None, reason="a form is forced already")
def test_scalar_form():
    """The specification itself: the same tests with MEMOPT_ISA=scalar."""
    environment = dict(os.environ, MEMOPT_ISA="scalar")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            __file__,
            "-k",
            "(nearest and f32) or stochastic or two_levels or power",
        ],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- codes that are places in a map ------------------------------------------------------------------

NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


@pytest.mark.parametrize("name, width", [("nf4_32", 32), ("nf4", 64), ("nf4_256", 256), ("nf4_1024", 1024)])
def test_nf4(device, name, width):
    """Codes of a row that ends within a block and a byte; the offset is taken from scales and added again."""
    f32, count = oracle.f32, 2501
    bits = bits_of("f32", count, 11)
    source = array.array("I", bits)
    codes, scales = bytearray((count + 1) // 2), array.array("f", [0.0] * (-(-count // width)))
    for offset in (None, array.array("f", [0.375])):
        blocks = memopt.Blocks(codes, scales, name, 1, count, offset)
        memopt.quantize_blocks(device, blocks, array.array("f", source.tobytes()))
        middles = [f32((a + b) / 2) for a, b in zip(NF4, NF4[1:])]
        values = [oracle.from_bits(b) for b in bits]
        largest = [max(map(abs, values[i : i + width])) for i in range(0, count, width)]
        less = offset[0] if offset else 0.0
        assert list(scales) == [f32(a - less) for a in largest]
        factors = [f32(1 / max(a, f32(1e-38))) for a in largest]
        wanted = [sum(m < f32(x * factors[i // width]) for m in middles) for i, x in enumerate(values)] + [7]
        assert codes == bytes(high << 4 | low for high, low in zip(wanted[::2], wanted[1::2]))
        back = array.array("f", bytes(4 * count))
        memopt.dequantize_blocks(device, back, blocks)
        assert list(back) == [
            f32(NF4[code] * f32(scales[i // width] + less)) for i, code in enumerate(wanted[:count])
        ]
