"""stream_weights(): the same bits in a hard budget, and an error for every misuse."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings

import fit_models
import pytest
import stream_models as models
import torch
from stream_models import COUNT, LAYER, adapted, run, same, stack
from torch import nn
from torch.utils.checkpoint import checkpoint

import memopt
import memopt.torch as mt


def checkpointed(model, call, inside):
    for module in model.modules() if inside else model:
        if isinstance(module, nn.Linear if inside else fit_models.Block):
            module.forward = functools.partial(call, module.forward)


def check(make, budget, prepare=lambda model: None, fits=None, layers=lambda model: model, **more):
    """Streamed and plain runs are the same; the budget holds."""
    model, step = make()
    prepare(model)
    expected = run(model, step, **more)
    model, step = make()
    stream = mt.stream_weights(layers(model), budget)
    prepare(model)
    assert same(run(model, step, **more), expected)
    stats = stream.stats()
    fits = budget // (stats["layer_bytes"] // stats["layers"]) if fits is None else fits
    passes = more.get("steps", 3) * more.get("accumulate", 1)
    assert stats["resident_bytes_peak"] <= stats["budget"] <= budget
    assert stats["copies"] - fits <= (2 * (stats["layers"] - fits) + 1) * passes
    return stream


@pytest.mark.parametrize("budget", [1.0, 2.5, 4.0, 6.0])
@pytest.mark.parametrize("kind", [models.Adapter, models.NormedAdapter])
def test_adapters(budget, kind):
    stream = check(lambda: stack(kind), int(budget * LAYER))
    assert stream.stats()["resident_bytes_peak"] == int(budget) * LAYER


CHECKPOINTS = {
    "torch": functools.partial(checkpoint, use_reentrant=False),
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "memopt": mt.checkpoint,
}


@pytest.mark.parametrize("where", ["layer", "module", "all"])
@pytest.mark.parametrize("name", sorted(CHECKPOINTS))
def test_checkpoints(name, where):
    call = CHECKPOINTS[name]
    if (name, where) == ("reentrant", "all"):
        return  # it needs an input with a gradient
    for kind, budget in ((models.Adapter, 1.0), (models.NormedAdapter, 2.5)):
        if where == "all":  # one around the whole
            check(lambda: stack(kind), int(budget * LAYER), around=lambda step: call(step), fits=1 - COUNT)
        else:
            check(lambda: stack(kind), int(budget * LAYER), lambda m: checkpointed(m, call, where == "module"))


@pytest.mark.parametrize("outer", [mt.save_on_cpu, torch.autograd.graph.save_on_cpu])
def test_save_on_cpu(outer):
    def around(step):
        with outer():
            return step()

    check(stack, int(2.5 * LAYER), around=around)
    check(stack, LAYER, lambda model: checkpointed(model, mt.checkpoint, False), around=around)


def test_limit():
    """The least time of a step: compute where copies hide, and never less than either."""
    model, _ = stack()
    stream = mt.stream_weights(model, 2 * LAYER)
    assert stream.stats()["copies_a_step"] == 2 * (COUNT - 2)
    assert stream.limit(1.0, "1TB") == pytest.approx(1.0)
    copies = stream.stats()["copied_bytes_a_step"]
    assert copies <= stream.limit(1.0, 1) * 1 <= copies + 1.0
    both = stream.limit(1.0, copies)  # each takes a second
    assert 1.0 < both < 1.6
    assert "a step takes    1." in stream.table(1.0, copies) and "copies 1 s over" in stream.table(1.0, copies)
    with pytest.raises(ValueError, match="nan seconds"):
        stream.limit(float("nan"), "1GB")


def test_accumulation():
    check(stack, int(2.5 * LAYER), accumulate=4)


@pytest.mark.parametrize("way", ["plain", "checkpointed"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_transformers(name, way):
    def prepare(model):
        if way == "checkpointed":  # it checkpoints a layer's forward, not its call
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.gradient_checkpointing_enable()

    def make():
        model, step = getattr(fit_models, name)(layers=5, length=16)
        return adapted(model), step

    find = {"llama": lambda model: model.model.layers, "gpt2": lambda model: model.transformer.h}[name]
    model, _ = make()
    layer = mt.stream_weights(find(model), "1MiB").stats()["layer_bytes"] // 5
    for budget in (layer, int(2.5 * layer)):
        check(make, budget + 512, prepare, layers=find)
    if way == "checkpointed":
        return
    ids = torch.arange(8).view(1, 8)
    plain, streamed = make()[0].eval(), make()[0].eval()
    mt.stream_weights(find(streamed), budget)
    settings = {"max_new_tokens": 6, "use_cache": True, "do_sample": False}
    expected = plain.generate(ids, **settings)
    assert torch.equal(streamed.generate(ids, **settings), expected) and expected.shape[1] == 14


def test_eval_between_steps():
    (model, step), (plain, step_plain) = stack(), stack()
    mt.stream_weights(model, 2 * LAYER)
    for mode in (torch.no_grad, torch.inference_mode):
        model.eval(), plain.eval()
        with mode():
            assert torch.equal(step(), step_plain())
        model.train(), plain.train()
        assert same(run(model, step, steps=1), run(plain, step_plain, steps=1))


def test_backward_twice():
    (model, step), (plain, step_plain) = stack(), stack()
    mt.stream_weights(model, LAYER)
    found = []
    for one in (step, step_plain):
        torch.manual_seed(0)
        loss = one()
        loss.backward(retain_graph=True)
        loss.backward()
    for a, b in zip(model.parameters(), plain.parameters()):
        if a.grad is not None:
            found.append(torch.equal(a.grad, b.grad))
    assert len(found) == COUNT * 6 and all(found)


def test_what_stays():
    model, step = stack()
    model[1].up.base.weight = model[0].up.base.weight
    del model[2:]
    stream = mt.stream_weights(model, LAYER)
    assert stream.stats()["layer_bytes"] == 2 * LAYER - 2 * 32 * 128 * 4
    assert stream.kept_bytes["tied"] == 32 * 128 * 4 and stream.kept_bytes["trained"] > 0
    table = stream.table()
    assert "stays: small" in table and "a step copies" in table
    step().backward()


def test_remove():
    (model, step), (plain, step_plain) = stack(), stack()
    keys = {name: set(vars(module)) for name, module in model.named_modules()}
    weight = model[0].up.base.weight
    stream = mt.stream_weights(model, LAYER)
    assert weight.isnan().all() and weight is model[0].up.base.weight  # absent weights are loud
    with pytest.raises(RuntimeError, match="streams already"):
        mt.stream_weights(model, LAYER)
    loss = step()
    stream.remove()
    stream.remove()
    with pytest.raises(RuntimeError, match="remove"):
        loss.backward()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == keys
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
    assert same(run(model, step), run(plain, step_plain))
    mt.stream_weights(model, LAYER)


def test_the_end():
    """Nothing keeps a model that was streamed."""
    import gc
    import weakref

    model, step = stack()
    mt.stream_weights(model, LAYER)
    step().backward()
    seen = weakref.ref(model[0])
    del model, step
    gc.collect()
    assert seen() is None


# --- misuse -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text", "call"),
    [
        (memopt.LimitReachedError, "layer 0 has 48.00 KiB .* the budget is", lambda m: mt.stream_weights(m, LAYER - 1)),
        (TypeError, "a ModuleList or several", lambda m: mt.stream_weights(m[0], LAYER)),
        (TypeError, "not a int", lambda m: mt.stream_weights([1], LAYER)),
        (ValueError, "no layers", lambda m: mt.stream_weights([], LAYER)),
        (ValueError, "layer 1 is also in layer 0", lambda m: mt.stream_weights([m, m[0]], "1MiB")),
        (ValueError, "layer 2 is also in layer 0", lambda m: mt.stream_weights([m[0], m[1], m[0]], "1MiB")),
        (ValueError, "no parameter", lambda m: mt.stream_weights(m.requires_grad_(), LAYER)),
        (ValueError, "store is", lambda m: mt.stream_weights(m, LAYER, store="nf5")),
        (ValueError, "train is", lambda m: mt.stream_weights(m, LAYER, train="device")),
        (ValueError, "leave out store", lambda m: mt.stream_weights(m, LAYER, store="disk:/tmp", train="host")),
        (ValueError, "not to meta", lambda m: mt.stream_weights(m, ("meta", LAYER))),
        (NotImplementedError, "compiled", lambda m: mt.stream_weights([torch.compile(m[0])], LAYER)),
    ],
)  # fmt: skip
def test_refusals(error, text, call):
    (model, step), (plain, step_plain) = stack(), stack()
    with pytest.raises(error, match=text):
        call(model)
    for name, p in model.named_parameters():
        p.requires_grad_(dict(plain.named_parameters())[name].requires_grad)
    assert same(run(model, step, steps=1), run(plain, step_plain, steps=1))


def test_parameters_of_others():
    class Sharded(nn.Parameter):
        def to_local(self):
            return self

    class Quantised(nn.Parameter):
        pass

    for kind, text in ((Sharded, "FSDP"), (Quantised, "is a Quantised")):
        model, _ = stack()
        model[1].up.base.weight = kind(model[1].up.base.weight.data, requires_grad=False)
        with pytest.raises(NotImplementedError, match="1.up.base.weight .*" + text):
            mt.stream_weights(model, LAYER)
    model, _ = stack()
    model[1].up.base.weight.ds_id = 3
    with pytest.raises(NotImplementedError, match="ZeRO-3"):
        mt.stream_weights(model, LAYER)


def test_a_second_graph():
    model, step = stack()
    mt.stream_weights(model, LAYER)
    with pytest.raises(NotImplementedError, match="create_graph"):
        torch.autograd.grad(step(), [model[0].up.up], create_graph=True)


def test_who_holds_weights():
    model, step = stack()
    mt.stream_weights(model, 2 * LAYER)
    held = []
    for layer in model:
        layer.up.base.register_forward_hook(lambda module, *_: held.append(module.weight.t()))
    with pytest.raises(memopt.LimitReachedError, match=r"layer 2 needs .* layers 0 \(.*held.*\), 1 \(.*held") as told:
        step()
    del told
    held.clear()
    for layer in model:
        layer.up.base._forward_hooks.clear()
    step().backward()


def test_changes_of_weights():
    model, step = stack()
    stream = mt.stream_weights(model, LAYER)
    step().backward()
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="single memory location"):
            model[3].up.base.weight.mul_(2)
        model[0].up.base.weight.mul_(2)  # the one that was used last
    with pytest.raises(RuntimeError, match="0.up.base.weight was changed on the device"):
        step()
    step().backward()
    model[3].up.base.double()
    with pytest.raises(RuntimeError, match="the memory of 3.up.base.weight was replaced"):
        step()
    stream.remove()
    model.float()
    step().backward()


def test_copies():
    model, _ = stack()
    mt.stream_weights(model, LAYER)
    for call in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="is not copied or pickled"):
            call(model)


def test_changes_in_place_are_found():
    class Bad(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(32, 32).requires_grad_(False)

        def forward(self, x):
            y = x.sigmoid()
            z = self.one(y)
            y.mul_(2)
            return z

    layer = nn.ModuleList([Bad()])
    mt.stream_weights(layer, "1MiB")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        layer[0](torch.randn(4, 32, requires_grad=True)).sum().backward()


def test_autocast():
    model, step = stack()
    mt.stream_weights(model, LAYER)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(UserWarning, match="autocast to torch.bfloat16 .* of torch.float32") as told:
            step()
        step()
        assert len(told) == 1
    model, step = stack()
    for layer in model:
        for adapter in (layer.up, layer.gate, layer.down):
            adapter.base.to(torch.bfloat16)
    mt.stream_weights(model, LAYER)
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error")
        step().backward()


@pytest.mark.parametrize("wrong", [False, True])
def test_the_race_finder(wrong):
    """As on a GPU: nothing to report, but for a weight that another stream reads without a wait."""

    def program():
        model, _ = stack()
        model.to("cuda")
        mt.stream_weights(model, 2 * LAYER)
        side = torch.cuda.Stream()

        def reads(module, *_):
            with torch.cuda.stream(side):
                module.weight.detach().sum()

        if wrong:
            model[2].up.base.register_forward_hook(reads)
        for _ in range(2):
            model(torch.randn(4, 32, device="cuda")).square().mean().backward()

    with mt.race() as found:
        program()
    assert bool(found.races) == wrong


def test_compiled():
    """A compiled model runs its streamed layers as they are."""
    (model, step), (plain, step_plain) = stack(), stack()
    model.eval(), plain.eval()
    mt.stream_weights(model, 2 * LAYER)
    x = torch.randn(4, 32)
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        found, expected = compiled(x), plain(x)
        assert torch.equal(found, expected)
        found.sum().backward(), expected.sum().backward()
        assert torch.equal(model[1].up.up.grad, plain[1].up.up.grad)
