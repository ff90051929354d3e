"""Steps traced by sizes and measured for real: to the byte, and at batch sizes never run."""

from __future__ import annotations

import itertools
import resource

import pytest
import torch
from torch import nn

import memopt.torch as mt
from memopt import plan
from memopt.torch._optimizer_bytes import OPTIMIZERS, optimizer_blocks
from memopt.torch._recorder import CATEGORIES, tensors_in
from memopt.torch._step import StepRecorder, states_of
from memopt.torch._step_bytes import Line
from memopt.torch._target import TargetError, target_of
from memopt.torch._trace_model import Trace
from profile_models import FLOAT, Unet, Words, channels_last, made, next_word, videos, words_of  # noqa: F401


def real_step(target, batch, optimizer):
    """The account of a real step of a real optimizer that has its state."""
    inputs = target.inputs(1)
    target.loss(target.run(inputs), inputs).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepRecorder(target, optimizer=optimizer).record(lambda: target.inputs(batch)).account


# --- traces ---


def test_a_linear_layer_by_hand():
    module = nn.Linear(1000, 500, bias=False, device="meta")
    trace = Trace((module, lambda batch: torch.empty(batch, 1000, device="meta")))
    step = trace.at(10)
    weight = 1000 * 500 * FLOAT
    assert step.phases["forward"] == {
        "parameters": weight,
        "gradients": 0,
        "optimizer": 2 * weight + 4,
        "activations": 0,
        "logits": 10 * 500 * FLOAT,
        "batch": 10 * 1000 * FLOAT,
    }
    assert step.phases["backward"]["gradients"] == weight
    # A root and a quotient of the second moment.
    assert step.phases["optimizer"]["optimizer"] == 4 * weight + 4
    assert step.peak_phase == "optimizer" and step.peak_bytes == 6 * weight + 4
    assert set(step.categories) == set(CATEGORIES)
    assert step.as_dict()["peak_bytes"] == sum(step.as_dict()["categories"].values())


def test_a_trace_is_a_real_step_to_the_byte(made):
    target = target_of(made)
    optimizer = torch.optim.AdamW(target.module.parameters(), foreach=False)
    account = real_step(target, 6, optimizer)
    traced = Trace(made).at(6)
    for name, peak in account.peaks().items():
        if name in traced.phases:
            assert traced.phases[name] == account.categories(peak.event), name
    assert traced.peak_bytes == account.peak().bytes


def picture_model(kind, **sizes):
    """One of Transformers', with pictures of 64 × 64."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, kind + "Config")(**sizes)
    module = getattr(transformers, kind + "ForImageClassification")(config)

    def inputs(batch):
        return {"pixel_values": torch.randn(batch, 3, 64, 64), "labels": torch.zeros(batch, dtype=torch.long)}

    return module, inputs, lambda outputs, inputs: outputs.loss


CONVOLUTIONS = {
    "unet": lambda: (Unet(), lambda batch: torch.randn(batch, 3, 32, 32)),
    "channels-last": channels_last,
    "videos": videos,
    "resnet": lambda: picture_model("ResNet", embedding_size=32, hidden_sizes=[64, 128], depths=[2, 2]),
    "convnext": lambda: picture_model("ConvNext", hidden_sizes=[32, 64], depths=[1, 1], num_stages=2),
    "regnet": lambda: picture_model("RegNet", embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], groups_width=16),
    "mobilenet": lambda: picture_model("MobileNetV2", depth_multiplier=0.5),
}


def allocated(target, batch, optimizer):
    """All that a real step allocates at most, within kernels too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        inputs = target.inputs(batch)
        loss = target.loss(target.run(inputs), inputs)
        loss.backward()
        del loss, inputs
        optimizer.step()
        optimizer.zero_grad()
    found, left = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while left:
        event = left.pop()
        left.extend(event.children)
        if hasattr(event.extra_fields, "alloc_size"):
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    sizes = [size for _, size in sorted(found, key=lambda one: one[0])]
    kept = [*target.module.parameters(), *target.module.buffers(), *states_of(optimizer)]
    return sum(t.nbytes for t in kept) + max(itertools.accumulate(sizes))


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_take_what_their_kernels_do(kind):
    target = target_of(CONVOLUTIONS[kind]())
    optimizer = torch.optim.AdamW(target.module.parameters(), foreach=False)
    tensors = real_step(target, 6, optimizer).peak().bytes
    step = Trace(target).line().at(6)
    assert step.peak_bytes == tensors
    real = allocated(target, 6, optimizer)
    assert 0.9995 * real <= step.peak_bytes + step.overhead <= 1.1 * real


def test_nothing_is_allocated_for_a_large_model():
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(60000, 60000), nn.ReLU(), nn.Linear(60000, 60000))
    before = [id(p) for p in module.parameters()]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = Trace((module, lambda b: torch.empty(b, 60000, device="meta")), optimizer="sgd").at(3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 1 << 18  # KiB
    assert step.categories["parameters"] == 2 * (60000 * 60000 + 60000) * FLOAT
    assert [id(p) for p in module.parameters()] == before and not module[0].weight.is_cpu


def test_a_trace_leaves_weights_and_random_state_alone(made):
    module = made[0]
    before = [(p, p.clone()) for p in module.parameters()]
    state = torch.get_rng_state()
    Trace(made).at(2)
    assert torch.equal(state, torch.get_rng_state())
    for (kept, value), p in zip(before, module.parameters()):
        assert p is kept and torch.equal(p, value) and p.grad is None


def test_shared_weights_count_once():
    module = Words()
    step = Trace((module, words_of)).at(2)
    assert step.categories["parameters"] == sum(p.numel() for p in module.parameters()) * FLOAT


def test_frozen_weights_have_no_gradients_and_no_states():
    module = Words()
    module.requires_grad_(False)
    module.head.weight.requires_grad_(True)
    step = Trace((module, words_of, next_word)).at(2)
    assert step.phases["optimizer"]["gradients"] == 701 * 32 * FLOAT
    assert step.phases["forward"]["optimizer"] == 2 * 701 * 32 * FLOAT + 4


def test_accumulation_keeps_gradients_through_the_next_forward(made):
    gradients = sum(p.numel() for p in made[0].parameters()) * FLOAT
    assert Trace(made).at(2).phases["forward"]["gradients"] == 0
    assert Trace(made, accumulation=2).at(2).phases["forward"]["gradients"] == gradients


def test_autocast_has_copies_of_weights():
    made = nn.Linear(256, 128, bias=False), lambda batch: torch.randn(batch, 256)
    plain = Trace(made).at(1).phases["loss"]["activations"]
    cast = Trace(made, autocast=torch.bfloat16).at(1).phases["loss"]["activations"]
    # Of weights, and of the input; the mean is a number of 2 bytes, not of 4.
    assert cast - plain == 256 * 128 * 2 + 256 * 2 - 2


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x[x[:, 0] > 0])


def test_what_depends_on_values_is_told():
    with pytest.raises(TargetError, match="Routed cannot be traced without data.*--profile"):
        Trace((Routed(), lambda batch: torch.randn(batch, 4))).at(4)


# --- lines ---


@pytest.mark.parametrize("batches", [(1, 2), (2, 4), (3, 5)])
def test_lines_give_every_batch(made, batches):
    trace = Trace(made)
    line = trace.line(batches)
    for batch in (1, 7, 64, 300):
        step, predicted = trace.at(batch), line.at(batch)
        assert predicted.peak_phase == step.peak_phase
        assert predicted.peak_bytes == pytest.approx(step.peak_bytes, rel=2e-3)
        for name, phase in step.phases.items():
            total = sum(predicted.phases[name].values())
            assert total == pytest.approx(sum(phase.values()), rel=2e-3), name
        assert predicted.categories["logits"] == pytest.approx(step.categories["logits"], rel=1e-2)


@pytest.mark.parametrize("batches", [(1, 2), (2, 4)])
def test_lines_find_another_phase(batches):
    """Both measured peaks are the optimizer's: a line through peaks alone would be flat."""
    made = nn.Sequential(nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 300))
    trace = Trace((made, lambda batch: torch.randn(batch, 300)))
    line = trace.line(batches)
    assert [line.at(b).peak_phase for b in (*batches, 4000)] == ["optimizer"] * 2 + ["backward"]
    assert line.at(4000) == trace.at(4000)


def test_a_line_needs_two_sizes(made):
    trace = Trace(made)
    series = trace.series(2)
    with pytest.raises(ValueError, match="two different batch sizes"):
        Line((2, series), (2, series), trace.optimizer())


def test_steps_that_differ_are_matched():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            if x.shape[0] % 3:  # more operations for some batch sizes
                x.new_ones(64).sum()
            return self.layer(x).relu()

    trace = Trace((Odd(), lambda batch: torch.randn(batch, 64)))
    line = trace.line((3, 5))
    assert not line.exact
    for batch in (600, 9000):
        assert line.at(batch).peak_bytes == pytest.approx(trace.at(batch).peak_bytes, rel=0.01)


# --- optimizers ---


@pytest.mark.parametrize(
    "kind, make",
    [
        ("adamw", lambda p: torch.optim.AdamW(p, foreach=False)),
        ("adamw-foreach", lambda p: torch.optim.AdamW(p, foreach=True)),
        ("adamw-fused", lambda p: torch.optim.AdamW(p, fused=True)),
        ("sgd", lambda p: torch.optim.SGD(p, foreach=False)),
        ("sgd-momentum", lambda p: torch.optim.SGD(p, momentum=0.9, foreach=False)),
        ("adamw8bit", mt.AdamW8bit),
        ("adamw4bit", mt.AdamW4bit),
        ("adamwfp8", mt.AdamW8bit),
        ("lion8bit", mt.Lion8bit),
        ("sgd8bit", lambda p: mt.SGD8bit(p, lr=0.1, momentum=0.9)),
    ],
)
def test_rules_are_what_optimizers_do(kind, make):
    target = target_of((Words(), words_of, next_word))
    module = target.module
    account = real_step(target, 3, make(list(module.parameters())))
    rule = optimizer_blocks(kind, list(module.parameters())).total()
    after = account.categories(account.peaks()["after"].event)
    assert rule.states == account.categories(account.peaks()["forward"].event)["optimizer"]
    peak = account.categories(account.peaks()["optimizer"].event)["optimizer"]
    assert rule.states + rule.temporaries == peak
    assert after["optimizer"] <= peak


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kind, made", [("adamw8bit", mt.AdamW8bit), ("adamw", mt.AdamW)])
def test_states_on_the_host_are_what_our_optimizer_has_there(kind, made, dtype):
    shapes = [(512, 512)] * 4 + [(1408, 512)] * 2 + [(512, 1408), (2000, 512), (2000, 512)]
    weights = [nn.Parameter(torch.zeros(shape, dtype={"bf16": torch.bfloat16}.get(dtype))) for shape in shapes]
    optimizer = mt.CPUOffloadOptimizer(weights, made)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    held = {v.data_ptr(): v.nbytes for v in tensors_in(optimizer.state_dict()["state"])}
    own = {weight.data_ptr() for weight in weights}
    bytes_there = sum(size for place, size in held.items() if place not in own)
    model = plan.Model(hidden=512, layers=1, heads=8, ffn=1408, vocabulary=2000)
    run = plan.Run(batch=1, sequence=8, weight_dtype=dtype, optimizer=kind, offload=["optimizer"])
    planned = plan.Plan(model, run, plan.Card(device="cpu"))
    each = bytes_there / sum(weight.numel() for weight in weights)
    assert planned.host_bytes / planned.parameter_count == pytest.approx(each, rel=2e-3)


def test_unknown_optimizers_are_refused():
    with pytest.raises(ValueError, match="'adamax' is unknown; the known ones are adamw"):
        optimizer_blocks("adamax", [])
    assert "adamw" in OPTIMIZERS
