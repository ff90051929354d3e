"""Steps traced by sizes and measured for real: to the byte, and at batch sizes never run."""

from __future__ import annotations

import gc
import resource
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import memopt.torch as mt  # noqa: E402
from memopt.torch._optimizer_bytes import OPTIMIZERS, optimizer_bytes  # noqa: E402
from memopt.torch._profile_model import ProfileError, is_out_of_memory, profile  # noqa: E402
from memopt.torch._recorder import CATEGORIES, Account, Recorder  # noqa: E402
from memopt.torch._step import StepRecorder  # noqa: E402
from memopt.torch._step_bytes import Line, Series  # noqa: E402
from memopt.torch._target import TargetError, load_target, target_of  # noqa: E402
from memopt.torch._trace_model import Trace  # noqa: E402

FLOAT = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(y))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Words(nn.Module):
    """A small language model with tied embeddings."""

    def __init__(self, words=701, width=32, layers=3):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)))


def words_of(batch):
    return torch.randint(0, 701, (batch, 48))


def next_word(outputs, ids):
    return F.cross_entropy(outputs.flatten(0, 1), ids.flatten())


class Picture(nn.Module):
    """Convolutions, and batch norm with its buffers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)
        )
        self.head = nn.Linear(8, 10)

    def forward(self, pixels):
        return self.head(self.layers(pixels).mean((2, 3)))


MODELS = {
    "words": lambda: (Words(), words_of, next_word),
    "picture": lambda: (Picture(), lambda batch: torch.randn(batch, 3, 24, 24)),
}


@pytest.fixture(params=list(MODELS))
def made(request):
    return MODELS[request.param]()


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
    assert trace.parameters == 1000 * 500
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
        assert predicted.categories["logits"] == pytest.approx(step.categories["logits"], rel=1e-2)


@pytest.mark.parametrize("batches", [(1, 2), (2, 4)])
def test_lines_find_another_phase(batches):
    """Both measured peaks are the optimizer's: a line through peaks alone would be flat."""
    made = nn.Sequential(nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 300))
    trace = Trace((made, lambda batch: torch.randn(batch, 300)))
    line = trace.line(batches)
    assert [line.at(b).peak_phase for b in (*batches, 4000)] == ["optimizer"] * 2 + ["backward"]
    assert line.at(4000) == trace.at(4000)


def test_the_largest_batch_fits_and_the_next_does_not(made):
    line = Trace(made).line()
    limit = line.at(37).peak_bytes + 1
    assert line.largest_batch(limit) == 37
    assert line.largest_batch(line.at(1).peak_bytes - 1) is None


def test_a_line_needs_two_sizes(made):
    trace = Trace(made)
    series = trace.series(2)
    with pytest.raises(ValueError, match="two batch sizes"):
        Line((2, series), (2, series), trace.optimizer)


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
        ("adamwfp8", mt.AdamWFp8),
        ("lion8bit", mt.Lion8bit),
        ("sgd8bit", lambda p: mt.SGD8bit(p, lr=0.1, momentum=0.9)),
    ],
)
def test_rules_are_what_optimizers_do(kind, make):
    target = target_of((Words(), words_of, next_word))
    module = target.module
    account = real_step(target, 3, make(list(module.parameters())))
    rule = optimizer_bytes(kind, list(module.parameters()))
    after = account.categories(account.peaks()["after"].event)
    assert rule.states == account.categories(account.peaks()["forward"].event)["optimizer"]
    peak = account.categories(account.peaks()["optimizer"].event)["optimizer"]
    assert rule.states + rule.temporaries == peak
    assert after["optimizer"] <= peak


def test_unknown_optimizers_are_refused():
    with pytest.raises(ValueError, match="no optimizer is called 'adamax'; there are adamw"):
        optimizer_bytes("adamax", [])
    assert "adamw" in OPTIMIZERS


# --- targets ---


def test_targets_by_name(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(
        "import torch\n"
        "def model():\n"
        "    return torch.nn.Linear(3, 2), lambda batch: torch.ones(batch, 3)\n"
        "price = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_target("shop:model").inputs(5).shape == (5, 3)
    sys.modules.pop("shop")


@pytest.mark.parametrize(
    "name, message",
    [
        ("json", "does not name a function"),
        (":loads", "does not name a function"),
        ("no_such_module_here:f", "no_such_module_here"),
        ("json:no_such", "json has no no_such"),
        ("json:decoder", "is a module, not a function"),
    ],
)
def test_bad_names_are_told(name, message):
    with pytest.raises(TargetError, match=message):
        load_target(name)


@pytest.mark.parametrize(
    "value, message",
    [
        (nn.Linear(2, 2), "Linear came without inputs"),
        (3, "expected a module, .* not int"),
        ((nn.Linear(2, 2), 3), "not \\(Linear, int\\)"),
        ((nn.Linear(2, 2), len, 3), "the loss is a"),
    ],
)
def test_bad_targets_are_told(value, message):
    with pytest.raises(TargetError, match=message):
        target_of(value)


def test_models_of_transformers_make_their_inputs():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(vocab_size=99, **sizes, **heads)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(TargetError, match="needs the sequence length"):
        Trace(module)
    step = Trace(module, sequence=16).at(3)
    assert step.phases["forward"]["batch"] == 2 * 3 * 16 * 8
    assert step.phases["loss"]["logits"] == 2 * 3 * 16 * 99 * FLOAT
    heads = {"num_attention_heads": 2, "num_labels": 7}
    vit = transformers.ViTConfig(image_size=32, patch_size=8, **sizes, **heads)
    with torch.device("meta"):
        module = transformers.ViTForImageClassification(vit)
    assert Trace(module).at(3).phases["forward"]["batch"] == 3 * 3 * 32 * 32 * FLOAT + 3 * 8


# --- profiles ---


def on(device, made):
    return (made[0].to(device), *made[1:])


def test_larger_batches_are_predicted(made, device):
    result = profile(on(device, made), check=[16, 48], optimizer="adamw")
    assert sorted(result.measured) == [2, 4, 16, 48] and not result.ran_out
    assert [c.batch for c in result.checked] == [16, 48]
    for checked in result.checked:
        assert abs(checked.error) <= 0.03
        live = result.measured[checked.batch].peak_bytes
        assert result.at(checked.batch).peak_bytes == pytest.approx(live, rel=1e-3)
    assert result.as_dict()["checked"][1]["measured"] == result.checked[1].measured
    assert (device.type == "cuda") == bool(result.allocator)
    limit = result.device_bytes(29) + 1
    assert result.largest_batch(limit) == 29


def test_a_profile_is_the_trace_where_nothing_depends_on_values():
    result = profile(MODELS["words"]())
    assert result.at(4) == Trace(MODELS["words"]()).at(4)


def test_a_profile_leaves_the_module_as_it_was(made, device):
    made = on(device, made)
    module = made[0].eval()
    first = next(module.parameters())
    first.grad = torch.full_like(first, 7.0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    random = torch.get_rng_state()
    profile(made)
    assert torch.equal(random, torch.get_rng_state())
    assert not any(part.training for part in module.modules())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(first.grad, torch.full_like(first, 7.0))
    assert all(p.grad is None for p in list(module.parameters())[1:])


class Full(nn.Module):
    """Memory for `room` samples."""

    def __init__(self, room, error=torch.OutOfMemoryError):
        super().__init__()
        self.layer, self.room, self.error = nn.Linear(16, 16), room, error
        self.tried, self.held = [], []

    def forward(self, x):
        gc.collect()
        assert not any(reference() is not None for reference in self.held)
        self.tried.append(len(x))
        y = self.layer(x)
        self.held.append(weakref.ref(y))
        if len(x) > self.room:
            raise self.error("CUDA out of memory. Tried to allocate 2.00 GiB")
        return y


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_it_goes_on_after_out_of_memory_with_half(error):
    module = Full(5, error)
    told = []
    result = profile(
        (module, lambda b: torch.randn(b, 16)), batches=(8, 32), check=[64], progress=told.append
    )
    assert result.ran_out == [32, 16, 8] and module.tried == [32, 16, 8, 4, 2]
    assert sorted(result.measured) == [2, 4] and result.checked == []
    assert told[0].batch == 32 and not told[0].ran_out and told[1].batch == 16 and told[1].ran_out
    assert told[-1].done == told[-1].total == 3
    assert [t.done for t in told] == sorted(t.done for t in told)


def test_no_room_at_all_is_told():
    made = (Full(1), lambda b: torch.randn(b, 16))
    with pytest.raises(ProfileError, match=r"a batch of 2 does not fit cpu beside .* parameters"):
        profile(made)
    assert made[0].layer.weight.grad is None


def test_other_errors_are_not_taken_for_out_of_memory():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        profile((nn.Linear(3, 3), lambda b: torch.randn(b, 4)))
    assert not is_out_of_memory(RuntimeError("index 3 is out of bounds"))
    assert not is_out_of_memory(ValueError("out of memory"))
    real = pytest.raises(RuntimeError, torch.empty, 1 << 60)
    assert is_out_of_memory(real.value)


@pytest.mark.parametrize("batches", [(0, 2), (4, 4), (4, 2)])
def test_sizes_must_grow(batches):
    with pytest.raises(ValueError, match="the smaller first"):
        profile((nn.Linear(3, 3), lambda b: torch.randn(b, 3)), batches=batches)


def test_a_module_without_weights_in_memory_is_refused():
    with pytest.raises(ValueError, match="meta device"):
        profile((nn.Linear(3, 3, device="meta"), lambda b: torch.randn(b, 3)))


# --- the recorder ---


def test_the_recorder_knows_births_deaths_and_phases():
    with Recorder() as recorder:
        recorder.phase("one")
        a = torch.zeros(100)
        b = a + 1
        del a
        recorder.phase("two")
        c = b.view(10, 10) * 2
        recorder.claim([c], "batch")
        del b, c
    account = Account(recorder)
    assert [t.bytes for t in recorder.tensors] == [400, 400, 400]
    assert recorder.events == [1, 2, -1, 3, -2, -3]
    assert account.curve() == [400, 800, 400, 800, 400, 0]
    peaks = account.peaks()
    assert (peaks["one"].bytes, peaks["one"].event) == (800, 1)
    assert account.alive(peaks["two"].event) == [1, 2]
    assert account.categories(3) == dict(dict.fromkeys(CATEGORIES, 0), activations=400, batch=400)
    assert account.held({0}, "two").curve() == [400, 800, 400, 800, 400, 0]


def test_held_tensors_live_till_the_phase():
    with Recorder() as recorder:
        recorder.phase("one")
        a = torch.zeros(100)
        del a
        b = torch.zeros(50)
        recorder.phase("two")
        c = torch.zeros(10)
        del b, c
    account = Account(recorder)
    assert account.peak().bytes == 400
    held = account.held({0}, "two")
    assert held.peaks()["one"].bytes == 600 and held.peaks()["two"].bytes == 240
    assert account.peak().bytes == 400


def test_sums_of_gradients_count_as_autograd_makes_them():
    weight = torch.ones(100, requires_grad=True)
    with Recorder() as recorder:
        recorder.phase("forward")
        loss = (weight * 2 + weight.sin()).sum()
        recorder.phase("backward")
        loss.backward()
        recorder.claim([weight.grad], "gradients")
    account = Account(recorder)
    sums = [t for t in recorder.tensors if t.node == "sum"]
    assert len(sums) == 1
    assert [account.category(n) for n, t in enumerate(recorder.tensors) if t.into is not None] == [
        "gradients", "gradients"
    ]
    with torch.profiler.profile(profile_memory=True) as seen:
        weight.grad = None
        loss = (weight * 2 + weight.sin()).sum()
        loss.backward()
    assert any(event.name == "aten::add_" for event in seen.events())
    assert account.in_place_sums().peak().bytes <= account.peak().bytes
    assert account.in_place_sums().curve()[-1] == account.curve()[-1]


def test_series_end_where_backward_ends():
    target = target_of((nn.Linear(8, 8), lambda b: torch.randn(b, 8)))
    series = Series(StepRecorder(target).record(lambda: target.inputs(2)).account)
    assert series.highest()["optimizer"][CATEGORIES.index("gradients")] == (64 + 8) * FLOAT
