"""cast_() and accumulate_(): many tensors between types in one call, the values torch's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import memopt.torch as mt
from memopt.torch import _native

FLOATS = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)
WIDE = FLOATS[:3]


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).cpu()


def same(a, b):
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def values(device, count=3001):
    """All magnitudes that the narrowest types hold, and ties between their numbers."""
    x = torch.randn(count, device=device) * torch.exp2(torch.randint(-18, 8, (count,)).to(device))
    x[::5] = x[::5].bfloat16().float()
    x[::7] = (x[::7] * 16).round() / 16
    return x.clamp(-440, 440)


def values_of(device, dtype, count=3001):
    """Such that the type holds; -0 and what overflows would be NaN in some, of a sign that differs."""
    x = values(device, count)
    return x.clamp(-240, 240).to(dtype) if dtype is torch.float8_e4m3fnuz else x.to(dtype)


# --- threads --------------------------------------------------------------------------------------


@pytest.fixture
def torch_threads(monkeypatch):
    """torch.set_num_threads, undone at the end; our side of the CPU is made anew."""
    before = torch.get_num_threads()
    monkeypatch.setattr(_native, "_natives", {})
    monkeypatch.delenv("MEMOPT_NUM_THREADS", raising=False)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_as_many_threads_as_torch_has(torch_threads):
    source, results = values("cpu", 200_000), []
    for threads in (3, 1, 4):
        torch_threads(threads)
        results.append(torch.empty_like(source, dtype=torch.bfloat16))
        mt.cast_(results[-1], source, rounding="stochastic", seed=1)
        side = _native.native(source.device)
        assert side.device.properties.threads == threads
    assert same(results[0], results[1]) and same(results[0], results[2])


def test_the_librarys_own_variable_counts_more(torch_threads, monkeypatch):
    monkeypatch.setenv("MEMOPT_NUM_THREADS", "2")
    torch_threads(3)
    mt.cast_(torch.empty(9, dtype=torch.bfloat16), torch.ones(9))
    assert _native.native(torch.device("cpu")).device.properties.threads == 2


# --- cast_ ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", FLOATS, ids=str)
@pytest.mark.parametrize("start", FLOATS, ids=str)
def test_to_nearest_as_torch(device, start, to):
    source = values_of(device, start)
    target = torch.zeros(3001, device=device, dtype=to)
    assert mt.cast_(target, source) is None
    assert same(target, source.float().to(to))


def test_lists_in_one_call(device):
    sources = [torch.randn(n, 3, device=device) for n in (0, 1, 5, 700, 20000)] * 30
    targets = [torch.empty_like(s, dtype=WIDE[i % 3]) for i, s in enumerate(sources)]
    mt.cast_(targets, sources)
    assert all(same(t, s.to(t.dtype)) for t, s in zip(targets, sources))
    mt.cast_([], [])
    mt.cast_((t for t in targets[:2]), tuple(sources[:2]))


def test_parameters_and_their_versions(device):
    half = nn.Parameter(torch.zeros(9, device=device, dtype=torch.bfloat16))
    version = half._version
    master = nn.Parameter(torch.randn(9, device=device))
    mt.cast_([half], [master])
    assert same(half, master.bfloat16()) and half._version > version
    assert half.requires_grad and half.grad_fn is None


def test_saturation(device):
    source = torch.tensor([1e6, -1e6, math.inf, math.nan, 448.0, 500.0], device=device)
    e4m3 = torch.zeros(6, device=device, dtype=torch.float8_e4m3fn)
    mt.cast_(e4m3, source)
    assert torch.isnan(e4m3.float()).tolist() == [True, True, True, True, False, True]
    mt.cast_(e4m3, source, saturate=True)
    assert e4m3.float().nan_to_num(7).tolist() == [448.0, -448.0, 448.0, 7.0, 448.0, 448.0]


@pytest.mark.parametrize("to", FLOATS, ids=str)
@pytest.mark.parametrize("start", FLOATS, ids=str)
def test_the_largest_magnitudes_of_the_same_pass(device, start, to):
    sources = [values_of(device, start, count) for count in (3001, 7, 70_000)]
    sources[1] = sources[1].float().abs().neg().to(start)
    targets = [torch.empty_like(source, dtype=to) for source in sources]
    amax = torch.zeros(3, device=device)
    version = amax._version
    mt.cast_(targets, sources, amax=amax)
    assert amax._version > version
    wanted = [source.float().abs().amax().item() for source in sources]
    assert amax.tolist() == wanted
    plain = [torch.empty_like(target) for target in targets]
    mt.cast_(plain, sources)
    assert all(map(same, targets, plain))
    mt.cast_(targets, [torch.zeros_like(source) for source in sources], amax=amax)
    assert amax.tolist() == wanted  # only ever raised
    mt.cast_(targets[:1], sources[:1], amax=amax[2:])
    assert amax.tolist() == [*wanted[:2], max(wanted[0], wanted[2])]


def test_largest_magnitudes_that_lie_elsewhere(device):
    """With gaps, of sources with gaps, of no elements, of what is not a number."""
    storage = torch.zeros(8, device=device)
    amax, version = storage[1::2], storage._version
    sources = [
        torch.tensor([[1.0, -9.0], [2.0, 3.0]], device=device)[:, ::2],
        torch.empty(0, device=device),
        torch.tensor([1.0, -math.inf], device=device),
        torch.tensor([math.nan, math.inf], device=device),
    ]
    targets = [torch.empty(s.shape, device=device, dtype=torch.bfloat16) for s in sources]
    mt.cast_(targets, sources, amax=amax)
    assert amax[:3].tolist() == [2.0, 0.0, math.inf] and amax[3].isnan()
    assert not storage[::2].any() and storage._version > version
    assert targets[0].tolist() == [[1.0], [2.0]]


def test_bad_places_of_largest_magnitudes(device):
    target, source = torch.zeros(4, device=device, dtype=torch.bfloat16), torch.ones(4, device=device)
    for bad, kind, text in (
        (torch.zeros(2, device=device), ValueError, r"amax has shape \[2\]; it must be \[1\]"),
        (torch.zeros((), device=device), ValueError, r"amax has shape \[\]"),
        (torch.zeros(1, device=device).double(), TypeError, "amax 0 is of float64; float32"),
        ([0.0], TypeError, "amax 0 is a list"),
        (torch.zeros(1, device="meta"), TypeError, "meta"),
    ):
        with pytest.raises(kind, match=text):
            mt.cast_(target, source, amax=bad)
    with pytest.raises(ValueError, match="overlap"):
        memory = torch.zeros(4, device=device)
        mt.cast_(memory, source, amax=memory[2:3])
    assert not target.any() and not memory.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_largest_magnitudes_of_several_devices():
    sources = [torch.full((9,), float(i + 1), device=("cpu", "cuda")[i % 2]) for i in range(4)]
    for device in ("cpu", "cuda"):
        amax = torch.zeros(4, device=device)
        mt.cast_([torch.empty_like(s, dtype=torch.bfloat16) for s in sources], sources, amax=amax)
        assert amax.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_seeds(device):
    source = torch.randn(5000, device=device)

    def cast(**options):
        target = torch.empty_like(source, dtype=torch.bfloat16)
        mt.cast_(target, source, "stochastic", **options)
        return bits(target)

    assert torch.equal(cast(seed=5), cast(seed=5))
    assert not torch.equal(cast(seed=5), cast(seed=6))
    assert not torch.equal(cast(), cast())
    torch.manual_seed(3)
    first = cast()
    torch.manual_seed(3)
    assert torch.equal(first, cast())
    for wrong in (-1, 1 << 64):
        with pytest.raises(ValueError, match="seed"):
            cast(seed=wrong)
    cast(seed=(1 << 64) - 1)


def test_the_tensors_of_a_call_take_different_numbers(device):
    source = torch.randn(1000, device=device)
    a, b = (torch.empty_like(source, dtype=torch.bfloat16) for _ in range(2))
    mt.cast_([a, b], [source, source], "stochastic", seed=5)
    assert not same(a, b)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_layouts(device, rounding):
    """Whatever the strides of either side, each element goes to its place."""
    shape = (4, 6, 5, 3)
    makes = {
        "plain": lambda d: torch.empty(shape, device=device, dtype=d),
        "last": lambda d: torch.empty(shape, device=device, dtype=d).to(memory_format=torch.channels_last),
        "gaps": lambda d: torch.empty(4, 6, 5, 6, device=device, dtype=d)[..., ::2],
        "turned": lambda d: torch.empty(3, 5, 6, 4, device=device, dtype=d).permute(3, 2, 1, 0),
    }
    exact = torch.randint(-100, 100, shape, device=device).float()  # exact in every type here
    for to in makes.values():
        for start in makes.values():
            target, source = to(torch.bfloat16), start(torch.float32)
            target.fill_(55), source.copy_(exact)
            mt.cast_([target], [source], rounding)
            assert torch.equal(target.float(), exact)
    storage = torch.zeros(10, device=device, dtype=torch.bfloat16)
    mt.cast_(storage[::2], torch.ones(5, device=device), rounding)
    assert storage.tolist() == [1.0, 0.0] * 5
    half = torch.empty(3, 4, device=device, dtype=torch.float16)
    mt.cast_(half, torch.arange(4.0, device=device).expand(3, 4), rounding)
    assert half.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 3
    wanted = half.bfloat16()
    mt.cast_(half.view(torch.bfloat16), half, rounding)  # in place
    assert same(half.view(torch.bfloat16), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("types", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_between_devices(types):
    for start, to in (("cpu", "cuda"), ("cuda", "cpu")):
        source = torch.randn(5000, device=start).to(types[0])
        target = torch.empty(5000, device=to, dtype=types[1])
        mt.cast_([target], [source])
        torch.cuda.synchronize()
        assert torch.equal(target.cpu(), source.cpu().to(types[1]))


class Odd(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "bad, kind, text",
    [
        (lambda: torch.ones(4, dtype=torch.float64), TypeError, "source 1 is of float64"),
        (lambda: torch.ones(4, dtype=torch.int32), TypeError, "source 1 is of int32"),
        (lambda: torch.ones(5), ValueError, r"destination 1 has shape \[4\], its source \[5\]"),
        (lambda: torch.ones(2, 2), ValueError, "shape"),
        (lambda: torch.ones(4, device="meta"), TypeError, "source 1 .* meta"),
        (lambda: torch.ones(4).to_sparse(), TypeError, "source 1"),
        (lambda: torch.ones(4).as_subclass(Odd), TypeError, "source 1 is a Odd"),
        (lambda: [1.0] * 4, TypeError, "source 1 is a list"),
        (lambda: None, TypeError, "source 1 is a NoneType"),
    ],
)
def test_bad_tensors_change_nothing(bad, kind, text):
    targets = [torch.zeros(4, dtype=torch.bfloat16) for _ in range(2)]
    with pytest.raises(kind, match=text):
        mt.cast_(targets, [torch.ones(4), bad()])
    if bad() is not None:
        with pytest.raises(kind, match=text.replace("source", "gradient").replace("destination", "accumulator")):
            mt.cast.accumulate_(targets, [torch.ones(4), bad()])
    assert not any(t.any() for t in targets)


def test_bad_arguments():
    target = torch.zeros(4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="rounding"):
        mt.cast_(target, torch.ones(4), "up")
    with pytest.raises(ValueError, match="1 destinations, 2 sources"):
        mt.cast_(target, [torch.ones(4)] * 2)
    with pytest.raises(ValueError, match="overlap"):
        mt.cast_([target, target], [torch.ones(4)] * 2)
    assert not target.any()


# --- accumulate_ ----------------------------------------------------------------------------------


def added(sums, gradient, scale, dtype):
    """One fused multiply-add: in float64 the product is exact, and so is all but a rare sum."""
    return (sums.double() + gradient.double() * scale).float().to(dtype)


@pytest.mark.parametrize("to", WIDE, ids=str)
@pytest.mark.parametrize("start", WIDE, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.25, -3.0])
def test_accumulation(device, to, start, scale):
    sums = [torch.randn(n, device=device).to(to) for n in (1, 33, 50001)]
    gradients = [torch.randn(n, device=device).to(start) for n in (1, 33, 50001)]
    wanted = [added(s, g, scale, to) for s, g in zip(sums, gradients)]
    assert mt.cast.accumulate_(sums, gradients, scale) is None
    assert all(same(s, w) for s, w in zip(sums, wanted))


def test_parameters_without_a_gradient_are_left_out(device):
    sums = [torch.ones(3, device=device) for _ in range(3)]
    mt.cast.accumulate_(sums, [None, torch.ones(3, device=device), None])
    assert [float(s[0]) for s in sums] == [1.0, 2.0, 1.0]
    mt.cast.accumulate_(sums, [None] * 3)
    with pytest.raises(ValueError, match="accumulator 2 has shape"):
        mt.cast.accumulate_(sums, [None, torch.ones(3, device=device), torch.ones(4, device=device)])
    assert [float(s[0]) for s in sums] == [1.0, 2.0, 1.0]


def test_layouts_of_gradients(device):
    sums = torch.zeros(4, 6, 5, 3, device=device)
    version = sums._version
    gradient = torch.randn(4, 6, 5, 3, device=device).to(memory_format=torch.channels_last)
    mt.cast.accumulate_(sums, gradient)
    assert torch.equal(sums, gradient) and sums._version > version
    last = torch.zeros_like(gradient)
    mt.cast.accumulate_(last, gradient.contiguous())
    mt.cast.accumulate_(last, gradient[:1].expand(4, 6, 5, 3))
    assert torch.equal(last, gradient + gradient[:1])
    with pytest.raises(ValueError, match="accumulator 0 of strides"):
        mt.cast.accumulate_(torch.zeros(10, device=device)[::2], torch.ones(5, device=device))


def test_accumulation_refuses(device):
    sums = torch.zeros(4, device=device)
    with pytest.raises(TypeError, match="gradient 0 is of float8_e5m2"):
        mt.cast.accumulate_(sums, torch.ones(4, device=device).to(torch.float8_e5m2))
    with pytest.raises(ValueError, match="2 accumulators, 1 gradients"):
        mt.cast.accumulate_([sums, sums], [sums])
    with pytest.raises(ValueError, match="overlap"):
        mt.cast.accumulate_(sums, sums)
    for scale in (math.inf, math.nan):
        with pytest.raises(ValueError, match="scale"):
            mt.cast.accumulate_(sums, torch.ones(4, device=device), scale)
    assert not sums.any()
