"""save_on_cpu(): the same numbers as without it; what is stored, and what is not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from save_on_cpu_support import (  # noqa: F401
    DTYPES,
    Keeping,
    assert_equal_lists,
    assert_same_tensor,
    net,
    offload,
    plain,
    random_tensor,
    through,
    train,
    x,
)

import memopt.torch as mt
from memopt.torch import _slots


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_last", [0, 1, 3, 100, "40KiB"])
def test_training_gives_the_same_gradients(offload, net, x, keep_last):
    buffers = copy.deepcopy(net.state_dict())
    wanted = train(net, x, plain())
    after = copy.deepcopy(net.state_dict())
    context = offload(keep_last=keep_last)
    for _ in range(3):
        net.load_state_dict(buffers)
        assert_equal_lists(wanted, train(net, x, context))
    assert all(torch.equal(after[name], value) for name, value in net.state_dict().items())
    assert context.stats()["tickets"] == 0
    assert context.stats()["saved"] > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(offload, device, dtype):
    value = random_tensor((33, 65), dtype, device)
    wanted = value.clone()
    context = offload()
    (got,) = through(context, value)
    assert_same_tensor(got, wanted)
    assert got.data_ptr() != value.data_ptr()
    assert context.stats()["copied_out_bytes"] == value.nbytes


VIEWS = {
    "transposed": lambda t: t.t(),
    "offset": lambda t: t[3:],
    "small slice": lambda t: t[5:6, 3:9],
    "every second": lambda t: t[:, ::2],
    "column": lambda t: t[:, 7],
    "expanded": lambda t: t[0, :1].expand(50, 40),
    "expanded row": lambda t: t[1].expand(200, 256),
    "overlapping": lambda t: t.view(-1).unfold(0, 16, 3),
    "windows of all": lambda t: t.as_strided((2, t.numel() // 2), (1, 1)),
    "scalar": lambda t: t[2, 2],
    "empty": lambda t: t[:0],
    "flipped dims": lambda t: t.view(8, 32, 256).permute(2, 0, 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("keep_last", [0, 5])
def test_views_keep_shape_strides_and_values(offload, device, view, keep_last):
    value = view(torch.randn(256, 256, device=device))
    wanted = value.clone()
    (got,) = through(offload(keep_last=keep_last), value)
    assert got.shape == value.shape and got.stride() == value.stride()
    assert torch.equal(got, wanted)
    if value.untyped_storage().nbytes() <= 2 * value.nbytes:
        assert got.storage_offset() == value.storage_offset()


@pytest.mark.parametrize("make", [lambda z: z.conj(), lambda z: z.conj().imag, lambda z: z.imag])
def test_lazy_conjugates_and_negatives_are_right(offload, device, make):
    value = make(torch.randn(64, 64, dtype=torch.complex64, device=device))
    (got,) = through(offload(), value)
    assert torch.equal(got, value) and got.is_conj() == value.is_conj()
    assert got.is_neg() == value.is_neg()


@pytest.mark.parametrize(
    "shape, view, most",
    [
        ((64, 128, 256), lambda t: t[:, -1], 64 * 256 * 4),  # its elements
        ((1024, 256), lambda t: t[500:508], 8 * 1024 + 512),  # of its storage
    ],
)
def test_a_part_of_a_storage_is_all_that_is_copied(offload, device, shape, view, most):
    value = view(torch.randn(shape, device=device))
    context = offload()
    (got,) = through(context, value)
    assert_same_tensor(got, value)
    assert context.stats()["copied_out_bytes"] <= most


def test_a_snapshot_is_the_value_at_the_time_of_saving(offload, device):
    context = offload()
    value = torch.randn(100, device=device)
    wanted = value.clone()
    if context._packer.find_store(value.device).inline:
        (got,) = through(context, value, between=lambda: value.add_(1))
        assert torch.equal(got, wanted)
    else:  # the copy may have been under way: told, or right
        try:
            (got,) = through(context, value, between=lambda: value.add_(1))
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            assert torch.equal(got, wanted)


# --- what is stored, and what is not --------------------------------------------------------------


def test_views_of_one_storage_are_stored_once(offload, device):
    qkv = torch.randn(64, 3 * 64, device=device)
    parts = qkv.chunk(3, dim=-1)
    context = offload()
    got = through(context, *parts, qkv, qkv.t(), qkv[4:8])
    for one, other in zip(got, (*parts, qkv, qkv.t(), qkv[4:8])):
        assert_same_tensor(one, other)
    stats = context.stats()
    assert stats["packs"] == 1 and stats["copied_out_bytes"] == qkv.nbytes
    assert stats["shared"] == 5 and stats["copied_back_bytes"] == qkv.nbytes
    assert len({tensor.untyped_storage().data_ptr() for tensor in got}) == 1


def test_a_value_and_a_view_of_it_come_back_in_one_storage(offload, device):
    """The value itself is what stores the bytes, from an operation, contiguous and whole."""
    value = torch.randn(640, 32, device=device, requires_grad=True) * 2
    context = offload()
    seen = through(context, value, value.view(-1), value.t())
    assert context.stats()["shared"] == 2
    assert len({tensor.untyped_storage().data_ptr() for tensor in seen}) == 1
    assert context.stats()["copied_back_bytes"] == value.nbytes
    for tensor, saved in zip(seen, (value, value.view(-1), value.t())):
        assert_same_tensor(tensor, saved)


def test_a_storage_changed_between_two_saves_is_stored_twice(offload, device):
    value = torch.randn(1000, device=device)
    first = value.clone()
    anchor = torch.ones((), requires_grad=True)
    context = offload()
    seen = []
    with context:
        result = Keeping.apply(anchor, seen.extend, value)
        slot = _slots._live[max(_slots._live)]
        slot.store.landed(slot.ticket)
        value.mul_(2)
        result = Keeping.apply(result, seen.extend, value)
    result.backward()
    assert torch.equal(seen[0], value) and torch.equal(seen[1], first)


def test_new_memory_at_an_old_address_is_not_taken_for_the_old(offload, device):
    """A table of addresses that outlives its tensors gives an earlier layer's values."""
    context = offload()
    anchor = torch.ones((), requires_grad=True)
    seen, wanted, result = [], [], anchor
    with context:
        for i in range(50):
            value = torch.full((4096,), float(i), device=device)
            wanted.append(float(i))
            result = Keeping.apply(result, seen.extend, value)
            del value
    result.backward()
    assert [float(t.mean()) for t in seen] == wanted[::-1]


def test_parameters_and_their_views_stay(offload, device):
    weight = nn.Parameter(torch.randn(64, 64, device=device))
    frozen = nn.Parameter(torch.randn(64, 64, device=device), requires_grad=False)
    leaf = torch.randn(64, 64, device=device, requires_grad=True)
    context = offload()
    with context:
        y = leaf @ weight.t() @ weight[:, :32] @ frozen[:, :32].t()
    stats = context.stats()
    assert stats["kept_parameters"] == 4 and stats["packs"] == 1
    y.sum().backward()
    x = torch.randn(8, 64, device=device)
    with context:
        y = nn.functional.linear(x, weight).sum()
    assert context.stats()["packs"] <= stats["packs"] + 1


def test_buffers_of_modules_stay(offload, device):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.rand(64, 64))

        def forward(self, x):
            return x * self.mask + (x[:8] * self.mask[:8]).sum()

    module = Masked().to(device)
    x = torch.randn(64, 64, device=device, requires_grad=True)
    context = offload()
    with context:
        y = module(x)
    assert context.stats()["kept_buffers"] == 2 and context.stats()["packs"] == 0
    y.sum().backward()
    assert torch.allclose(x.grad[8:], module.mask[8:])


def test_small_storages_stay_and_small_views_do_not_hold_large_ones(offload, device):
    context = offload(min_bytes="4KiB")
    small, large = torch.randn(1023, device=device), torch.randn(1024, device=device)
    got = through(context, small, large, large[:2])
    assert got[0].data_ptr() == small.data_ptr()
    assert got[1].data_ptr() != large.data_ptr()
    stats = context.stats()
    assert stats["kept_small"] == 1 and stats["packs"] == 1 and stats["saved"] == 2


def test_what_has_no_plain_bytes_is_left_alone(offload, device):
    class Mine(torch.Tensor):
        pass

    sparse = torch.eye(64, device=device).to_sparse()
    mine = torch.randn(64, 64, device=device).as_subclass(Mine)
    meta = torch.empty(64, 64, device="meta")
    context = offload()
    got = through(context, sparse, mine, meta)
    assert got[0].is_sparse and torch.equal(got[0].to_dense(), sparse.to_dense())
    assert type(got[1]) is Mine and torch.equal(got[1], mine)
    assert got[2].is_meta
    assert context.stats()["packs"] == 0 and context.stats()["kept_other"] == 3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_tensors_are_left_alone(offload):
    value = torch.quantize_per_tensor(torch.randn(64, 64), 0.1, 0, torch.qint8)
    context = offload(device_type="cpu")
    (got,) = through(context, value)
    assert torch.equal(got.int_repr(), value.int_repr()) and context.stats()["kept_other"] == 1


def test_tensors_of_another_device_are_left_alone():
    value = torch.randn(1000)
    context = mt.save_on_cpu(device_type="cuda")
    (got,) = through(context, value)
    assert got.data_ptr() == value.data_ptr() and context.stats()["kept_other"] == 1


def test_what_stays_and_is_changed_in_place_raises(offload, device):
    weight = nn.Parameter(torch.randn(64, 64, device=device))
    x = torch.randn(64, 64, device=device, requires_grad=True)

    def change():
        with torch.no_grad():
            weight.add_(1)

    for options in ({}, {"min_bytes": "1MiB"}, {"keep_last": 10}):
        with offload(**options):
            y = (x * 2) @ weight
        change()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    with offload(keep_last=10):
        hidden = x * 2
        y = hidden.exp()
        z = hidden.sin()
    hidden.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (y + z).sum().backward()
