"""Behaviours that torch tests of its checkpoint and checkpoint_sequential, tested of ours.

docs/guide/pytorch-tests.md lists torch's tests one by one and what stands for each here.
"""

from __future__ import annotations

import contextlib
import threading

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils import checkpoint as theirs  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import memopt.torch as mt  # noqa: E402


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


def test_results_that_are_not_tensors_pass_through():
    def function(a, b, scale, c):
        d, e = a + b * c, a * b + c
        d *= scale
        e *= scale
        return scale, d, None, True, e, "bar", a

    a, b = (torch.rand(10, requires_grad=True) for _ in range(2))
    c = torch.rand(10)
    plain = function(a, b, 3, c)
    expected = torch.autograd.grad([plain[1].sum(), plain[4].sum(), plain[6].sum()], [a, b])
    ours = mt.checkpoint(function, a, b, 3, c)
    assert (ours[0], ours[2], ours[3], ours[5]) == (3, None, True, "bar") and ours[6] is a
    assert torch.equal(ours[1], plain[1]) and torch.equal(ours[4], plain[4])
    ours[1].sum().backward(retain_graph=True)
    ours[4].sum().backward(retain_graph=True)
    ours[6].sum().backward()
    torch.testing.assert_close([a.grad, b.grad], list(expected))
    numbers = mt.checkpoint(function, 1.0, 2.0, 3, 4.0)
    assert numbers == (3, 27.0, None, True, 18.0, "bar", 1.0)


def test_a_chain_takes_one_input():
    chain = nn.Sequential(nn.Linear(4, 4))
    x = torch.randn(2, 4, requires_grad=True)
    with pytest.raises(TypeError):
        mt.checkpoint_sequential(chain, 1, x, x, x)
    with pytest.raises(TypeError):
        mt.checkpoint_sequential(chain, 1)


def test_a_module_list_is_a_chain():
    layers = nn.ModuleList([nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU()])
    x = torch.randn(3, 10, requires_grad=True)
    mt.checkpoint_sequential(layers, 2, x).sum().backward()
    y = x.detach().clone().requires_grad_()
    gradients = [p.grad.clone() for p in layers.parameters()]
    layers.zero_grad()
    nn.Sequential(*layers)(y).sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert all(torch.equal(g, p.grad) for g, p in zip(gradients, layers.parameters()))


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


def test_data_parallel():
    module = nn.DataParallel(nn.Linear(2, 2))
    x = torch.randn(3, 2, requires_grad=True)
    mt.checkpoint(module, x).sum().backward()
    y = x.detach().clone().requires_grad_()
    module(y).sum().backward()
    assert torch.equal(x.grad, y.grad)


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
        thread = threading.Thread(target=lambda: y.sum().backward())
        thread.start()
        thread.join()
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


class Names(TorchDispatchMode):
    """The operations that pass through."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_each_context_is_around_its_own_run():
    x = scalar()
    nothing = contextlib.nullcontext()
    first, again = Names(), Names()
    y = mt.checkpoint(lambda x: x.exp(), x, context_fn=lambda: (first, nothing))
    assert first.operations == ["exp.default"]
    y.backward()
    assert first.operations == ["exp.default"]
    y = mt.checkpoint(lambda x: x.exp(), x, context_fn=lambda: (nothing, again))
    assert not again.operations
    y.backward()
    assert again.operations[0] == "exp.default" and again.operations.count("exp.default") == 1


def test_a_context_that_swallows_an_exception_leaves_no_result():
    def refuse(x):
        raise KeyError("lost")

    def contexts():
        return contextlib.suppress(KeyError), contextlib.nullcontext()

    with pytest.raises(RuntimeError, match="refuse: a context .* swallowed an exception"):
        mt.checkpoint(refuse, scalar(), context_fn=contexts)


# --- chains ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("modules", [1, 2, 5])
@pytest.mark.parametrize("segments", [1, 2, 5])
def test_chains_of_any_length(modules, segments):
    chain = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(modules)))
    x = torch.randn(4, 8, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    chain(x).sum().backward()
    expected = [p.grad.clone() for p in chain.parameters()]
    chain.zero_grad()
    mt.checkpoint_sequential(chain, segments, y).sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert all(torch.equal(a, p.grad) for a, p in zip(expected, chain.parameters()))


def test_a_chain_s_gradient_has_a_gradient():
    chain = nn.Sequential(nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 2), nn.Tanh())
    x = torch.randn(1, 10, requires_grad=True)

    def twice(y):
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.square().sum(), x)[0]

    plain = twice(chain(x))
    ours = twice(mt.checkpoint_sequential(list(chain), 2, x))
    torch.testing.assert_close(ours, plain)
