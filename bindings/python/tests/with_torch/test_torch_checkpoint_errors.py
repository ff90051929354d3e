"""checkpoint(): what goes wrong is told, on every thread."""

from __future__ import annotations

import pytest
import torch

import memopt.torch as mt
from checkpoint_support import MODES, Block, assert_same, block, results, x  # noqa: F401
from on_threads import on_threads


# --- what goes wrong ------------------------------------------------------------------------------


def changing(*functions):
    """A function that is another one at each call."""
    calls = iter(functions)
    return lambda x: next(calls)(x)


@pytest.mark.parametrize("mode", MODES)
def test_fewer_tensors(x, mode):
    y = mt.checkpoint(changing(lambda x: x.sin().cos(), lambda x: x.sin()), x, determinism_check=mode)
    with pytest.raises(mt.CheckpointError, match="saved 2 tensors .* only 1"):
        y.sum().backward()


def test_another_shape_or_dtype(x):
    y = mt.checkpoint(changing(lambda x: x.sin(), lambda x: x[:2].sin()), x)
    with pytest.raises(mt.CheckpointError, match=r"tensor 0 of 1 was float32 of \[8, 16\].*\[2, 16\]"):
        y.sum().backward()
    y = mt.checkpoint(changing(lambda x: x.sin(), lambda x: x.double().sin()), x)
    with pytest.raises(mt.CheckpointError, match="float32 .* float64"):
        y.sum().backward()


def test_other_contents(device):
    big = torch.randn(64, 64, device=device, requires_grad=True)
    noise = torch.zeros(64, 64, device=device)

    def function(x):
        return (x + noise).sin().cos()

    y = mt.checkpoint(function, big, determinism_check="hash")
    noise[40, 3] = 1.0  # byte 10,252
    with pytest.raises(mt.CheckpointError) as caught:
        y.sum().backward()
    text = str(caught.value)
    assert "test_other_contents" in text and "saved tensor 0 of 2" in text
    line = function.__code__.co_firstlineno + 1
    assert "saved by %s, line %d)" % (__file__, line) in text
    assert "float32 of [64, 64]" in text and "bytes 8192 to 12287 of 16384" in text
    y = mt.checkpoint(function, big)  # shapes agree, so this passes
    noise[0, 0] = 2.0
    y.sum().backward()


def test_running_statistics_need_not_agree(device):
    """The second run meets those that the first has left. Other contents are still compared."""
    norm = torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.Tanh()).to(device)
    x = torch.randn(8, 5, device=device, requires_grad=True)
    first, second = (mt.checkpoint(norm, x, determinism_check="hash").sum() for _ in range(2))
    first.backward()
    with torch.no_grad():
        norm[0].weight.add_(1)
    with pytest.raises(mt.CheckpointError, match="has other contents"):
        second.backward()


def test_gaps_that_ctc_loss_never_writes_need_not_agree():
    logits = torch.randn(50, 16, 20, requires_grad=True)
    lengths = torch.arange(16)
    targets = torch.randint(1, 20, (16, 15))

    def function(x):
        waste = [torch.rand(16 * 50 * 31) for _ in range(8)]  # what empty memory will have in it
        del waste
        return torch.nn.functional.ctc_loss(x.log_softmax(-1), targets, lengths + 34, lengths)

    for _ in range(5):
        mt.checkpoint(function, logits, determinism_check="hash").backward()


def test_forgotten_random_state_is_found(block, x):
    y = mt.checkpoint(block, x, preserve_rng_state=False, determinism_check="hash")
    with pytest.raises(mt.CheckpointError, match="random state"):
        y.sum().backward()


def test_an_input_in_a_list_changed_in_place(block, x):
    base = x * 1.0
    y = mt.checkpoint(lambda items: block(items[0]), [base])
    with torch.no_grad():
        base.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


class Refused(Exception):
    pass


def test_exceptions_come_out_and_leave_nothing_behind(block, x):
    def refuse(x):
        raise Refused

    with pytest.raises(Refused):
        mt.checkpoint(lambda x: refuse(x.sin()), x)
    plain = results(lambda: block(x), [x])
    y = mt.checkpoint(changing(torch.sin, refuse), x)
    with pytest.raises(Refused):
        y.sum().backward()
    assert_same(plain, results(lambda: mt.checkpoint(block, x), [x]))


def test_bad_arguments(x):
    with pytest.raises(ValueError, match="determinism_check must be one of 'none', 'default', 'hash'"):
        mt.checkpoint(torch.sin, x, determinism_check="exact")
    with pytest.raises(NotImplementedError, match="selective"):
        mt.checkpoint(torch.sin, x, respect_saved_tensors_hooks=True)


# --- threads --------------------------------------------------------------------------------------


def test_backward_on_other_threads(device):
    """Several threads, each with its own graph, backward on threads that ran no forward."""
    block = Block().to(device)
    block.drop.p = 0.0

    def work(seed):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(device)
        x.requires_grad_()
        loss = mt.checkpoint(block, x, determinism_check="hash").square().sum()
        wanted = torch.autograd.grad(block(x).square().sum(), x)
        got = []
        on_threads(lambda _: got.extend(torch.autograd.grad(loss, x)))
        assert torch.equal(wanted[0], got[0])

    on_threads(work, range(8))


def test_one_graph_backward_on_two_threads(device):
    block = Block().to(device)
    block.drop.p = 0.0
    x = torch.randn(8, 16, device=device, requires_grad=True)
    loss = mt.checkpoint(block, x).square().sum()
    wanted = torch.autograd.grad(block(x).square().sum(), x)[0]

    def work(_):
        for _ in range(20):
            assert torch.equal(wanted, torch.autograd.grad(loss, x, retain_graph=True)[0])

    on_threads(work, range(3))
