"""Ctrl-C at every point of a step: the next step works, on every thread, and nothing leaks."""

from __future__ import annotations

import os

import pytest
import torch

import memopt
import memopt.torch as mt
from interrupts import at_every_point, nothing_unraisable
from memopt.torch import _slots
from on_threads import on_threads
from save_on_cpu_support import offload  # noqa: F401

FOLDER = os.path.dirname(memopt.__file__) + os.sep


def assert_free(context):
    """Another thread can have every lock."""
    (store,) = context._packer.stores.values()
    locks, free = [store.lock, store.fetching], []

    on_threads(lambda lock: free.append(lock.acquire(False) and lock.release() is None), locks)
    assert free == [True, True]


@pytest.mark.parametrize("options", [{}, {"keep_last": 1, "host_limit": 5000}], ids=len)
def test_save_on_cpu(offload, device, options):
    context = offload(**options)
    x = torch.linspace(-1, 1, 1000, device=device, requires_grad=True)
    gradients = []

    def step():
        y = (x * 2).exp().sigmoid().tanh()
        gradients.append(torch.autograd.grad(y.sum(), x)[0])

    with context:
        step()
    wanted = gradients.pop()
    assert (context.stats()["kept_overflow"] > 0) == ("host_limit" in options)
    with context, nothing_unraisable():
        for _ in at_every_point(step, FOLDER):
            gradients.clear()
            assert_free(context)
            stats = context.stats()
            assert stats["tickets"] == stats["host_bytes_used"] == 0
            assert context._packer.waiting_bytes == sum(s.nbytes for s in context._packer.waiting)
            step()
            assert torch.equal(gradients.pop(), wanted)
    context.stats()
    assert not [slot for slot in _slots._live.values() if slot.owner is context._packer]


def top():
    """The innermost hooks."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def test_a_context_of_save_on_cpu_that_is_not_entered_leaves_no_hooks(offload):
    context, entered = offload(), []

    def use():
        entered.clear()
        with context:
            entered.append(True)

    for _ in at_every_point(use, FOLDER):
        if not entered:
            assert top() is None
        elif top() is not None:  # a signal that comes as a function of Python's begins is its end
            context.__exit__()


def test_checkpoint(device):
    """No hook of a frame that is gone stays; random state and autocast are as before."""
    x = torch.linspace(-1, 1, 1000, device=device, requires_grad=True)
    drop = torch.nn.Dropout(0.5)

    def forward():
        torch.manual_seed(7)
        return mt.checkpoint(lambda x: drop((x * 2).exp()).sigmoid(), x).sum()

    def backward(loss):
        return torch.autograd.grad(loss, x, retain_graph=True)[0]

    loss = forward()
    wanted = backward(loss)
    for _ in at_every_point(forward, FOLDER):
        assert top() is None
    with torch.autocast(device.type, dtype=torch.bfloat16):
        random = torch.get_rng_state()
        for _ in at_every_point(lambda: backward(loss), FOLDER):
            assert top() is None
            assert torch.is_autocast_enabled(device.type)
            assert torch.equal(torch.get_rng_state(), random)
            assert torch.equal(backward(loss), wanted)
    assert torch.equal(backward(forward()), wanted)
