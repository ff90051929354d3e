"""Muon: torch's bits in 32 bits, near them in 8. What all rules share is in test_torch_optim_rules.py."""

from __future__ import annotations

import copy

import pytest
import torch

import memopt.torch as mt
from memopt.torch._live_bytes import LiveBytes
from memopt.torch.optim import _format, _muon
from optim_support import fill, same_bits, through_a_file, twin, walk

SHAPES = ((96, 33), (33, 129), (80, 80))  # tall, wide, square; two end within a block of 256
both = pytest.mark.parametrize("make", [mt.Muon, mt.Muon8bit])
torchs = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon")


def matrices(seed=0, dtype=torch.float32, shapes=SHAPES, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(s, generator=generator) * 0.5 for s in shapes]
    return [v.to(device, dtype).requires_grad_() for v in values]


# --- the rule -------------------------------------------------------------------------------------


@torchs
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"nesterov": False, "momentum": 0.9, "weight_decay": 0.0},
        {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3},
        {"adjust_lr_fn": "spectral_unclamped", "eps": 10.0},
        {"adjust_lr_fn": "original", "ns_coefficients": (2.0, -1.5, 0.5), "lr": torch.tensor(0.03)},
    ],
)
def test_fp32_matrices_get_the_bits_of_torch(values, device):
    ours, theirs = matrices(device=device), matrices(device=device)
    a = mt.Muon(ours, **{"lr": 0.02, **values})
    b = torch.optim.Muon(theirs, **{"lr": 0.02, **values})
    walk(a, ours, 5)
    walk(b, theirs, 5)
    for p, q in zip(ours, theirs):
        assert same_bits(p, q)
        assert same_bits(a.state[p]["momentum_buffer"], b.state[q]["momentum_buffer"])


@torchs
@pytest.mark.parametrize("shape", [(400, 450), (700, 200)])
def test_symmetric_products_by_parts(shape, device, monkeypatch):
    """The same sums. Their last bits are the processor's choice: those of AMX depend on the matrix's size, and on some
    processors a part on the diagonal is not symmetric. The others are. Bits of bf16 differ by less than a unit, 2^-8."""
    monkeypatch.setattr("memopt.torch.optim._muon._LEAST_WORK", 1)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parts = _muon._by_symmetry(x, lambda rows, columns: x[rows] @ x[columns].T)
    assert torch.allclose(parts, x @ x.T, rtol=0, atol=1e-11)
    high = -(-len(x) // 96) * 32
    assert torch.equal(parts[:high, high:], parts[high:, :high].T)
    (ours,), (theirs,) = matrices(shapes=(shape,), device=device), matrices(shapes=(shape,), device=device)
    start = ours.detach().clone()
    walk(mt.Muon([ours], lr=0.02), [ours], 3)
    walk(torch.optim.Muon([theirs], lr=0.02), [theirs], 3)
    assert (ours - theirs).norm() < 2**-8 * (theirs - start).norm()


def test_stochastic_rounding_keeps_small_updates(device):
    """A decay of 1e-4 a step, below half a unit: all of it on average; none of it without. Another
    seed gives other bits, the same seed the same."""
    ends = []
    for values in ({}, {"stochastic_rounding": True}, {"stochastic_rounding": True, "seed": 1}):
        p, q = (torch.ones(64, 128, dtype=torch.bfloat16, device=device) for _ in range(2))
        optimizer = mt.Muon([p, q], lr=1e-2, weight_decay=1e-2, **values)
        for _ in range(100):
            p.grad, q.grad = torch.zeros_like(p), torch.zeros_like(q)
            optimizer.step()
        ends.append((p, q))
    nearest, stochastic, other = ends
    assert torch.all(nearest[0] == 1)
    for p in (*stochastic, *other):
        assert abs(float(p.float().mean()) - (1 - 1e-4) ** 100) < 4e-4
    assert not same_bits(*stochastic)
    assert not same_bits(stochastic[0], other[0])


def test_the_codes_are_the_momentum(device):
    """The first step's momentum is the gradient times 1 - momentum, quantised."""
    (p,) = matrices(shapes=((33, 129),), device=device)
    optimizer = mt.Muon8bit([p], momentum=0.75)
    fill([p], 1)
    optimizer.step()
    state = optimizer.state[p]
    want = _format.quantize(p.grad * 0.25, p.detach(), _format.StateFormat.BITS8, True)
    assert same_bits(state["momentum_buffer"], want[0]) and same_bits(state["power1"], want[1])
    assert int(state["step"]) == 1


@both
def test_transposed_and_strided_matrices(make, device):
    """A parameter's order of memory changes nothing but the order of the norm's sum."""
    (plain,) = matrices(shapes=((40, 130),), device=device)
    turned = plain.detach().T.contiguous().T.requires_grad_()
    strided = torch.zeros(80, 260, device=device)[::2, ::2].copy_(plain.detach()).requires_grad_()
    optimizers = [make([p], lr=0.02) for p in (plain, turned, strided)]
    for t in range(3):
        for optimizer, p in zip(optimizers, (plain, turned, strided)):
            g = torch.randn(p.shape, generator=torch.Generator().manual_seed(t))
            p.grad = torch.empty_like(p).copy_(g)
            optimizer.step()
    assert same_bits(strided, plain)
    assert turned.stride() == (1, 40)
    # Blocks of 8 bits go by the order of memory.
    assert (turned - plain).abs().max() < (2e-3 if make is mt.Muon8bit else 4e-4)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make, least, most", [(mt.Muon, 4, 4.01), (mt.Muon8bit, 1, 1.02)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_a_parameter(make, least, most, dtype, device):
    """States of 1.02 bytes a parameter; beside them, temporaries of one matrix of eight."""
    first = matrices(shapes=((96, 96),), dtype=dtype, device=device)
    walk(make(first), first, 1)  # what a first use makes
    params = matrices(shapes=((96, 96),) * 8, dtype=dtype, device=device)
    optimizer = make(params)
    fill(params, 0)
    one = params[0].numel()
    with LiveBytes([t for p in params for t in (p, p.grad)]) as live:
        optimizer.step()
        assert least * 8 * one <= live.live <= most * 8 * one
    states = [t for p in params for t in (p, p.grad, *optimizer.state[p].values())]
    with LiveBytes(states) as live:
        optimizer.step()
        assert live.live == 0 and 4 * one <= live.peak <= 10 * one


# --- state dicts ----------------------------------------------------------------------------------


@both
def test_a_state_without_its_shape(make, device):
    """Loaders that put states in place themselves may leave them flat."""
    params = matrices(device=device)
    optimizer = make(params, lr=0.02, min_8bit_size=1)
    walk(optimizer, params, 1)
    cloned, clones = copy.deepcopy((optimizer, params))
    for p in clones:
        cloned.state[p]["momentum_buffer"] = cloned.state[p]["momentum_buffer"].flatten()
    walk(optimizer, params, 2)
    walk(cloned, clones, 2)
    assert all(same_bits(p, q) for p, q in zip(params, clones))


@torchs
def test_between_ours_and_torch(device):
    """A run of torch's goes on here, and in portable form the other way, with the same bits."""
    theirs = matrices(device=device)
    b = torch.optim.Muon(theirs, lr=0.02)
    walk(b, theirs, 2)
    ours, coded = twin(theirs), twin(theirs)
    a, c = mt.Muon(ours), mt.Muon8bit(coded, min_8bit_size=1)
    for optimizer in (a, c):
        optimizer.load_state_dict(through_a_file(b.state_dict()))
    walk(a, ours, 2, seed=5)
    walk(b, theirs, 2, seed=5)
    assert all(same_bits(p, q) for p, q in zip(ours, theirs))
    assert {c.state[p]["momentum_buffer"].dtype for p in coded} == {torch.uint8}
    with mt.portable_states(c):
        plain = c.state_dict()
    back = torch.optim.Muon(twin(theirs))
    back.load_state_dict(plain)
    for p, q in zip(coded, back.param_groups[0]["params"]):
        state, floats = c.state[p], torch.empty_like(p)
        args = state["momentum_buffer"], state["power1"], _format.StateFormat.BITS8, True
        _format.decode(floats, *args)
        assert same_bits(back.state[q]["momentum_buffer"], floats)


# --- refusals -------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("shape", [(7,), (), (2, 3, 4)])
def test_other_than_two_dimensions(make, shape, device):
    good, bad = matrices(shapes=((8, 9), shape), device=device)
    text = r"%s only supports 2D parameters: the shape of parameter 'bad' is \(%s" % (
        make.__name__,
        ", ".join(map(str, shape)),
    )
    with pytest.raises(ValueError, match=text):
        make([("good", good), ("bad", bad)])
    optimizer = make([("good", good)])
    with pytest.raises(ValueError, match=text):
        optimizer.add_param_group({"params": [("bad", bad)]})
    assert len(optimizer.param_groups) == 1


def test_shards_are_no_matrices():
    """A DTensor is refused: a shard's orthogonalised momentum is not the matrix's."""
    tensor = pytest.importorskip("torch.distributed.tensor")
    mesh_of = pytest.importorskip("torch.distributed.device_mesh").init_device_mesh
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = mesh_of("cpu", (1,))
        p = tensor.distribute_tensor(torch.zeros(4, 6), mesh, [tensor.Shard(0)])
        with pytest.raises(TypeError, match="parameter 0 of group 0 is sharded"):
            mt.Muon8bit([torch.nn.Parameter(p)])
    finally:
        distributed.destroy_process_group()
