"""The manners of optimizers whose states have shapes of their own: Adafactor and AdEMAMix."""

from __future__ import annotations

import contextlib
import copy
import functools

import pytest

torch = pytest.importorskip("torch")

import memopt.torch as mt  # noqa: E402

from optim_support import (  # noqa: E402
    assert_same_states,
    assert_unchanged,
    drawn,
    fill,
    same_bits,
    snapshot,
    through_a_file,
    twin,
    walk,
)

MAKERS = pytest.mark.parametrize(
    "make",
    [
        mt.Adafactor,
        functools.partial(mt.optim.AdEMAMix, t_alpha=5, t_beta3=5),
        functools.partial(mt.bnb.AdEMAMix8bit, min_8bit_size=1),
    ],
    ids=("adafactor", "ademamix", "ademamix8"),
)
#: Numbers of dimensions, rows and columns of one, and what does not divide into pieces.
SHAPES = ((96, 33), (7,), (), (3, 40, 5), (2, 3, 4, 5), (1, 9), (9, 1))


def parameters(**named):
    return drawn(SHAPES, **named)


@MAKERS
def test_half_precision_is_rounded_once_a_step(make, device):
    """The bits of fp32 parameters that are rounded to bf16 after each step."""
    ours = parameters(dtype=torch.bfloat16, device=device)
    wide = [p.detach().float().requires_grad_() for p in ours]
    a, b = make(ours), make(wide)
    for t in range(5):
        fill(ours, t)
        for p, q in zip(ours, wide):
            q.grad = p.grad.float()
        a.step()
        b.step()
        for p, q in zip(ours, wide):
            q.detach().copy_(q.detach().bfloat16())
            assert same_bits(p, q.bfloat16())
            for key in set(a.state[p]) - {"step"}:
                assert same_bits(a.state[p][key], b.state[q][key])


@MAKERS
def test_stochastic_rounding_keeps_small_updates(make, device):
    p = torch.ones(64, 128, dtype=torch.bfloat16, device=device)
    optimizer = make([p], lr=1e-2, weight_decay=1e-2, stochastic_rounding=True)
    for _ in range(100):
        p.grad = torch.zeros_like(p)
        optimizer.step()
    assert abs(float(p.float().mean()) - (1 - 1e-4) ** 100) < 4e-4


@MAKERS
def test_any_order_of_memory(make, device):
    base = torch.randn(70, 80, device=device)
    strange = {
        "transposed": base.t(),
        "strided": torch.randn(64, 200, device=device)[:, ::2],
        "channels last": torch.randn(8, 6, 5, 7, device=device).to(memory_format=torch.channels_last),
    }
    for name, value in strange.items():
        p = value.clone(memory_format=torch.preserve_format).requires_grad_()
        if name == "strided":
            p = torch.randn(64, 200, device=device)[:, ::2].requires_grad_()
        q = p.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
        a, b = make([p]), make([q])
        for t in range(3):
            fill([q], t)
            p.grad = q.grad.clone() if t else torch.empty_like(p).copy_(q.grad)
            a.step()
            b.step()
        coded = "absmax1" in a.state[p]  # blocks go by the order of memory
        torch.testing.assert_close(p, q, rtol=0, atol=1e-3 if coded else 0, msg=name)


@MAKERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stochastic", [False, True])
def test_a_resumed_run_is_the_run(make, dtype, stochastic, device):
    params = parameters(dtype=dtype, device=device)
    optimizer = make(params, stochastic_rounding=stochastic)
    walk(optimizer, params, 3)
    plain = "absmax1" in optimizer.state[params[0]]  # portable codes are coded anew
    with contextlib.nullcontext() if plain else mt.portable_states(optimizer):
        saved = through_a_file(optimizer.state_dict())
    again = twin(params)
    resumed = make(again, lr=0.5)
    resumed.load_state_dict(saved)
    cloned, clones = copy.deepcopy((optimizer, params))
    assert_same_states(optimizer, resumed, params, again)
    for some, own in ((optimizer, params), (resumed, again), (cloned, clones)):
        walk(some, own, 3, seed=7)
    assert_same_states(optimizer, resumed, params, again)
    assert_same_states(optimizer, cloned, params, clones)


@MAKERS
@pytest.mark.parametrize("scaler", [torch.amp.GradScaler, mt.GradScaler])
def test_a_scaler_unscales_and_skips(make, scaler, device):
    params, plain = parameters(device=device), parameters(device=device)
    a, b = make(params), make(plain)
    scale = scaler(device=device.type, init_scale=1024.0)
    scale.scale(torch.zeros((), device=device))
    for t in range(3):
        fill(plain, t)
        for p, q in zip(params, plain):
            p.grad = q.grad * scale.get_scale()
        if t == 1:
            before = snapshot(a, params)
            params[0].grad[3, 4] = float("inf")
            scale.step(a)
            assert_unchanged(a, params, before)
        else:
            scale.step(a)
            b.step()
        scale.update()
    assert_same_states(a, b, params, plain)


@MAKERS
def test_steps_in_backward(make, device):
    params, plain = parameters(device=device), parameters(device=device)
    a, b = make(params), make(plain)
    mt.release_gradients(a)
    for _ in range(2):
        sum(p.pow(3).sum() for p in params).backward()
        a.step()
        sum(p.pow(3).sum() for p in plain).backward()
        b.step()
        b.zero_grad()
    assert_same_states(a, b, params, plain)
