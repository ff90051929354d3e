"""Ctrl-C at points of a whole step: the next one has the same bits, nothing is held and nothing leaks."""

from __future__ import annotations

import gc
import os
import sys
import tempfile

import fit_models
import pytest
import stream_models
import torch
from stream_models import LAYER

import memopt
import memopt.torch as mt
from interrupts import at_every_point, nothing_unraisable
from memopt._interrupt import Interruptible
from memopt.torch.fitting import Fit, _fit
from memopt.torch.optim import _base, _binding
from memopt.torch.racing import _session

FOLDER = os.path.dirname(memopt.__file__) + os.sep
every = pytest.mark.parametrize("every", [43, pytest.param(7, marks=pytest.mark.long)])


def gradients(model, loss):
    """Of a step that begins with no gradients and the same random numbers."""
    model.zero_grad()
    torch.manual_seed(5)
    loss().backward()
    return [p.grad.clone() for p in model.parameters() if p.requires_grad]


def same(one, other):
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def as_before():
    """No mode, and no hooks, are left behind."""
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0


def check(model, loss, every):
    """At points of forward and backward."""
    wanted = gradients(model, loss)
    with nothing_unraisable():
        for _ in at_every_point(lambda: gradients(model, loss), FOLDER, every=every):
            as_before()
            assert same(gradients(model, loss), wanted)


@every
@pytest.mark.parametrize("store", [None, "mxfp8"])
def test_streams(store, every):
    model, loss = stream_models.stack(count=3)
    stream = mt.stream_weights(model, 2 * LAYER, store=store)
    check(model, loss, every)
    stream._layers.unbind_idle()
    gc.collect()
    stream._layers.arena.take_back()
    assert not stream._layers.arena.held() and not any(layer.depth for layer in stream._layers.all)
    arena = getattr(stream._layers.arena, "codes", stream._layers.arena)
    stream.remove()
    assert arena._handle.closed  # nothing of it is lent


@every
def test_streams_that_train(every):
    model, loss = stream_models.stack(kind=None, count=3)
    stream = mt.stream_weights(model, 2 * LAYER, train="host")
    optimizer = mt.AdamW8bit(stream.parameters(), lr=0.01)
    loss().backward()
    optimizer.step()
    held = [t for p in stream.parameters() for t in (p, *optimizer.state[p].values())]
    masters = [(t, t.detach().clone()) for t in held]

    def step():
        with torch.no_grad():
            for t, value in masters:
                t.copy_(value)
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    step()
    wanted = [t.detach().clone() for t in held]
    for _ in at_every_point(step, FOLDER, every=every * 5):
        as_before()
        step()
        assert same([t.detach() for t in held], wanted)
    stream.remove()


@every
@pytest.mark.parametrize("part", [0.3, 0.6])
def test_fit(part, every):
    model, loss = fit_models.stack()
    floor = Fit(model, None, loss, 1 << 40)
    plain = floor._plan(loss)
    least = plain.planner.solve(0).peak
    floor.remove()
    fit = mt.fit(model, None, loss, budget=int(least + part * (plain.plain - least)))
    check(model, loss, every)
    assert not fit._applied.running and not fit._applied.inside
    fit.remove()


@every
def test_planning(every, monkeypatch):
    """The model is as it was, and can be planned."""
    monkeypatch.setattr(_fit, "Interruptible", lambda patience: Interruptible())  # one signal comes many times here
    model, loss = fit_models.stack()
    wanted = gradients(model, loss)
    model.zero_grad()
    kept = {}
    plan = lambda: kept.update(fit=mt.fit(model, None, loss, budget="1GiB"))  # noqa: E731
    for _ in at_every_point(plan, FOLDER, every=every * 301):
        as_before()
        assert same(gradients(model, loss), wanted)
        model.zero_grad()
        if "fit" in kept:
            kept.pop("fit").remove()
        assert all("forward" not in vars(module) for module in model.modules())


OPTIMIZERS = {
    "8bit": lambda params: mt.AdamW8bit(params, lr=0.1, min_8bit_size=64),
    "paged": lambda params: mt.AdamW8bit(params, lr=0.1, min_8bit_size=64, paged=True),
    "host": lambda params: mt.CPUOffloadOptimizer(params, mt.AdamW, lr=0.1),
    "disk": lambda params: mt.CPUOffloadOptimizer(params, mt.AdamW, lr=0.1, disk=tempfile.gettempdir()),
    "split": lambda params: mt.AdamW(params, lr=0.1, split_weights=True),
}


STEPS = [("8bit", True), ("paged", False), ("paged", True), ("host", False), ("host", True), ("disk", True), ("split", False)]


@every
@pytest.mark.parametrize("name,scaled", STEPS)
def test_optimizers(name, scaled, every, monkeypatch):
    """Each parameter has taken the step or has not; steps from the same weights have the same bits."""
    if name == "paged":
        monkeypatch.setattr(_binding, "is_paged", lambda device: True)
        monkeypatch.setattr(_base, "PAGE_BYTES", 512)  # several
    torch.manual_seed(0)
    kind = torch.bfloat16 if name == "split" else torch.float32
    start = [torch.randn(64, 16), torch.randn(300)]
    params = [torch.nn.Parameter(t.to(kind, copy=True)) for t in start]
    made = {}

    def make():
        with torch.no_grad():
            for p, value in zip(params, start):
                p.copy_(value)
        made["optimizer"] = OPTIMIZERS[name](params)
        made["scaler"] = mt.GradScaler("cpu", init_scale=8.0, enabled=scaled)

    def step():
        optimizer, scaler = made["optimizer"], made["scaler"]
        for p in params:
            p.grad = None
        scaler.scale(sum(p.float().square().sum() for p in params)).backward()
        scaler.step(optimizer)
        scaler.update()

    def result(steps=2):
        found = []
        for _ in range(steps):
            step()
            found += [p.detach().clone() for p in params]
        return found

    make()
    assert bool(getattr(made["optimizer"], "_page_bytes", 0)) == (name == "paged")
    before = [p.detach().clone() for p in params]
    wanted = result()
    make()
    for _ in at_every_point(step, FOLDER, every=every * (7 if name == "disk" else 1)):
        as_before()
        assert not hasattr(made["optimizer"], "grad_scale")
        for p, old, new in zip(params, before, wanted):
            assert torch.equal(p.detach(), old) or torch.equal(p.detach(), new)
        if all(torch.equal(p.detach(), old) for p, old in zip(params, before)):
            try:
                assert same(result(), wanted)
            except RuntimeError as error:  # after the step and before update(); within a disk's step
                assert "since the last update()" in str(error) or "a step ended in part" in str(error)
        make()


@every
def test_race(every):
    """torch is as before."""
    import torch._dynamo  # noqa: F401

    places = [torch, torch.cuda, torch.Tensor, torch.autograd, torch.autograd.graph, torch.UntypedStorage]

    def looks():
        return [dict(vars(place)) for place in places]

    def use():
        with mt.race() as found:
            model = torch.nn.Linear(4, 4).to("cuda")
            model(torch.ones(2, 4, device="cuda")).sum().backward()
        assert not found.races

    use()
    before = looks()
    for _ in at_every_point(use, FOLDER, every=every * 29):
        as_before()
        assert not _session.is_active()
        for place, one, other in zip(places, looks(), before):
            assert [name for name in one if one[name] is not other.get(name)] == [], place
        use()
    assert sys.gettrace() is None


# --- errors ---


def checkpointed():
    model, loss = fit_models.stack()
    mt.attach_checkpoint([module for module in model.modules() if isinstance(module, fit_models.Block)])
    return model, loss


def fitted():
    model, loss = fit_models.stack()
    plan = Fit(model, None, loss, 1 << 40)
    planned = plan._plan(loss)
    plan.budget = (planned.planner.solve(0).peak + planned.plain) // 2
    plan._solve(planned)
    return model, loss


def streamed():
    model, loss = stream_models.stack(count=3)
    mt.stream_weights(model, LAYER)
    mt.attach_checkpoint(model)
    return model, loss


@pytest.mark.parametrize("make", [checkpointed, fitted, streamed])
def test_a_layer_is_out_of_memory(make):
    """At each call of a layer, those of the recomputation too."""
    model, loss = make()
    wanted = gradients(model, loss)
    left, failed = 0, 0

    def fails(*_):
        nonlocal left, failed
        left -= 1
        if left == -1:
            failed += 1
            raise torch.OutOfMemoryError("none is left")

    hook = torch.nn.modules.module.register_module_forward_pre_hook(fails)
    try:
        found = None
        while found is None:
            left = failed
            try:
                found = gradients(model, loss)
            except torch.OutOfMemoryError:
                as_before()
            left = 1 << 40
            assert same(found or gradients(model, loss), wanted)
    finally:
        hook.remove()
    assert failed > sum(1 for _ in model.modules())  # in recomputation as well
