"""Behaviours that torch tests of its checkpoint: gradients within gradients, selective checkpoints.

docs/pytorch-tests.md lists torch's tests one by one and what stands for each here.
"""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
from torch.utils import checkpoint as theirs
from torch.utils._python_dispatch import _get_current_dispatch_mode

import memopt.torch as mt

aten = torch.ops.aten


def scalar(value=1.0):
    return torch.tensor(value, requires_grad=True)


# --- gradients within gradients -------------------------------------------------------------------


def gradient_of(function):
    def wrapper(x):
        with torch.enable_grad():
            return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]

    return wrapper


def wrapped(function):
    return lambda x: mt.checkpoint(function, x)


def three(x):
    return x.sin().exp().sin()


def with_gradients_inside(x):
    for _ in range(2):
        torch.autograd.grad(three(x).sum(), x)
    return x.sin()


g, c = gradient_of, wrapped
NESTS = [
    (lambda f: f, [lambda f: c(f), lambda f: c(c(f))]),
    (lambda f: g(f), [lambda f: g(c(f)), lambda f: g(c(c(f)))]),
    (lambda f: g(g(f)), [lambda f: g(c(g(f))), lambda f: c(g(g(c(f)))), lambda f: g(c(g(c(f))))]),
    (lambda f: g(g(g(f))), [lambda f: g(c(g(g(c(f))))), lambda f: g(c(g(c(g(c(f))))))]),
]


def nodes_that_live(function, x):
    """Nodes of the graph of function(x) that are there after the result is gone."""

    class Mark:
        pass

    def marks():
        seen, open_nodes, references = set(), [function(x).grad_fn], []
        while open_nodes:
            node = open_nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            mark = node.metadata["mark"] = Mark()
            references.append(weakref.ref(mark))
            open_nodes += [next_node for next_node, _ in node.next_functions]
        return references

    return sum(reference() is not None for reference in marks())


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("function", [three, with_gradients_inside])
@pytest.mark.parametrize("depth", range(4))
def test_checkpoints_and_gradients_in_each_other(depth, function, early_stop):
    plain, forms = NESTS[depth]
    x = torch.randn((), requires_grad=True)
    expected = plain(function)(x)
    with theirs.set_checkpoint_early_stop(early_stop):
        for form in forms:
            torch.testing.assert_close(form(function)(x), expected)
        gc.disable()
        try:
            for form in forms:
                leaf = torch.randn((), requires_grad=True)
                assert nodes_that_live(form(function), leaf) == 0
        finally:
            gc.enable()


@pytest.mark.parametrize("early_stop", [True, False])
def test_a_backward_within_backward(early_stop):
    """A hook of the graph goes backward again through a part of it."""

    def function(a):
        x = a.sin().cos()
        return x, x.sin()

    def run(call):
        a = scalar()
        x, y = call(a)
        y.grad_fn.register_hook(lambda *_: x.backward(retain_graph=True))
        y.backward(retain_graph=True)
        return a.grad

    ours = run(lambda a: mt.checkpoint(function, a, early_stop=early_stop))
    assert torch.equal(ours, run(function))


@pytest.mark.parametrize("early_stop", [True, False])
def test_a_hook_of_the_first_run_s_graph_is_called_once(early_stop):
    calls = []
    y = mt.checkpoint(lambda x: x.sin().cos().sin(), scalar(), early_stop=early_stop)
    y.grad_fn.next_functions[0][0].register_hook(lambda *_: calls.append("node"))
    y.backward()
    weight = torch.randn(10, 10, requires_grad=True)
    weight.register_hook(lambda _: calls.append("weight"))
    x = torch.rand(10, 10, requires_grad=True)
    mt.checkpoint(lambda h: weight * h, weight * x).sum().backward()  # inside and outside
    assert calls == ["node", "weight"]


# --- selective checkpoints ------------------------------------------------------------------------


def test_what_is_kept_goes_with_the_graph_and_with_backward():
    kept = []

    def function(x):
        y = x.cos().exp()
        mode = _get_current_dispatch_mode()
        if type(mode).__name__ == "_CachingTorchDispatchMode":
            kept.append(weakref.ref(mode.storage[aten.exp.default][0].val))
        return y.sin()

    x = torch.randn(3, requires_grad=True)
    names = [aten.cos.default, aten.exp.default, aten.sin.default]
    contexts = functools.partial(theirs.create_selective_checkpoint_contexts, names)
    gc.collect()
    gc.disable()
    try:
        y = mt.checkpoint(function, x, context_fn=contexts)
        assert kept[0]() is not None
        del y
        assert kept[0]() is None
        y = mt.checkpoint(function, x, context_fn=contexts)
        y.sum().backward(retain_graph=True)
        assert kept[1]() is None
    finally:
        gc.enable()
