"""Optimizers for torch: coded states in blocks of other sizes than a format's own."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import memopt as core  # noqa: E402
import memopt.torch as mt  # noqa: E402
from memopt._abi import StateFormat  # noqa: E402
from memopt.torch.optim import _format, _sharded  # noqa: E402
from optim_support import same_bits, through_a_file, walk  # noqa: E402
from test_torch_optim_states_others import bitsandbytes_state, dict_of  # noqa: E402

CLASSES = [
    (mt.AdamW8bit, "adamw", "8bit"),
    (mt.AdamW4bit, "adamw", "companded4"),
    (mt.AdamWFp8, "adamw", "fp8"),
    (mt.AdamW8bitCompanded, "adamw", "companded"),
    (mt.Adam8bit, "adam", "8bit"),
    (mt.Lion8bit, "lion", "8bit"),
    (mt.SGD8bit, "sgd", "8bit"),
    (mt.optim.RMSprop8bit, None, None),
    (mt.optim.Adagrad8bit, None, None),
    (mt.optim.AdEMAMix8bit, None, None),
]


def sized(cls, params, size, **options):
    extra = {"momentum": 0.9} if cls is mt.SGD8bit else {}
    return cls(params, lr=1e-2, block_size=size, min_8bit_size=1, **extra, **options)


@pytest.mark.parametrize("size", [32, 64, 512, 2048, 4096])
@pytest.mark.parametrize("cls", [c for c, _, _ in CLASSES])
def test_state_dicts(cls, size):
    """Less than a block, some and a piece; a loaded state steps on with the same bits."""
    params = [torch.randn(n).requires_grad_() for n in (20, size + 5, 9001)]
    a = sized(cls, params, size)
    walk(a, params, 3)
    scales = [k for k in a.state[params[0]] if k[-1] in "123"]
    assert scales
    for p in params:
        assert all(a.state[p][k].numel() == -(-p.numel() // size) for k in scales)
    others = [p.detach().clone().requires_grad_() for p in params]
    b = sized(cls, others, size)
    b.load_state_dict(through_a_file(a.state_dict()))
    walk(a, params, 2, 5)
    walk(b, others, 2, 5)
    assert all(same_bits(p, q) for p, q in zip(params, others))


@pytest.mark.parametrize("size", [32, 1024, 4096])
@pytest.mark.parametrize("cls,kind,states", [c for c in CLASSES if c[1]])
def test_same_as_the_library(cls, kind, states, size):
    p = torch.randn(5001).requires_grad_()
    gradient = torch.randn(5001)
    a = sized(cls, [p], size, weight_decay=0.0)
    own = core.Device("cpu")
    allocator = core.Allocator(own)
    options = {"momentum": 0.9} if kind == "sgd" else {}
    with core.Optimizer(
        allocator, kind=kind, states=states, block_size=size, min_8bit_size=1
    ) as optimizer:
        q = p.detach().clone().numpy()
        defaults = {"betas": a.defaults["betas"]} if "betas" in a.defaults else {}
        group = optimizer.add_group(lr=1e-2, weight_decay=0.0, **options, **defaults)
        optimizer.add_parameter(q, group=group)
        for _ in range(2):
            p.grad = gradient
            a.step()
            optimizer.step([gradient.numpy()])
        assert same_bits(p.detach(), torch.from_numpy(q))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(64, 100), (4097,), (100,)])
def test_bitsandbytes_in_blocks_of_2048(shape, nested):
    p = torch.zeros(shape).requires_grad_()
    saved = dict_of([bitsandbytes_state(p, 2048, nested=nested)], betas=(0.8, 0.9), alpha=0.0)
    theirs = saved["state"][0].get("__bnb_optimizer_quant_state__", saved["state"][0])
    a = mt.AdamW8bit([p], block_size=2048)
    a.load_state_dict(saved)
    state = a.state[p]
    assert torch.equal(state["exp_avg"], theirs["state1"])
    assert torch.equal(state["absmax1"], theirs["absmax1"])
    assert torch.equal(state["absmax2"], theirs["absmax2"])
    walk(a, [p], 1)


def test_codes_of_another_size():
    """Smaller blocks repeat scales; larger ones cannot hold the codes, so 32-bit states do."""
    p = torch.zeros(9000).requires_grad_()
    saved = dict_of([bitsandbytes_state(p, 256)], betas=(0.8, 0.9), alpha=0.0)
    small, large = mt.AdamW8bit([p], block_size=64), mt.AdamW8bit([p], block_size=512)
    small.load_state_dict(copy.deepcopy(saved))
    large.load_state_dict(copy.deepcopy(saved))
    repeated = saved["state"][0]["absmax1"].repeat_interleave(4)[: -(-9000 // 64)]
    assert torch.equal(small.state[p]["absmax1"], repeated)
    exact = mt.AdamW([p])
    exact.load_state_dict(small.state_dict())
    theirs, ours = large.state[p]["exp_avg"], exact.state[p]["exp_avg"]
    torch.testing.assert_close(ours, theirs, atol=0, rtol=2.5e-7)  # their map differs by last bits


def test_floats_are_quantised():
    p = torch.randn(9000).requires_grad_()
    exact = torch.optim.AdamW([p])
    walk(exact, [p], 2)
    a = mt.AdamW8bit([p], block_size=1024)
    a.load_state_dict(exact.state_dict())
    assert a.state[p]["absmax1"].numel() == 9
    with mt.optim.portable_states(a):
        back = a.state_dict()["state"][0]["exp_avg"]
    bound = exact.state[p]["exp_avg"].abs().max() * 0.0071
    assert (back - exact.state[p]["exp_avg"]).abs().max() <= bound


def test_one_size_for_all_groups():
    p, q = torch.zeros(5000).requires_grad_(), torch.zeros(5000).requires_grad_()
    a = mt.AdamW8bit([{"params": [p], "block_size": 64}])
    with pytest.raises(ValueError, match="share one, which is 64"):
        a.add_param_group({"params": [q]})
    a.add_param_group({"params": [q], "block_size": 64})
    with pytest.raises(TypeError, match="blocks of 256, not of 64"):
        mt.optim.to_bitsandbytes(a)
    walk(a, [p, q], 1)
    assert a.state[q]["absmax1"].numel() == 79


@pytest.mark.parametrize("size", [1, 16, 33, 8192, 77])
def test_sizes_that_are_not_possible(size):
    p = torch.zeros(5000).requires_grad_()
    with pytest.raises(ValueError, match="from 32 to 4096"):
        mt.AdamW8bit([p], block_size=size)
    with pytest.raises(ValueError, match="AdamW has blocks of 256"):
        mt.AdamW([p], block_size=64)
    with pytest.raises(ValueError, match="LAMB8bit has blocks of 256"):
        mt.optim.LAMB8bit([{"params": [p], "block_size": 64}])


def test_masters_on_the_host_and_on_a_disk(tmp_path):
    results = []
    for options in ({}, {"disk": str(tmp_path), "host_limit": "8MiB"}):
        torch.manual_seed(3)
        p = torch.randn(300001).bfloat16().requires_grad_()
        a = mt.CPUOffloadOptimizer([p], mt.AdamW8bit, lr=1e-2, block_size=2048, **options)
        walk(a, [p], 2)
        results.append(p.detach())
    assert same_bits(*results)


@pytest.mark.parametrize("size", [32, 128, 512, 4096])
@pytest.mark.parametrize("format_", [StateFormat.BITS8, StateFormat.BITS4, StateFormat.F8])
def test_rows_of_shards(format_, size):
    """Rows keep codes and scales where blocks begin alike, else the values."""
    floats = torch.randn(40, 200)
    moment, scales = _format.quantize(floats, floats, format_, True, size)
    rows = _sharded.Rows(40, 40, 200, 200, 1)
    own = _sharded.Blocks(format_, size)
    codes, by_row = _sharded.to_rows(moment, scales, rows, own)
    kept = _sharded.from_rows(codes, by_row, floats, rows, True, own, "m", "p")
    assert torch.equal(kept[0].flatten(), moment.flatten()) and torch.equal(kept[1], scales)
    half = _sharded.Rows(40, 33, 200, 200, 1)  # begins within a block
    decoded = _sharded.from_rows(codes[7:], by_row[7:], floats[7:], half, True, own, "m", "p")
    whole, part = torch.empty(40, 200), torch.empty(33, 200)
    _format.decode(whole, moment, scales, format_, True)
    _format.decode(part, *decoded, format_, True)
    error = (whole[7:] - part).abs().max() / whole.abs().max()
    assert error <= {StateFormat.BITS8: 0.0071, StateFormat.BITS4: 0.116, StateFormat.F8: 0.036}[format_]
    with pytest.raises(ValueError, match="do not fit"):
        _sharded.from_rows(codes, by_row[:, 1:], floats, rows, True, own, "m", "p")
