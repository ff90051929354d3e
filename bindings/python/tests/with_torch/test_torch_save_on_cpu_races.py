"""save_on_cpu(): the bugs of other offloaders, on streams that run as a GPU's do."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from save_on_cpu_support import (  # noqa: E402, F401
    Keeping,
    net,
    offload,
    plain,
    streams,
    through,
    train,
    x,
)

from memopt.torch import _slots, _store  # noqa: E402


# --- bugs of other offloaders ---------------------------------------------------------------------


def test_a_source_lives_until_its_copy_is_done(streams):
    """Freed at once, its memory is given to the next tensor while the copy still reads it."""
    context = streams(prefetch=0)
    anchor = torch.ones((), requires_grad=True)
    seen, result = [], anchor
    with context:
        long = torch.zeros(1 << 25)  # its copy delays the others
        result = Keeping.apply(result, lambda saved: None, long)
        for i in range(40):
            value = torch.full((1 << 18,), float(i))
            result = Keeping.apply(result, seen.extend, value)
            del value
            torch.full((1 << 18,), -1.0)  # takes the memory of whatever is free
    result.backward()
    assert [float(t.min()) for t in seen] == [float(t.max()) for t in seen]
    assert [float(t[0]) for t in seen] == [float(i) for i in range(40)][::-1]


def test_few_sources_wait_for_their_copies(streams):
    """Kept until backward they would save no memory at all."""
    context = streams()
    anchor = torch.ones((), requires_grad=True)
    storages, result = [], anchor
    with context:
        for _ in range(20):
            value = torch.randn(1 << 16)
            storages.append(weakref.ref(value.untyped_storage()))
            result = Keeping.apply(result, lambda saved: None, value)
            del value
            assert sum(storage() is not None for storage in storages) <= _store.FLIGHTS + 1
    result.backward()


def test_a_prefetch_is_in_order_behind_the_copy_to_the_host(streams):
    """A copy back that starts before the copy to the host is done brings old bytes."""
    context = streams(prefetch=8)
    anchor = torch.ones((), requires_grad=True)
    for round_ in range(10):
        seen, result = [], anchor
        with context:
            for i in range(12):
                result = Keeping.apply(
                    result, seen.extend, torch.full((1 << 17,), float(100 * round_ + i))
                )
        result.backward()
        assert [(float(t.min()), float(t.max())) for t in seen] == [
            (100.0 * round_ + i,) * 2 for i in range(12)
        ][::-1]
    assert context.stats()["prefetch_hits"] >= 100


def test_prefetch_goes_backwards_and_no_further_than_told(streams):
    context = streams(prefetch=2)
    x = torch.randn(1 << 14)
    anchor = torch.ones((), requires_grad=True)
    result, ahead = anchor, []

    def see(saved):
        ahead.append([entry.number for entry in _slots._live.values() if entry.prefetched])

    first = None
    with context:
        for i in range(6):
            result = Keeping.apply(result, see, x + i)
            first = first or max(_slots._live)
    result.backward()
    # what an earlier test left for the collector may still live
    own = [[n - first for n in sorted(numbers) if n >= first] for numbers in ahead]
    assert own == [
        [3, 4],
        [2, 3],
        [1, 2],
        [0, 1],
        [0],
        [],
    ]


def test_prefetched_values_that_nobody_asks_for_are_given_back(streams):
    context = streams(prefetch=4)
    x = torch.randn(1 << 14)
    result = torch.ones((), requires_grad=True)
    with context:
        for _ in range(5):
            result = Keeping.apply(result, lambda saved: None, x + 1)
        result = Keeping.apply(result, lambda saved: 1 / 0, x + 1)
    with pytest.raises(ZeroDivisionError):
        result.backward()
    del result
    assert context.stats()["tickets"] == 0


def test_the_stream_is_asked_for_at_every_call(streams, monkeypatch):
    """A stream that was current once is not the one that work is on now."""
    asked = []
    real = _store.Store.stream
    monkeypatch.setattr(_store.Store, "stream", lambda self: asked.append(1) or real(self))
    context = streams()
    values = [torch.randn(1000) for _ in range(5)]
    through(context, *values)
    assert len(asked) == 10


def test_elements_of_a_view_are_gathered_before_the_copy_is_ordered(streams):
    """Gathered after it, the copy would read them before they are there."""
    context = streams()
    for i in range(20):
        (got,) = through(context, torch.full((512, 256, 8), float(i))[:, :, 3])
        assert torch.equal(got, torch.full((512, 256), float(i)))


def test_memory_does_not_grow_over_steps(offload, net, x):
    """Stashes that are cleared only at the next step's end hold what the last one left."""
    context = offload(keep_last=2)
    for _ in range(3):
        train(net, x, context)
    gc.collect()
    objects = len(gc.get_objects())
    held = context.stats()["host_bytes"]
    for _ in range(10):
        train(net, x, context)
    assert context.stats()["host_bytes"] == held and context.stats()["tickets"] == 0
    gc.collect()
    assert len(gc.get_objects()) <= objects + 50
    assert not context._packer.by_storage


def test_backward_under_the_context_is_right(offload, net, x):
    """Backward inside ``with``, where recomputation and double backward save again."""
    wanted = train(net, x, plain())
    net2, context = copy.deepcopy(net), offload()
    torch.manual_seed(7)
    net2.zero_grad()
    x.grad = None
    with context:
        loss = net2(x).square().sum()
        loss.backward()
    assert torch.equal(wanted[1], x.grad)


def test_no_pack_waits_for_its_copy(streams, monkeypatch):
    """A copy that the forward pass waits for costs its whole time."""
    context = streams()
    packed = []
    real = _store.Store.pack

    def pack(self, slot, address, source):
        real(self, slot, address, source)
        packed.append(_store._query_packed(self._pointer, slot.ticket))

    monkeypatch.setattr(_store.Store, "pack", pack)
    value = torch.randn(1 << 22)
    for _ in range(10):
        through(context, value + 1)
    assert any(status != 0 for status in packed)  # under way when the call had returned
