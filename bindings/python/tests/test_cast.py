"""Casts, block-wise quantisation and the scaler through Python."""

from __future__ import annotations

import array
import math
import struct

import pytest

import memopt


def f32(values):
    return array.array("f", values)


def bf16_bits(value):
    """Round to nearest even by hand."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def test_cast_to_bf16_and_back(device):
    source = f32([0.0, 1.0, -2.5, 3.14159, 1e-30, 1e30, 257 / 256])
    half = bytearray(2 * len(source))
    memopt.cast(device, memopt.tensor(half, "bf16"), source)
    assert memopt.tensor(half, "bf16").tolist() == [bf16_bits(value) for value in source]
    back = f32(bytes(4 * len(source)))
    memopt.cast(device, [back], [memopt.tensor(half, "bf16")])
    for value, rounded in zip(source, back):
        assert math.isclose(value, rounded, rel_tol=2**-8)


def test_cast_many_and_by_stream(device):
    sources = [f32([i, i + 0.5]) for i in range(20)]
    outs = [bytearray(4) for _ in sources]
    with device.stream() as stream:
        memopt.cast(device, [memopt.tensor(o, "f16") for o in outs], sources, stream=stream)
        stream.sync()
    assert [struct.unpack("<2e", out) for out in outs] == [tuple(s) for s in sources]


def test_stochastic_rounding_is_a_function_of_seed_and_sequence(device):
    source = f32([1 + 1 / 512] * 4096)

    def rounded(**options):
        out = bytearray(8192)
        memopt.cast(device, memopt.tensor(out, "bf16"), source, rounding="stochastic", **options)
        return bytes(out)

    assert rounded(seed=1) == rounded(seed=1) != rounded(seed=2)
    assert rounded(seed=1, sequence=1) != rounded(seed=1)
    ups = memopt.tensor(rounded(seed=3), "bf16").tolist().count(0x3F81)
    assert 600 < ups < 1500, "a quarter of the way up: about a quarter is rounded up"


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda d: memopt.cast(d, [bytearray(4)], [f32([1]), f32([2])]), ValueError, "1 dest"),
        (lambda d: memopt.cast(d, [f32([1, 2])], [f32([1])]), ValueError, "0"),
        (lambda d: memopt.cast(d, [f32([1])], [None]), TypeError, "source 0"),
        (lambda d: memopt.cast(d, [f32([1])], [f32([1])], rounding="up"), ValueError, "rounding"),
        (lambda d: memopt.cast(d, [array.array("q", [1])], [f32([1])]), NotImplementedError, ""),
        (lambda d: memopt.cast(d, [b"1234"], [f32([1])]), TypeError, "read-only"),
    ],
)
def test_bad_casts(device, call, error, text):
    with pytest.raises(error) as caught:
        call(device)
    assert text in str(caught.value)


def test_scaler_steps_as_gradscaler(device):
    with memopt.Scaler(device, init_scale=1024.0, growth_interval=2) as scaler:
        gradients = [f32([1024.0, 2048.0]), f32([512.0])]
        scaler.unscale(gradients)
        assert list(gradients[0]) == [1.0, 2.0] and list(gradients[1]) == [0.5]
        assert not scaler.found_inf()
        scaler.update(), scaler.update()
        assert scaler.get_scale() == 2048.0
        scaler.check([f32([1.0]), f32([float("inf")])])
        assert scaler.found_inf() and scaler.found_inf_tensor().tolist() == [1.0]
        scaler.update()
        assert scaler.get_scale() == 1024.0 and not scaler.found_inf()
        state = scaler.state_dict()
        assert state == {
            "scale": 1024.0,
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "growth_interval": 2,
            "_growth_tracker": 0,
        }
        state.update(scale=8.0, _growth_tracker=1)
        scaler.load_state_dict(state)
        scaler.update()
        assert scaler.get_scale() == 16.0
        with pytest.raises(ValueError):
            scaler.load_state_dict(dict(state, growth_factor=0.5))
        assert scaler.get_scale() == 16.0


def test_norm_and_clip(device):
    tensors = [f32([3.0]), f32([4.0, 0.0])]
    assert memopt.norm(device, tensors) == 5.0
    out = f32([0])
    assert memopt.norm(device, tensors, out=out) is None and out[0] == 5.0
    assert memopt.clip(device, tensors, 1.0) == 5.0
    assert math.isclose(tensors[0][0], 3 / 5, rel_tol=1e-5)
    with pytest.raises(ValueError):
        memopt.clip(device, tensors, 0.0)
    with pytest.raises(ValueError):
        memopt.norm(device, tensors, out=array.array("d", [0]))
    with pytest.raises(TypeError):
        memopt.clip(device, [b"1234"], 1.0)
    device.close()  # which had kept the norms' scratch


def test_bad_scalers(device):
    for bad in (
        dict(init_scale=0),
        dict(growth_factor=1.0),
        dict(backoff_factor=2.0),
        dict(growth_interval=0),
        dict(init_scale=float("nan")),
    ):
        with pytest.raises(ValueError):
            memopt.Scaler(device, **bad)


def test_the_scale_dies_with_its_scaler(device):
    scaler = memopt.Scaler(device)
    cell = scaler.scale_tensor()
    assert cell.readonly and cell.tolist() == [65536.0]
    view = cell.as_memoryview()
    with pytest.raises(BufferError):
        scaler.close()
    del view
    scaler.close()
    with pytest.raises(memopt.ClosedError):
        cell.pointer
