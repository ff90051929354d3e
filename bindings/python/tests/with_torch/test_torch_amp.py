"""GradScaler and clip_grad_norm_: what torch's do, bit for bit where torch is exact."""

from __future__ import annotations

import copy
import io
import math
import pickle
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import memopt.torch as mt  # noqa: E402
from memopt.torch import amp as amp_module  # noqa: E402

TYPES = (torch.float32, torch.float16, torch.bfloat16)
FLT_MAX = torch.finfo(torch.float32).max
INF, NAN = math.inf, math.nan


def ours(device, **options):
    return mt.GradScaler(device.type, **options)


def theirs(device, **options):
    return torch.amp.GradScaler(device.type, **options)


BOTH = pytest.mark.parametrize("make", [ours, theirs], ids=["ours", "torch"])


class Recorder(torch.optim.SGD):
    """SGD that counts its steps."""

    def __init__(self, parameters, lr=1.0, **options):
        super().__init__(parameters, lr=lr, **options)
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


class Fused(torch.optim.Optimizer):
    """An optimizer that takes scale and flag as torch's fused ones do."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self._step_supports_amp_scaling = True
        self.seen = []

    @torch.no_grad()
    def step(self, closure=None):
        scale = None if self.grad_scale is None else float(self.grad_scale)
        self.seen.append((scale, float(self.found_inf)))


def parameters_of(device, sizes=(7, 300, 20000), dtypes=(torch.float32,)):
    result = []
    for size in sizes:
        for dtype in dtypes:
            parameter = nn.Parameter(torch.zeros(size, device=device, dtype=dtype))
            parameter.grad = torch.randn(size, device=device).to(dtype)
            result.append(parameter)
    return result


def clones(parameters):
    result = [nn.Parameter(p.detach().clone()) for p in parameters]
    for new, old in zip(result, parameters):
        new.grad = None if old.grad is None else old.grad.clone()
    return result


def started(scaler, device):
    scaler.scale(torch.ones((), device=device))
    return scaler


# --- it is a torch scaler -------------------------------------------------------------------------


def test_it_is_one_of_torchs(device):
    scaler = ours(device)
    assert isinstance(scaler, torch.amp.GradScaler)
    public = {name for name in dir(torch.amp.GradScaler) if not name.startswith("_")}
    assert public <= set(dir(scaler))


def test_defaults_are_torchs(device):
    assert ours(device).state_dict() == theirs(device).state_dict()
    assert ours(device).get_scale() == 65536.0
    a = ours(device, init_scale=8.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=5)
    assert (a.get_growth_factor(), a.get_backoff_factor(), a.get_growth_interval()) == (3, 0.25, 5)
    a.set_growth_factor(4.0), a.set_backoff_factor(0.125), a.set_growth_interval(7)
    assert (a.get_growth_factor(), a.get_backoff_factor(), a.get_growth_interval()) == (4, 0.125, 7)


def test_without_a_gpu_the_default_is_disabled():
    if torch.cuda.is_available():
        assert mt.GradScaler().is_enabled()
        return
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = mt.GradScaler()
    assert not scaler.is_enabled()


@BOTH
def test_bad_factors(make, device):
    with pytest.raises(AssertionError, match="growth factor"):
        make(device, growth_factor=1.0)
    with pytest.raises(AssertionError, match="backoff factor"):
        make(device, backoff_factor=1.0)


@BOTH
def test_disabled_does_nothing(make, device):
    scaler = make(device, enabled=False)
    parameters = parameters_of(device)
    before = [p.grad.clone() for p in parameters]
    optimizer = Recorder(parameters, lr=0.0)
    loss = torch.ones((), device=device)
    assert scaler.scale(loss) is loss and not scaler.is_enabled()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.steps == 1 and scaler.get_scale() == 1.0 and scaler.state_dict() == {}
    assert all(torch.equal(p.grad, b) for p, b in zip(parameters, before))


# --- scale() --------------------------------------------------------------------------------------


@BOTH
def test_scale_of_tensors_and_nested_iterables(make, device):
    scaler = make(device, init_scale=4.0)
    t = [torch.full((2,), float(i), device=device) for i in range(4)]
    assert torch.equal(scaler.scale(t[1]), t[1] * 4)
    result = scaler.scale([t[0], (t[1], [t[2]]), (x for x in [t[3]])])
    assert isinstance(result, list) and isinstance(result[1], tuple)
    assert isinstance(result[1][1], list)
    assert torch.equal(result[1][1][0], t[2] * 4)
    assert torch.equal(list(result[2])[0], t[3] * 4)
    assert scaler.scale(torch.ones(1, device=device, dtype=torch.float16)).dtype == torch.float16
    with pytest.raises(ValueError):
        scaler.scale([3])


def test_scale_of_a_bf16_loss_has_torchs_type(device):
    loss = torch.ones((), device=device, dtype=torch.bfloat16)
    assert ours(device).scale(loss).dtype == theirs(device).scale(loss).dtype


# --- unscale_() -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 65536.0, 3.0, 0.1, 1e-38, FLT_MAX])
def test_unscaled_gradients_are_torchs_bits(device, scale):
    a = parameters_of(device, dtypes=(torch.float32, torch.bfloat16))
    b = clones(a)
    flags = []
    for make, parameters in ((ours, a), (theirs, b)):
        scaler = started(make(device, init_scale=scale), device)
        optimizer = Recorder(parameters)
        scaler.unscale_(optimizer)
        flags.append([float(v) for v in scaler._found_inf_per_device(optimizer).values()])
    assert flags[0] == flags[1]
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_bad_element_anywhere(device, dtype, bad, place, which):
    parameters = parameters_of(device, (5, 1000, 40001), (dtype,))
    gradient = parameters[which].grad
    gradient[{"first": 0, "middle": gradient.numel() // 2, "last": -1}[place]] = bad
    scaler = started(ours(device), device)
    optimizer = Recorder(parameters)
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.steps == 0 and scaler.get_scale() == 32768.0


def test_nothing_bad_is_found_in_large_numbers(device):
    parameters = parameters_of(device, (100000,))
    parameters[0].grad.fill_(FLT_MAX)
    parameters[0].grad[::2] = -FLT_MAX
    scaler = started(ours(device, init_scale=1.0), device)
    optimizer = Recorder(parameters, lr=0.0)
    scaler.step(optimizer)
    assert optimizer.steps == 1


def test_overflow_by_unscaling_itself_is_judged_as_torch_does(device):
    """A scale below 1: the gradients are finite before, infinite after."""
    flags = []
    for make in (ours, theirs):
        parameter = nn.Parameter(torch.zeros(40, device=device))
        parameter.grad = torch.full((40,), 1e30, device=device)
        optimizer = Recorder([parameter])
        scaler = started(make(device, init_scale=1e-20), device)
        scaler.unscale_(optimizer)
        flags.append([float(v) for v in scaler._found_inf_per_device(optimizer).values()])
        assert torch.isinf(parameter.grad).all()
    assert flags[0] == flags[1] == [0.0]


@BOTH
def test_fp16_gradients_are_refused(make, device):
    parameters = parameters_of(device, dtypes=(torch.float32, torch.float16))
    before = [p.grad.clone() for p in parameters]
    optimizer = Recorder(parameters)
    scaler = started(make(device), device)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients."):
        scaler.unscale_(optimizer)
    assert all(torch.equal(p.grad, b) for p, b in zip(parameters, before))


def test_the_refusal_names_the_parameter(device):
    one, two = parameters_of(device, (3,), (torch.float32, torch.float16))
    optimizer = Recorder([{"params": [one]}, {"params": [two]}])
    with pytest.raises(ValueError, match=r"param_groups\[1\]\['params'\]\[0\], of shape \[3\]"):
        started(ours(device), device).unscale_(optimizer)


def test_fp16_gradients_where_they_are_allowed(device):
    """The fused protocol checks them without changing them."""
    parameters = parameters_of(device, dtypes=(torch.float16,))
    before = [p.grad.clone() for p in parameters]
    for bad, flag in ((1.0, 0.0), (INF, 1.0)):
        parameters[1].grad[-1] = before[1][-1] = bad
        versions = [p.grad._version for p in parameters]
        optimizer = Fused(parameters)
        scaler = started(ours(device), device)
        scaler.step(optimizer)
        assert optimizer.seen == [(65536.0, flag)]
        assert all(torch.equal(p.grad, b) for p, b in zip(parameters, before))
        assert versions == [p.grad._version for p in parameters]  # nothing was written


def test_types_that_the_library_does_not_know_go_to_torch(device):
    parameters = parameters_of(device, dtypes=(torch.float32, torch.float64))
    for bad, steps in ((1.0, 1), (NAN, 0)):
        mine = clones(parameters)
        mine[-1].grad[3] = bad
        optimizer = Recorder(mine, lr=0.0)
        scaler = started(ours(device, init_scale=4.0), device)
        scaler.step(optimizer)
        assert optimizer.steps == steps
        for new, old in zip(mine[:-1], parameters):
            assert torch.equal(new.grad, old.grad * 0.25)


def test_gradients_of_any_layout(device):
    parameters, expected = [], []
    for make in (
        lambda: torch.randn(4, 6, 5, 5, device=device).to(memory_format=torch.channels_last),
        lambda: torch.randn(8, 9, device=device).t(),
        lambda: torch.randn(8, 18, device=device)[:, ::2],
        lambda: torch.randn(20, device=device)[3:11],
        lambda: torch.randn((), device=device),
        lambda: torch.randn(0, 3, device=device),
    ):
        gradient = make()
        parameter = nn.Parameter(torch.zeros(gradient.shape, device=device))
        parameter.grad = gradient
        parameters.append(parameter)
        expected.append(gradient.clone() * 0.5)
    started(s := ours(device, init_scale=2.0), device)
    s.unscale_(Recorder(parameters))
    assert all(torch.equal(p.grad, e) for p, e in zip(parameters, expected))


def test_what_lies_between_strided_gradients_stays(device):
    storage = torch.ones(10, device=device)
    parameter = nn.Parameter(torch.zeros(5, device=device))
    parameter.grad = storage[::2]
    started(s := ours(device, init_scale=2.0), device)
    s.unscale_(Recorder([parameter]))
    assert storage.tolist() == [0.5, 1.0] * 5


def test_a_gradient_of_two_parameters_is_unscaled_once(device):
    one, two = (nn.Parameter(torch.zeros(5, device=device)) for _ in range(2))
    one.grad = two.grad = torch.full((5,), 8.0, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = Recorder([one, two])
    started(s := ours(device, init_scale=2.0), device)
    s.unscale_(optimizer)
    assert one.grad.tolist() == [4.0] * 5


def test_autograd_is_told_of_the_change(device):
    parameter = nn.Parameter(torch.ones(5, device=device))
    parameter.grad = torch.ones(5, device=device)
    version = parameter.grad._version
    started(s := ours(device), device)
    s.unscale_(Recorder([parameter]))
    assert parameter.grad._version > version


@pytest.mark.parametrize("bad", [1.0, INF])
def test_sparse_gradients(device, bad):
    states = []
    for make in (ours, theirs):
        parameter = nn.Parameter(torch.zeros(6, 2, device=device))
        values = torch.tensor([[8.0, 4.0], [2.0, bad]], device=device)
        parameter.grad = torch.sparse_coo_tensor(
            torch.tensor([[1, 3]], device=device), values, (6, 2), check_invariants=True
        )
        optimizer = Recorder([parameter])
        scaler = started(make(device, init_scale=2.0), device)
        scaler.step(optimizer)
        scaler.update()
        states.append((optimizer.steps, scaler.get_scale(), parameter.detach().tolist()))
    assert states[0] == states[1]
    assert states[0][0] == (bad == 1.0)


def test_sparse_half_gradients_are_added_before_the_check(device):
    """Two values of one place, each finite, whose sum overflows float16."""
    values = torch.tensor([60000.0, 60000.0], device=device, dtype=torch.float16)
    for indices, flag in (([[1, 1]], 1.0), ([[1, 2]], 0.0)):
        parameter = nn.Parameter(torch.zeros(4, device=device, dtype=torch.float16))
        parameter.grad = torch.sparse_coo_tensor(
            torch.tensor(indices, device=device), values, (4,), check_invariants=True
        )
        optimizer = Fused([parameter])
        started(s := ours(device), device).step(optimizer)
        assert optimizer.seen == [(65536.0, flag)]
        assert s.get_scale() == 65536.0


# --- errors of order ------------------------------------------------------------------------------


@BOTH
def test_each_call_once_in_its_place(make, device):
    optimizer = Recorder(parameters_of(device), lr=0.0)
    fresh = make(device)
    for call in (fresh.unscale_, fresh.step):
        with pytest.raises(AssertionError, match="scaler.scale"):
            call(optimizer)
    with pytest.raises(AssertionError, match="scaler.scale"):
        fresh.update()
    scaler = started(make(device, init_scale=1.0), device)
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="step.. has already been called"):
        scaler.step(optimizer)
    scaler.update()
    scaler.unscale_(optimizer)


@BOTH
def test_no_gradients_at_all(make, device):
    optimizer = Recorder([nn.Parameter(torch.zeros(3, device=device))])
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        started(make(device), device).step(optimizer)


@BOTH
def test_closures_are_refused(make, device):
    optimizer = Recorder(parameters_of(device))
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        started(make(device), device).step(optimizer, closure=lambda: None)


@BOTH
def test_the_steps_result_and_arguments_pass_through(make, device):
    class Odd(torch.optim.SGD):
        def step(self, one, two=0):
            return (one, two)

    optimizer = Odd(parameters_of(device), lr=0.1)
    assert started(make(device), device).step(optimizer, 1, two=2) == (1, 2)


def test_several_optimizers_share_one_update(device):
    good, bad = (Recorder(parameters_of(device), lr=0.0) for _ in range(2))
    bad.param_groups[0]["params"][1].grad[0] = INF
    scaler = started(ours(device), device)
    scaler.unscale_(good)
    scaler.step(bad)
    scaler.step(good)
    scaler.update()
    assert (good.steps, bad.steps) == (1, 0) and scaler.get_scale() == 32768.0
    scaler.step(good)  # its state is new
    scaler.update()
    assert good.steps == 2 and scaler.get_scale() == 32768.0


# --- update() -------------------------------------------------------------------------------------


def one_element(device):
    parameter = nn.Parameter(torch.zeros(1, device=device))
    parameter.grad = torch.zeros(1, device=device)
    return parameter


def drive(scaler, device, events):
    """Steps with and without an overflow; the bits of the scale and the tracker after each."""
    parameter = one_element(device)
    optimizer = Recorder([parameter], lr=0.0)
    started(scaler, device)
    result = []
    for event in events:
        parameter.grad.fill_(event)
        scaler.step(optimizer)
        scaler.update()
        result.append((scaler._scale.view(torch.int32).item(), scaler._get_growth_tracker()))
    return result, optimizer.steps


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(init_scale=3.7, growth_factor=1.7, backoff_factor=0.3, growth_interval=1),
        dict(init_scale=1e38, growth_factor=1.3, growth_interval=2),
        dict(init_scale=1e-44, backoff_factor=0.9, growth_interval=3),
        dict(init_scale=FLT_MAX, growth_factor=1.0000001, growth_interval=1),
    ],
)
def test_the_sequence_of_scales_is_torchs_bit_for_bit(device, options):
    generator = torch.Generator().manual_seed(5)
    events = torch.rand(120, generator=generator)
    events = [INF if e < 0.15 else NAN if e < 0.2 else 1.0 for e in events.tolist()]
    assert drive(ours(device, **options), device, events) == drive(
        theirs(device, **options), device, events
    )


def test_growth_stops_at_the_largest_number(device):
    options = dict(init_scale=FLT_MAX / 4, growth_interval=1)
    scaler = ours(device, **options)
    sequence = drive(scaler, device, [1.0] * 5)
    assert sequence == drive(theirs(device, **options), device, [1.0] * 5)
    assert FLT_MAX / 4 < scaler.get_scale() <= FLT_MAX


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_new_scale(device, shape):
    """(torch fails for all tensors but those of no dimension.)"""
    scaler = started(ours(device), device)
    given = torch.full(shape, 16.0, device=device)
    scaler.update(given)
    given.fill_(5.0)
    assert scaler.get_scale() == 16.0
    for wrong in (
        torch.ones(2, device=device),
        torch.ones(shape, device=device, requires_grad=True),
        torch.ones(shape, device="meta"),
    ):
        with pytest.raises(AssertionError):
            scaler.update(wrong)
    for number in (8.0, 8):
        scaler.update(number)
        assert scaler.get_scale() == 8.0


# --- the fused protocol ---------------------------------------------------------------------------


@BOTH
def test_an_optimizer_that_takes_the_scale(make, device):
    parameters = parameters_of(device)
    before = [p.grad.clone() for p in parameters]
    optimizer = Fused(parameters)
    scaler = started(make(device, init_scale=4.0), device)
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.seen == [(4.0, 0.0)]
    assert all(torch.equal(p.grad, b) for p, b in zip(parameters, before))
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.seen[1:] == [(None, 0.0)]
    assert all(torch.equal(p.grad, b / 4) for p, b in zip(parameters, before))
    optimizer.grad_scale = torch.full((), 2.0, device=device)
    parameters[2].grad[-1] = NAN
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.seen[2:] == [(8.0, 1.0)] and scaler.get_scale() == 2.0


@BOTH
def test_an_optimizer_that_takes_the_scaler(make, device):
    class Old(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None, *, grad_scaler=None):
            self.given = grad_scaler
            self.flags = grad_scaler._check_inf_per_device(self)

    parameters = parameters_of(device)
    parameters[0].grad[0] = INF
    optimizer = Old(parameters, lr=0.1)
    scaler = started(make(device), device)
    with pytest.warns(FutureWarning):
        scaler.step(optimizer)
    assert optimizer.given is scaler
    assert [float(flag) for flag in optimizer.flags.values()] == [1.0]
    scaler.update()
    assert scaler.get_scale() == 32768.0


def test_torchs_own_fused_optimizer(device):
    """Three steps, one of them with an overflow, as with torch's scaler."""
    results = []
    for make in (ours, theirs):
        torch.manual_seed(3)
        model = nn.Linear(8, 4).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        scaler = make(device, init_scale=1024.0)
        for step in range(4):
            optimizer.zero_grad()
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).to(device)
            scaler.scale(model(x).square().mean()).backward()
            if step == 2:
                model.weight.grad[3, 7] = INF
            scaler.step(optimizer)
            scaler.update()
        results.append((scaler.state_dict(), model.weight.detach().clone()))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("give, take", [(ours, theirs), (theirs, ours), (ours, ours)])
@pytest.mark.parametrize("lazy", [True, False])
def test_states_are_exchanged_with_torch(device, give, take, lazy):
    first = give(device, growth_interval=4)
    drive(first, device, [1.0, 1.0, INF, 1.0, 1.0])
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second = take(device, init_scale=2.0)
    if not lazy:
        started(second, device)
    second.load_state_dict(torch.load(buffer))
    assert second.state_dict() == first.state_dict()
    assert first.state_dict()["_growth_tracker"] == 2
    assert drive(first, device, [1.0] * 6) == drive(second, device, [1.0] * 6)


def test_the_state_of_a_disabled_scaler_is_refused(device):
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        ours(device).load_state_dict(ours(device, enabled=False).state_dict())


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize("lazy", [True, False])
def test_copies(device, copier, lazy):
    scaler = ours(device, init_scale=8.0, growth_interval=3)
    if not lazy:
        drive(scaler, device, [1.0, 1.0])
    twin = copier(scaler)
    assert type(twin) is mt.GradScaler and twin.state_dict() == scaler.state_dict()
    assert drive(twin, device, [1.0] * 4) == drive(scaler, device, [1.0] * 4)
    started(scaler, device).unscale_(Recorder([one_element(device)]))
    with pytest.raises(AssertionError, match="beginning"):
        pickle.dumps(scaler)


# --- whole programs -------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_torchs(device, clip, accumulate):
    """A loop with unscale_, clipping and accumulation, an overflow in the middle: the same bits
    without clipping, and within rounding with it."""
    results = []
    for make, clipper in (
        (ours, mt.clip_grad_norm_),
        (theirs, torch.nn.utils.clip_grad_norm_),
    ):
        torch.manual_seed(9)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = make(device, init_scale=1024.0, growth_interval=2)
        for step in range(8):
            optimizer.zero_grad()
            for _ in range(accumulate):
                x = torch.randn(16, 8, device=device)
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss = model(x).float().square().mean() / accumulate
                if step == 5:
                    loss = loss * INF
                scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                clipper(model.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
        results.append((scaler.state_dict(), [p.detach().clone() for p in model.parameters()]))
    assert results[0][0] == results[1][0]
    for a, b in zip(results[0][1], results[1][1]):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7) if clip else torch.equal(a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are due")
def test_two_gpus():
    parameters = parameters_of("cuda:0") + parameters_of("cuda:1")
    parameters[-1].grad[-1] = INF
    optimizer = Recorder(parameters)
    scaler = started(mt.GradScaler(), torch.device("cuda:0"))
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.steps == 0 and scaler.get_scale() == 32768.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_no_synchronisation_on_a_gpu():
    device = torch.device("cuda")
    parameters = parameters_of(device)
    optimizer = Fused(parameters)
    optimizer.step = lambda: None
    scaler = started(mt.GradScaler(), device)
    mt.clip_grad_norm_(parameters, 1.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        scaler.unscale_(optimizer)
        mt.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- clip_grad_norm_ ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtypes", [(torch.float32,), TYPES, (torch.bfloat16,)])
@pytest.mark.parametrize("max_norm", [0.5, 1e-3, 1e6, 0.0, INF, 10])
def test_clipping_against_torch(device, dtypes, max_norm):
    a = parameters_of(device, dtypes=dtypes)
    a.append(nn.Parameter(torch.zeros(3, device=device)))  # without a gradient
    b = clones(a)
    exact = math.sqrt(sum(float(p.grad.double().square().sum()) for p in a if p.grad is not None))
    norm = mt.clip_grad_norm_(a, max_norm)
    wanted = torch.nn.utils.clip_grad_norm_(b, max_norm)
    assert norm.shape == () and norm.dtype == torch.float32 and norm.device == a[0].device
    assert float(norm) == torch.tensor(exact).float().item() or abs(float(norm) / exact - 1) < 2e-7
    assert abs(float(norm) / float(wanted) - 1) < 0.02
    for p, q in zip(a, b):
        if p.grad is None:
            continue
        narrow = dtypes != (torch.float32,)
        assert torch.allclose(p.grad, q.grad, rtol=0.02 if narrow else 1e-5, atol=1e-7)


def test_the_clipped_values_are_one_product(device):
    a = parameters_of(device)
    before = [p.grad.clone() for p in a]
    exact = math.sqrt(sum(float(g.double().square().sum()) for g in before))
    mt.clip_grad_norm_(a, 0.25)
    factor = torch.tensor(0.25 / (exact + 1e-6), dtype=torch.float64).float().to(device)
    for p, g in zip(a, before):
        assert torch.allclose(p.grad, g * factor, rtol=1.3e-7, atol=0)


def test_the_same_bits_each_time_and_for_any_number_of_threads(device):
    a = parameters_of(device, (1, 77, 100001, 1 << 20))
    expected = float(mt.clip_grad_norm_(clones(a), 1.0))
    for _ in range(3):
        assert float(mt.clip_grad_norm_(clones(a), 1.0)) == expected


def test_half_precision_norms_do_not_overflow(device):
    """torch's norm of these float16 gradients is infinite, and the gradients would become 0."""
    parameter = nn.Parameter(torch.zeros(10000, device=device, dtype=torch.float16))
    parameter.grad = torch.full((10000,), 1000.0, device=device, dtype=torch.float16)
    assert float(mt.clip_grad_norm_(parameter, 1e4)) == 1e5
    assert torch.equal(parameter.grad.float(), torch.full((10000,), 100.0, device=device))


@pytest.mark.parametrize("bad", [INF, NAN])
def test_gradients_that_are_not_finite(device, bad):
    for careful in (True, False):
        pair = parameters_of(device)
        pair[1].grad[5] = bad
        other = clones(pair)
        before = [p.grad.clone() for p in pair]
        if careful:
            with pytest.raises(RuntimeError, match="non-finite"):
                mt.clip_grad_norm_(pair, 1.0, error_if_nonfinite=True)
            assert all(
                torch.equal(p.grad.nan_to_num(7), b.nan_to_num(7)) for p, b in zip(pair, before)
            )
            continue
        norm = mt.clip_grad_norm_(pair, 1.0)
        wanted = torch.nn.utils.clip_grad_norm_(other, 1.0)
        assert torch.equal(torch.isnan(norm), torch.isnan(wanted))
        for p, q in zip(pair, other):
            assert torch.equal(p.grad.nan_to_num(7), q.grad.nan_to_num(7))


def test_a_finite_norm_passes_the_careful_path(device):
    a = parameters_of(device)
    b = clones(a)
    assert torch.equal(
        mt.clip_grad_norm_(a, 0.5, error_if_nonfinite=True), mt.clip_grad_norm_(b, 0.5)
    )
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(a, b))


@pytest.mark.parametrize("norm_type", [1.0, 3, INF, "inf", 0.0])
def test_other_norms_are_torchs(device, norm_type):
    a = parameters_of(device)
    b = clones(a)
    assert torch.equal(
        mt.clip_grad_norm_(a, 0.5, norm_type),
        torch.nn.utils.clip_grad_norm_(b, 0.5, norm_type),
    )
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(a, b))


def test_lists_generators_and_single_tensors(device):
    assert float(mt.clip_grad_norm_([], 1.0)) == 0.0
    assert float(mt.clip_grad_norm_([nn.Parameter(torch.zeros(2))], 1.0)) == 0.0
    with pytest.warns(UserWarning, match="empty generator"):
        mt.clip_grad_norm_((p for p in []), 1.0)
    parameter = nn.Parameter(torch.zeros(2, device=device))
    parameter.grad = torch.tensor([3.0, 4.0], device=device)
    assert float(mt.clip_grad_norm_(parameter, 1.0)) == 5.0
    assert float(mt.clip_grad_norm_((p for p in [parameter]), 10.0)) == pytest.approx(1.0)


def test_gradients_of_other_kinds_go_to_torch(device):
    a = parameters_of(device, dtypes=(torch.float32, torch.float64))
    b = clones(a)
    assert float(mt.clip_grad_norm_(a, 0.5)) == float(torch.nn.utils.clip_grad_norm_(b, 0.5))
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(a, b))


def test_clipping_tells_autograd(device):
    a = parameters_of(device)
    versions = [p.grad._version for p in a]
    mt.clip_grad_norm_(a, 0.5)
    assert all(p.grad._version > v for p, v in zip(a, versions))


def test_threads_clip_at_the_same_time(device):
    """Each thread has scratch memory of its own."""
    a = parameters_of(device, (1 << 18, 33))
    expected = float(mt.clip_grad_norm_(clones(a), 1.0))
    wrong, scratches = [], set()
    together = threading.Barrier(4)

    def work():
        for _ in range(20):
            if float(mt.clip_grad_norm_(clones(a), 1.0)) != expected:
                wrong.append(1)
        scratches.update(s._handle.pointer for _, s in amp_module._scratch.scalers.values())
        together.wait()  # else the memory of one that has ended could be given to another

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(scratches) == 4


def test_lists_of_which_nothing_is_special():
    """They are looked at as a whole; every other list goes the way that looks at each tensor."""
    from memopt.torch import _lists

    class Own(torch.Tensor):
        pass

    a, b = torch.randn(3, 5), torch.randn(7).bfloat16()
    device, array = _lists.alike([a, b])
    assert device == a.device
    assert bytes(array) == bytes(_lists.array([a, b]))
    assert bytes(_lists.alike([a, a.clone()])[1])[8:24] == bytes(_lists.array([a]))[8:24]
    half = torch.randn(4).half()
    assert _lists.alike([a, half]) is not None
    special = [
        *(a.t(), a.to_sparse(), a.double(), a.to("meta"), a.as_subclass(Own), a.cfloat()),
        *(a[:, :2], torch.randn(1).expand(4)),
    ]
    for tensor in special:
        assert _lists.alike([a, tensor]) is None, tensor
    assert _lists.alike([a, a]) is None
    assert _lists.alike([]) is None
    assert _lists.alike([a, half], _lists.GRADIENT_TYPES - {torch.float16}) is None
