"""Behaviours that torch tests of its optimizers, tested of ours.

docs/guide/pytorch-tests.md lists torch's tests one by one and what stands for each here.
"""

from __future__ import annotations

import copy
import io
import warnings

import pytest

torch = pytest.importorskip("torch")
import memopt.torch as mt  # noqa: E402
from optim_support import assert_same_states, walk  # noqa: E402

OPTIMIZERS = [mt.AdamW, mt.AdamW8bit, mt.Lion8bit, mt.SGD8bit]


def parameter(*size, dtype=None, device=None):
    return torch.nn.Parameter(torch.randn(*size, device=device).to(dtype or torch.float32))


def extra(kind):
    return {"momentum": 0.9} if kind in (mt.SGD, mt.SGD8bit) else {}


# --- parameters and groups ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_tensor_as_learning_rate(kind, device):
    """It is read at each step, so that a scheduler or the user may change it in place."""
    one = parameter(64, 80, device=device)
    two = copy.deepcopy(one)
    rate = torch.tensor(1e-2)
    first, second = kind([one], lr=rate, **extra(kind)), kind([two], lr=1e-2, **extra(kind))
    for step in range(3):
        gradient = torch.randn_like(one)
        one.grad, two.grad = gradient.clone(), gradient.clone()
        first.step()
        second.step()
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
        rate.mul_(0.5)
        second.param_groups[0]["lr"] *= 0.5


@pytest.mark.parametrize(
    "rate",
    [1, torch.tensor(1), torch.tensor(0.0625, dtype=torch.float64), torch.tensor([0.0625])],
    ids=["int", "integer tensor", "float64 tensor", "tensor of one"],
)
def test_a_learning_rate_of_another_type_is_what_its_number_is(rate, device):
    """Also where it is changed from step to step."""
    one = parameter(8, 80, device=device)
    two = copy.deepcopy(one)
    first, second = mt.SGD([one], lr=rate), mt.SGD([two], lr=float(rate))
    for factor in (2, 3):
        one.grad, two.grad = torch.ones_like(one), torch.ones_like(two)
        first.step()
        second.step()
        assert torch.equal(one, two)
        first.param_groups[0]["lr"] *= factor
        second.param_groups[0]["lr"] *= factor


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_group_without_parameters(kind, device):
    used = parameter(70, 70, device=device)
    optimizer = kind([{"params": []}, {"params": [used]}], lr=1e-2, **extra(kind))
    before = used.detach().clone()
    used.grad = torch.randn_like(used)
    optimizer.step()
    assert not torch.equal(before, used)
    again = kind([{"params": []}, {"params": [used]}], lr=1e-2, **extra(kind))
    again.load_state_dict(optimizer.state_dict())
    assert len(again.param_groups) == 2


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_parameter_in_two_groups_is_refused(kind):
    shared = parameter(8)
    with pytest.raises(ValueError, match="more than one parameter group"):
        kind([{"params": [shared]}, {"params": [shared]}], lr=1e-2, **extra(kind))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gradients_of_zero_are_a_step_and_none_are_not(kind, device):
    used, unused = parameter(70, 70, device=device), parameter(70, 70, device=device)
    optimizer = kind([used, unused], lr=1e-2, **extra(kind))
    before = unused.detach().clone()
    used.grad = torch.zeros_like(used)
    optimizer.step()
    assert torch.equal(before, unused) and unused not in optimizer.state
    assert optimizer.state[used]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_parameters_of_several_types_in_one_group(kind, device):
    types = [torch.float32, torch.bfloat16, torch.float16]
    together = [parameter(70, 70, dtype=t, device=device) for t in types]
    alone = copy.deepcopy(together)
    gradients = [torch.randn_like(p) for p in together]
    one = kind(together, lr=1e-2, **extra(kind))
    for p, q, g in zip(together, alone, gradients):
        p.grad, q.grad = g.clone(), g.clone()
        kind([q], lr=1e-2, **extra(kind)).step()
    one.step()
    assert all(torch.equal(p, q) for p, q in zip(together, alone))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_loaded_dict_is_not_shared(kind, device):
    """Steps of the optimizer that loaded a dict leave the one that gave it as it was."""
    one = parameter(70, 70, device=device)
    two = copy.deepcopy(one)
    first, second = kind([one], lr=1e-2, **extra(kind)), kind([two], lr=1e-2, **extra(kind))
    one.grad = torch.randn_like(one)
    first.step()
    second.load_state_dict(first.state_dict())
    before = copy.deepcopy(first.state_dict()["state"])
    two.grad = torch.randn_like(two)
    second.step()
    after = first.state_dict()["state"]
    for name, value in before[0].items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, after[0][name])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_saved_dict_loads_with_weights_only(kind, device):
    one = parameter(70, 70, device=device)
    optimizer = kind([one], lr=1e-2, **extra(kind))
    one.grad = torch.randn_like(one)
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    two = copy.deepcopy(one)
    again = kind([two], lr=1e-2, **extra(kind))
    again.load_state_dict(torch.load(file, weights_only=True))
    one.grad = torch.randn_like(one)
    two.grad = one.grad.clone()
    optimizer.step()
    again.step()
    assert torch.equal(one, two)


def test_a_parameter_twice_in_a_group_and_sets_warn():
    shared = parameter(8)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        mt.AdamW8bit([shared, shared])
    with pytest.warns(FutureWarning, match="ordered collections"):
        mt.AdamW8bit({parameter(8), parameter(9)})


def test_names_are_for_all_parameters_or_for_none():
    with pytest.raises(ValueError, match="Some param names are missing"):
        mt.AdamW8bit([("weight", parameter(8)), parameter(9)])
    with pytest.raises(ValueError, match="cannot add param group with names"):
        mt.AdamW8bit([{"params": [parameter(8)]}, {"params": [("weight", parameter(9))]}])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_groups_are_optimizers_of_their_own(kind, device):
    """With a decay, a rate and a direction each, as separate optimizers would have."""
    options = [{"weight_decay": 0.1}, {"lr": 1e-3}, {"maximize": True, "weight_decay": 0.01}]
    together = [parameter(70, 70, device=device) for _ in options]
    alone = copy.deepcopy(together)
    one = kind([{"params": [p], **o} for p, o in zip(together, options)], lr=1e-2, **extra(kind))
    many = [kind([p], **{"lr": 1e-2, **extra(kind), **o}) for p, o in zip(alone, options)]
    for _ in range(3):
        for p, q in zip(together, alone):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        one.step()
        for optimizer in many:
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(together, alone))
    assert len({tuple(p.detach().flatten()[:9].tolist()) for p in together}) == 3


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_group_whose_rate_is_next_to_nothing_stays(kind, device):
    moves, stays = parameter(70, 70, device=device), parameter(70, 70, device=device)
    before = stays.detach().clone()
    groups = [{"params": [moves], "lr": 1e-2}, {"params": [stays]}]
    optimizer = kind(groups, lr=1e-28, **extra(kind))
    start = moves.detach().clone()
    for _ in range(3):
        moves.grad, stays.grad = torch.randn_like(moves), torch.randn_like(stays)
        optimizer.step()
    assert torch.equal(stays, before) and not torch.equal(moves, start)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_without_decay_gradients_of_zero_change_nothing(kind, device):
    value = parameter(70, 70, device=device)
    optimizer = kind([value], lr=1e-2, weight_decay=0.0, **extra(kind))
    before = value.detach().clone()
    value.grad = torch.zeros_like(value)
    optimizer.step()
    assert torch.equal(value, before)


def test_parameters_that_need_no_gradient_and_a_closure():
    values = [torch.randn(70, 70) for _ in range(2)]
    before = [v.clone() for v in values]
    assert mt.AdamW8bit(values).step(lambda: torch.tensor([1.0])) == torch.tensor([1.0])
    assert all(torch.equal(a, b) for a, b in zip(values, before))


# --- training goes the right way ------------------------------------------------------------------

SCHEDULES = torch.optim.lr_scheduler
CHAINS = {
    "none": [],
    "step, exponential": [
        lambda o: SCHEDULES.StepLR(o, 5, gamma=0.9),
        lambda o: SCHEDULES.ExponentialLR(o, gamma=0.99),
    ],
    "plateau, constant": [
        lambda o: SCHEDULES.ReduceLROnPlateau(o),
        lambda o: SCHEDULES.ConstantLR(o, factor=0.4, total_iters=4),
    ],
    "linear": [lambda o: SCHEDULES.LinearLR(o, start_factor=0.4, total_iters=4)],
    "polynomial": [lambda o: SCHEDULES.PolynomialLR(o, power=0.9, total_iters=40)],
    "restarts": [lambda o: SCHEDULES.CosineAnnealingWarmRestarts(o, T_0=6)],
    "cyclic": [lambda o: SCHEDULES.CyclicLR(o, 1e-3, 1e-2, 5, cycle_momentum=False)],
    "sequence": [
        lambda o: SCHEDULES.SequentialLR(
            o, [SCHEDULES.LinearLR(o, 0.1, total_iters=5), SCHEDULES.CosineAnnealingLR(o, 15)], [5]
        )
    ],
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_loss_goes_the_right_way(chain, contiguous, maximize, device):
    for kind in OPTIMIZERS:
        shapes = [(64, 80), (64,)] if contiguous else [(64, 80, 2), (64, 2)]
        weight, bias = (torch.randn(s, device=device) * 0.1 for s in shapes)
        if not contiguous:
            weight, bias = weight[..., 0], bias[..., 0]
        weight, bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
        x = torch.randn(80, device=device)
        optimizer = kind([weight, bias], lr=1e-3, maximize=maximize, **extra(kind))
        schedules = [make(optimizer) for make in CHAINS[chain]]

        def closure():
            optimizer.zero_grad()
            loss = (weight.mv(x) + bias).pow(2).mean()
            loss.backward()
            return loss

        before = closure().item()
        for _ in range(20):
            loss = optimizer.step(closure)
            for schedule in schedules:
                plateau = isinstance(schedule, SCHEDULES.ReduceLROnPlateau)
                schedule.step(*([loss.item()] if plateau else []))
        after = closure().item()
        assert after > before if maximize else after < before, kind


def test_schedulers_notice_the_order_of_calls():
    value = parameter(8)
    value.grad = torch.ones_like(value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = mt.AdamW8bit([value])
        schedule = SCHEDULES.StepLR(optimizer, 3)
        optimizer.step()
        schedule.step()
    optimizer = mt.AdamW8bit([value])
    schedule = SCHEDULES.StepLR(optimizer, 3)
    with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        schedule.step()
        optimizer.step()


def test_schedulers_write_into_a_rate_that_is_a_tensor():
    """The same tensor stays in the group, so that whoever holds it sees the rate."""
    rate = torch.tensor(1e-2)
    value = parameter(8)
    optimizer = mt.AdamW8bit([value], lr=rate)
    schedule = SCHEDULES.ExponentialLR(optimizer, gamma=0.5)
    value.grad = torch.ones_like(value)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate
    torch.testing.assert_close(rate, torch.tensor(5e-3))


# --- the step itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_makes_no_tensors(kind, device):
    from memopt.torch._live_bytes import LiveBytes

    values = [parameter(300, 300, device=device) for _ in range(5)]
    optimizer = kind(values, lr=1e-2, **extra(kind))
    for value in values:
        value.grad = torch.randn_like(value)
    optimizer.step()
    states = [v for state in optimizer.state.values() for v in state.values()]
    with LiveBytes([*values, *(v.grad for v in values), *states]) as live:
        optimizer.step()
    assert live.peak < 4096  # on a GPU, a scalar or two


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_parameters_that_get_their_memory_later(kind):
    model = torch.nn.Linear(33, 130, device="meta")
    optimizer = kind(model.named_parameters(), lr=1e-2, **extra(kind))
    for p in model.parameters():
        p.grad = torch.empty_like(p)
    with pytest.raises(RuntimeError, match="parameter 'weight' is a meta tensor"):
        optimizer.step()
    assert not optimizer.state
    optimizer.zero_grad()
    swapping = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to_empty(device="cpu")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swapping)
    assert optimizer.param_groups[0]["params"][0] is model.weight
    other = torch.nn.Linear(33, 130)
    with torch.no_grad():
        for p, q in zip(model.parameters(), other.parameters()):
            p.copy_(q)
    again = kind(other.parameters(), lr=1e-2, **extra(kind))
    walk(optimizer, list(model.parameters()), 2)
    walk(again, list(other.parameters()), 2)
    assert_same_states(optimizer, again, list(model.parameters()), list(other.parameters()))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("scale", [None, 1.0])
def test_no_step_where_an_infinity_was_found(kind, scale, device):
    """What a GradScaler sets, set by hand."""
    value = parameter(70, 70, device=device)
    optimizer = kind([value], lr=1e-2, **extra(kind))
    value.grad = torch.ones_like(value)
    before = value.detach().clone()
    optimizer.grad_scale = None if scale is None else torch.full((1,), scale, device=device)
    optimizer.found_inf = torch.ones((), device=device)
    optimizer.step()
    assert torch.equal(value, before) and int(optimizer.state[value]["step"]) == 0
    optimizer.found_inf = torch.zeros((), device=device)
    optimizer.step()
    assert not torch.equal(value, before) and int(optimizer.state[value]["step"]) == 1


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_default_dtype_plays_no_part(kind):
    results = []
    for dtype in (torch.float32, torch.float64, torch.float16):
        torch.set_default_dtype(dtype)
        try:
            value = torch.nn.Parameter(torch.linspace(-1, 1, 5000, dtype=torch.float32))
            optimizer = kind([value], lr=1e-2, **extra(kind))
            for step in range(3):
                value.grad = torch.linspace(-1, 2, 5000, dtype=torch.float32) * (step + 1)
                optimizer.step()
        finally:
            torch.set_default_dtype(torch.float32)
        state = optimizer.state[value].values()
        results.append([value.detach(), *state])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_can_be_printed(kind):
    text = repr(kind([parameter(8)], lr=0.125, **extra(kind)))
    assert text.startswith(kind.__name__) and "lr: 0.125" in text and "maximize: False" in text


# --- state dicts ----------------------------------------------------------------------------------


def stepped(kind, named=False, steps=2):
    values = [parameter(70, 70), parameter(7)]
    params = [("weight", values[0]), ("bias", values[1])] if named else values
    optimizer = kind(params, lr=1e-2, **extra(kind))
    for _ in range(steps):
        for value in values:
            value.grad = torch.randn_like(value)
        optimizer.step()
    return optimizer, values


def without_names(saved):
    saved = copy.deepcopy(saved)
    for group in saved["param_groups"]:
        group.pop("param_names", None)
    return saved


def assert_equal_dicts(a, b):
    assert a["param_groups"] == b["param_groups"] and a["state"].keys() == b["state"].keys()
    ours, theirs = (torch.utils._pytree.tree_flatten(each["state"]) for each in (a, b))
    assert ours[1] == theirs[1]
    for value, other in zip(ours[0], theirs[0]):
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(other))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_equal_runs_have_equal_dicts_named_or_not(kind, first, second):
    optimizer, values = stepped(kind, first)
    others = [v.detach().clone().requires_grad_() for v in values]
    params = [("weight", others[0]), ("bias", others[1])] if second else others
    again = kind(params, lr=0.5, **extra(kind))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for value, other in zip(values, others):
        value.grad = torch.randn_like(value)
        other.grad = value.grad.clone()
    optimizer.step()
    again.step()
    assert_equal_dicts(without_names(optimizer.state_dict()), without_names(again.state_dict()))
    if first or second:
        assert again.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    groups = again.param_groups
    groups.extend(list(groups))  # the same parameters again have the same numbers
    assert again.state_dict()["param_groups"][-1] == again.state_dict()["param_groups"][0]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_dict_of_before_there_were_all_options(kind):
    optimizer, values = stepped(kind)
    saved = copy.deepcopy(optimizer.state_dict())
    for name in ("maximize", "seed", "stochastic_rounding", "min_8bit_size", "block_size"):
        saved["param_groups"][0].pop(name, None)
    expected = copy.deepcopy(optimizer)
    optimizer.load_state_dict(saved)
    optimizer.step()
    for value, other in zip(values, expected.param_groups[0]["params"]):
        other.grad = value.grad.clone()
    expected.step()
    for value, other in zip(values, expected.param_groups[0]["params"]):
        assert torch.equal(value, other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("number", [int, float])
def test_steps_that_are_not_tensors(kind, number):
    optimizer, values = stepped(kind)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["step"] = number(int(optimizer.state[values[0]]["step"]))
    optimizer.load_state_dict(saved)
    optimizer.step()
    assert int(optimizer.state[values[0]]["step"]) == 3


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_copy_has_the_public_attributes(kind):
    optimizer, _ = stepped(kind)

    def public(of):
        return {name for name in vars(of) if not name.startswith("_")}

    assert public(copy.deepcopy(optimizer)) == public(optimizer) >= {"state", "param_groups"}


def test_hooks_before_loading_run_in_the_order_that_was_asked_for():
    optimizer, _ = stepped(mt.AdamW8bit)

    def rate(value, instead):
        def hook(_, saved):
            if instead:
                saved = copy.deepcopy(saved)
            saved["param_groups"][0]["lr"] = value
            return saved if instead else None

        return hook

    optimizer.register_load_state_dict_pre_hook(rate(0.002, False))
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.002
    optimizer.register_load_state_dict_pre_hook(rate(0.003, True), prepend=True)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.002  # the prepended one came first
    optimizer.register_load_state_dict_pre_hook(rate(0.004, True))
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.004


def test_the_smallest_parameter_that_is_coded():
    smaller, exact = parameter(4095), parameter(4096)
    optimizer = mt.AdamW8bit([smaller, exact], min_8bit_size=4096)
    for value in (smaller, exact):
        value.grad = torch.ones_like(value)
    optimizer.step()
    assert optimizer.state[smaller]["exp_avg"].dtype is torch.float32
    assert optimizer.state[exact]["exp_avg"].dtype is torch.uint8
