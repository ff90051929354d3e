"""Models that are profiled, whole profiles, and the recorder beneath."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch
from torch import nn

from memopt.torch._profile_model import ProfileError, is_out_of_memory, profile
from memopt.torch._recorder import CATEGORIES, Account, Recorder
from memopt.torch._target import TargetError, load_target, target_of
from memopt.torch._trace_model import Trace
from profile_models import FLOAT, made  # noqa: F401


# --- targets ---


def test_targets_by_name(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(
        "import torch\ndef model():\n    return torch.nn.Linear(3, 2), lambda batch: torch.ones(batch, 3)\nprice = 3\n"
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
        (nn.Linear(2, 2), "Linear needs inputs"),
        (3, "expected a module, .* not int"),
        ((nn.Linear(2, 2), 3), "not \\(Linear, int\\)"),
        ((nn.Linear(2, 2), len, 3), "the loss must be"),
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


@pytest.mark.parametrize(
    "kind, labels",
    [
        ("BertForMaskedLM", 3 * 16),
        ("BertForSequenceClassification", 3),
        ("BertForTokenClassification", 3 * 16),
        ("BertModel", 0),
        ("ViTModel", 0),
    ],
)
def test_heads_have_their_labels_or_none(kind, labels):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    maker = getattr(transformers, kind)
    config = maker.config_class(num_attention_heads=2, **sizes)
    with torch.device("meta"):
        module = maker(config)
    target = target_of(module, 16)
    inputs = target.inputs(3)
    assert sum(v.numel() for k, v in inputs.items() if k == "labels") == labels
    assert target.notes == ([] if labels else ["loss: the mean of the first output"])
    assert Trace(module, sequence=16).at(3).phases["optimizer"]["gradients"] > 0


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
    result = profile((module, lambda b: torch.randn(b, 16)), batches=(8, 32), check=[64], progress=told.append)
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
        "gradients",
        "gradients",
    ]
    with torch.profiler.profile(profile_memory=True) as seen:
        weight.grad = None
        loss = (weight * 2 + weight.sin()).sum()
        loss.backward()
    assert any(event.name == "aten::add_" for event in seen.events())
    assert account.in_place_sums().peak().bytes <= account.peak().bytes
    assert account.in_place_sums().curve()[-1] == account.curve()[-1]


def test_wrong_inputs_raise_and_print_nothing(capfd, caplog):
    with pytest.raises(RuntimeError, match="2, 3"):
        Trace((nn.Linear(4, 4), lambda batch: torch.ones(batch, 3))).at(2)
    assert not caplog.records and "Traceback" not in "".join(capfd.readouterr())
