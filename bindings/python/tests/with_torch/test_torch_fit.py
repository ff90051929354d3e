"""fit(): the budget holds to the byte, and loss, gradients and buffers are the same bits."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import random
import types
import warnings
from unittest import mock

import fit_models as models
import pytest
import torch
from fit_models import results, same
from torch import nn
from torch.nn import functional as F

import memopt
import memopt.torch as mt
from memopt.torch.fitting import Fit, _choices, _costs, _places, _planned, _planning, _recipes

#: Parts of the way from the floor to what the step takes as it is.
PARTS = (0.0, 0.4, 0.8)
#: What a checkpoint keeps of random states.
RANDOM = torch.get_rng_state().nbytes


@pytest.fixture(autouse=True)
def guessed_times(monkeypatch):
    """So that plans are the same each time."""
    for name in ("operations", "forwards"):
        monkeypatch.setattr(_costs.Costs, name, lambda *unused: contextlib.nullcontext())
    for module in (_planning, _choices):
        monkeypatch.setattr(module, "own_seconds", lambda: _costs.Own(0, 0, 0))
    monkeypatch.setattr(_planning, "cost_of_moving", lambda device: _places.Cost(0.0, 3e9))


class Planned:
    """A step that was recorded once, for several budgets."""

    def __init__(self, model, step, host=None, disk=None):
        self.model, self.step = model, step
        self.expected = results(model, step)
        self.made = Fit(model, None, step, 1 << 40, host, disk=disk)
        self.planned = self.made._plan(step)
        self.planner = self.planned.planner
        assert self.measure() == self.planned.plain <= self.made.measured
        self.floor = self.planner.solve(0).peak

    def measure(self):
        """Bytes of the tensors that operators make."""
        with mock.patch.object(torch.autograd, "_profiler_enabled", lambda: True):
            return self.made._measure(self.planned, self.step)

    def at(self, part):
        return int(self.floor + part * (self.planned.plain - self.floor))

    def fit(self, budget, host=0):
        """The plan, at work."""
        self.made.budget, self.made._host = budget, host
        self.made._solve(self.planned)
        return self.planner.solve(budget, *self.made._limits())

    def is_quickest(self, plan, budget):
        """Whether more memory buys no time: no other set of as many choices is quicker within the budget."""
        times, count = [choice.seconds for choice in self.planner.choices], len(plan.chosen)
        sets = (some for n in range(count + 1) for some in itertools.combinations(range(len(times)), n))
        for some in sets:
            if sum(times[i] for i in some) < plan.seconds * (1 - 1e-9):
                with contextlib.suppress(memopt.errors.InvalidArgumentError):  # they exclude each other
                    if self.planner.replay(some).peak_bytes <= budget:
                        return False
        return True

    def check(self, budget, host=0):
        """The step within the budget is the same step; what is measured is what was planned."""
        plan = self.fit(budget, host)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert same(results(self.model, self.step), self.expected)
            measured = self.measure()
        assert plan.peak == self.made.peak_bytes <= budget
        states = RANDOM * sum(choice.what[0] == "module" for choice in plan.choices)  # an operator's mode sees none
        assert 0.998 * plan.peak - 2 * states <= measured <= plan.peak
        return plan


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_budgets(name):
    planned = Planned(*models.MODELS[name]())
    fine = name in ("gpt2", "llama", "resnet", "vit")  # the others have few choices, with large steps
    assert planned.floor < (0.8 if fine else 0.95) * planned.planned.plain
    seconds = []
    for part in PARTS:
        plan = planned.check(planned.at(part))
        assert not fine or plan.peak >= 0.97 * planned.at(part) or planned.is_quickest(plan, planned.at(part))
        seconds.append(plan.seconds)
    assert seconds == sorted(seconds, reverse=True) and seconds[-1] > 0


def test_what_there_is_to_choose():
    """Numbers of saved tensors shift where modules run again; values made after such a module are right."""
    planned = Planned(*models.stack())
    kinds = set()
    for part in (0.2, 0.4, 0.6, 0.8):
        kinds |= {choice.what[0] for choice in planned.check(planned.at(part)).choices}
    assert kinds == {"module", "again", "graph"}


def test_the_call():
    model, step = models.stack()
    optimizer = mt.AdamW8bit(model.parameters(), lr=1e-3)
    step().backward()
    optimizer.step()
    before = results(model, step)
    plain = mt.fit(model, None, step, budget="1GiB")
    plain.remove()
    plain = plain.plain_bytes + sum(t.nbytes for s in optimizer.state.values() for t in s.values() if t is not None)
    fit = mt.fit(model, optimizer, step, budget=plain * 3 // 4)
    assert fit.plain_bytes == plain and fit.measured <= fit.budget == plain * 3 // 4
    assert same(results(model, step), before)
    table = fit.table()
    assert "budget" in table and "run again" in table or "made again" in table
    with torch.no_grad():
        step()
    fit.remove()
    assert all("forward" not in vars(module) for module in model.modules())
    assert same(results(model, step), before)


def test_below_the_floor():
    model, step = models.stack()
    with pytest.raises(memopt.LimitReachedError, match=r"the least is .* weights, states and the batch") as told:
        mt.fit(model, None, step, budget="1KiB")
    assert "the budget is 1.00 KiB" in str(told.value) and "  " not in str(told.value) and "reached in backward" in str(told.value)
    assert all("forward" not in vars(module) for module in model.modules())


def test_the_host():
    planned = Planned(*models.stack(), host=1 << 30)
    budget = planned.at(0.5)
    free = planned.check(budget)
    assert free.host > 0
    less = planned.check(budget, host=free.host // 2)
    assert less.host <= free.host // 2 and less.seconds >= free.seconds
    packer = planned.made._applied.packer
    for _ in range(3):
        results(planned.model, planned.step)
    stats = packer.stats()
    assert planned.made._applied.packer is packer and stats["packs"] > 0, "each step takes the same host memory"
    assert stats["host_bytes_peak"] <= free.host + (1 << 16)


@pytest.mark.parametrize("name", ["gpt2", "llama", "resnet", "vit"])
def test_the_floor_with_the_host(name):
    """At most what a step takes whose saved tensors of 1 KiB and more are all moved in line, by torch's profiler."""
    planned = Planned(*models.MODELS[name](), host=1 << 40)
    moving = models.offloading(planned.model, planned.step)
    taken = planned.made._measure(planned.planned, moving)
    plan = planned.fit(planned.planner.solve(0, 1 << 40).peak, 1 << 40)
    assert plan.host > 0 and planned.made._measure(planned.planned, planned.step) <= taken < planned.made.measured


def test_the_disk(tmp_path):
    """Values that do not fit below the host's limit; a disk that is full keeps them on the device."""
    host, disk = 600 << 10, (str(tmp_path), 16 << 20)
    planned = Planned(*models.stack(batch=512), host=host, disk=disk)
    least, dry = planned.planner.solve(0, host), planned.planner.solve(0, host, 1)
    assert least.disk > 0 == dry.disk and least.peak < dry.peak
    plan = planned.check((least.peak + dry.peak) // 2, host)
    assert 0 < plan.disk == planned.made.disk_bytes and plan.host <= host
    assert planned.made._applied.packer.stats()["disk_written_bytes"] > 0 and "to the disk" in planned.made.table()
    planned.made.save(tmp_path / "plan.json")
    planned.made.remove()
    again = Fit.load(tmp_path / "plan.json", planned.model)
    again._applied.options = again._applied.options._replace(disk=(str(tmp_path), 1 << 16))
    assert same(results(planned.model, planned.step), planned.expected)
    assert again._applied.packer.stats()["kept_overflow"] > 0
    again.remove()
    with pytest.raises(ValueError, match="pass host="):
        mt.fit(planned.model, None, planned.step, budget="1GiB", disk=tmp_path)


def test_times_are_measured(monkeypatch):
    """By a clock that counts how often it is read."""
    monkeypatch.undo()
    ticks = itertools.count()
    monkeypatch.setattr(_costs, "time", types.SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    own = _costs.Own(3.0, 5.0, 7.0)
    for module in (_planning, _choices):
        monkeypatch.setattr(module, "own_seconds", lambda: own)
    planned = Planned(*models.stack())
    times, made = planned.planned.tried.costs.modules, planned.made
    assert times["1.up"] == 1 and times["1"] == 1 + 2 * len(list(planned.model[1].children()))
    seconds = {(c.what[0], c.name): c.seconds for c in planned.planner.choices}
    assert own.module < seconds["module", "1"] < times["1"] + own.module and seconds["again", "1.norm"] == 1 + own.value
    for part in (0.3, 0.8):
        plan = planned.fit(planned.at(part))
        assert same(results(planned.model, planned.step), planned.expected)
        remade = sum(choice.what[0] != "module" for choice in plan.choices)
        saved = planned.planner.tape.units[0].end
        assert made.seconds == plan.seconds + own.saved * saved and plan.seconds >= (1 + own.value) * remade


def test_own_times_are_measured(monkeypatch):
    """Of hooks, recipes and checkpoints, by a clock that only they move."""
    now = 0.0

    def taking(seconds, function):
        def call(*args):
            nonlocal now
            now += seconds
            return function(*args)

        return call

    monkeypatch.setattr(_costs, "time", types.SimpleNamespace(perf_counter=lambda: now))
    for name, seconds in (("_pack", 1), ("_unpack", 2), ("_pack_recipe", 6), ("checkpoint", 1000)):
        monkeypatch.setattr(_costs, name, taking(seconds, getattr(_costs, name)))
    assert _costs.own_seconds.__wrapped__() == _costs.Own(1000 - _costs.LINKS * 3, 5, 3)


@pytest.mark.parametrize("part", [0.25, 2.0])
def test_kernels_take_another_amount_in_each_plan(monkeypatch, part):
    """What the first plan's kernels took is not left free for one whose kernels take nothing; a part of what
    lies between the floor and the plain step, or more than there is."""
    model, step = models.stack()
    planned = Planned(model, step)
    budget, scratch = planned.at(0.6), int(part * (planned.planned.plain - planned.floor))
    least = planned.planner.solve(max(budget - scratch, planned.floor))
    border = max(budget - scratch // 3, (budget + planned.floor) // 2)
    planned.made.remove()
    monkeypatch.setattr(Fit, "_measure", lambda self, now, step: now.peak + (scratch if now.peak > border else 0))
    fit = mt.fit(model, None, step, budget=budget)
    assert fit.measured == fit.peak_bytes <= budget and fit.seconds < least.seconds
    assert same(results(model, step), planned.expected)


def test_modules_within_modules():
    """They run again for each other's runs; buffers and random numbers are those of the first run in both."""

    def make():
        inner = nn.Sequential(models.Block(), nn.BatchNorm1d(32), nn.Dropout(0.1))
        return nn.Sequential(inner, models.Block(), nn.Dropout(0.1))

    planned = Planned(*models.stack(make=make, count=2))
    numbers = {c.what[1]: i for i, c in enumerate(planned.planner.choices) if c.what[0] == "module"}
    chosen = [numbers[name] for name in ("0", "0.0", "1", "1.1")]
    result = planned.planner.replay(chosen)
    choices = [planned.planner.choices[i] for i in chosen]
    plan = _choices.Plan(choices, chosen, result.peak_bytes, 0, result.seconds, 0)
    planned.planned.spec = spec = _planned.spec_of(planned.planner.tape, plan, planned.planned.tried.moving, "")
    assert list(spec["modules"]) == ["0", "1"] and list(spec["within"]) == ["0.0", "1.1"]
    assert result.seconds == sum(choice.seconds for choice in choices)
    for _ in range(2):
        assert same(results(planned.model, planned.step), planned.expected)
        assert result.peak_bytes - 8 * RANDOM <= planned.measure() <= result.peak_bytes
    with pytest.raises(memopt.errors.InvalidArgumentError, match="is within 2 that run again"):
        planned.planner.replay([*chosen, numbers["0.0.0"]])


def test_one_memory_for_host_and_device(monkeypatch):
    """A copy on the host would take from the same budget."""
    monkeypatch.setattr(_planning, "shares_memory", lambda device: True)
    planned = Planned(*models.stack(), host=1 << 30)
    plan = planned.check(planned.at(0.5))
    assert plan.host == 0 and {choice.what[0] for choice in plan.choices} <= {"module", "again", "graph"}


def test_autocast_and_two_batches_at_once():
    model, _ = models.stack()
    batches = [torch.randn(64, 32) for _ in range(2)]

    def step(x=batches[0]):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    def both():
        return step(batches[0]) * step(batches[1])

    planned = Planned(model, step)
    expected = results(model, both)
    planned.check(planned.at(0.4))
    assert same(results(model, both), expected)


def test_save_and_load(tmp_path):
    planned = Planned(*models.stack())
    fit = planned.made
    planned.fit(planned.at(0.1))
    fit.save(tmp_path / "plan.json")
    fit.remove()
    again = Fit.load(tmp_path / "plan.json", planned.model)
    assert again.table() == fit.table()
    assert same(results(planned.model, planned.step), planned.expected)
    assert fit._measure(planned.planned, planned.step) <= again.peak_bytes < planned.planned.plain
    again.remove()
    other, _ = models.stack(count=1)
    with pytest.raises(ValueError, match="no module"):
        Fit.load(tmp_path / "plan.json", other)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ValueError, match="not a plan"):
        Fit.load(tmp_path / "plan.json", planned.model)


def test_copies_are_plain():
    planned = Planned(*models.stack())
    planned.fit(planned.at(0.3))
    planned.step()
    for other in (copy.deepcopy(planned.model), pickle.loads(pickle.dumps(planned.model))):
        assert all(p is not q for p, q in zip(other.parameters(), planned.model.parameters()))
        assert all(type(module.forward).__name__ == "method" for module in other.modules())
        assert all(module.forward.__self__ is module for module in other.modules())


def test_checkpoints_by_hand():
    model, step = models.stack()
    expected = results(model, step)
    detach = mt.attach_checkpoint(model, determinism_check="hash")
    assert same(results(model, step), expected)
    runs = []
    model[2].act = lambda x: runs.append(0) or F.silu(x)
    step().backward()
    assert len(runs) == 2
    other = copy.deepcopy(model)
    assert other[0].forward.__self__ is other[0]
    detach()
    assert all("forward" not in vars(block) for block in model)


# --- steps that are not the planned one ------------------------------------------------------------


def graph_fit(model, step):
    """A plan that makes values again by the graph."""
    planned = Planned(model, step)
    assert any(choice.what[0] == "graph" for choice in planned.fit(planned.at(0.8)).choices)
    return planned.made


def test_another_shape():
    """It is planned when it comes, and both plans are kept."""
    model, step = models.stack()
    other = torch.randn(48, 32)
    expected = results(model, lambda: model(other).square().mean())
    fit = graph_fit(model, step)
    first = fit.peak_bytes
    fit.budget = 600 << 10
    with pytest.warns(UserWarning, match="a step of shapes 48x32:float32 was planned: .* of 600.00 KiB"):
        assert same(results(model, lambda: model(other).square().mean()), expected)
    assert fit.peak_bytes < fit.budget and fit.choices
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(results(model, lambda: model(other).square().mean()), expected)
        step()
    assert fit.peak_bytes == first and "2, 0 steps not as planned" in fit.table()


@pytest.mark.parametrize("act", [F.softplus, lambda x: torch.sigmoid(torch.tanh(x) * x)])
def test_another_operation(act):
    """Of the same shapes and types, or with another number of tensors: told by the graph."""
    model, step = models.stack()
    fit = graph_fit(model, step)
    for block in model:
        block.act = act
    with pytest.warns(UserWarning, match="not the one that was planned"):
        found = results(model, step)
    fit.remove()
    assert same(found, results(model, step)) and fit.unplanned == 1


# --- traps -----------------------------------------------------------------------------------------


def test_spectral_norm():
    """It reads buffers that it changes: as they were, in the recomputation."""

    def make():
        block = models.Block()
        block.up = nn.utils.parametrizations.spectral_norm(block.up)
        return block

    planned = Planned(*models.stack(make=make))
    plan = planned.check(planned.floor)
    assert any(choice.what[0] == "module" and choice.extra for choice in plan.choices)


class Dropping(models.Block):
    """A part of its graph is dropped in forward, as that of DoRA's norms."""

    def forward(self, x):
        return super().forward(x) * torch.tanh(x * 2).square().mean().detach()


def test_dropped_graphs():
    planned = Planned(*models.stack(make=Dropping))  # what is planned is what is measured
    for part in (0.0, 0.5):
        planned.check(planned.at(part))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_use_cache(name):
    """A cache among the arguments would be appended to twice: such modules do not run again."""
    planned = Planned(*models.MODELS[name](layers=2, use_cache=True))
    assert any("Cache" in unit.why for unit in planned.planner.tape.units)
    planned.check(planned.at(0.5))
    with pytest.raises(ValueError, match="has a plan"):
        mt.fit(planned.model, None, planned.step, budget="1KiB")
    planned.made.remove()
    with pytest.raises(memopt.LimitReachedError, match=r"\d+ more cannot run again: .*Cache \(pass use_cache=False\)"):
        mt.fit(planned.model, None, planned.step, budget="1KiB")


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.norm = models.Block(), nn.LayerNorm(32)

    def forward(self, x):
        return self.norm(self.block(self.norm(self.block(x))))


class Box(types.SimpleNamespace):
    """No container that is known."""


class Boxing(models.Block):
    def forward(self, x):
        return Box(tensor=super().forward(x))


class Unboxing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Boxing()

    def forward(self, x):
        return self.inner(x).tensor


class Counter(models.Block):
    calls = 0

    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)


class InPlace(models.Block):
    def forward(self, x):
        y = super().forward(x * 1)
        x.mul_(1.0)
        return y


@pytest.mark.parametrize(
    ("make", "kind", "why"),
    [
        (Twice, models.Block, "called several times"),
        (Unboxing, Boxing, "takes or gives a Box"),
        (Counter, Counter, "changes an attribute of its own"),
        (InPlace, InPlace, "changes its input"),
    ],
)
def test_modules_that_do_not_run_again(make, kind, why):
    """What is around them and within them may."""
    model, _ = models.stack(make=make)
    planned = Planned(model, lambda: step_of(model))
    units = [unit for unit in planned.planner.tape.units if isinstance(unit.module, kind)]
    assert units and all(unit.why == why for unit in units)
    again = {choice.module for choice in planned.check(planned.at(0.3)).choices if choice.what[0] == "module"}
    assert not again & {unit.index for unit in units}


def test_backward_twice():
    planned = Planned(*models.stack())
    planned.fit(planned.at(0.4))
    loss = planned.step()
    for retain in (True, False):
        planned.model.zero_grad()
        loss.backward(retain_graph=retain)
        assert same([p.grad for p in planned.model.parameters()], planned.expected[1:])


class PythonRandom(models.Block):
    def forward(self, x):
        return super().forward(x) * random.random()


def test_a_step_that_does_not_repeat_itself():
    model, step = models.stack(make=PythonRandom)
    with pytest.raises(ValueError, match="two runs of step"):
        mt.fit(model, None, step, budget="1MiB")


class Doubling(models.Block):
    """Changes what its norm gave in place."""

    def forward(self, x):
        y = self.norm(x)
        y.mul_(2)
        return x + self.down(F.silu(self.up(y)) * self.gate(y))


def test_results_that_are_changed_are_not_made_again():
    planned = Planned(*models.stack(make=Doubling))
    for part in (0.4, 0.8):
        plan = planned.check(planned.at(part))
        assert all(choice.what[0] != "again" for choice in plan.choices)


@pytest.mark.parametrize("part", [0.8, 1.0])
def test_saved_tensors_that_are_changed(part):
    """An error, as without fit(); where a module runs again, nothing is wrong."""
    model, step = models.stack()
    planned = Planned(model, step)
    planned.fit(planned.at(part))
    gates = []
    model[1].gate.register_forward_hook(lambda module, args, result: gates.append(result))
    loss = step()
    with torch.no_grad():
        gates[0].mul_(2)
    with pytest.raises(RuntimeError, match="in.?place"):
        loss.backward()


def test_recipes_see_changes():
    x = torch.arange(8.0)
    y = -x
    _recipes.note(y, _recipes.Recipe(torch.neg, [x]))
    parts = [_recipes.noted(y.view(2, 4).t()), _recipes.noted(y)]
    assert torch.equal(parts[0].tensor(), y.view(2, 4).t())
    y.add_(1)
    assert _recipes.noted(y) is None
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place: it is at version 1, expected version 0"):
        parts[1].tensor()


def step_of(model):
    return model(torch.ones(64, 32) * 2).square().mean()


def test_bad_steps():
    model, _ = models.stack()
    with pytest.raises(TypeError, match="loss"):
        mt.fit(model, None, lambda: model(torch.ones(4, 32)), budget="1MiB")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(TypeError, match="called optimizer.step"):
        mt.fit(model, optimizer, lambda: (step_of(model).backward(), optimizer.step()), budget="1MiB")
    with pytest.raises(ValueError, match="does not call the model"):
        mt.fit(model, None, lambda: torch.ones((), requires_grad=True) * 2, budget="1MiB")
    with pytest.raises(NotImplementedError, match="'0' is compiled"):
        model[0]._compiled_call_impl = model[0]._call_impl  # as Module.compile() does
        mt.fit(model, None, lambda: step_of(model), budget="1MiB")
    del model[0]._compiled_call_impl
    with pytest.raises(ValueError, match="more than once"):
        mt.fit(model, None, lambda: (step_of(model) + step_of(model)), budget="1MiB")
