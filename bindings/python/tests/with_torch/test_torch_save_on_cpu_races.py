"""save_on_cpu(): the bugs of other offloaders, on streams that run as a GPU's do."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch

from save_on_cpu_support import (  # noqa: F401
    Keeping,
    net,
    offload,
    plain,
    streams,
    through,
    train,
    x,
)

from memopt.torch import _ahead, _batches, _slots, _store


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
    context = streams(in_flight="1MiB")
    anchor = torch.ones((), requires_grad=True)
    storages, result = [], anchor
    with context:
        for _ in range(20):
            value = torch.randn(1 << 16)
            storages.append(weakref.ref(value.untyped_storage()))
            result = Keeping.apply(result, lambda saved: None, value)
            del value
            assert sum(storage() is not None for storage in storages) <= 4 + 1
    result.backward()


def test_a_prefetch_is_in_order_behind_the_copy_to_the_host(streams):
    """A copy back that starts before the copy to the host is done brings old bytes."""
    context = streams(prefetch="4MiB")
    anchor = torch.ones((), requires_grad=True)
    for round_ in range(10):
        seen, result = [], anchor
        with context:
            for i in range(12):
                result = Keeping.apply(result, seen.extend, torch.full((1 << 17,), float(100 * round_ + i)))
        result.backward()
        assert [(float(t.min()), float(t.max())) for t in seen] == [(100.0 * round_ + i,) * 2 for i in range(12)][::-1]
    assert context.stats()["prefetch_hits"] >= 100


def test_prefetch_goes_backwards_and_no_further_than_told(streams):
    context = streams(prefetch="128KiB")
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
    assert own == [[3, 4], [2, 3], [1, 2], [0, 1], [0], []]


def seen_ahead(context, values):
    """What backward gets of values that are saved one by one, and what was on its way back behind
    each, in bytes."""
    anchor = torch.ones((), requires_grad=True)
    result, seen, ahead = anchor, [], []

    def see(saved):
        seen.extend(saved)
        slots = [s for s in _slots._live.values() if s.owner is context._packer and s.prefetched]
        ahead.append([slot.nbytes for slot in slots])

    with context:
        for value in values:
            result = Keeping.apply(result, see, value)
    result.backward()
    return seen[::-1], ahead


def test_the_way_ahead_is_counted_in_bytes(streams, monkeypatch):
    """Few large values among many tiny ones: by numbers it is nothing, or all of them."""
    monkeypatch.setattr(_batches, "BATCH_BYTES", 0)
    tiny, large = 2048, 1 << 20
    sizes = [large] * 3 + [tiny] * 100 + [large] + [tiny] * 100 + [large] * 2
    values = [torch.randint(0, 255, (n,), dtype=torch.uint8) for n in sizes]
    context = streams(prefetch="100KiB", in_flight="100KiB")
    got, ahead = seen_ahead(context, values)
    assert all(torch.equal(one, other) for one, other in zip(got, values))
    assert context.stats()["prefetch_hits"] == len(values) - 1  # each is ahead at its turn
    for behind, there in zip(sizes[::-1][1:], ahead):
        assert sum(there) <= max(100 << 10, behind)
    assert [tiny] * 50 in ahead and [large] in ahead


def test_a_forward_pass_says_how_far_ahead(streams, monkeypatch):
    """Without a limit a sixteenth of it, at least 32 MiB; it is that of the first step already."""
    values = [torch.full((1 << 14,), float(i)) for i in range(48)]
    _, ahead = seen_ahead(streams(), values)
    assert len(ahead[0]) == 47
    monkeypatch.setattr(_ahead, "LEAST_BYTES", 0)
    context = streams()
    for _ in range(2):
        got, ahead = seen_ahead(context, values)
        assert all(torch.equal(one, other) for one, other in zip(got, values))
        assert [len(there) for there in ahead] == [3] * 45 + [2, 1, 0]
    _, ahead = seen_ahead(context, values[:4])  # a shorter pass changes nothing
    assert [len(there) for there in ahead] == [3, 2, 1, 0]


def test_no_memory_for_the_way_ahead_is_no_error(streams, monkeypatch):
    """The value itself may find memory when backward asks."""
    asked = []

    def full(slot):
        asked.append(slot.number)
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(_slots.Slot, "room", full)
    values = [torch.full((1 << 14,), float(i)) for i in range(6)]
    context = streams()
    got, _ = seen_ahead(context, values)
    assert all(torch.equal(one, other) for one, other in zip(got, values))
    assert len(asked) == 5 and context.stats()["prefetch_hits"] == 0


@pytest.mark.parametrize("nbytes", [16 << 10, 64 << 10])
def test_what_came_ahead_gives_way_to_what_is_needed(streams, monkeypatch, nbytes):
    """A device that has room for one value beside those on their way back: an unpack takes theirs."""
    real, refused, context = _slots._empty_strided, [], streams()

    def ahead():
        return [slot for slot in _slots._live.values() if slot.owner is context._packer and slot.prefetched]

    def limited(*arguments, **options):
        if ahead() or refused == ["for good"]:
            refused.append(len(ahead()))
            raise torch.cuda.OutOfMemoryError("full")
        return real(*arguments, **options)

    for module in (_slots, _batches):
        monkeypatch.setattr(module, "_empty_strided", limited)
    values = [torch.full((nbytes // 4,), float(i)) for i in range(150)]
    if nbytes < 32 << 10:  # in batches, in the order of backward
        got, _ = seen_ahead(context, values)
    else:
        got = through(context, *values)  # and not
    assert all(torch.equal(one, other) for one, other in zip(got, values))
    assert refused and min(refused) > 0 and context.stats()["tickets"] == 0
    refused[:] = ["for good"]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        through(context, values[0])


def test_copies_under_way_are_counted_in_bytes(streams, monkeypatch):
    """Tiny values are not waited for because they are many, large ones are beyond the limit; the
    last copy never is."""
    left = []
    monkeypatch.setattr(_batches, "BATCH_BYTES", 0)
    real = _store.Store._follow

    def follow(self, in_flight):
        real(self, in_flight)
        left.append([flight.slot.nbytes for flight in self.flights.values()])

    monkeypatch.setattr(_store.Store, "_follow", follow)
    monkeypatch.setattr(_store, "_query_packed", lambda offloader, ticket: 1)  # never done
    mib = 1 << 20
    values = [torch.zeros(n, dtype=torch.uint8) for n in [2048] * 200 + [mib] * 4 + [8 * mib, 2048]]
    through(streams(in_flight="2MiB"), *values)
    assert left[199] == [2048] * 200
    assert left[203] == [mib] * 2 and left[204] == [8 * mib] and left[205] == [2048]
    left.clear()
    through(streams(), *values)
    assert sum(left[-1]) == sum(v.nbytes for v in values)


def test_prefetched_values_that_nobody_asks_for_are_given_back(streams):
    context = streams(prefetch="256KiB")
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
    values = [torch.randn(1 << 15) for _ in range(5)]
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

    def pack(self, slot, *arguments):
        real(self, slot, *arguments)
        packed.append(_store._query_packed(self._pointer, slot.ticket))

    monkeypatch.setattr(_store.Store, "pack", pack)
    value = torch.randn(1 << 22)
    for _ in range(10):
        through(context, value + 1)
    assert any(status != 0 for status in packed)  # under way when the call had returned
