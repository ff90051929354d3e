"""What torch's test_autograd.py tries with checkpoints beyond its test_utils.py, with ours.

docs/guide/pytorch-tests.md lists torch's tests one by one and what stands for each here.
"""

from __future__ import annotations

import contextlib
import copy
import functools

import pytest

torch = pytest.importorskip("torch")
from torch.utils import checkpoint as theirs  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import memopt.torch as mt  # noqa: E402

aten = torch.ops.aten
both_ways = pytest.mark.parametrize("early_stop", [True, False])


class Operations(TorchDispatchMode):
    """Counts an operation that is really computed."""

    def __init__(self, operation):
        super().__init__()
        self.operation, self.count = operation, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is self.operation
        return function(*args, **(kwargs or {}))


@both_ways
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
        y = mt.checkpoint(
            lambda x, each=each: next(each)(x), x, early_stop=early_stop, determinism_check=mode
        )
        if early_stop:
            y.sum().backward()
            assert torch.equal(x.grad, torch.autograd.grad(runs[0](x).sum(), x)[0])
        else:
            with pytest.raises(mt.CheckpointError, match="saved 2 tensors"):
                y.sum().backward()


@pytest.mark.parametrize("debug", [None, True, False])
@pytest.mark.parametrize("enabled", [None, True, False])
def test_the_message_names_the_tensor_with_torch_s_debugging_or_without(debug, enabled):
    each = iter([lambda x: x.sin().exp(), lambda x: x.sin() * torch.tensor([1.0, 2.0])])
    given = {} if debug is None else {"debug": debug}
    around = contextlib.nullcontext() if enabled is None else None
    with around or theirs.set_checkpoint_debug_enabled(enabled):
        y = mt.checkpoint(lambda x: next(each)(x), torch.randn(1, requires_grad=True), **given)
        with pytest.raises(mt.CheckpointError, match=r"tensor 1 of 2 was float32 of \[1\]"):
            y.sum().backward()


@both_ways
def test_gradients_of_keyword_arguments_and_of_mixed_ones(early_stop):
    def by_keyword(a, scale=None):
        y = a.sin().exp()
        return (y if scale is None else y * scale).sin().exp()

    def mixed(number, a, b, function):
        return function(number * a * b.exp()), 1, "text"

    a, b = (torch.tensor(value, requires_grad=True) for value in (2.0, 3.0))
    with theirs.set_checkpoint_early_stop(early_stop):
        y = mt.checkpoint(by_keyword, a, scale=b)
        z, one, text = mt.checkpoint(mixed, 3, a, b, torch.sin)
    assert (one, text) == (1, "text")
    for ours, plain in ((y, by_keyword(a, scale=b)), (z, mixed(3, a, b, torch.sin)[0])):
        got, wanted = torch.autograd.grad(ours, (a, b)), torch.autograd.grad(plain, (a, b))
        assert all(torch.equal(x, y) for x, y in zip(got, wanted))


@pytest.mark.parametrize("inputs_need_gradients", [True, False])
def test_many_checkpoints_of_one_module_in_one_graph(inputs_need_gradients):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.ReLU(), torch.nn.Linear(50, 6))
    other = copy.deepcopy(module)
    data = [torch.rand(1, 6, requires_grad=inputs_need_gradients) for _ in range(200)]
    copies = [d.detach().clone().requires_grad_(inputs_need_gradients) for d in data]
    torch.stack([mt.checkpoint(module, input=d) for d in data]).mean().backward()
    torch.stack([other(d) for d in copies]).mean().backward()
    for p, q in zip(module.parameters(), other.parameters()):
        assert p.grad.abs().sum() > 0
        torch.testing.assert_close(p.grad, q.grad)
    for d, e in zip(data, copies):
        assert (d.grad is None) == (e.grad is None) == (not inputs_need_gradients)
        if inputs_need_gradients:
            torch.testing.assert_close(d.grad, e.grad)


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


def test_a_policy_is_asked_what_torch_s_checkpoint_asks_it():
    """Of both runs in older versions, of the first in newer ones; the last sine is not run again."""

    def asked(call):
        seen = []

        def policy(context, operation, *args, **kwargs):
            seen.append((context.is_recompute, str(operation)))
            return theirs.CheckpointPolicy.PREFER_RECOMPUTE

        contexts = functools.partial(
            theirs.create_selective_checkpoint_contexts, policy, allow_cache_entry_mutation=True
        )
        x = torch.randn(3, requires_grad=True)
        with Operations(aten.sin.default) as sines:
            call(lambda x: x.sin().sin().sin(), x, use_reentrant=False, context_fn=contexts)
        out = call(lambda x: x.sin().sin().sin(), x, use_reentrant=False, context_fn=contexts)
        with Operations(aten.sin.default) as again:
            out.sum().backward()
        return seen, sines.count, again.count

    ours = asked(mt.checkpoint)
    assert ours == asked(theirs.checkpoint)
    assert ours[0][:3] == [(False, "aten.sin.default")] * 3 and ours[1:] == (3, 2)
