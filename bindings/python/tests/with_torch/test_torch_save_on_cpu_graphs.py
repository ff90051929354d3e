"""save_on_cpu(): graphs used twice, nested, forgotten, on other threads and in children."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from save_on_cpu_support import (  # noqa: F401
    assert_equal_lists,
    net,
    offload,
    plain,
    x,
)

import memopt
import memopt.torch as mt
from memopt.torch import _slots
from on_threads import on_threads


# --- graphs ---------------------------------------------------------------------------------------


def test_retain_graph_gives_the_values_again(offload, device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    context = offload()
    with context:
        y = (x.exp() * x.sin()).tanh().sum()
    first = torch.autograd.grad(y, x, retain_graph=True)[0]
    second = torch.autograd.grad(y, x, retain_graph=True)[0]
    third = torch.autograd.grad(y, x)[0]
    assert torch.equal(first, second) and torch.equal(first, third)
    del y
    assert context.stats()["tickets"] == 0


def test_double_backward(offload, device):
    x = torch.randn(16, 16, device=device, requires_grad=True)

    def penalty(context):
        with context:
            y = ((x * 2).exp().tanh() @ x.sin()).sum()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            z = g.square().sum()
        return torch.autograd.grad(z, x)[0]

    assert torch.equal(penalty(plain()), penalty(offload()))
    assert torch.equal(penalty(plain()), penalty(offload(keep_last=3)))
    assert torch.autograd.gradgradcheck(
        lambda t: hooked(offload(), lambda: (t.exp() * t).sum()),
        torch.randn(4, dtype=torch.float64, device=device, requires_grad=True),
    )


def hooked(context, function):
    with context:
        return function()


def test_a_context_is_reusable_and_nests_in_itself_and_others(offload, device):
    x = torch.randn(256, 64, device=device, requires_grad=True)
    one, other = offload(), offload(keep_last=1)
    with one as entered:
        assert entered is one
        a = (x * 2).exp()
        with one:
            b = (a * 2).sin()
            with other:
                c = (b * 2).exp()
        d = (c * 2).cos()
    e = (d * 2).exp()  # not under it
    packs = one.stats()["packs"], other.stats()["saved"]
    (got,) = torch.autograd.grad(e.sum(), x)
    assert packs == (3, 1)
    (wanted,) = torch.autograd.grad(((((x * 2).exp() * 2).sin() * 2).exp() * 2).cos().mul(2).exp().sum(), x)
    assert torch.equal(got, wanted)


def test_torch_s_own_context_nests_with_it(offload, device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    with torch.autograd.graph.save_on_cpu(), offload():
        y = (x * 2).exp()
        with torch.autograd.graph.save_on_cpu(pin_memory=False):
            z = (y * 2).sin()
    (got,) = torch.autograd.grad(z.sum(), x)
    (wanted,) = torch.autograd.grad(((x * 2).exp() * 2).sin().sum(), x)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("which", ["ours", "torch", "torch reentrant"])
@pytest.mark.parametrize("nesting", ["outside", "inside", "both"])
def test_checkpoint_nests_both_ways(offload, net, x, which, nesting, early):
    """Recomputed values are saved anew while the outer context's tickets are live."""
    net.norm.eval()
    inner = offload(keep_last=2)

    def run(t):
        if nesting == "outside":
            return net(t)
        with inner:
            return net(t)

    def regions(t):
        for _ in range(3):
            if which == "ours":
                t = mt.checkpoint(run, t * 2, early_stop=early)
            else:
                t = torch_checkpoint(run, t * 2, use_reentrant="reentrant" in which)
        return t

    def plain_regions(t):
        for _ in range(3):
            t = net(t * 2)
        return t

    results = []
    outer = offload()
    for function, context in ((plain_regions, plain()), (regions, outer)):
        torch.manual_seed(3)
        net.zero_grad()
        x.grad = None
        with context if nesting != "inside" else plain():
            loss = function(x).square().sum()
        loss.backward()
        results.append([loss.detach(), x.grad] + [p.grad.clone() for p in net.parameters()])
    assert_equal_lists(*results)
    del loss, function, context
    assert inner.stats()["tickets"] == 0 and outer.stats()["tickets"] == 0
    if nesting != "inside":
        assert outer.stats()["saved"] > 0


def test_nothing_is_saved_without_gradients(offload, net, x):
    context = offload()
    with torch.no_grad(), context:
        net(x)
    with context, torch.no_grad():
        net(x)
    assert context.stats()["packs"] == 0 and context.stats()["saved"] == 0


def test_an_exception_in_forward_leaves_nothing_behind(offload, net, x):
    context = offload()
    with pytest.raises(ZeroDivisionError):
        with context:
            y = net(x)
            assert context.stats()["tickets"] > 0
            1 / 0
    hidden = (x * 2).exp()  # the hooks are off again
    saved = context.stats()["saved"]
    hidden.sum().backward()
    assert context.stats()["saved"] == saved
    y.sum().backward()  # what was built can be used
    del y
    assert context.stats()["tickets"] == 0


def test_a_forgotten_graph_gives_everything_back_without_the_collector(offload, net, x):
    context = offload(keep_last=2)
    gc.collect()
    gc.disable()
    try:
        with context:
            y = net(x).square()
        alive = weakref.ref(y)
        assert context.stats()["tickets"] > 0 and len(_slots._live) > 0
        del y
        assert alive() is None
        assert context.stats()["tickets"] == 0 and context.stats()["host_bytes_used"] == 0
        assert all(entry.owner is not context._packer for entry in _slots._live.values())
        assert context._packer.by_storage == {}
        packer = weakref.ref(context._packer.stores[x.device])
        with context:  # one that was used is gone, too
            y = net(x).square()
        y.sum().backward()
        del y
        assert context.stats()["tickets"] == 0
        del context
        assert packer() is not None  # waits for the next object
    finally:
        gc.enable()


def test_values_that_were_kept_last_are_let_go_with_their_graph(offload, device):
    context = offload(keep_last=4)
    x = torch.randn(1000, device=device, requires_grad=True)
    with context:
        y = (x * 2).exp()
    storage = weakref.ref(y.untyped_storage())
    del y
    assert storage() is None


# --- threads and processes ------------------------------------------------------------------------


def test_forward_and_backward_on_several_threads(offload, device):
    context = offload(host_limit="8MiB")
    x = torch.randn(64, 256, device=device)

    def work(seed):
        weight = torch.full((256, 256), 0.01 * (seed + 1), device=device, requires_grad=True)
        for _ in range(20):
            with context:
                y = ((x @ weight).tanh() @ weight).exp().sum()
            box = []
            on_threads(lambda _, y=y: box.append(torch.autograd.grad(y, weight)[0]))
            (wanted,) = torch.autograd.grad(((x @ weight).tanh() @ weight).exp().sum(), weight)
            assert torch.equal(box[0], wanted)

    on_threads(work, range(4))
    gc.collect()
    assert context.stats()["tickets"] == 0


def test_another_thread_is_not_under_the_context(offload, device):
    context = offload()
    x = torch.randn(100, device=device, requires_grad=True)
    with context:
        on_threads(lambda _: (x * 2).exp())
    assert context.stats()["saved"] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_is_refused_the_parent_s_values_and_makes_its_own():
    context = mt.save_on_cpu(device_type="cpu", min_bytes=1)
    x = torch.randn(1000, requires_grad=True)
    with context:
        y = (x * 2).exp()
    (wanted,) = torch.autograd.grad((x * 2).exp().sum(), x)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(memopt.UnsupportedError, match="fork"):
                torch.autograd.grad(y.sum(), x)
            del y
            with context:
                z = (x * 3).exp()
            packs = context.stats()["packs"]
            (got,) = torch.autograd.grad(z.sum(), x)
            ok = packs == 1 and torch.equal(got, 3 * (x * 3).exp().detach())
            status = 0 if ok else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (got,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(got, wanted)
