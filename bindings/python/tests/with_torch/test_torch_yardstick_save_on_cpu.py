"""Behaviours that torch tests of its saved-tensor hooks and its save_on_cpu, tested of ours.

docs/pytorch-tests.md lists torch's tests one by one and what stands for each here.
"""

from __future__ import annotations

import pytest
import torch

import memopt.torch as mt


def test_sparse_tensors_that_an_operation_made(device):
    x = torch.sparse_coo_tensor([[1, 1]], [1.0, 1.0], (3,), device=device, check_invariants=True).requires_grad_()
    with mt.save_on_cpu(device_type=device.type):
        y = x * x
        z = y * y
        assert y.grad_fn._saved_self.layout is torch.sparse_coo
        z.to_dense().sum().backward()
    assert torch.equal(x.grad.to_dense(), (4 * x * x * x).to_dense())


def test_where_saved_tensor_hooks_are_switched_off():
    """Other transforms do that: the context is refused with their message, and works after it."""
    x = torch.ones(3000, requires_grad=True)
    context = mt.save_on_cpu()
    for message in ("not in here", "nor here"):
        with torch.autograd.graph.disable_saved_tensors_hooks(message):
            with pytest.raises(RuntimeError, match=message):
                with context:
                    pass
            with pytest.raises(RuntimeError, match=message):
                mt.checkpoint(torch.sin, x)
    with context:
        y = x.exp()
    y.sum().backward()
    assert context.stats()["saved"] == 1 and torch.equal(x.grad, y)


def test_changing_what_was_unpacked_does_not_count_as_a_change_of_the_original(device):
    class Change(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, gradient):
            (saved,) = ctx.saved_tensors
            saved.add_(1)
            return gradient

    x = torch.ones(5000, device=device, requires_grad=True)
    inner = x * 1
    with mt.save_on_cpu(device_type=device.type) as context:
        y = Change.apply(inner)
    assert context.stats()["saved"] == 1
    version, before = inner._version, inner.detach().clone()
    y.sum().backward()
    assert inner._version == version and torch.equal(inner, before)


def test_an_intermediate_that_needs_a_gradient_of_its_own(device):
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.exp().clone().detach_().requires_grad_(True))
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    x = torch.randn(5000, device=device, requires_grad=True)
    with mt.save_on_cpu(device_type=device.type):
        y = Exponential.apply(x)
    y.sum().backward()
    assert torch.equal(x.grad, x.exp())


def test_numbers_are_not_saved_and_a_detached_result_may_be_needed(device):
    x = torch.randn(5000, device=device, requires_grad=True)
    with mt.save_on_cpu(device_type=device.type, min_bytes=0) as context:
        torch.autograd.grad((x * 3).sum(), x)
        assert context.stats()["saved"] == 0  # 3 is a tensor to autograd, but none of the user's
        y = x.clone().exp()
        z = y.sum()
    y.detach_()
    z.backward()
    assert torch.equal(x.grad, x.exp())


@pytest.mark.parametrize("leaf", [True, False])
def test_what_autograd_shows_has_the_graph_behind_it(leaf, device):
    """Of an input, of an input that is no leaf, and of a result."""
    x = torch.randn(300, device=device, requires_grad=True)
    a = x if leaf else 1 + x
    with mt.save_on_cpu(device_type=device.type, min_bytes=1):
        y = a**3
        z = a.exp()
    assert torch.equal(y.grad_fn._saved_self, a) and torch.equal(z.grad_fn._saved_result, z)
    assert y.grad_fn._saved_self.grad_fn is a.grad_fn
    assert z.grad_fn._saved_result.grad_fn is z.grad_fn
    (g,) = torch.autograd.grad(y.sum(), a, create_graph=True)
    g.sum().backward()
    torch.testing.assert_close(x.grad, 6 * a)


def test_a_context_that_is_left_too_often(device):
    """It does no harm to those that come after."""
    context = mt.save_on_cpu(device_type=device.type, min_bytes=1)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            context.__exit__()
    module = torch.nn.BatchNorm1d(300).to(device).eval()
    x = torch.randn(20, 300, device=device, requires_grad=True)
    with context:
        y = module(x * 1)
    assert context.stats()["kept_buffers"] > 0  # buffers are looked for again
    y.sum().backward()
