"""Block-scaled tensors: torchao's bits where it follows the same rules, and torch's types."""

from __future__ import annotations

import pytest
import torch

import memopt.torch as mt

FORMATS = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4", "e4m3_1x128", "e4m3_128x128", "e4m3_tensor", "e5m2_tensor")


def bits(tensor):
    return (tensor.contiguous() if tensor.dim() else tensor.reshape(1)).view(torch.uint8)


def values(dtype, rows=96, columns=512):
    """Blocks of many magnitudes, zeros and ties among them."""
    torch.manual_seed(3)
    x = torch.randn(rows, columns) * torch.exp2(
        torch.randint(-30, 30, (rows, columns // 16)).float()
    ).repeat_interleave(16, dim=1)
    x[::7] = x[::7].clamp(-6, 6).mul(4).round().div(4)
    x[5] = 0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4"])
def test_mx_is_torchaos(name, dtype):
    """to_mx with the floor rule. (Blocks of zeros have equal bits too; below 2^-127 times the
    largest code torchao divides by another scale than it stores.)"""
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    kind = {"mxfp8_e4m3": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2, "mxfp4": torch.float4_e2m1fn_x2}[name]
    x = values(dtype)
    if name != "mxfp4":
        x[9, 40] = float("nan")
    scales, codes = mx.to_mx(x, kind, 32)
    mine, my_scales = mt.blocks.quantize_blocks(x, name)
    assert my_scales.dtype is torch.float8_e8m0fnu and mine.dtype is kind
    assert torch.equal(bits(my_scales), bits(scales).view_as(bits(my_scales)))
    assert torch.equal(bits(mine), bits(codes).view_as(bits(mine)))
    back = mx.to_dtype(codes.view(mine.dtype) if name != "mxfp4" else codes, scales, kind, 32, dtype)
    ours = mt.blocks.dequantize_blocks(mine, my_scales, name, dtype=dtype)
    assert torch.equal(back.nan_to_num(123.0), ours.nan_to_num(123.0))


@pytest.mark.parametrize("two_levels", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nvfp4_is_torchaos(dtype, two_levels):
    """nvfp4_quantize, where no block's scale is below torchao's least one, 2^-6; ours go on to
    2^-9."""
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    torch.manual_seed(4)
    x = (torch.randn(96, 512) * torch.exp2(torch.randint(-3, 8, (96, 1)).float())).to(dtype)
    amax = x.abs().amax().float()
    scale = nv.per_tensor_amax_to_scale(amax) if two_levels else None
    scales, codes = nv.nvfp4_quantize(x, 16, scale)
    assert scales.float().min() > 2**-6
    mine, my_scales = mt.blocks.quantize_blocks(x, "nvfp4", tensor_amax=amax if two_levels else None)
    assert torch.equal(bits(my_scales), bits(scales).view_as(bits(my_scales)))
    assert torch.equal(bits(mine), bits(codes).view_as(bits(mine)))
    back = mt.blocks.dequantize_blocks(mine, my_scales, "nvfp4", tensor_amax=amax if two_levels else None)
    assert ((back - x.float()).abs().amax(1) <= x.abs().amax(1).float() / 6 * 1.1).all()


@pytest.mark.parametrize("name", FORMATS)
def test_shapes_and_errors(name):
    shape = (130, 50) if name.endswith("128x128") else (2, 3, 50)
    x = torch.randn(shape).half()
    amax = torch.zeros(())
    codes, scales = mt.blocks.quantize_blocks(x, name, rounding="stochastic", seed=1, amax=amax)
    assert amax == x.abs().max()
    assert codes.shape[:-1] == x.shape[:-1]
    again, _ = mt.blocks.quantize_blocks(x, name, rounding="stochastic", seed=1)
    assert torch.equal(bits(codes), bits(again))
    back = mt.blocks.dequantize_blocks(codes, scales, name, dtype=torch.float16, columns=50)
    assert back.shape == x.shape
    assert (back - x).abs().max() < x.abs().max() / 2
    with pytest.raises(ValueError, match="bytes on cpu"):
        mt.blocks.dequantize_blocks(codes, torch.cat([scales.reshape(-1)] * 2), name, columns=50)
    with pytest.raises(TypeError, match="float64"):
        mt.blocks.quantize_blocks(x.double(), name)
    with pytest.raises(TypeError, match="expected"):
        mt.blocks.dequantize_blocks(x, scales, name)
    with pytest.raises(ValueError, match="rounding"):
        mt.blocks.quantize_blocks(x, name, rounding="up")
    with pytest.raises(ValueError, match="amax must be one float32"):
        mt.blocks.quantize_blocks(x, name, amax=torch.zeros(2))


def test_tiles_take_matrices():
    with pytest.raises(ValueError, match="takes matrices"):
        mt.blocks.quantize_blocks(torch.randn(2, 128, 128), "e4m3_128x128")


def test_error_of_a_round_trip():
    """The errors that the guide states, relative to the root of the mean square."""
    torch.manual_seed(1)
    x = torch.randn(256, 1024)
    most = {
        "mxfp8_e4m3": 0.030,
        "mxfp8_e5m2": 0.060,
        "mxfp4": 0.140,
        "nvfp4": 0.110,
        "e4m3_1x128": 0.030,
        "e4m3_128x128": 0.030,
        "e4m3_tensor": 0.030,
        "e5m2_tensor": 0.060,
        "nf4": 0.100,
        "dynamic8": 0.013,
    }
    for name, bound in most.items():
        amax = x.abs().max() if name == "nvfp4" or name.endswith("tensor") else None
        codes, scales = mt.blocks.quantize_blocks(x, name, tensor_amax=amax)
        back = mt.blocks.dequantize_blocks(codes, scales, name, tensor_amax=amax).view_as(x)
        error = ((back - x).square().mean() / x.square().mean()).sqrt().item()
        print(name, error)
        assert bound / 1.5 < error < bound, name
