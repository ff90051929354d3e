"""save_on_cpu(): the same numbers as without it, less memory on the device, no value lost."""

from __future__ import annotations

import copy
import gc
import os
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint as torch_checkpoint  # noqa: E402

import memopt  # noqa: E402
import memopt.torch as mt  # noqa: E402
from memopt.torch import _slots, _store  # noqa: E402

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.bool,
    torch.uint8,
    torch.int64,
)


@pytest.fixture(params=["inline", "streams"])
def offload(request, device, monkeypatch):
    """Makes a save_on_cpu of the device. On the CPU also with copies on threads of their own, as a
    GPU has them: what is ordered wrongly is then wrong."""
    if request.param == "streams":
        if device.type != "cpu":
            pytest.skip("a GPU's copies always run on streams")
        monkeypatch.setattr(_store, "copies_inline", lambda device: False)
    monkeypatch.setattr(_store, "_idle", {})

    def make(**options):
        options.setdefault("device_type", device.type)
        options.setdefault("min_bytes", 1)
        return mt.save_on_cpu(**options)

    return make


class Keeping(torch.autograd.Function):
    """Saves what it is given, and hands what it gets back in backward to a function."""

    @staticmethod
    def forward(ctx, anchor, see, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.see = see
        return anchor * 1.0

    @staticmethod
    def backward(ctx, gradient):
        saved = ctx.saved_tensors
        ctx.see(saved)
        return (gradient, None) + (None,) * len(saved)


def through(context, *tensors, between=None):
    """What backward gets of tensors that were saved under a context."""
    seen = []
    anchor = torch.ones((), requires_grad=True)
    with context:
        result = Keeping.apply(anchor, lambda saved: seen.extend(saved), *tensors)
    if between is not None:
        between()
    result.backward()
    return seen


def assert_same_tensor(one, other):
    assert one.dtype == other.dtype and one.device == other.device
    assert one.shape == other.shape and one.stride() == other.stride()
    assert torch.equal(
        one.contiguous().reshape(-1).view(torch.uint8),
        other.contiguous().reshape(-1).view(torch.uint8),
    )


def random_tensor(shape, dtype, device):
    """Bits of every kind, NaNs with payloads too."""
    if dtype == torch.bool:
        return torch.rand(shape, device=device) < 0.5
    itemsize = torch.empty(0, dtype=dtype).itemsize
    length = itemsize
    for size in shape:
        length *= size
    return (
        torch.randint(0, 256, (length,), dtype=torch.uint8, device=device).view(dtype).view(shape)
    )


class Net(nn.Module):
    """Linear layers, a norm with buffers, dropout and a view or two."""

    def __init__(self, width=64):
        super().__init__()
        self.one, self.two = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        a, b = nn.functional.gelu(self.one(x)).chunk(2, dim=-1)
        x = self.two(torch.cat([a * b, a.tanh()], dim=-1))
        return self.drop(self.norm(x)) + x


def train(net, x, context):
    """Loss and gradients of one step."""
    torch.manual_seed(7)
    net.zero_grad()
    x.grad = None
    with context:
        loss = net(x).square().sum()
    loss.backward()
    return [loss.detach(), x.grad] + [p.grad for p in net.parameters()]


def assert_equal_lists(one, other):
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other))


@pytest.fixture
def net(device):
    return Net().to(device)


@pytest.fixture
def x(device):
    return torch.randn(32, 64, device=device, requires_grad=True)


# --- values ---------------------------------------------------------------------------------------


def plain():
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


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


def test_the_elements_of_a_wide_view_are_all_that_is_copied(offload, device):
    hidden = torch.randn(64, 128, 256, device=device)
    context = offload()
    (got,) = through(context, hidden[:, -1])
    assert_same_tensor(got, hidden[:, -1])
    assert context.stats()["copied_out_bytes"] == 64 * 256 * 4


def test_a_small_part_of_a_storage_is_all_that_is_copied(offload, device):
    batch = torch.randn(1024, 256, device=device)
    context = offload()
    (got,) = through(context, batch[500:508])
    assert_same_tensor(got, batch[500:508])
    assert context.stats()["copied_out_bytes"] <= 8 * 1024 + 512


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
    qkv = torch.randn(16, 3 * 64, device=device)
    parts = qkv.chunk(3, dim=-1)
    context = offload()
    got = through(context, *parts, qkv, qkv.t(), qkv[4:8])
    for one, other in zip(got, (*parts, qkv, qkv.t(), qkv[4:8])):
        assert_same_tensor(one, other)
    stats = context.stats()
    assert stats["packs"] == 1 and stats["copied_out_bytes"] == qkv.nbytes
    assert stats["shared"] == 5 and stats["copied_back_bytes"] == qkv.nbytes
    assert len({tensor.untyped_storage().data_ptr() for tensor in got}) == 1


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


def test_the_newest_values_stay_on_the_device(offload, device):
    values = [torch.randn(1024, device=device) for _ in range(6)]
    wanted = [value.clone() for value in values]
    context = offload(keep_last=2)
    got = through(context, *values)
    assert [a.data_ptr() == b.data_ptr() for a, b in zip(got, values)] == [False] * 4 + [True] * 2
    assert all(torch.equal(a, b) for a, b in zip(got, wanted))
    assert context.stats()["packs"] == 4 and context.stats()["kept_last"] == 2
    context = offload(keep_last="8KiB")
    through(context, *values)
    assert context.stats()["packs"] == 4


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
    assert stats["host_bytes"] == held and stats["packs"] * 6 >= stats["saved"]
    assert context.trim() == held and context.stats()["host_bytes"] == 0


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="overflow"):
        mt.save_on_cpu(overflow="spill")
    with pytest.raises(ValueError):
        mt.save_on_cpu(host_limit="many")
    with pytest.raises(ValueError, match="prefetch"):
        mt.save_on_cpu(prefetch=-1)
    with pytest.raises(ValueError, match="keep_last"):
        mt.save_on_cpu(keep_last=-1)
    with pytest.raises(TypeError):
        mt.save_on_cpu(min_bytes=1.5)
    with pytest.raises(NotImplementedError, match="disk"):
        mt.save_on_cpu(disk="/tmp")
    assert mt.save_on_cpu(True, "cuda") is not None  # torch's positions


# --- graphs ---------------------------------------------------------------------------------------


def test_retain_graph_gives_the_values_again(offload, device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    context = offload()
    with context:
        y = (x.exp() * x.sin()).tanh().sum()
    first = torch.autograd.grad(y, x, retain_graph=True)[0]
    second = torch.autograd.grad(y, x, retain_graph=True)[0]
    third = torch.autograd.grad(y, x)[0]
    assert torch.equal(first, second) and torch.equal(first, third)
    del y
    assert context.stats()["tickets"] == 0


def test_double_backward(offload, device):
    x = torch.randn(16, 16, device=device, requires_grad=True)

    def penalty(context):
        with context:
            y = ((x * 2).exp().tanh() @ x.sin()).sum()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            z = g.square().sum()
        return torch.autograd.grad(z, x)[0]

    assert torch.equal(penalty(plain()), penalty(offload()))
    assert torch.equal(penalty(plain()), penalty(offload(keep_last=3)))
    assert torch.autograd.gradgradcheck(
        lambda t: hooked(offload(), lambda: (t.exp() * t).sum()),
        torch.randn(4, dtype=torch.float64, device=device, requires_grad=True),
    )


def hooked(context, function):
    with context:
        return function()


def test_a_context_is_reusable_and_nests_in_itself_and_others(offload, device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    one, other = offload(), offload(keep_last=1)
    with one as entered:
        assert entered is one
        a = (x * 2).exp()
        with one:
            b = (a * 2).sin()
            with other:
                c = (b * 2).exp()
        d = (c * 2).cos()
    e = (d * 2).exp()  # not under it
    packs = one.stats()["packs"], other.stats()["saved"]
    (got,) = torch.autograd.grad(e.sum(), x)
    assert packs == (3, 1)
    (wanted,) = torch.autograd.grad(
        ((((x * 2).exp() * 2).sin() * 2).exp() * 2).cos().mul(2).exp().sum(), x
    )
    assert torch.equal(got, wanted)


def test_torch_s_own_context_nests_with_it(offload, device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    with torch.autograd.graph.save_on_cpu(), offload():
        y = (x * 2).exp()
        with torch.autograd.graph.save_on_cpu(pin_memory=False):
            z = (y * 2).sin()
    (got,) = torch.autograd.grad(z.sum(), x)
    (wanted,) = torch.autograd.grad(((x * 2).exp() * 2).sin().sum(), x)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("which", ["ours", "torch", "torch reentrant"])
@pytest.mark.parametrize("nesting", ["outside", "inside", "both"])
def test_checkpoint_nests_both_ways(offload, net, x, which, nesting, early):
    """Recomputed values are saved anew while the outer context's tickets are live."""
    net.norm.eval()
    inner = offload(keep_last=2)

    def run(t):
        if nesting == "outside":
            return net(t)
        with inner:
            return net(t)

    def regions(t):
        for _ in range(3):
            if which == "ours":
                t = mt.checkpoint(run, t * 2, early_stop=early)
            else:
                t = torch_checkpoint(run, t * 2, use_reentrant="reentrant" in which)
        return t

    def plain_regions(t):
        for _ in range(3):
            t = net(t * 2)
        return t

    results = []
    outer = offload()
    for function, context in ((plain_regions, plain()), (regions, outer)):
        torch.manual_seed(3)
        net.zero_grad()
        x.grad = None
        with context if nesting != "inside" else plain():
            loss = function(x).square().sum()
        loss.backward()
        results.append([loss.detach(), x.grad] + [p.grad.clone() for p in net.parameters()])
    assert_equal_lists(*results)
    del loss, function, context
    assert inner.stats()["tickets"] == 0 and outer.stats()["tickets"] == 0
    if nesting != "inside":
        assert outer.stats()["saved"] > 0


def test_nothing_is_saved_without_gradients(offload, net, x):
    context = offload()
    with torch.no_grad(), context:
        net(x)
    with context, torch.no_grad():
        net(x)
    assert context.stats()["packs"] == 0 and context.stats()["saved"] == 0


def test_an_exception_in_forward_leaves_nothing_behind(offload, net, x):
    context = offload()
    with pytest.raises(ZeroDivisionError):
        with context:
            y = net(x)
            assert context.stats()["tickets"] > 0
            1 / 0
    hidden = (x * 2).exp()  # the hooks are off again
    saved = context.stats()["saved"]
    hidden.sum().backward()
    assert context.stats()["saved"] == saved
    y.sum().backward()  # what was built can be used
    del y
    assert context.stats()["tickets"] == 0


def test_a_forgotten_graph_gives_everything_back_without_the_collector(offload, net, x):
    context = offload(keep_last=2)
    gc.collect()
    gc.disable()
    try:
        with context:
            y = net(x).square()
        alive = weakref.ref(y)
        assert context.stats()["tickets"] > 0 and len(_slots._live) > 0
        del y
        assert alive() is None
        assert context.stats()["tickets"] == 0 and context.stats()["host_bytes_used"] == 0
        assert all(entry.owner is not context._packer for entry in _slots._live.values())
        assert context._packer.by_storage == {}
        packer = weakref.ref(context._packer.stores[x.device])
        with context:  # one that was used is gone, too
            y = net(x).square()
        y.sum().backward()
        del y
        assert context.stats()["tickets"] == 0
        del context
        assert packer() is not None  # waits for the next object
    finally:
        gc.enable()


def test_a_graph_in_a_garbage_cycle_gives_everything_back(offload, device):
    context = offload()
    x = torch.randn(1000, device=device, requires_grad=True)
    with context:
        y = (x * 2).exp()
    cycle = [y]
    cycle.append(cycle)
    del y, cycle
    gc.collect()
    assert context.stats()["tickets"] == 0


def test_values_that_were_kept_last_are_let_go_with_their_graph(offload, device):
    context = offload(keep_last=4)
    x = torch.randn(1000, device=device, requires_grad=True)
    with context:
        y = (x * 2).exp()
    storage = weakref.ref(y.untyped_storage())
    del y
    assert storage() is None


# --- threads and processes ------------------------------------------------------------------------


def test_forward_and_backward_on_several_threads(offload, device):
    context = offload(host_limit="8MiB")
    failures = []
    x = torch.randn(64, 256, device=device)

    def work(seed):
        try:
            weight = torch.full((256, 256), 0.01 * (seed + 1), device=device, requires_grad=True)
            for _ in range(20):
                with context:
                    y = ((x @ weight).tanh() @ weight).exp().sum()
                box = []
                thread = threading.Thread(
                    target=lambda y=y: box.append(torch.autograd.grad(y, weight)[0])
                )
                thread.start()
                thread.join()
                (wanted,) = torch.autograd.grad(((x @ weight).tanh() @ weight).exp().sum(), weight)
                assert torch.equal(box[0], wanted)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    gc.collect()
    assert context.stats()["tickets"] == 0


def test_another_thread_is_not_under_the_context(offload, device):
    context = offload()
    x = torch.randn(100, device=device, requires_grad=True)
    with context:
        thread = threading.Thread(target=lambda: (x * 2).exp())
        thread.start()
        thread.join()
    assert context.stats()["saved"] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_uses_the_parent_s_values_and_makes_its_own():
    context = mt.save_on_cpu(device_type="cpu", min_bytes=1)
    x = torch.randn(1000, requires_grad=True)
    with context:
        y = (x * 2).exp()
    (wanted,) = torch.autograd.grad((x * 2).exp().sum(), x)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            (got,) = torch.autograd.grad(y.sum(), x)
            ok = torch.equal(got, wanted)
            del y
            with context:
                z = (x * 3).exp()
            packs = context.stats()["packs"]
            (got,) = torch.autograd.grad(z.sum(), x)
            ok = ok and packs == 1 and torch.equal(got, 3 * (x * 3).exp().detach())
            status = 0 if ok else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (got,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(got, wanted)


# --- bugs of other offloaders ---------------------------------------------------------------------


@pytest.fixture
def streams(monkeypatch):
    """A save_on_cpu whose copies run on threads of their own, on the CPU."""
    monkeypatch.setattr(_store, "copies_inline", lambda device: False)
    monkeypatch.setattr(_store, "_idle", {})
    return lambda **options: mt.save_on_cpu(device_type="cpu", min_bytes=1, **options)


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
    assert [[n - first for n in sorted(numbers)] for numbers in ahead] == [
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


def test_an_unused_step_does_not_break_the_next(offload, net, x):
    """A tracker that must be empty at the next forward fails where a graph is left unused."""
    context = offload(keep_last=1)
    with context:
        unused = net(x)
    wanted = train(net, x, plain())
    net_state = copy.deepcopy(net.state_dict())
    assert_equal_lists(wanted[1:2], train(net, x, context)[1:2])
    del unused
    net.load_state_dict(net_state)
    assert context.stats()["tickets"] == 0


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

    def pack(self, address, nbytes, stream):
        ticket = real(self, address, nbytes, stream)
        packed.append(_store._query_packed(self._pointer, ticket))
        return ticket

    monkeypatch.setattr(_store.Store, "pack", pack)
    value = torch.randn(1 << 22)
    for _ in range(10):
        through(context, value + 1)
    assert any(status != 0 for status in packed)  # under way when the call had returned
