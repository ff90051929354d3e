"""save_on_cpu(): what stays on the device, the host limit and its policies, options."""

from __future__ import annotations

import copy
import gc

import pytest
import torch

from save_on_cpu_support import (  # noqa: F401
    net,
    offload,
    plain,
    through,
    train,
    x,
)

import memopt
import memopt.torch as mt
from memopt.torch import _native


def test_the_newest_values_stay_on_the_device(offload, device):
    values = [torch.randn(1 << 15, device=device) for _ in range(6)]
    wanted = [value.clone() for value in values]
    context = offload(keep_last=2)
    got = through(context, *values)
    assert [a.data_ptr() == b.data_ptr() for a, b in zip(got, values)] == [False] * 4 + [True] * 2
    assert all(torch.equal(a, b) for a, b in zip(got, wanted))
    assert context.stats()["packs"] == 4 and context.stats()["kept_last"] == 2
    context = offload(keep_last="256KiB")
    through(context, *values)
    assert context.stats()["packs"] == 4


def test_one_memory_for_host_and_device(offload, device, monkeypatch):
    """A copy on the host would be a second one of the same bytes in it."""
    monkeypatch.setattr(_native, "shares_memory", lambda device: True)
    monkeypatch.setattr(_native, "_natives", {})
    values = [torch.randn(64 * 1024, device=device) for _ in range(6)]
    context = offload()
    got = through(context, *values)
    assert [a.data_ptr() for a in got] == [b.data_ptr() for b in values]
    stats = context.stats()
    assert stats["kept_overflow"] == 6 and stats["copied_out_bytes"] == stats["host_bytes_peak"] == 0


# --- the host limit -------------------------------------------------------------------------------


def test_keep_policy_leaves_on_the_device_what_does_not_fit(offload, device):
    values = [torch.randn(64 * 1024, device=device) for _ in range(6)]
    context = offload(host_limit="1MiB")
    got = through(context, *values)
    assert all(torch.equal(a, b) for a, b in zip(got, values))
    stats = context.stats()
    assert stats["packs"] == 6 and stats["kept_overflow"] == 2
    assert stats["host_bytes_peak"] <= 1 << 20 and stats["tickets"] == 0
    assert [a.data_ptr() == b.data_ptr() for a, b in zip(got, values)] == [False] * 4 + [True] * 2


def test_fail_policy_raises_and_leaves_nothing_behind(offload, net, x, device):
    wanted = train(net, x, plain())
    context = offload(host_limit="64KiB", overflow="fail")
    with pytest.raises(memopt.errors.LimitReachedError, match="host limit"):
        train(net, x, context)
    assert context.stats()["tickets"] == 0
    net = copy.deepcopy(net)
    assert len(train(net, x, offload(host_limit="64MiB", overflow="fail"))) == len(wanted)


def test_wait_policy_takes_what_backward_gives_back(offload, device):
    context = offload(host_limit="1MiB", overflow="wait")
    for i in range(8):  # sizes that cannot use each other's slabs
        value = torch.randn(40 * 1024 * (1 + i % 4), device=device)
        (got,) = through(context, value)
        assert torch.equal(got, value)
    values = [torch.randn(128 * 1024, device=device) for _ in range(3)]
    with pytest.raises(memopt.errors.LimitReachedError):
        through(context, *values)
    assert context.stats()["tickets"] == 0
    assert context.stats()["host_bytes_peak"] <= 1 << 20


def test_host_memory_is_of_exact_size(offload, device):
    """Powers of two waste up to half of it."""
    context = offload()
    sizes = [(1 << 20) + 4096 * 9 * i for i in range(1, 17)]
    values = [torch.randint(0, 255, (size,), dtype=torch.uint8, device=device) for size in sizes]
    through(context, *values)
    assert context.stats()["host_bytes_peak"] <= 1.03 * sum(sizes)


def test_host_memory_is_used_again(offload, net, x):
    context = offload()
    train(net, x, context)
    held = context.stats()["host_bytes"]
    for _ in range(5):
        train(net, x, context)
    assert context.stats()["host_bytes"] == held
    del context
    gc.collect()
    context = offload()
    train(net, x, context)  # another object, the same memory
    stats = context.stats()
    assert stats["host_bytes"] == held and stats["packs"] > 0
    assert context.trim() == held and context.stats()["host_bytes"] == 0


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="overflow"):
        mt.save_on_cpu(overflow="drop")
    with pytest.raises(ValueError):
        mt.save_on_cpu(host_limit="many")
    for name in ("prefetch", "in_flight"):
        for value in (-1, "many"):
            with pytest.raises(ValueError):
                mt.save_on_cpu(**{name: value})
        with pytest.raises(ValueError, match=name + " is in bytes, .* 2 is too few"):
            mt.save_on_cpu(**{name: 2})
    with pytest.raises(ValueError, match="keep_last"):
        mt.save_on_cpu(keep_last=-1)
    with pytest.raises(TypeError):
        mt.save_on_cpu(min_bytes=1.5)
    assert mt.save_on_cpu(True, "cuda") is not None  # torch's positions


def test_what_an_object_leaves_is_the_next_one_s(offload, device):
    """Its host memory, by the store that it gives back; and no hook on modules is left."""
    from memopt.torch import _buffers, _store

    context = offload()
    x = torch.randn(1000, device=device, requires_grad=True)
    with context:
        y = (x * 2).sin()
        assert _buffers._KEY in _buffers._hooks
    assert _buffers._KEY not in _buffers._hooks
    y.sum().backward()
    (store,) = context._packer.stores.values()
    assert not any(_store._idle.values())
    del context, y
    assert [one for stores in _store._idle.values() for one in stores] == [store]
    with offload() as again:
        (x * 2).sin()
    assert list(again._packer.stores.values()) == [store]
