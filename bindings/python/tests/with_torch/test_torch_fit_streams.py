"""fit() with layers that stream: those that do already, and those that it lets stream."""

from __future__ import annotations

import contextlib
import re

import fit_models as models
import pytest
import torch
from stream_models import COUNT, LAYER, NormedAdapter, adapted, run, same, stack
from test_torch_stream_llama import CARD, llama
from torch import nn

import memopt
import memopt.torch as mt
from memopt.torch.fitting import _arenas, _choices, _costs, _places, _planning, _streaming, _streams
from memopt.torch.streaming._parts import MIN_BYTES

#: What a layer of the stack takes in an arena.
ARENA = 2 * LAYER + 512


@pytest.fixture(autouse=True)
def guessed_times(monkeypatch):
    """So that plans are the same each time."""
    for name in ("operations", "forwards"):
        monkeypatch.setattr(_costs.Costs, name, lambda *unused: contextlib.nullcontext())


def floor_of(fit):
    return fit._now.planner.solve(0).peak


def mixtral():
    """Its routing needs values: a real step is recorded."""
    model, step = models.mixtral()
    return adapted(model), step


STREAMS = {
    "adapters": (stack, lambda model: model, ARENA),
    "normed": (lambda: stack(NormedAdapter), lambda model: model, ARENA),
    "mixtral": (mixtral, lambda model: model.model.layers, "600KiB"),
}


@pytest.mark.parametrize("name, store", [("adapters", None), ("adapters", "nf4"), ("normed", None), ("mixtral", None)])
def test_layers_that_stream(name, store):
    """The arena counts, the weights do not; bits are those of the stream without a plan."""
    make, layers, arena = STREAMS[name]
    model, step = make()
    stream = mt.stream_weights(layers(model), arena, store=store)
    expected = run(model, step)
    stream.remove()
    model, step = make()
    plain = mt.fit(model, None, step, budget="1GiB")
    plain.remove()
    model, step = make()
    stream = mt.stream_weights(layers(model), arena, store=store)
    streamed = mt.fit(model, None, step, budget="1GiB")
    streamed.remove()
    stats, weights = stream.stats(), sum(p.nbytes for layer in stream._layers.all for p in layer.parts)
    parts = [part for layer in stream._layers.all for part in layer.parts]
    absent = sum(part.absent.untyped_storage().nbytes() for part in parts)
    assert plain.plain_bytes - streamed.plain_bytes == weights - stats["budget"] - absent
    fit = mt.fit(model, None, step, budget=(floor_of(streamed) + 3 * streamed.plain_bytes) // 4)
    assert fit.choices and fit.measured <= fit.budget
    assert same(run(model, step), expected) and fit.unplanned == 0
    assert stream.stats()["resident_bytes_peak"] <= stats["budget"]


def test_trained_on_the_host():
    """A trial leaves no gradients on the host."""
    model, step = stack(kind=None)
    stream = mt.stream_weights(model, ARENA, train="host")
    fit = mt.fit(model, None, step, budget="1GiB")
    assert all(p.grad is None for p in stream.parameters()) and fit.measured == fit.plain_bytes
    fit.remove()
    fit = mt.fit(model, None, step, budget=(floor_of(fit) + fit.plain_bytes) // 2)
    step().backward()
    found = [p.grad for p in stream.parameters()]
    model, step = stack(kind=None)
    step().backward()
    streamed = [p.grad for p in model.parameters() if p.nbytes >= LAYER // 3]
    assert fit.choices and len(found) == len(streamed) and all(map(torch.equal, found, streamed))


class NormLast(models.Block):
    """What its last module gives, a norm with streamed weights, the next layer saves."""

    def __init__(self):
        super().__init__()
        self.last = nn.LayerNorm(32)

    def forward(self, x):
        return self.last(super().forward(x))


def last_norms():
    torch.manual_seed(0)
    model, x = nn.Sequential(*(NormLast() for _ in range(COUNT))), torch.randn(64, 32, requires_grad=True)
    return adapted(model), lambda: model(x).square().mean()


def test_values_that_two_layers_save(monkeypatch):
    """A norm is not made again where that takes the weights of two layers at once."""
    monkeypatch.setattr("memopt.torch.streaming._parts.MIN_BYTES", 64)
    expected, names = run(*last_norms()), []
    for streams in (False, True):
        model, step = last_norms()
        if streams:
            mt.stream_weights(model, LAYER + 4096)
        plain = mt.fit(model, None, step, budget="1GiB")
        plain.remove()
        names.append({choice.name for choice in plain._now.planner.choices if choice.what[0] == "again"})
    assert names == [{"%d.last" % number for number in range(COUNT - 1)}, set()]
    fit = mt.fit(model, None, step, budget=(plain.plain_bytes * 7 + floor_of(plain)) // 8)
    assert fit.choices and same(run(model, step), expected)


# --- layers that fit() lets stream ------------------------------------------------------------------


def small_llama():
    model, step = models.llama(layers=4)
    return adapted(model), step


def test_below_the_floor(tmp_path):
    """Bits and table; a plan that is saved streams again; after remove() nothing does."""
    expected = run(*small_llama())
    model, step = small_llama()
    with pytest.raises(memopt.LimitReachedError, match=r"allow=\('stream',\) would lower the least by") as told:
        mt.fit(model, None, step, budget="64KiB")
    least = memopt.sizes.parse_size(re.search(r"the least is ([\d.]+ \w+)", str(told.value))[1])
    weights = sum(p.nbytes for p in model.model.layers.parameters() if not p.requires_grad and p.nbytes >= MIN_BYTES)
    budget = least - weights // 2
    with pytest.raises(memopt.LimitReachedError):
        mt.fit(model, None, step, budget=budget, host=weights - 1, allow=("stream",))
    assert not any("_memopt_streams" in vars(module) for module in model.modules())
    fit = mt.fit(model, None, step, budget=budget, allow=("stream",))
    assert fit.measured <= fit.peak_bytes <= budget and fit.host_bytes == weights == fit.stream.stats()["host_bytes"]
    copies = fit.stream.stats()["copies_a_step"]
    assert "streams      4 layers, %d at once" % (4 - copies // 2) in fit.table() and fit.plain_bytes > least
    assert same(run(model, step), expected) and fit.unplanned == 0
    fit.save(tmp_path / "plan.json")
    fit.remove()
    model, step = small_llama()
    again = mt.Fit.load(tmp_path / "plan.json", model)
    assert again.table().splitlines()[:3] == fit.table().splitlines()[:3] and again.stream.budget == fit.stream.budget
    assert same(run(model, step), expected) and again.unplanned == 0
    again.remove()
    assert not any("_memopt_streams" in vars(module) for module in model.modules())


@pytest.mark.parametrize("link, streams", [(1e18, True), (1.0, False)])
def test_where_it_is_quicker(monkeypatch, link, streams):
    """Than to run things again: by the link."""
    monkeypatch.setattr(_streaming, "link_speed", lambda device: link)
    model, step = small_llama()
    plain = mt.fit(model, None, step, budget="1GiB", allow=("stream",))
    plain.remove()
    assert plain.stream is None
    fit = mt.fit(model, None, step, budget=(plain.plain_bytes * 3 + floor_of(plain)) // 4, allow=("stream",))
    assert (fit.stream is not None) == streams == ("streams" in fit.table()) and fit.measured <= fit.budget


def test_where_the_host_is_the_device(monkeypatch):
    """One counter: a store on the host counts, so nothing is saved and nothing is proposed."""
    model, step = small_llama()
    stream = mt.stream_weights(model.model.layers, "1MiB")
    apart = mt.fit(model, None, step, budget="1GiB")
    apart.remove()
    for module in (_streaming, _streams):
        monkeypatch.setattr(module, "shares_memory", lambda device: True)
    together = mt.fit(model, None, step, budget="1GiB")
    together.remove()
    assert together.plain_bytes - apart.plain_bytes == stream.stats()["host_bytes"] > 0
    stream.remove()
    with pytest.raises(memopt.LimitReachedError) as told:
        mt.fit(model, None, step, budget="64KiB", host="1GiB", allow=("stream",))
    assert "'stream'" not in str(told.value)


def test_which_layers():
    """The members of lists of one class, where all their weights are their own."""
    model, _ = small_llama()
    assert _arenas.candidate(model).names == ["model.layers.%d" % number for number in range(4)]
    model.other = nn.Linear(1, 1)
    model.other.weight = model.model.layers[0].mlp.up_proj.base.weight
    assert _arenas.candidate(model) is None
    assert _arenas.candidate(nn.Sequential(nn.Linear(64, 64), nn.ReLU()).requires_grad_(False)) is None
    assert _arenas.candidate(stack(kind=None)[0]) is None  # trained


def test_an_8_gb_card():
    """Llama-3-8B with LoRA at 2048 tokens: planned without its weights."""
    with torch.device("meta"):
        model, step = llama(1, checkpoints=False)
    fit = mt.fit(model, None, step, budget="8GB", allow=("stream",))
    assert fit.stream is None and fit.measured is None and 0.97 * 8e9 < fit.peak_bytes <= 8e9 < 16e9 < fit.plain_bytes
    assert "streams      32 layers" in fit.table()


def without_values(model):
    """What is not trained has none."""
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None and not p.requires_grad:
                module._parameters[name] = nn.Parameter(p.to("meta"), requires_grad=False)


def names_of_base(name):
    return name.replace(".base", "")


def test_an_8_gb_card_at_a_32nd(tmp_path):
    """The same run: planned without weights, which a file has then; all of it in the budget, with the same bits."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    model, step = llama(checkpoints=False)
    path = tmp_path / "model.safetensors"
    save_file({names_of_base(name): value for name, value in model.state_dict().items() if "up" != name[-2:]}, str(path))
    expected = run(model, step, steps=2)
    model, step = llama(checkpoints=False)
    without_values(model)
    fit = mt.fit(model, None, step, budget=CARD, allow=("stream",))
    assert fit.stream is None and fit.measured is None
    planned = fit.plain_bytes
    with pytest.raises(ValueError, match=r"q_proj.base.weight\b.* and \d+ more are on the meta device"):
        fit.load_weights(path)
    assert fit.stream is None
    fit.load_weights(path, rename=names_of_base)
    assert fit.measured <= CARD < sum(p.nbytes for p in model.model.layers.parameters()) + fit.host_bytes
    assert same(run(model, step, steps=2), expected) and fit.unplanned == 0
    assert fit.stream.stats()["resident_bytes_peak"] <= fit.stream.stats()["budget"]
    assert abs(fit.plain_bytes - planned) < 0.02 * planned
    with pytest.raises(ValueError, match="planned on the meta device"):
        fit.load_weights(path, rename=names_of_base)


@pytest.mark.parametrize("streams", [True, False])
def test_weights_by_name(streams):
    """Also where nothing streams, and of tensors; what does not fit changes nothing."""
    expected = run(*small_llama())
    model, step = small_llama()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    without_values(model)
    least = mt.fit(model, None, step, budget="1GiB")
    least.remove()
    weights = sum(p.nbytes for p in model.model.layers.parameters())
    fit = mt.fit(model, None, step, budget=floor_of(least) - weights // 2 if streams else "1GiB", allow=("stream",))
    name = "model.layers.0.mlp.up_proj.base.weight"
    with pytest.raises(ValueError, match=r"up_proj.base.weight has shape \[3\] in the weights"):
        fit.load_weights({**state, name: torch.zeros(3)})
    assert model.get_parameter(name).is_meta
    fit.load_weights(state)
    assert (fit.stream is not None) == streams and fit.measured <= fit.budget
    assert same(run(model, step), expected) and fit.unplanned == 0


@pytest.mark.parametrize("streams", [True, False])
def test_weights_by_name_beside_a_host(monkeypatch, streams):
    """Values move there, planned without weights and at work, within what streamed weights leave of it."""
    room = 2 << 20
    for name, value in (("CARD_LINK", 1e18), ("cost_of_moving", lambda device: _places.Cost(0.0, 1e18))):
        monkeypatch.setattr(_planning, name, value)
    for module in (_planning, _choices):  # measured beside other work, a move may be dearer than a module's second run
        monkeypatch.setattr(module, "own_seconds", lambda: _costs.Own(1e-4, 1e-6, 1e-6))
    expected = run(*small_llama())
    model, step = small_llama()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    without_values(model)
    parts = [p.nbytes for p in model.model.layers.parameters() if not p.requires_grad and p.nbytes >= MIN_BYTES]
    weights = sum(parts) if streams else 0
    whole = mt.fit(model, None, step, budget="1GiB", host=room)
    whole.remove()
    budget = (whole._now.planner.solve(0, room).peak * 3 + whole.plain_bytes) // 4 - weights * 3 // 4
    fit = mt.fit(model, None, step, budget=budget, host=room + weights, allow=("stream",) if streams else ())
    assert fit.measured is None and weights < fit.host_bytes <= room + weights
    fit.load_weights(state)
    assert (fit.stream is not None) == streams and weights < fit.host_bytes <= room + weights
    assert same(run(model, step), expected) and fit.unplanned == 0 and fit.measured <= budget
    assert 0 < fit._applied.packer.stats()["host_bytes_peak"] <= room


def test_another_shape_in_a_smaller_arena(monkeypatch):
    """One that the arena leaves no room for; the shapes before it still fit."""
    monkeypatch.setattr(_streaming, "link_speed", lambda device: 1.0)  # the largest arena is the quickest

    def begin():
        model, _ = models.llama(layers=6, length=96)
        return adapted(model)

    ids = torch.randint(0, 512, (2, 96), generator=torch.Generator().manual_seed(0))
    model, used = begin(), [ids]
    step = lambda: model(input_ids=used[0], labels=used[0]).loss  # noqa: E731
    expected = run(model, step)
    model = begin()
    whole = mt.fit(model, None, step, budget="1GiB")
    whole.remove()
    weights = sum(p.nbytes for p in model.model.layers.parameters() if not p.requires_grad and p.nbytes >= MIN_BYTES)
    budget = floor_of(whole) - weights * 3 // 4  # one and a half of six layers
    used[0] = ids[:, :64]
    fit = mt.fit(model, None, step, budget=budget, allow=("stream",))
    before, short = fit.stream.budget, next(iter(fit._plans.values()))
    used[0] = ids
    with pytest.warns(UserWarning, match="was planned"):
        found = run(model, step)
    assert same(found, expected) and fit.stream.budget < before and fit.unplanned == 0
    assert fit.peak_bytes <= budget and fit._measure(fit._now, step) <= budget
    used[0] = ids[:, :64]
    assert fit._measure(short, step) <= budget and short.peak <= budget


@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_experts_without_weights(experts):
    """Planned where no shape depends on values, else refused."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, vocab_size=256)
    more = dict(num_hidden_layers=4, num_local_experts=4, use_cache=False, experts_implementation=experts)
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **more))
    ids = torch.randint(0, 256, (2, 64))
    adapted(model)
    step = lambda: model(input_ids=ids, labels=ids).loss  # noqa: E731
    if experts == "eager":
        with pytest.raises(NotImplementedError, match="meta device, and its step needs values.*grouped_mm"):
            mt.fit(model, None, step, budget="2MiB", allow=("stream",))
    else:
        assert "streams      4 layers" in mt.fit(model, None, step, budget="2MiB", allow=("stream",)).table()
