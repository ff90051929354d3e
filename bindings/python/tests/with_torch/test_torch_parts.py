"""Small parts that the savers and reports stand on."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import memopt  # noqa: E402
import memopt.torch as mt  # noqa: E402
from memopt import _leak  # noqa: E402
from memopt.torch import _storages, monitor  # noqa: E402
from memopt.torch import allocator as allocator_module  # noqa: E402
from memopt.torch._live import LiveBytes  # noqa: E402
from memopt.torch._native import native  # noqa: E402

# --- storages -------------------------------------------------------------------------------------


def test_a_wrapper_is_what_it_holds():
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    parts = [torch.ones(4, 5), torch.zeros(4, 5)]
    wrapper = two_tensor.TwoTensor(two_tensor.TwoTensor(parts[0], parts[1]), parts[0].clone())
    found = list(_storages.plain_tensors(wrapper))
    assert [f.data_ptr() for f in found[:2]] == [p.data_ptr() for p in parts] and len(found) == 3
    model = torch.nn.Module()
    model.both = torch.nn.Parameter(two_tensor.TwoTensor(*parts))
    assert mt.report(model).devices["cpu"].weights == 2 * 80


# --- live bytes -----------------------------------------------------------------------------------


def test_live_bytes_come_and_go(device):
    with LiveBytes() as live:
        a = torch.ones(1000, device=device)
        b = a + 1
        assert live.live == live.peak == 8000
        del a
        assert (live.live, live.peak) == (4000, 8000)
        b = b[:10]  # a view keeps the whole storage, once
        assert live.live == 4000
        del b
        assert (live.live, live.peak) == (0, 8000)
        c = torch.full((5,), 0.5, device=device).sum(0, keepdim=True, dtype=torch.float64)
        assert c.dtype is torch.float64 and c.shape == (1,)  # operations get all arguments


def test_known_tensors_and_what_is_left_out_do_not_count(device):
    known = torch.ones(1000, device=device)
    with LiveBytes([known]) as live:
        view = known.view(10, 100)
        known.add_(1)
        assert live.live == 0
        made = view * 2
        assert live.live == 4000
        live.leave_out(made)
        assert live.live == 0
        made.mul_(3)
        assert (live.live, live.peak) == (0, 4000)


# --- devices and allocators -----------------------------------------------------------------------


def test_tables_of_a_device_come_from_one_allocator(device):
    side = native(device)
    assert side is native(device)
    assert isinstance(side.allocator, memopt.Allocator) and side.allocator is side.allocator


def bare_allocator(device=None):
    allocator = object.__new__(mt.TorchAllocator)
    allocator._device = device
    return allocator


def test_which_gpu_an_allocator_is_asked_of(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    assert bare_allocator()._index(3) == 3 and bare_allocator(2)._index(None) == 2
    assert bare_allocator()._index("cuda:1") == 1
    assert bare_allocator()._index("cuda") == bare_allocator()._index(None) == 5
    with pytest.raises(ValueError, match="device is a cuda device, not cpu"):
        bare_allocator()._index("cpu")


def test_figures_of_graphs_are_added_but_for_the_setting_among_them(monkeypatch):
    figures = {7: 1, 8: 10, 9: 100}
    monkeypatch.setattr(
        allocator_module,
        "_stats",
        lambda handle: {"reserved_bytes.all.current": figures[handle], "max_split_size": 4},
    )
    allocator = bare_allocator()
    allocator._allocators = lambda device: list(figures)
    assert allocator.stats() == {"reserved_bytes.all.current": 111, "max_split_size": 4}


# --- the monitor ----------------------------------------------------------------------------------


def test_samples_of_the_warm_up_do_not_count():
    def alarm(warm_up):
        detector = _leak.LeakDetector(warm_up=warm_up)
        return next(s for s in range(1000) if detector.add(s, s * (1 << 20)) is not None)

    assert alarm(100) == alarm(0) + 100


def test_used_memory_is_what_is_not_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (30, 100))
    meter = object.__new__(monitor._Gpu)
    meter._monitor, meter._index = None, 0
    assert meter._memory() == (70, 30, 100)
