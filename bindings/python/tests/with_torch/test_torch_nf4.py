"""NF4 and dynamic 8-bit blocks: bitsandbytes' bytes."""

from __future__ import annotations

import pytest
import torch

import memopt.torch as mt

functional = pytest.importorskip("bitsandbytes.functional")
TYPES = [torch.float32, torch.bfloat16, torch.float16]
#: bitsandbytes 0.50 brings blocks of 1024 back wrongly where a processor has AVX-512.
SIZES = [32, 64, 128, 256, 512, 2048, 4096]


def values(dtype, *shape):
    """Blocks of many magnitudes, zeros among them."""
    torch.manual_seed(5)
    x = torch.randn(shape) * torch.exp2(torch.randint(-12, 12, (shape[0], 1)).float())
    x[3] = 0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_nf4_is_bitsandbytes(size, dtype):
    x = values(dtype, 64, 1024)
    name = "nf4" if size == 64 else "nf4_%d" % size
    theirs, state = functional.quantize_4bit(x, blocksize=size, quant_type="nf4")
    codes, scales = mt.blocks.quantize_blocks(x, name)
    assert torch.equal(codes, theirs.view(-1)) and torch.equal(scales, state.absmax)
    back = mt.blocks.dequantize_blocks(theirs, state.absmax, name, dtype=dtype)
    assert torch.equal(back.view_as(x), functional.dequantize_4bit(theirs, state))


def test_blocks_go_on_from_row_to_row():
    """The last block is divided by its scale in bitsandbytes' CPU code, multiplied by its inverse in its CUDA code."""
    x = values(torch.float32, 5, 37)
    theirs, state = functional.quantize_4bit(x, quant_type="nf4")
    codes, scales = mt.blocks.quantize_blocks(x, "nf4")
    assert torch.equal(codes, theirs.view(-1)) and torch.equal(scales, state.absmax)
    back = mt.blocks.dequantize_blocks(codes, scales, "nf4", columns=x.numel())
    assert torch.equal(back.view_as(x), functional.dequantize_4bit(theirs, state))


def test_dynamic8_is_bitsandbytes():
    """The map is theirs but for the last bit, in which theirs depends on torch's linspace(), and so on the processor."""
    x = values(torch.float32, 50, 1000)
    map_ = functional.create_dynamic_map(signed=True)
    codes, scales = mt.blocks.quantize_blocks(x, "dynamic8")
    _, state = functional.quantize_blockwise(x, code=map_, blocksize=256)
    assert torch.equal(scales, state.absmax)
    whole = torch.nn.functional.pad(x.view(-1), (0, -x.numel() % 256)).view(-1, 256)
    scaled = whole * (1 / scales.clamp(min=1e-38)).view(-1, 1)
    theirs = torch.bucketize(scaled.view(-1)[: x.numel()], (map_[:-1] + map_[1:]) / 2)
    assert (codes.long() - theirs).abs().max() <= 1 and (codes != theirs).sum() <= 2
    back = mt.blocks.dequantize_blocks(codes, scales, "dynamic8")
    torch.testing.assert_close(back, functional.dequantize_blockwise(codes, state), rtol=4e-7, atol=0)


@pytest.mark.parametrize("dtype", TYPES)
def test_double_quantisation(dtype):
    x = values(dtype, 96, 640)
    packed, state = functional.quantize_4bit(x, quant_type="nf4", compress_statistics=True)
    scales = functional.dequantize_blockwise(state.absmax, state.state2)
    back = mt.blocks.dequantize_blocks(packed, scales, "nf4", dtype=dtype, tensor_amax=state.offset)
    assert torch.equal(back.view_as(x), functional.dequantize_4bit(packed, state))
    ours = mt.blocks.dequantize_blocks(state.absmax, state.state2.absmax, "dynamic8")
    torch.testing.assert_close(ours, scales, rtol=4e-7, atol=0)
    codes, less = mt.blocks.quantize_blocks(x, "nf4", tensor_amax=state.offset)
    _, plain = functional.quantize_4bit(x, quant_type="nf4")
    assert torch.equal(codes, packed.view(-1)) and torch.equal(less, plain.absmax - state.offset)
    _, nested = mt.blocks.quantize_blocks(less, "dynamic8")
    assert torch.equal(nested, state.state2.absmax)


def test_not_finite_and_refused():
    x = torch.ones(4, 64)
    x[1, 5], x[2, 7] = float("nan"), float("-inf")
    codes, scales = mt.blocks.quantize_blocks(x, "nf4")
    back = mt.blocks.dequantize_blocks(codes, scales, "nf4").view(4, 64)
    assert back.isnan().all(1).tolist() == [False, True, True, False]
    with pytest.raises(ValueError, match="rounds to nearest alone"):
        mt.blocks.quantize_blocks(x, "nf4", rounding="stochastic")
