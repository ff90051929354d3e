"""Optimizers for torch: torch's manners, GradScaler, CUDA graphs."""

from __future__ import annotations

import gc
import inspect
import os
import re
import select
import signal
import weakref

import pytest
import torch

import memopt.torch as mt
from memopt.torch._native import native
from optim_support import (
    KINDS,
    assert_same_states,
    assert_unchanged,
    every,
    fill,
    kinds,
    make,
    parameters,
    same_bits,
    snapshot,
    those,
    twin,
    walk,
)

# --- torch's manners -----------------------------------------------------------------------------------


@kinds
def test_closure(kind):
    p = torch.ones(10).requires_grad_()
    a = make(kind, [p], lr=0.1)

    def closure():
        a.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    first = a.step(closure)
    assert first.item() == 10.0
    for _ in range(20):
        last = a.step(closure)
    assert last < first
    a.zero_grad()
    assert p.grad is None
    closure()
    a.zero_grad(set_to_none=False)
    assert torch.equal(p.grad, torch.zeros(10))


def test_step_hooks_run_in_order():
    p = torch.ones(10).requires_grad_()
    a = mt.AdamW8bit([p])
    fill([p], 0)
    seen = []
    a.register_step_pre_hook(lambda o, args, kwargs: seen.append(("pre", p.detach().clone())))
    a.register_step_post_hook(lambda o, args, kwargs: seen.append(("post", p.detach().clone())))
    a.step()
    assert [name for name, _ in seen] == ["pre", "post"]
    assert torch.equal(seen[0][1], torch.ones(10)) and torch.equal(seen[1][1], p)


SCHEDULES = torch.optim.lr_scheduler
SCHEDULERS = {
    "step": lambda o: SCHEDULES.StepLR(o, step_size=3, gamma=0.1),
    "cyclic": lambda o: SCHEDULES.CyclicLR(o, 0.001, 0.01, step_size_up=4, base_momentum=0.1, max_momentum=0.5),
    "one cycle": lambda o: SCHEDULES.OneCycleLR(o, 0.01, total_steps=9),
    "sequence": lambda o: SCHEDULES.SequentialLR(
        o, [SCHEDULES.LinearLR(o, 0.1, total_iters=5), SCHEDULES.ExponentialLR(o, 0.9)], [5]
    ),
}


@pytest.mark.filterwarnings("error")  # torch's, where a scheduler does not see the steps
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_schedulers(kind, as_tensor, name, device):
    """They write rates, betas and momenta into groups; each step takes what is there."""
    ours = parameters(device)
    theirs = twin(ours)
    rate = torch.tensor(0.25, device=device)
    a = make(kind, ours, lr=rate if as_tensor else 0.25)
    b = KINDS[kind][3](theirs, lr=0.25, **KINDS[kind][1])
    schedulers = [SCHEDULERS[name](o) for o in (a, b)]
    for t in range(8):
        walk(a, ours, 1, t)
        walk(b, theirs, 1, t)
        for scheduler in schedulers:
            scheduler.step()
        assert float(a.param_groups[0]["lr"]) == pytest.approx(b.param_groups[0]["lr"])
        for p, q in zip(ours, theirs):
            torch.testing.assert_close(p, q, atol=2e-6, rtol=2e-5)
    assert not as_tensor or a.param_groups[0]["lr"] is rate  # whoever holds it sees it


@kinds
def test_add_param_group_while_training(kind):
    ours = parameters(shapes=((5000,), (6000,)))
    theirs = twin(ours)
    a = make(kind, [ours[0]])
    walk(a, ours[:1], 2)
    a.add_param_group({"params": [ours[1]], "lr": 0.5, "weight_decay": 0.2})
    walk(a, ours, 2, 9)
    b = make(kind, [theirs[0]])
    walk(b, theirs[:1], 2)
    c = make(kind, [theirs[1]], lr=0.5, weight_decay=0.2)
    for t in range(2):
        fill(theirs, 9 + t)
        b.step()
        c.step()
    assert all(same_bits(p, q) for p, q in zip(ours, theirs))


def test_named_parameters_are_named():
    model = torch.nn.Linear(3, 4)
    a = mt.AdamW(model.named_parameters())
    model.weight.grad = torch.zeros(4, 3).to_sparse()
    with pytest.raises(RuntimeError, match="sparse gradients.*parameter 'weight'"):
        a.step()


def test_the_version_counter_grows():
    """A backward pass over values of before the step is refused, as with torch's optimizers."""
    p = torch.ones(5).requires_grad_()
    loss = (p * p).sum()
    loss.backward(retain_graph=True)
    mt.AdamW([p]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_child_process_goes_on():
    """After a fork the threads of the parent's device are not there."""
    p, q = (torch.ones(50000).requires_grad_() for _ in range(2))
    a, b = mt.AdamW8bit([p]), mt.AdamW8bit([q])
    walk(a, [p], 1)
    walk(b, [q], 2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            fill([p], 1)
            a.step()
            os.write(write, b"1" if same_bits(p, q) else b"0")
        finally:
            os._exit(0)
    os.close(write)
    try:
        assert select.select([read], [], [], 30)[0], "the child hangs"
        assert os.read(read, 1) == b"1"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)


def test_nothing_is_kept_alive():
    p = torch.ones(5000).requires_grad_()
    a = mt.AdamW8bit([p])
    fill([p], 0)
    gradient = weakref.ref(p.grad)
    a.step()
    p.grad = None
    assert gradient() is None
    here = weakref.ref(a)
    del a
    gc.collect()
    assert here() is None


def test_what_steps_are_bound_to_ends_with_them():
    """Neither a step that is bound anew nor an optimizer that is gone leaves memory behind."""
    allocator = native(torch.device("cpu")).allocator

    def blocks():
        return allocator.stats()["allocation.all.current"]

    gc.collect()
    before = blocks()
    params = parameters()
    a = mt.AdamW8bit(params)
    walk(a, params, 1)
    bound = blocks()
    assert bound > before
    for _ in range(5):
        for p in params:
            p.data = p.data.clone()
        walk(a, params, 1)
        gc.collect()
        assert blocks() == bound
    del a
    gc.collect()
    assert blocks() == before


@pytest.mark.filterwarnings("ignore")
def test_trainer_makes_it_with_groups_of_its_own(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = torch.nn.Sequential(torch.nn.Linear(70, 80), torch.nn.LayerNorm(80))
    arguments = transformers.TrainingArguments(str(tmp_path), weight_decay=0.1, use_cpu=True)
    trainer = transformers.Trainer(model, arguments, optimizer_cls_and_kwargs=(mt.AdamW8bit, {"lr": 3e-4, "seed": 7}))
    optimizer = trainer.create_optimizer()
    assert type(optimizer) is mt.AdamW8bit
    groups = optimizer.param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    found = {name: decay[id(p)] for name, p in model.named_parameters()}
    assert found == {"0.weight": 0.1, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0}
    assert all(group["lr"] == 3e-4 and group["seed"] == 7 for group in groups)


@pytest.mark.parametrize("kind", ["AdamW8bit", "SGD8bit"])
def test_groups_have_the_keys_of_torchs(kind):
    p = torch.ones(5).requires_grad_()
    theirs = set(KINDS[kind][3]([p]).param_groups[0]) - {"decoupled_weight_decay"}
    (group,) = make(kind, [p], foreach=True, maximize=True).param_groups
    assert theirs <= set(group) and group["foreach"] is True and group["maximize"] is True
    group = {"params": [p], "lr_scale": 0.5, "weight_decay_scale": 2, "name": "all", "initial_lr": 1}
    make(kind, [group])  # keys of the program's own
    make(kind, KINDS[kind][3]([p]).param_groups)


@kinds
def test_help_explains_every_argument(kind):
    cls = KINDS[kind][0]
    for text in (cls.__doc__, cls.__init__.__doc__):
        explained = re.findall(r"^ *(\w+(?:, \w+)*): ", text, re.M)
        names = set(", ".join(explained).split(", "))
        assert set(inspect.signature(cls).parameters) <= names


def test_arguments_of_torch_without_effect():
    p = torch.ones(5).requires_grad_()
    mt.AdamW([p], foreach=True, capturable=True)
    mt.AdamW([p], fused=True)
    mt.SGD([p], foreach=False, fused=None)
    for name in ("amsgrad", "differentiable"):
        with pytest.raises(ValueError, match=name):
            mt.AdamW8bit([p], **{name: True})


# --- GradScaler ------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    "scaler, unscale_first", [(torch.amp.GradScaler, False), (torch.amp.GradScaler, True), (mt.GradScaler, False)]
)
def test_grad_scaler(kind, scaler, unscale_first, device):
    """A scaled run is the unscaled run (powers of two); an overflow leaves every bit as it was."""
    ours = those(kind, device)
    theirs = twin(ours)
    a, b = make(kind, ours), make(kind, theirs)
    scaler = scaler(device.type, init_scale=1024.0, growth_interval=3)
    assert a._step_supports_amp_scaling or kind not in KINDS
    for t in range(6):
        fill(theirs, t)
        scale = scaler.get_scale() if t else 1024.0
        scaler.scale(torch.zeros((), device=device))  # makes the scale
        for p, q in zip(ours, theirs):
            p.grad = q.grad * scale
        if t == 3:
            ours[1].grad[-1:] = float("inf")
            before = snapshot(a, ours)
        if unscale_first:
            scaler.unscale_(a)
        scaler.step(a)
        scaler.update()
        if t == 3:
            assert_unchanged(a, ours, before)
            assert scaler.get_scale() == scale / 2
        else:
            b.step()
    assert_same_states(a, b, ours, theirs)
    assert not hasattr(a, "grad_scale")
    assert int(a.state[ours[0]]["step"]) == 5


def test_grad_scaler_without_gradients(device):
    """Its verdict is then the number 0."""
    p = torch.ones(5000, device=device).requires_grad_()
    a = mt.AdamW8bit([p])
    walk(a, [p], 1)
    p.grad = None
    scaler = torch.amp.GradScaler(device.type)
    scaler.scale(torch.zeros((), device=device))
    was = p.detach().clone()
    scaler.step(a)
    assert same_bits(p, was) and int(a.state[p]["step"]) == 1


def test_grad_scaler_first_step_overflows(device):
    """States made in a step that is skipped are those of no step."""
    p = torch.ones(5000, device=device).requires_grad_()
    a = mt.AdamW8bit([p])
    scaler = torch.amp.GradScaler(device.type)
    scaler.scale(torch.zeros((), device=device))
    p.grad = torch.full_like(p, float("nan"))
    scaler.step(a)
    scaler.update()
    assert torch.equal(p, torch.ones_like(p)) and int(a.state[p]["step"]) == 0
    fill([p], 1)
    q = torch.ones(5000, device=device).requires_grad_()
    q.grad = p.grad.clone()
    mt.AdamW8bit([q]).step()
    a.step()
    assert same_bits(p, q)


# --- CUDA graphs -----------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@kinds
def test_a_step_can_be_captured(kind):
    """Gradients and the learning rate are what lies in memory at the replay."""
    ours = parameters("cuda")
    theirs = twin(ours)
    rate = torch.tensor(0.25, device="cuda")
    a, b = make(kind, ours, lr=rate), make(kind, theirs, lr=0.25)
    fill(ours, 0)
    fill(theirs, 0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        a.step()
    torch.cuda.synchronize()
    b.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a.step()
    for t in range(3):
        for p, q in zip(ours, theirs):
            q.grad = torch.randn_like(q) * 0.01
            p.grad.copy_(q.grad)
        rate.fill_(0.5**t)
        b.param_groups[0]["lr"] = 0.5**t
        graph.replay()
        b.step()
    torch.cuda.synchronize()
    assert_same_states(a, b, ours, theirs)
