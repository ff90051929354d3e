"""GradScaler is torch's but for unscale_() and its check, which are what torch's are, bit for bit."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import memopt.torch as mt
from amp_support import FLT_MAX, INF, NAN, Fused, Recorder, clones, ours, parameters_of, started, theirs

# --- it is a torch scaler -------------------------------------------------------------------------


def test_it_is_one_of_torchs(device):
    """What its own methods do is torch's, and tested there."""
    own = {name for name in vars(mt.GradScaler) if not name.startswith("__")}
    assert issubclass(mt.GradScaler, torch.amp.GradScaler)
    assert own == {"_unscale_grads_", "_check_inf_per_device", "step", "update"}
    assert ours(device).state_dict() == theirs(device).state_dict()


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
@pytest.mark.parametrize("which, place", [(0, 0), (1, 500), (2, -1)])
def test_one_bad_element_anywhere(device, dtype, bad, which, place):
    parameters = parameters_of(device, (5, 1000, 40001), (dtype,))
    parameters[which].grad[place] = bad
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


def test_lists_of_which_nothing_is_special():
    """They are looked at as a whole; every other list goes the way that looks at each tensor."""
    from memopt.torch import _tensor_lists as lists

    class Own(torch.Tensor):
        pass

    a, b = torch.randn(3, 5), torch.randn(7).bfloat16()
    device, array = lists.alike([a, b])
    assert device == a.device
    assert bytes(array) == bytes(lists.array([a, b]))
    assert bytes(lists.alike([a, a.clone()])[1])[8:24] == bytes(lists.array([a]))[8:24]
    half = torch.randn(4).half()
    assert lists.alike([a, half]) is not None
    special = [
        *(a.t(), a.to_sparse(), a.double(), a.to("meta"), a.as_subclass(Own), a.cfloat()),
        *(a[:, :2], torch.randn(1).expand(4)),
    ]
    for tensor in special:
        assert lists.alike([a, tensor]) is None, tensor
    assert lists.alike([a, a]) is None
    assert lists.alike([]) is None
    assert lists.alike([a, half], lists.GRADIENT_TYPES - {torch.float16}) is None
