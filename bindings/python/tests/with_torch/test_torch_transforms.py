"""Compiled modules, transforms of torch.func and forward derivatives."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap
from torch.utils import checkpoint as theirs
from torch.utils.checkpoint import checkpoint as torchs

import memopt.torch as mt
from memopt.torch import checkpoint as ours


class Masked(nn.Module):
    """With buffers that backward needs."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32).eval()
        self.register_buffer("mask", torch.rand(32, 32))

    def forward(self, x):
        return torch.tanh(self.norm(self.first(x)) @ self.mask)


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    yield lambda module, **options: torch.compile(module, backend="aot_eager", **options)
    torch._dynamo.reset()


def gradients(module, x, context):
    module.zero_grad()
    with context:
        loss = module(x).square().mean()
    loss.backward()
    return [p.grad.clone() for p in module.parameters()]


@pytest.mark.parametrize("before", [False, True])  # compiled before the context or within
def test_a_graph_without_breaks_within_save_on_cpu(compiled, before):
    module, x = Masked(), torch.randn(8, 32)
    known = copy.deepcopy(module)  # its buffers are seen in a plain call, the other's are not
    wanted = gradients(known, x, mt.save_on_cpu(min_bytes=1 << 30))
    whole = compiled(module, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        if before:
            whole(x)
        for _ in range(3):
            context = mt.save_on_cpu(min_bytes=1)
            for a, b in zip(gradients(whole, x, context), wanted):
                torch.testing.assert_close(a, b)
    assert context.stats()["saved"] > 0
    assert context.stats()["kept_buffers"] >= 1  # the mask


def test_training_of_a_compiled_module(compiled):
    """Checkpointed, and with a step within a compiled function."""
    module = Masked().train()
    other = copy.deepcopy(module)
    models = [(compiled(module), module), (other, other)]
    for called, own in models:
        optimizer = mt.AdamW8bit(called.parameters(), lr=1e-2, min_8bit_size=1)
        torch.manual_seed(5)
        for _ in range(3):
            x = torch.randn(8, 32, requires_grad=True)
            optimizer.zero_grad()
            mt.checkpoint(called, x).square().mean().backward()
            optimizer.step()

        def train(x, called=own, optimizer=optimizer):
            called(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        (train if called is own else compiled(train))(torch.randn(8, 32))
        assert all(int(state["step"]) == 4 for state in optimizer.state.values())
    for p, q in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-3)


def test_within_a_compiled_function(compiled):
    x = torch.randn(4, 6, requires_grad=True)

    def function(v):
        return mt.checkpoint(lambda w: (w @ w.T).sin(), v, determinism_check="none").sum()

    function(x).backward()
    wanted, x.grad = x.grad, None
    compiled(function, fullgraph=True)(x).backward()
    torch.testing.assert_close(x.grad, wanted)


def test_a_compiled_function_keeps_what_a_selective_context_says(compiled):
    """Torch's own function runs there, with what ours was given."""
    layer, asked = torch.nn.Linear(6, 6), []

    def policy(context, operation, *args, **kwargs):
        asked.append(operation)
        policies = theirs.CheckpointPolicy
        if operation in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
            return policies.MUST_SAVE
        return policies.PREFER_RECOMPUTE

    def contexts():
        return theirs.create_selective_checkpoint_contexts(policy)

    def function(x):
        return mt.checkpoint(lambda v: layer(v.sigmoid()).sigmoid(), x, context_fn=contexts)

    y = compiled(function, fullgraph=True)(torch.randn(4, 6, requires_grad=True))
    assert asked
    with torch.profiler.profile() as profile:
        y.sum().backward()
    products = [event for event in profile.events() if event.name in ("aten::mm", "aten::addmm")]
    assert len(products) == 2  # of the gradients; a third would be the forward's


def test_options_reach_torch_s_function(monkeypatch):
    given = []

    def recording(function, *args, **options):
        given.append(options)
        return function(*args)

    monkeypatch.setattr(theirs, "checkpoint", recording)
    for options in ({}, {"determinism_check": "hash"}):
        grad(lambda v: mt.checkpoint(torch.sin, v, **options).sum())(torch.ones(3))
    options = dict(early_stop=False, determinism_check="none", context_fn=lambda: None)
    grad(lambda v: mt.checkpoint(torch.sin, v, **options).sum())(torch.ones(3))
    always = dict(use_reentrant=False, preserve_rng_state=True)
    assert given == [always, always, {**always, **options}]


def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error), str(error)[:60]


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: grad(f)(torch.arange(3.0)),
        lambda f: vmap(f)(torch.arange(6.0).reshape(2, 3)),
        lambda f: jvp(f, (torch.arange(3.0),), (torch.ones(3),))[1],
        lambda f: vmap(f)(torch.ones(2, 3, requires_grad=True)).sum().backward(),
    ],
)
def test_checkpoint_does_in_transforms_what_torch_s_does(transform):
    def with_(checkpoint, **options):
        return outcome(lambda: transform(lambda v: checkpoint(lambda w: (w * w).sin().sum(), v, **options)))

    result, wanted = with_(mt.checkpoint), with_(torchs, use_reentrant=False)
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(result, wanted)
    else:
        assert result == wanted


@pytest.mark.skipif(ours.__globals__["_saved_tensor"] is None, reason="torch has no saved tensors")
def test_forward_derivatives_go_through_a_checkpoint():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.randn(4), torch.ones(4))
        y = mt.checkpoint(lambda v: v.sin() * 2, x)
        assert torch.equal(forward_ad.unpack_dual(y).tangent, torch.cos(x) * 2)


@pytest.mark.parametrize("made", [True, False])
def test_inputs_of_a_checkpoint_are_saved_tensors(monkeypatch, made):
    """Also by the node that stands for them in older versions of torch."""
    if not made:
        monkeypatch.setitem(ours.__globals__, "_saved_tensor", None)
    seen = []
    x, w = torch.randn(4, requires_grad=True), torch.randn(4)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t)
    with hooks:
        y = mt.checkpoint(lambda a, both: (a * both[0]).sin(), x, [w, 3])
        nothing = mt.checkpoint(lambda: (x * w).sin())
    assert [t.data_ptr() for t in seen] == [x.data_ptr(), w.data_ptr()]
    (y.sum() + nothing.sum()).backward()
    torch.testing.assert_close(x.grad, 2 * w * torch.cos(x * w))
    y = mt.checkpoint(lambda a: (a * w).sin(), x * 1)
    z = x * 1
    y = mt.checkpoint(lambda a: (a * a).sin(), z)
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
