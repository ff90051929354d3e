"""checkpoint(): the same numbers as without it, less memory, and every mistake told."""

from __future__ import annotations

import collections
import functools
import gc
import weakref

import pytest
import torch

import memopt.torch as mt
from memopt.torch._live_bytes import LiveBytes
from checkpoint_support import MODES, Block, assert_same, block, results, x  # noqa: F401


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_the_same(block, x, mode):
    inputs = [x, *block.parameters()]
    plain = results(lambda: block(x), inputs)
    runs = block.runs
    assert_same(plain, results(lambda: mt.checkpoint(block, x, determinism_check=mode), inputs))
    assert block.runs == runs + 2


Pair = collections.namedtuple("Pair", "left right")


def test_arguments_of_every_shape(block, x):
    y = torch.randn_like(x).requires_grad_()
    inputs = [x, y, *block.parameters()]

    def function(pair, options, number, *, items, flag):
        assert type(pair) is Pair and flag == "on" and number == 3
        assert type(options) is collections.OrderedDict and options["none"] is None
        return block(pair.left * items[0][1], scale=options["scale"]) + pair.right

    def arguments():
        scale = torch.full((), 2.0, device=x.device)
        options = collections.OrderedDict(scale=scale, none=None)
        return (Pair(x, y), options, 3), dict(items=[(5, y.sin())], flag="on")

    def plain():
        args, kwargs = arguments()
        return function(*args, **kwargs)

    def ours():
        args, kwargs = arguments()
        return mt.checkpoint(function, *args, **kwargs)

    assert_same(results(plain, inputs), results(ours, inputs))


def test_a_tensor_that_the_function_changes_is_passed_as_it_left_it(x):
    """Torch does not look at what is no positional argument, inference tensors among it."""
    with torch.inference_mode():
        mask = torch.ones_like(x)

    def function(x, items, *, count, mask):
        count.add_(1)
        items[0].add_(1)
        return (x * count).sin() + mask

    def run(call):
        count, item = torch.zeros(1, device=x.device), torch.zeros(1, device=x.device)
        loss = call(function, x, [item], count=count, mask=mask).sum()
        return torch.autograd.grad(loss, x)[0], count, item

    wanted = run(functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False))
    assert all(torch.equal(one, other) for one, other in zip(run(mt.checkpoint), wanted))
    assert float(wanted[1]) == float(wanted[2]) == 2


def test_results_of_every_shape(block, x):
    def function(x):
        return {"a": block(x), "b": [x.sin(), 4]}

    result = mt.checkpoint(function, x)
    assert result["b"][1] == 4
    (result["a"].sum() + result["b"][0].sum()).backward()
    assert x.grad is not None


def test_inputs_that_need_no_gradient(block, x):
    data, inputs = x.detach(), list(block.parameters())
    assert_same(results(lambda: block(data), inputs), results(lambda: mt.checkpoint(block, data), inputs))


def test_without_gradients_it_is_a_plain_call(block, x):
    with torch.no_grad():
        y = mt.checkpoint(block, x)
    assert not y.requires_grad and block.runs == 1


def test_decorator(block, x):
    @mt.checkpoint(determinism_check="hash")
    def function(x):
        return block(x)

    assert_same(results(lambda: block(x), [x]), results(lambda: function(x), [x]))


def test_random_state_after_backward_is_as_without(block, x):
    results(lambda: block(x), [x])
    plain = torch.rand(3, device=x.device)
    results(lambda: mt.checkpoint(block, x), [x])
    assert torch.equal(plain, torch.rand(3, device=x.device))


def test_random_state_not_preserved_is_another_dropout(block, x):
    plain = results(lambda: block(x), [x])
    other = results(lambda: mt.checkpoint(block, x, preserve_rng_state=False), [x])
    assert torch.equal(plain[0], other[0]) and not torch.equal(plain[1][0], other[1][0])


def test_autocast_holds_in_the_second_run(block, x):
    kinds = []

    def function(x):
        y = block.one(x)
        kinds.append(y.dtype)
        return block.two(y.sin())

    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        plain = function(x)
        y = mt.checkpoint(function, x)
    wanted = torch.autograd.grad(plain.float().sum(), x)
    with torch.autocast(x.device.type, dtype=torch.float16, enabled=False):
        got = torch.autograd.grad(y.float().sum(), x)
    assert kinds == [torch.bfloat16] * 3 and torch.equal(wanted[0], got[0])


# --- autograd's ways ------------------------------------------------------------------------------


def test_backward_twice(block, x):
    inputs = [x, *block.parameters()]
    plain = results(lambda: block(x), inputs)
    loss, first = results(lambda: mt.checkpoint(block, x), inputs, retain_graph=True)
    assert_same(plain, (loss, first))
    assert_same(plain, (loss, torch.autograd.grad(loss, inputs)))
    assert block.runs == 4


def test_double_backward(block, x):
    def second(function):
        torch.manual_seed(7)
        (gradient,) = torch.autograd.grad(function().square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), [x, *block.parameters()][:3])

    plain = second(lambda: block(x))
    ours = second(lambda: mt.checkpoint(block, x))
    assert all(torch.equal(a, b) for a, b in zip(plain, ours))


def test_parts_of_the_graph(block, x):
    plain = results(lambda: block(x), [block.two.weight])
    loss, part = results(lambda: mt.checkpoint(block, x), [block.two.weight], retain_graph=True)
    assert_same(plain, (loss, part))
    assert torch.equal(results(lambda: block(x), [x])[1][0], torch.autograd.grad(loss, [x])[0])


def test_beside_torch_save_on_cpu(block, x):
    inputs = [x, *block.parameters()]
    plain = results(lambda: block(x), inputs)
    with torch.autograd.graph.save_on_cpu():
        ours = results(lambda: mt.checkpoint(block, x), inputs)
    assert_same(plain, ours)


# --- memory ---------------------------------------------------------------------------------------


def held_after_forward(function, known):
    with LiveBytes(known) as live:
        result = function()
        held = live.live
        result.sum().backward()
        del result
        gc.collect()
    return held, live


def test_activations_are_not_kept(device):
    blocks = [Block(64).to(device) for _ in range(4)]
    x = torch.randn(32, 64, device=device, requires_grad=True)
    known = [x, *(p for b in blocks for p in b.parameters())]

    def run(call):
        y = x
        for block in blocks:
            y = call(block, y)
        return y

    plain, _ = held_after_forward(lambda: run(lambda f, x: f(x)), known)
    ours, _ = held_after_forward(lambda: run(mt.checkpoint), known)
    outputs = 4 * x.numel() * 4
    assert outputs <= ours <= outputs + 4 * 64 and plain > 5 * ours


def test_outer_hooks_have_the_inputs_to_themselves(block, x):
    """What save_on_cpu has on the host is not kept on the device beside it."""
    with mt.save_on_cpu(device_type=x.device.type, min_bytes=1) as offloaded:
        base = x * 2
        storage = weakref.ref(base.untyped_storage())
        y = mt.checkpoint(block, base)
        del base
    assert storage() is None and offloaded.stats()["tickets"] == 1
    y.sum().backward()


def test_everything_is_freed_without_the_collector(block, x):
    gc.collect()
    gc.disable()
    try:
        seen = []

        def function(x):
            y = block(x)
            seen.append(weakref.ref(y))
            return y.sin()

        mt.checkpoint(function, x).sum().backward()
        z = mt.checkpoint(function, x)  # its graph is dropped unused
        del z
        assert [reference() for reference in seen] == [None] * 3
    finally:
        gc.enable()


def test_recomputed_values_die_one_by_one(device):
    """The values of a region go as backward passes them, not at the region's end."""
    x = torch.randn(1000, device=device, requires_grad=True)

    def function(x):
        for _ in range(20):
            x = torch.sin(x)
        return x

    with LiveBytes([x]) as live:
        y = mt.checkpoint(function, x)
        counts = []
        node = y.grad_fn
        while node is not None and hasattr(node, "_saved_self"):
            node.register_prehook(lambda *_: counts.append(live.live))
            node = node.next_functions[0][0]
        y.sum().backward()
    assert counts[2] - counts[-1] > 14 * 4000


def test_a_tensor_that_is_passed_twice_is_one_again():
    """torch's MultiheadAttention takes another way where query and key are one object."""
    seen = []

    def product(a, b, more):
        seen.append((a is b, a is more[0]))
        return (a * b).sum()

    x = torch.ones(4, requires_grad=True) * 2
    mt.checkpoint(product, x, x, [x]).backward()
    assert seen == [(True, True)] * 2
