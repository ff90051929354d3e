"""Optimizers for torch whose masters and states are on the host.

Without a GPU, parameters of the CPU stand for those of a device where `staged`: their gradients and
values then go through the buffers on the host, only without streams.
"""

from __future__ import annotations

import mmap
import types

import pytest
import torch

import memopt as core
import memopt.torch as mt
from memopt.torch._native import native
from memopt.torch.optim import _pinned
from optim_support import KINDS, OTHERS, limited, same_bits, through_a_file
from optim_support import fill_both as fill

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def parameters(dtype, seed=1):
    """Of several blocks, transposed, ragged, with gaps, and one that stays without a gradient."""
    torch.manual_seed(seed)
    whole = [torch.randn(70, 130), torch.randn(64, 80).t(), torch.randn(7), torch.randn(90, 100), torch.ones(3)]
    return [torch.nn.Parameter(p.to(dtype)[:, ::2] if i == 3 else p.to(dtype)) for i, p in enumerate(whole)]


def masters(params):
    return [torch.nn.Parameter(p.detach().float().clone()) for p in params]


def same(a, b, params, others):
    for p, q in zip(params, others):
        assert same_bits(p, q.to(p.dtype))
        assert a.state[p].keys() == b.state[q].keys()
        for key, value in b.state[q].items():
            assert same_bits(a.state[p][key], value), key


THESE = ("AdEMAMix", "AdEMAMix8bit", "LAMB8bit", "LARS", "LARS8bit", "Adafactor", "Muon8bit")
BITS = [(k, d) for k in sorted(KINDS) for d in (torch.float32, torch.bfloat16, torch.float16)]


@pytest.mark.parametrize("kind, dtype", [*BITS, *((k, torch.bfloat16) for k in THESE)])
def test_the_bits_are_those_of_the_class_on_fp32(kind, dtype, staged):
    """Also with groups, a scheduler, and a parameter that gets its first gradient later."""
    cls, own = {**KINDS, **OTHERS}[kind][:2]
    params = [p for p in parameters(dtype) if kind != "Muon8bit" or p.dim() == 2]
    others = masters(params)
    groups = [[{"params": ps[:2]}, {"params": ps[2:], "lr": 3e-2, "weight_decay": 0.5}] for ps in (params, others)]
    options = {"lr": 1e-2, **own, **({} if kind == "Adafactor" else {"min_8bit_size": 100})}
    options.update({"weight_decay": 0.1} if kind in THESE[2:5] else {})
    a, b = mt.CPUOffloadOptimizer(groups[0], cls, **options), cls(groups[1], **options)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (a, b)]
    for step in range(4):
        fill(params, others, step)
        if step < 2:
            params[1].grad = others[1].grad = None
        for optimizer, schedule in zip((a, b), schedules):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        same(a, b, params, others)


@pytest.mark.parametrize("kind", THESE)
def test_rules_that_the_library_lacks(kind, staged):
    """The bits of the class on fp32 parameters, clipped; resumed; an infinity changes nothing."""
    cls, own = OTHERS[kind][:2]
    own = {**own, **({} if kind == "Adafactor" else {"min_8bit_size": 100, "weight_decay": 0.1})}
    params = [p for p in parameters(torch.bfloat16) if kind != "Muon8bit" or p.dim() == 2]
    others = masters(params)
    a, b = mt.CPUOffloadOptimizer(params, cls, lr=1e-2, max_norm=1.0, **own), cls(others, lr=1e-2, **own)
    for step in range(4):
        fill(params, others, step)
        norm = torch.stack([q.grad.double().square().sum() for q in others[:4]]).sum().sqrt()
        assert norm > 1.0
        a.step()
        factor = 1.0 / (float(a.norm.double()) + 1e-6)
        assert abs(float(a.norm) / float(norm) - 1) < 1e-6
        for q in others[:4]:
            q.grad.mul_(factor)
        b.step()
        for p, q in zip(params, others):  # the factor of the norm in fp32 and in 64 bits
            torch.testing.assert_close(p, q.to(p.dtype), rtol=8e-3, atol=1e-5)
        if step == 1:
            saved = through_a_file(a.state_dict())
            a = mt.CPUOffloadOptimizer(params, cls, lr=0.5, max_norm=1.0, **own)
            a.load_state_dict(saved)
    before = [p.detach().clone() for p in params], through_a_file(a.state_dict())
    fill(params, others, 9)
    params[1].grad[3, 5] = float("inf")
    a.step()
    assert all(map(same_bits, params, before[0]))
    for key, state in before[1]["state"].items():
        for name, value in state.items():
            value, now = (
                v["memopt"] if isinstance(v, dict) else v for v in (value, a.state_dict()["state"][key][name])
            )
            assert same_bits(value, now), name


@HALF
def test_clipping_and_the_check(dtype, staged):
    """One norm over all, however many pieces; what is not finite changes nothing."""
    params = parameters(dtype)[:3]
    others = masters(params)
    a = mt.CPUOffloadOptimizer(params, lr=1e-2, max_norm=0.5, min_8bit_size=100)
    allocator = core.Allocator(native(torch.device("cpu")).device)
    flat = [q.detach().as_strided((q.numel(),), (1,)).numpy() for q in others]
    b = core.AdamW8bit(allocator, flat, lr=1e-2, min_8bit_size=100)
    for step in range(3):
        fill(params, others, step)
        norm = torch.zeros(())
        b.step([q.grad.as_strided((q.numel(),), (1,)).numpy() for q in others], max_norm=0.5, out_norm=norm)
        a.step()
        assert same_bits(a.norm, norm) and float(norm) > 0.5
        assert all(same_bits(p, q.to(dtype)) for p, q in zip(params, others))
    for bad in (float("inf"), float("nan")):
        fill(params, others, 7)
        params[1].grad[3, 5] = bad
        a.step()
        assert all(same_bits(p, q.to(dtype)) for p, q in zip(params, others))
        assert not torch.isfinite(a.norm) and int(a.state[params[0]]["step"]) == 3
    checks = mt.CPUOffloadOptimizer(params, lr=1e-2, skip_non_finite=True)
    before = [p.detach().clone() for p in params]
    checks.step()
    assert all(map(same_bits, params, before))


def layers(dtype=torch.bfloat16):
    torch.manual_seed(1)
    return torch.nn.Sequential(*[torch.nn.Linear(80, 80) for _ in range(3)]).to(dtype)


def loss_of(model, seed):
    p = next(model.parameters())
    x = torch.randn(5, 80, generator=torch.Generator().manual_seed(seed)).to(p)
    return model(x).float().square().mean()


@pytest.mark.parametrize("moved", [False, True])
def test_accumulation(moved, staged):
    """Also where gradients leave the device in backward: no two of them are there at once."""
    a_model, b_model = layers(), layers()
    a = mt.CPUOffloadOptimizer(a_model.parameters(), lr=1e-2, max_norm=0.1, offload_gradients=moved)
    b = mt.CPUOffloadOptimizer(b_model.parameters(), lr=1e-2, max_norm=0.1)
    for step in range(3):
        for micro in range(2):
            loss_of(a_model, 2 * step + micro).backward()
            loss_of(b_model, 2 * step + micro).backward()
            gone = [p.grad is None for p in a_model.parameters()]
            assert all(gone) if moved and staged else not any(gone)
        for optimizer in (a, b):
            optimizer.step()
            optimizer.zero_grad()
        assert all(map(same_bits, a_model.parameters(), b_model.parameters()))
    loss_of(a_model, 9).backward()
    a.zero_grad()
    before = [p.detach().clone() for p in a_model.parameters()]
    a.step()
    assert all(map(same_bits, a_model.parameters(), before))


def test_gradients_freed_in_backward(staged):
    """release_gradients(): the bits of a step after backward, clipped by the measured norm."""
    a_model, b_model = layers(), layers()
    a = mt.CPUOffloadOptimizer(a_model.parameters(), lr=1e-2)
    b = mt.CPUOffloadOptimizer(b_model.parameters(), lr=1e-2)
    mt.release_gradients(a)
    for step in range(3):
        loss_of(a_model, step).backward()
        assert all(p.grad is None for p in a_model.parameters())
        a.step()
        loss_of(b_model, step).backward()
        b.step()
        b.zero_grad()
        same(a, b, a_model.parameters(), b_model.parameters())


@pytest.mark.parametrize("scaler_class", [torch.amp.GradScaler, mt.GradScaler])
def test_a_loss_scaler(scaler_class, staged):
    """The step unscales; a step that it skips leaves everything."""
    dtype = torch.float32 if scaler_class is torch.amp.GradScaler else torch.bfloat16
    params, others = parameters(dtype)[:3], parameters(dtype)[:3]
    a = mt.CPUOffloadOptimizer(params, lr=1e-2, max_norm=0.5)
    b = mt.CPUOffloadOptimizer(others, lr=1e-2, max_norm=0.5)
    scaler = scaler_class("cpu", init_scale=1024.0)
    for step in range(3):
        fill(params, others, step)
        for p, q in zip(params, others):
            q.grad = p.grad.clone()
            p.grad *= scaler.get_scale()
        scaler.scale(torch.zeros(()))
        if step == 1:
            params[0].grad[0, 0] = float("inf")
            before = [p.detach().clone() for p in params]
        scaler.step(a)
        scaler.update()
        if step == 1:
            assert all(map(same_bits, params, before)) and scaler.get_scale() == 512.0
        else:
            b.step()
            assert all(map(same_bits, params, others)) and same_bits(a.norm, b.norm)


def test_resuming(staged):
    """Bit for bit from a file: also the masters, of which parameters hold the upper half."""
    params = parameters(torch.bfloat16)
    others = masters(params)
    a = mt.CPUOffloadOptimizer(params, lr=1e-3, min_8bit_size=100)
    for step in range(3):
        fill(params, others, step)
        a.step()
    saved = through_a_file(a.state_dict())
    resumed = parameters(torch.bfloat16, seed=2)
    b = mt.CPUOffloadOptimizer(resumed, lr=1.0, min_8bit_size=100)
    b.load_state_dict(saved)
    for step in range(3, 6):
        same(a, b, params, resumed)
        assert b.param_groups[0]["lr"] == 1e-3
        fill(params, others, step)
        fill(resumed, others, step)
        a.step()
        b.step()
    for state in saved["state"].values():
        assert state["master"].dtype is torch.float32
    plain = mt.AdamW8bit(masters(params), min_8bit_size=100)
    plain.load_state_dict(a.state_dict())  # the class takes it, and its own fits here
    b.load_state_dict(plain.state_dict())
    assert all(map(same_bits, params, resumed))
    saved["state"][0]["master"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"master of parameter 0 of group 0 has the shape \(3,\)"):
        b.load_state_dict(saved)
    assert all(map(same_bits, params, resumed))


def test_parameters_that_others_write(staged):
    """Weights loaded after the optimizer was made, or overwritten in part, are not lost."""
    params = parameters(torch.bfloat16)
    a = mt.CPUOffloadOptimizer(params, lr=1e-3)
    fill(params, params, 1)
    a.step()
    kept = a.state_dict()["state"][0]["master"].clone()
    with torch.no_grad():
        params[0][:10] = 3.0
    kept[:10] = 3.0
    assert same_bits(a.state_dict()["state"][0]["master"], kept)


@pytest.mark.parametrize("bits, most", [(8, 7.1), (16, 8.1)])
def test_split_weights(staged, bits, most):
    """bf16 masters with a residual: the bits of the class on the parameters, 7.1 bytes where they
    are copied, or 8.1; a weight that others write loses its residual."""
    params = parameters(torch.bfloat16) + [torch.nn.Parameter(torch.randn(300, 300).bfloat16())]
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    a = mt.CPUOffloadOptimizer(params, mt.AdamW8bit, lr=1e-3, split_weights=bits)
    b = mt.AdamW8bit(others, lr=1e-3, split_weights=bits)
    for step in range(3):
        fill(params, others, step)
        params[-1].grad = torch.full_like(params[-1], 0.1 * (step - 1))
        for p, q in zip(params, others):
            q.grad = p.grad
        a.step()
        b.step()
        same(a, b, params, others)
    assert bool(a.state[params[-1]]["weight_residual"].any())
    large = mt.CPUOffloadOptimizer([params[-1]], mt.AdamW8bit, split_weights=bits)
    large.step()
    assert sum(large.host_bytes().values()) <= most * params[-1].numel()
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in params]
    c = mt.CPUOffloadOptimizer(resumed, mt.AdamW8bit, split_weights=bits)
    c.load_state_dict(through_a_file(a.state_dict()))
    for optimizer, ps in ((a, params), (c, resumed)):
        for p, q in zip(ps, others):
            p.grad = q.grad
        optimizer.step()
    assert all(map(same_bits, params, resumed))
    whole = mt.CPUOffloadOptimizer(others, mt.AdamW8bit)
    for one, other in ((a, whole), (whole, a)):
        with pytest.raises(ValueError, match="split_weights"):
            one.load_state_dict(other.state_dict())
    with torch.no_grad():
        params[-1][:9] = 3.0
    params[-1].grad = torch.zeros_like(params[-1])
    a.param_groups[0].update(lr=0.0)
    before = a.state[params[-1]]["weight_residual"].clone()
    a.step()
    if staged:
        before[:9] = 0
        assert same_bits(a.state[params[-1]]["weight_residual"], before)


def test_autograd_sees_the_step(staged):
    model = layers()
    optimizer = mt.CPUOffloadOptimizer(model.parameters(), lr=1e-2)
    loss = loss_of(model, 1)
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_refusals():
    params = parameters(torch.bfloat16)
    with pytest.raises(TypeError, match="not an optimizer class of memopt.torch"):
        mt.CPUOffloadOptimizer(params, torch.optim.AdamW)
    with pytest.raises(ValueError, match="Invalid max_norm: -1"):
        mt.CPUOffloadOptimizer(params, max_norm=-1)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        mt.CPUOffloadOptimizer(params, lr=-1.0)
    optimizer = mt.CPUOffloadOptimizer(params[:3])
    with pytest.raises(ValueError, match="Invalid beta"):
        optimizer.add_param_group({"params": params[3:], "betas": (2.0, 0.9)})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": params[3:], "lr": 0.5})
    fill(params, params, 1)
    optimizer.step()
    assert len(optimizer.state) == 4
    with pytest.raises(TypeError, match="state_dict"):
        import copy

        copy.deepcopy(optimizer)


def figures(layers, mode="host"):
    code, text = limited(mode, layers)
    assert code == 0, text
    return dict(line.split(": ") for line in text.strip().splitlines()[-5:])


@pytest.mark.parametrize("layers", [24, pytest.param(256, marks=pytest.mark.long)])
def test_trains_in_half_the_memory(layers, capsys):
    """A limit of 12 bytes a parameter holds parameters, fp32 masters and states of this optimizer,
    with gradients freed in backward, and not fp32 parameters, gradients and states (16)."""
    parts = figures(layers)
    with capsys.disabled():
        print("\n%d parameters: %s" % (layers << 20, parts))
    assert float(parts["last loss"]) < 0.7 * float(parts["first loss"])
    assert float(parts["held"]) <= 8.04
    code, text = limited("plain", layers)
    assert code != 0 and "memory" in text.lower()


@pytest.mark.parametrize("layers", [24, pytest.param(256, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode, most", [("split", 5.04), ("split16", 6.04)])
def test_split_weights_hold_less(mode, most, layers, capsys):
    """Here the parameters themselves are the masters. Those of 16 more bits are fp32 masters, and all of
    it trains under a limit of 8.1 bytes a parameter."""
    parts = figures(layers, mode)
    with capsys.disabled():
        print("\n%d parameters, %s: %s" % (layers << 20, mode, parts))
    assert float(parts["last loss"]) < 0.7 * float(parts["first loss"])
    assert float(parts["held"]) <= most and parts["limit"] == "8.1"


@pytest.mark.parametrize(
    "mode, layers, most",
    [("host", 24, 9.0), ("split16", 24, 7.0), pytest.param("split16", 256, 6.2, marks=pytest.mark.long)],
)
def test_the_peak_of_a_step(mode, layers, most):
    """Beside what is held: activations, one gradient, and what malloc, torch's products and Python
    keep. On a large model these are 0.06 to 0.11 bytes a parameter, more without AVX-512."""
    assert float(figures(layers, mode)["peak"]) <= most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_page_locked_memory(dtype, monkeypatch):
    """For a GPU's copies: whole pages, which end with the tensor and after the copies."""
    with core.Device("cpu") as device:
        monkeypatch.setattr(_pinned, "native", lambda _: types.SimpleNamespace(device=device))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        held = []
        monkeypatch.setattr(torch.cuda, "synchronize", lambda gpu: held.append(device.memory_info().pinned))
        gpu, source = torch.device("cuda", 0), torch.randn(3, 700, 411).transpose(0, 2)
        made = _pinned.moved(source.to(dtype), gpu)
        assert same_bits(made, source.to(dtype)) and made.stride() == source.stride()
        assert not made.requires_grad and made.device.type == "cpu"
        pages = -(-made.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        assert device.memory_info().pinned == pages
        part = made[2:].detach()
        del made
        assert device.memory_info().pinned == pages and not held
        del part
        assert device.memory_info().pinned == 0 and held == [pages]
        assert _pinned.like(torch.empty(0, 3), dtype, gpu).shape == (0, 3)
        assert _pinned.like(source, dtype, torch.device("cpu")).stride() == source.stride()
