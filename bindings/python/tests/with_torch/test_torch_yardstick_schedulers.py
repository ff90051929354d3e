"""What torch tests of its learning-rate schedulers, with our optimizers: each scheduler, alone and
in combinations, gives them the same rates, momenta and steps as it gives torch's.

docs/guide/pytorch-tests.md lists torch's tests one by one and what stands for each here.
"""

from __future__ import annotations

import copy
import gc
import io
import types
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch.optim import lr_scheduler as schedules  # noqa: E402
from torch.optim.swa_utils import SWALR  # noqa: E402

import memopt.torch as mt  # noqa: E402

STEPS = 12
PAIRS = {
    "AdamW": (mt.AdamW, torch.optim.AdamW, {}),
    "SGD": (mt.SGD, torch.optim.SGD, {"momentum": 0.9}),
}
KINDS = {
    "step": lambda o: schedules.StepLR(o, step_size=3, gamma=0.1),
    "several steps": lambda o: schedules.MultiStepLR(o, milestones=[2, 5, 9], gamma=0.1),
    "constant": lambda o: schedules.ConstantLR(o, factor=0.5, total_iters=5),
    "linear": lambda o: schedules.LinearLR(o, start_factor=0.25, end_factor=0.6, total_iters=4),
    "exponential": lambda o: schedules.ExponentialLR(o, gamma=0.9),
    "polynomial": lambda o: schedules.PolynomialLR(o, power=0.9, total_iters=5),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, T_max=10, eta_min=1e-10),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, T_0=4, T_mult=2),
    "lambda": lambda o: schedules.LambdaLR(o, [lambda n: 0.9**n, lambda n: 0.8**n]),
    "product": lambda o: schedules.MultiplicativeLR(o, [lambda n: 0.9, lambda n: 0.8]),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1, cooldown=1, factor=0.3),
    "cyclic": lambda o: schedules.CyclicLR(
        o, 0.001, 0.01, step_size_up=4, base_momentum=0.1, max_momentum=0.5, mode="triangular2"
    ),
    "cyclic, rate only": lambda o: schedules.CyclicLR(
        o, [0.001, 0.002], [0.01, 0.02], step_size_up=4, cycle_momentum=False, mode="exp_range"
    ),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.01, total_steps=STEPS, three_phase=True),
    "one line": lambda o: schedules.OneCycleLR(
        o, [0.01, 0.02], total_steps=STEPS, anneal_strategy="linear"
    ),
    "averaging": lambda o: SWALR(o, swa_lr=0.005, anneal_epochs=3),
    "chain": lambda o: schedules.ChainedScheduler(
        [schedules.LinearLR(o, start_factor=0.4, total_iters=3), schedules.StepLR(o, 4, gamma=0.1)]
    ),
    "sequence": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=5), schedules.ExponentialLR(o, 0.9)], [5]
    ),
}
TOGETHER = [("step", "exponential"), ("cosine", "linear"), ("plateau", "several steps")]
every = pytest.mark.parametrize("pair", PAIRS)


def optimizers(pair, as_tensor):
    """Ours and torch's, of equal parameters in two groups with rates of their own."""
    ours, theirs, values = PAIRS[pair]
    start = [torch.randn(20, 30), torch.randn(7)]
    made = []
    for cls in (ours, theirs):
        params = [torch.nn.Parameter(value.clone()) for value in start]
        rates = [torch.tensor(0.01), torch.tensor(0.05)] if as_tensor else [0.01, 0.05]
        groups = [{"params": [p], "lr": rate} for p, rate in zip(params, rates)]
        made.append(cls(groups, **values))
    return made


def advance(optimizer, scheduler, step):
    generator = torch.Generator().manual_seed(step)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()
    for one in scheduler:
        plateau = isinstance(one, schedules.ReduceLROnPlateau)
        one.step(*([1.0 - 0.01 * (step % 3)] if plateau else []))


def assert_agree(a, b):
    for one, other in zip(a.param_groups, b.param_groups):
        assert one["lr"] == other["lr"] and type(one["lr"]) is type(other["lr"])
        assert one["initial_lr"] == other["initial_lr"] if "initial_lr" in other else True
        for key in ("momentum", "betas"):
            assert one.get(key) == other.get(key)
        for p, q in zip(one["params"], other["params"]):
            torch.testing.assert_close(p, q, atol=2e-6, rtol=2e-5)


@every
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("names", [*[(kind,) for kind in KINDS], *TOGETHER], ids=", ".join)
def test_rates_momenta_and_steps_are_those_of_torchs(pair, names, as_tensor):
    ours, theirs = optimizers(pair, as_tensor)
    schedulers = [[KINDS[name](optimizer) for name in names] for optimizer in (ours, theirs)]
    assert_agree(ours, theirs)
    for step in range(STEPS - 1):
        for optimizer, scheduler in zip((ours, theirs), schedulers):
            advance(optimizer, scheduler, step)
        assert_agree(ours, theirs)
    assert schedulers[0][0].get_last_lr() == schedulers[1][0].get_last_lr()


@every
@pytest.mark.parametrize("name", KINDS)
def test_a_run_goes_on_from_dicts_that_were_loaded_with_weights_only(pair, name):
    ours, _ = optimizers(pair, False)
    scheduler = KINDS[name](ours)
    for step in range(5):
        advance(ours, [scheduler], step)
    file = io.BytesIO()
    torch.save([ours.state_dict(), scheduler.state_dict()], file)
    file.seek(0)
    params = [copy.deepcopy(p) for group in ours.param_groups for p in group["params"]]
    again = type(ours)([{"params": [p]} for p in params], lr=0.5)
    resumed = KINDS[name](again)
    for one, state in zip((again, resumed), torch.load(file, weights_only=True)):
        one.load_state_dict(state)
    for step in range(5, 9):
        advance(ours, [scheduler], step)
        advance(again, [resumed], step)
    for one, other in zip(ours.param_groups, again.param_groups):
        assert one["lr"] == other["lr"]
        assert all(torch.equal(p, q) for p, q in zip(one["params"], other["params"]))


def test_a_group_that_is_added_to_a_plateau():
    ours, theirs = optimizers("SGD", False)
    for optimizer in (ours, theirs):
        scheduler = schedules.ReduceLROnPlateau(optimizer, patience=0, min_lr=[1e-5, 1e-4])
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, 3))], "lr": 0.05})
        advance(optimizer, [scheduler], 0)
        with pytest.raises(RuntimeError, match="The number of param groups in the"):
            for step in (1, 1, 1):
                advance(optimizer, [scheduler], step)
    ours, theirs = optimizers("SGD", False)
    for optimizer in (ours, theirs):
        scheduler = schedules.ReduceLROnPlateau(optimizer, patience=0)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, 3))], "lr": 0.05})
        for step in range(STEPS):
            advance(optimizer, [scheduler], step)
    assert_agree(ours, theirs)


def test_a_schedule_that_is_resumed_needs_the_first_rates():
    optimizer, _ = optimizers("AdamW", False)
    with pytest.raises(KeyError, match="'initial_lr' is not specified in param_groups"):
        schedules.StepLR(optimizer, step_size=3, last_epoch=1)
    for group in optimizer.param_groups:
        group["initial_lr"] = 0.01
    schedules.StepLR(optimizer, step_size=3, last_epoch=10)


@every
@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("plateau", "sequence")])
def test_a_new_scheduler_goes_on_where_a_loaded_optimizer_is(pair, name):
    """What a scheduler keeps in the groups comes along."""
    ends = []
    for optimizer in optimizers(pair, False):
        advance(optimizer, [KINDS[name](optimizer)], 0)
        again = type(optimizer)([{"params": group["params"]} for group in optimizer.param_groups])
        again.load_state_dict(optimizer.state_dict())
        for one, other in zip(again.param_groups, optimizer.param_groups):
            assert one == other
        advance(again, [resumed(name, again)], 1)
        ends.append(again)
    assert_agree(*ends)


def resumed(name, optimizer):
    """The scheduler at the epoch after the first."""
    epochs = {"last_epoch": 0}
    made = {
        "step": lambda: schedules.StepLR(optimizer, step_size=3, gamma=0.1, **epochs),
        "cosine": lambda: schedules.CosineAnnealingLR(optimizer, T_max=10, **epochs),
        "cyclic": lambda: schedules.CyclicLR(optimizer, 0.001, 0.01, step_size_up=4, **epochs),
        "one cycle": lambda: schedules.OneCycleLR(optimizer, 0.01, total_steps=STEPS, **epochs),
        "averaging": lambda: SWALR(optimizer, swa_lr=0.005, anneal_epochs=3, **epochs),
    }
    return made[name]() if name in made else KINDS[name](optimizer)


def test_a_step_that_was_replaced_is_noticed():
    optimizer, _ = optimizers("AdamW", False)
    scheduler = schedules.StepLR(optimizer, 3)
    inner = optimizer.step
    optimizer.step = types.MethodType(lambda self, *given: inner(*given), optimizer)
    with pytest.warns(UserWarning, match=r"`optimizer.step\(\)` has been overridden"):
        advance(optimizer, [scheduler], 0)


@every
def test_nothing_refers_to_an_optimizer_and_its_scheduler(pair):
    def run():
        optimizer, _ = optimizers(pair, False)
        scheduler = schedules.LambdaLR(optimizer, lambda n: 1.0)
        advance(optimizer, [scheduler], 0)
        copy.deepcopy(optimizer)
        optimizer.state_dict()
        return weakref.ref(optimizer), weakref.ref(scheduler)

    with warnings.catch_warnings():
        run()  # whatever is made once
        gc.collect()
        gc.disable()
        try:
            assert [reference() for reference in run()] == [None, None]
        finally:
            gc.enable()
