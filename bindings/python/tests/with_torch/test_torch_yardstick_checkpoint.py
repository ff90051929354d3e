"""Behaviours that torch tests of its checkpoint and checkpoint_sequential, tested of ours.

docs/pytorch-tests.md lists torch's tests one by one and what stands for each here.
"""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as theirs
from torch.utils._python_dispatch import TorchDispatchMode

import memopt.torch as mt
from on_threads import on_threads

aten = torch.ops.aten


def scalar(value=1.0):
    return torch.tensor(value, requires_grad=True)


class Counted:
    """A function that counts its runs."""

    def __init__(self, function):
        self.function, self.runs = function, 0

    def __call__(self, *args):
        self.runs += 1
        return self.function(*args)


# --- how often functions run ----------------------------------------------------------------------


def test_all_segments_but_the_last_run_twice():
    stages = [Counted(torch.sin) for _ in range(10)]
    x = torch.randn(3, 4, requires_grad=True)
    y = mt.checkpoint_sequential(stages, 2, x)
    assert [stage.runs for stage in stages] == [1] * 10
    y.sum().backward()
    assert [stage.runs for stage in stages] == [2] * 5 + [1] * 5


def test_a_look_at_a_saved_tensor_is_a_run_each_time_and_an_error_after_backward():
    function = Counted(lambda a: torch.exp(a * (a * a) * 0 + a))
    d = mt.checkpoint(function, torch.randn(5, requires_grad=True))
    for runs in (2, 3):
        assert d.grad_fn._saved_result is not None and function.runs == runs
    d.sum().backward()
    assert function.runs == 4
    with pytest.raises(RuntimeError, match="already been freed"):
        d.grad_fn._saved_result


def test_nothing_saved_is_nothing_run_again():
    for early_stop in (True, False):
        function = Counted(torch.clone)
        mt.checkpoint(function, scalar(), early_stop=early_stop).backward()
        assert function.runs == 1


@pytest.mark.parametrize(
    "argument, contexts, runs",
    [
        (True, [], 1),
        (False, [], 2),
        (True, [False], 2),
        (False, [True], 1),
        (False, [False, True], 1),
        (True, [None], 1),
    ],
)
def test_early_stop_is_the_context_s_where_there_is_one(argument, contexts, runs):
    """torch's set_checkpoint_early_stop around the call, not around backward, and the inner one."""
    last = Counted(torch.clone)
    with contextlib.ExitStack() as stack:
        for value in contexts:
            if value is not None:
                stack.enter_context(theirs.set_checkpoint_early_stop(value))
        y = mt.checkpoint(lambda x: last(x.sin().cos()), scalar(), early_stop=argument)
    y.backward()
    assert last.runs == runs


@pytest.mark.parametrize("grouped", [True, False])
def test_backwards_of_one_group_share_a_run(grouped):
    if not hasattr(theirs, "GraphExecGroup"):
        pytest.skip("this torch has no GraphExecGroup")

    def function(x):
        y = x.sin().cos()
        return y, y.sin().cos()

    plain = torch.randn(3, 3, requires_grad=True)
    first, second = function(plain)
    expected = torch.autograd.grad(second.sum(), plain)
    counted = Counted(function)
    y, z = mt.checkpoint(counted, plain)
    with theirs.GraphExecGroup() if grouped else contextlib.nullcontext():
        (step,) = torch.autograd.grad(z.sum(), y)
        result = torch.autograd.grad(y, plain, step)
    assert torch.equal(result[0], expected[0])
    assert counted.runs == (2 if grouped else 3)


def test_backwards_of_one_group_that_overlap_are_right():
    """torch raises here; ours runs the function once more."""
    if not hasattr(theirs, "GraphExecGroup"):
        pytest.skip("this torch has no GraphExecGroup")
    x = torch.randn(4, requires_grad=True)
    y = mt.checkpoint(lambda x: x.sin().cos(), x)
    with theirs.GraphExecGroup():
        y.sum().backward(retain_graph=True)
        y.sum().backward()
    again = x.detach().clone().requires_grad_()
    (2 * again.sin().cos().sum()).backward()
    torch.testing.assert_close(x.grad, again.grad)


# --- what goes in and comes out -------------------------------------------------------------------


def test_a_saved_input_without_gradient_is_the_same_object():
    seen = []

    class Remember(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(y)
            return x

        @staticmethod
        def backward(ctx, gradient):
            seen.extend(ctx.saved_tensors)
            return gradient, None

    other = torch.tensor(1.0)
    mt.checkpoint(Remember.apply, scalar(), other).backward()
    assert seen[0] is other


def test_saved_tensors_of_a_function_of_ones_own_may_be_read_twice():
    """torch raises at the second time; ours runs the function again."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            out = x * y
            ctx.save_for_backward(x, y, out)
            return out

        @staticmethod
        def backward(ctx, gradient):
            for one, two in zip(ctx.saved_tensors, ctx.saved_tensors):
                assert torch.equal(one, two)
            x, y, _ = ctx.saved_tensors
            return gradient * y, gradient * x

    x, y = scalar(2.0), scalar(3.0)
    mt.checkpoint(lambda x, y: Product.apply(x * y, y * y), x, y).backward()
    assert x.grad == 27.0 and y.grad == 54.0


def test_a_module_without_gradients_inside():
    layer = nn.Linear(2, 2)

    def function(x):
        with torch.no_grad():
            return layer(x)

    x = torch.randn(2, 2, requires_grad=True)
    for _ in range(3):
        (mt.checkpoint(function, x) + x).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 2), 3.0)) and layer.weight.grad is None


def test_tensors_without_contents():
    x = torch.randn(4, device="meta", requires_grad=True)
    mt.checkpoint(lambda items: items["x"].sin().cos(), {"x": x}).sum().backward()
    assert x.grad.is_meta


# --- what the second run finds --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["context", "default", "threads"])
def test_the_default_device_is_that_of_the_first_run(how):
    """Also where backward runs outside the context: a second run of another device would fail."""
    seen = []

    def function(x):
        seen.append(torch.empty(2).device.type)
        return x.sin()

    x = torch.randn(4, requires_grad=True)
    if how == "default":
        torch.set_default_device("meta")
        try:
            y = mt.checkpoint(function, x)
        finally:
            torch.set_default_device(None)
    else:
        with torch.device("meta"):
            y = mt.checkpoint(function, x)
    if how == "threads":
        on_threads(lambda _: y.sum().backward())
    else:
        y.sum().backward()
    assert seen == ["meta", "meta"] and torch.empty(1).device.type == "cpu"


def test_the_innermost_default_device_counts():
    seen = []

    def function(x):
        seen.append(torch.empty(2).device.type)
        return x.sin()

    with torch.device("meta"), torch.device("cpu"):
        y = mt.checkpoint(function, torch.ones(2, requires_grad=True))
    with torch.device("meta"):
        y.sum().backward()
    assert seen == ["cpu", "cpu"]


class Operations(TorchDispatchMode):
    """Counts an operation that is really computed."""

    def __init__(self, operation):
        super().__init__()
        self.operation, self.count = operation, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is self.operation
        return function(*args, **(kwargs or {}))


def test_each_context_is_around_its_own_run():
    x = scalar()
    nothing = contextlib.nullcontext()
    first, again = Operations(aten.exp.default), Operations(aten.exp.default)
    y = mt.checkpoint(lambda x: x.exp(), x, context_fn=lambda: (first, nothing))
    y.backward()
    assert first.count == 1
    y = mt.checkpoint(lambda x: x.exp(), x, context_fn=lambda: (nothing, again))
    assert again.count == 0
    y.backward()
    assert again.count == 1


def test_a_context_that_swallows_an_exception_leaves_no_result():
    def refuse(x):
        raise KeyError("lost")

    def contexts():
        return contextlib.suppress(KeyError), contextlib.nullcontext()

    with pytest.raises(RuntimeError, match="refuse: a context .* swallowed an exception"):
        mt.checkpoint(refuse, scalar(), context_fn=contexts)


@pytest.mark.parametrize("early_stop", [True, False])
def test_where_only_the_input_is_saved_nothing_is_computed_again(early_stop):
    """The function is called, and stopped before its operation."""
    calls = []

    def function(x):
        calls.append(x.requires_grad)
        return x.sin()

    x = torch.tensor(0.5, requires_grad=True)
    with Operations(aten.sin.default) as operations:
        mt.checkpoint(function, x, early_stop=early_stop).backward()
    assert len(calls) == 2
    assert operations.count == (1 if early_stop else 2)
    assert torch.equal(x.grad, x.detach().cos())


@pytest.mark.parametrize("mode", ["hash", "default", "none"])
def test_a_second_run_that_would_save_more_is_stopped_before(mode):
    """Without early stop it is an error; with it the first run's gradients come out."""
    runs = [lambda x: x.sin().exp(), lambda x: x.sin().exp().sin().cos()]
    for early_stop in (True, False):
        x = torch.randn(3, requires_grad=True)
        each = iter(runs)
        y = mt.checkpoint(lambda x, each=each: next(each)(x), x, early_stop=early_stop, determinism_check=mode)
        if early_stop:
            y.sum().backward()
            assert torch.equal(x.grad, torch.autograd.grad(runs[0](x).sum(), x)[0])
        else:
            with pytest.raises(mt.CheckpointError, match="saved 2 tensors"):
                y.sum().backward()


# --- selective checkpoints ------------------------------------------------------------------------


def _policy(context, operation, *args, **kwargs):
    kept = operation is aten.mm.default
    return theirs.CheckpointPolicy.MUST_SAVE if kept else theirs.CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize(
    "kept, times",
    [
        ([aten.mm.default], 1),
        (_policy, 1),
        (lambda context, operation, *args, **kwargs: operation is aten.mm.default, 1),
        ([aten.sin.default], 2),
    ],
    ids=["list", "policy", "yes or no", "another"],
)
def test_what_is_named_in_any_of_three_ways_is_computed_once(kept, times):
    x, y = (torch.randn(16, 16, requires_grad=True) for _ in range(2))

    def function(x, y):
        return torch.mm(x.cos(), y).sin().exp().sum()

    contexts = functools.partial(theirs.create_selective_checkpoint_contexts, kept)
    with Operations(aten.mm.default) as products:
        out = mt.checkpoint(function, x, y, context_fn=contexts)
    with Operations(aten.mm.default) as again:
        got = torch.autograd.grad(out, (x, y))
    assert products.count == 1
    assert again.count == 2 + times - 1  # two are those of the derivatives
    wanted = torch.autograd.grad(function(x, y), (x, y))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted))
