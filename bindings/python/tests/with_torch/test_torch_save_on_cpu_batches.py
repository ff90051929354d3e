"""save_on_cpu: small values share their copies."""

from __future__ import annotations

import threading

import pytest
import simulated
import torch
from save_on_cpu_support import Keeping, assert_same_tensor, random_tensor, streams, through  # noqa: F401

import memopt
from memopt.torch import _batches, _store

KIB = 1 << 10


def wholes(context):
    """The batches of a context that live."""
    return {place[1]() for place in context._packer.by_storage.values() if type(place[1]) is _batches.Batch}


def test_many_small_values_are_one_copy(streams):
    """Each way; and host memory is theirs, in units of 64 bytes."""
    values = [random_tensor((n,), dtype, "cpu") for n in (300, 512, 1001) for dtype in (torch.float32, torch.bool)]
    context = streams()
    anchor = torch.ones((), requires_grad=True)
    seen = []
    with context:
        result = Keeping.apply(anchor, seen.extend, *values)
    units = [-(-v.nbytes // 64) * 64 for v in values]
    stats = context.stats()
    assert stats["saved"] == 6 and stats["packs"] == stats["tickets"] == 1
    assert stats["host_bytes_used"] == stats["copied_out_bytes"] == sum(units[:-1]) + values[-1].nbytes
    result.backward()
    for one, other in zip(seen, values):
        assert_same_tensor(one, other)
        assert one.untyped_storage().nbytes() == other.nbytes  # it does not hold the others
    del result
    stats = context.stats()
    assert stats["tickets"] == stats["host_bytes_used"] == 0
    assert stats["copied_back_bytes"] == stats["copied_out_bytes"]


def test_batches_are_of_limited_size_and_come_back_once(streams):
    """Read in the order of backward; few stay on the device for a second pass."""
    values = [torch.full((4 * KIB,), float(i)) for i in range(400)]  # 6.25 MiB
    context = streams(prefetch=0)
    result = torch.ones((), requires_grad=True)
    seen = []
    with context:
        for value in values:
            result = Keeping.apply(result, seen.extend, value)
    result.backward(retain_graph=True)
    assert all(torch.equal(one, other) for one, other in zip(seen[::-1], values))
    stats = context.stats()
    assert stats["packs"] == 7 and stats["copied_back_bytes"] == stats["copied_out_bytes"] == 400 * 16 * KIB
    assert sum(whole.back is not None for whole in wholes(context)) == _batches.RESIDENT
    for one in seen:
        one.fill_(-1.0)  # memory of its own
    seen.clear()
    result.backward()
    assert all(torch.equal(one, other) for one, other in zip(seen[::-1], values))


def test_a_batch_is_prefetched(streams):
    values = [torch.full((4 * KIB,), float(i)) for i in range(200)]
    context = streams()
    result = torch.ones((), requires_grad=True)
    with context:
        for value in values:
            result = Keeping.apply(result, lambda saved: None, value)
    result.backward()
    assert context.stats()["packs"] == 4 and context.stats()["prefetch_hits"] == 3


def test_a_small_value_is_a_snapshot(streams):
    """Also in a batch that is not on the host yet; changed and saved again it is another value."""
    value = torch.arange(500.0)
    result = torch.ones((), requires_grad=True)
    seen = []
    with streams() as context:
        for _ in range(3):
            result = Keeping.apply(result, seen.extend, value, value.view(50, 10).t())
            value.add_(1)
        result.backward(retain_graph=True)  # the batch is open
    value.zero_()
    result.backward()
    assert context.stats()["shared"] == 3 and len(seen) == 12
    for i, (one, other) in enumerate(zip(seen[0::2], seen[1::2])):
        assert torch.equal(one, torch.arange(500.0) + 2 - i % 3)
        assert_same_tensor(other, one.view(50, 10).t())


def test_views_and_gathered_elements_of_small_values(streams):
    x = torch.randn(64, 64)
    large = torch.randn(300, 300)
    views = [x.t(), x[3:9], x[:, 5], x.expand(2, 64, 64), large[:, 7]]
    context = streams()
    for one, other in zip(through(context, *views), views):
        assert_same_tensor(one, other)
    assert context.stats()["packs"] == 1


def test_threads_fill_batches_of_their_own(streams):
    context = streams()
    wrong = []

    def work(number):
        values = [torch.full((600 + number,), float(100 * number + i)) for i in range(100)]
        for _ in range(5):
            got = through(context, *values)
            wrong.extend(1 for one, other in zip(got, values) if not torch.equal(one, other))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and context.stats()["saved"] == 2000


def test_a_batch_takes_a_part_of_the_host_limit(streams):
    """What does not fit stays on the device, value by value counted, and comes back right."""
    values = [torch.full((250,), float(i)) for i in range(600)]
    context = streams(host_limit="256KiB")
    got = through(context, *values)
    assert all(torch.equal(one, other) for one, other in zip(got, values))
    stats = context.stats()
    assert stats["host_bytes_peak"] <= 256 * KIB < stats["saved"] * 1000
    assert 0 < stats["kept_overflow"] < 600 * 3 // 4 and stats["packs"] > 20


@pytest.mark.parametrize("options", [{"keep_last": 2}, {"overflow": "fail", "host_limit": "1MiB"}])
def test_values_that_are_counted_or_refused_one_by_one_are_stored_alone(streams, options):
    values = [torch.full((250,), float(i)) for i in range(6)]
    context = streams(**options)
    got = through(context, *values)
    assert all(torch.equal(one, other) for one, other in zip(got, values))
    assert context.stats()["packs"] == 6 - options.get("keep_last", 0)


def test_the_newest_batches_stay(streams):
    values = [torch.full((4 * KIB,), float(i)) for i in range(200)]
    context = streams(keep_last="2MiB")
    got = through(context, *values)
    assert all(torch.equal(one, other) for one, other in zip(got, values))
    assert context.stats()["copied_out_bytes"] == context.stats()["copied_back_bytes"] == 2 << 20


def test_batches_go_to_the_disk(streams, tmp_path):
    values = [torch.full((4 * KIB,), float(i)) for i in range(200)]
    context = streams(host_limit="1MiB", disk=str(tmp_path))
    got = through(context, *values)
    assert all(torch.equal(one, other) for one, other in zip(got, values))
    stats = context.stats()
    assert stats["disk_read_bytes"] > 0 and stats["host_bytes_peak"] <= 1 << 20 and stats["tickets"] == 0


def test_a_copy_that_fails_ends_the_operation_only(streams, monkeypatch):
    value = torch.randn(500)
    context = streams()
    with monkeypatch.context() as patch:
        patch.setattr(_store, "_copy_short", lambda *arguments: 1)
        with pytest.raises(memopt.MemoptError):
            through(context, value)
    (got,) = through(context, value)
    assert torch.equal(got, value) and context.stats()["tickets"] == 0


def test_without_memory_for_a_batch_a_value_is_stored_alone(streams, monkeypatch):
    def full(*arguments):
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(_batches, "open_batch", full)
    values = [torch.randn(500), torch.randn(40, 40).t()]
    context = streams()
    for one, other in zip(through(context, *values), values):
        assert_same_tensor(one, other)
    assert context.stats()["packs"] == 2


def test_a_step_that_fails_leaves_its_error(streams, monkeypatch):
    """Not that of the batch which its end closes."""
    context = streams()
    monkeypatch.setattr(type(context._packer), "send", lambda self, batch, source: 1 / 0)
    with pytest.raises(KeyError), context:
        Keeping.apply(torch.ones((), requires_grad=True), None, torch.randn(500))
        raise KeyError
    with pytest.raises(ZeroDivisionError), context:
        kept = Keeping.apply(torch.ones((), requires_grad=True), None, torch.randn(500))
    assert kept is not None


def test_batches_on_cuda():
    """On the streams that save and read; not while a graph is recorded; without memory, alone."""
    simulated.run(
        """
        from memopt.torch._native import native
        class Keeping(torch.autograd.Function):
            @staticmethod
            def forward(ctx, anchor, see, tensor):
                ctx.save_for_backward(tensor)
                ctx.see = see
                return anchor * 1.0
            @staticmethod
            def backward(ctx, gradient):
                ctx.see(*ctx.saved_tensors)
                return gradient, None, None

        device = native(torch.device("cuda", 0)).device
        def move(to, of):
            lib.memopt_copy(device._handle.pointer, to.data_ptr(), of.data_ptr(), of.nbytes, stream().cuda_stream)
        stream = torch.cuda.current_stream
        def on_device(number):
            tensor = torch.empty(1024, device="cuda")
            move(tensor, torch.full((1024,), float(number)))
            return tensor
        seen = []
        def see(tensor):
            host = torch.empty(1024)
            move(host, tensor)
            stream().synchronize()
            seen.append(host)
        def step(context, count):
            result = torch.ones((), requires_grad=True)
            seen.clear()
            with context:
                for i in range(count):
                    result = Keeping.apply(result, see, on_device(i))
            return result

        context = mt.save_on_cpu()
        step(context, 300).backward()
        assert [one.unique().tolist() for one in seen] == [[float(i)] for i in reversed(range(300))]
        assert context.stats()["packs"] == 2 and context.stats()["prefetch_hits"] == 1, context.stats()
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            result = step(context, 4)
            with context:
                result = Keeping.apply(result, see, on_device(4))
        with context:
            result = Keeping.apply(result, see, on_device(5))
        result.backward()
        assert [one.unique().tolist() for one in seen] == [[float(i)] for i in reversed(range(6))]
        assert context.stats()["packs"] == 5, context.stats()

        with torch.cuda.stream(other):
            tensor = on_device(0)
            begin_capture(other.cuda_stream)
            with context:
                raises(memopt.UnsupportedError, "records a graph", Keeping.apply, result, see, tensor)
            end_capture(other.cuda_stream)
        del result, tensor
        assert context.stats()["tickets"] == 0
        """,
        torch_too=True,
    )
