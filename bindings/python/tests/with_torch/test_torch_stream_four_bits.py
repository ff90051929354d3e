"""stream_weights(): layers of bitsandbytes, and its checkpoints in the store "nf4"."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
from stream_models import run, same
from torch import nn
from torch.utils.checkpoint import checkpoint

import memopt.torch as mt

bnb = pytest.importorskip("bitsandbytes")
SIDE, COUNT = 256, 5
#: A layer's bytes: codes, and scales of f32. Double quantisation has a quarter of them, too few to stream.
CODES, SCALES = SIDE * SIDE // 2, SIDE * SIDE // 64 * 4


class Adapted(nn.Module):
    """A frozen layer of 4 bits and a trained part of low rank."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(SIDE, 4) * 0.05)
        self.up = nn.Parameter(torch.randn(4, SIDE) * 0.05)

    def forward(self, x):
        return torch.tanh(self.base(x) + x @ self.down @ self.up)


def four_bits(double, kind="nf4", seed=0):
    """A model of bitsandbytes' layers, and its step."""
    torch.manual_seed(seed)
    layers = []
    for _ in range(COUNT):
        base = bnb.nn.Linear4bit(
            SIDE, SIDE, bias=False, quant_type=kind, compress_statistics=double, compute_dtype=torch.float32
        )
        layers.append(Adapted(base.to("cpu")))
    model = nn.Sequential(*layers)
    torch.manual_seed(1)
    x = torch.randn(8, SIDE, requires_grad=True)
    return model, lambda: model(x).square().mean()


def plain():
    """The same of layers of torch."""
    torch.manual_seed(0)
    return nn.Sequential(*(Adapted(nn.Linear(SIDE, SIDE, bias=False)) for _ in range(COUNT)))


def tensors(state):
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("around", ["nothing", "layer", "module"])
@pytest.mark.parametrize("double, kind", [(False, "nf4"), (True, "nf4"), (True, "fp4")])
def test_gradients(double, kind, around):
    expected = run(*four_bits(double, kind))
    model, step = four_bits(double, kind)
    layer = CODES + (0 if double else SCALES)
    stream = mt.stream_weights(model, int(2.5 * layer) // 512 * 512)
    for module in {"nothing": [], "layer": model, "module": [one.base for one in model]}[around]:
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
    assert same(run(model, step), expected)
    stats = stream.stats()
    assert stats["resident_bytes_peak"] == 2 * layer and stats["layer_bytes"] == COUNT * layer
    assert stats["copies"] - 2 <= 3 * (2 * 3 + 1)
    stream.remove()
    other, _ = four_bits(double, kind)
    x = torch.randn(3, SIDE, requires_grad=True)
    other.load_state_dict({n: p for n, p in model.state_dict().items() if "base" not in n}, strict=False)
    assert torch.equal(model(x), other(x))


def test_eval_keeps_the_bytes():
    """bitsandbytes packs weights anew for inference on some processors: not those that stream."""
    model, step = four_bits(False)
    expected = run(*four_bits(False))
    mt.stream_weights(model, 2 * (CODES + SCALES))
    with torch.no_grad():
        model.eval()(torch.randn(2, SIDE))
    assert same(run(model.train(), step), expected)


@pytest.mark.parametrize("double", [False, True])
def test_state_dict_and_loading(double):
    other, step_other = four_bits(double, seed=7)
    wanted = {name: value.clone() for name, value in tensors(other.state_dict()).items()}
    model, step = four_bits(double)
    mt.stream_weights(model, 2 * (CODES + SCALES))
    run(model, step, steps=1)
    model.load_state_dict(wanted)
    found = tensors(model.state_dict())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())
    assert same(run(model, step), run(other, step_other))
    wide = tensors(bnb.nn.Linear4bit(2 * SIDE, SIDE // 2, bias=False, quant_type="nf4").to("cpu").state_dict())
    with pytest.raises(ValueError, match="quantised as"):
        model.load_state_dict({"1.base." + name: value for name, value in wide.items()}, strict=False)


def test_a_weight_that_is_not_there():
    model, step = four_bits(False)
    mt.stream_weights(model, CODES + SCALES)
    step().backward()
    held = model[3].base.weight
    with pytest.raises(RuntimeError):
        bnb.functional.dequantize_4bit(held.data, held.quant_state)
    with pytest.raises(NotImplementedError, match="has no codes yet"):
        mt.stream_weights([nn.Sequential(bnb.nn.Linear4bit(SIDE, SIDE))], CODES + SCALES)


@pytest.mark.parametrize("store", ["nf4", "bf16", None])
@pytest.mark.parametrize("double", [False, True])
def test_a_checkpoint_in_a_model_of_torch(double, store):
    """A QLoRA checkpoint in ordinary layers: the store "nf4" keeps its codes, any other its values."""
    source, _ = four_bits(double)
    state = tensors(source.state_dict())
    resident, streamed = plain(), plain()
    for one, two in zip(resident, source):
        weight = bnb.functional.dequantize_4bit(two.base.weight.data, two.base.weight.quant_state)
        one.base.weight.data = weight.bfloat16().float() if store == "bf16" else weight
    streamed.to("meta") if store else None
    budget = SIDE * SIDE * 4 + 2 * SIDE * SIDE * 2
    stream = mt.stream_weights(streamed, budget, store=store)
    streamed.load_state_dict(dict(state))
    for one in (resident, streamed):
        one.requires_grad_(True)
    x = torch.randn(4, SIDE)
    steps = []
    for model in (resident, streamed):
        frozen = [one.base.requires_grad_(False) for one in model]
        assert len(frozen) == COUNT
        steps.append(run(model, lambda model=model: model(x).square().mean()))
    assert same(*steps)
    if store == "nf4":
        assert stream.stats()["host_bytes"] == COUNT * (CODES + SCALES)
    state["2.base.weight.absmax"] = state["2.base.weight.absmax"][:-1]
    with pytest.raises(ValueError, match="32768 bytes of codes and %d scales" % (SCALES // 4 - 1)):
        streamed.load_state_dict(dict(state))
    del state["2.base.weight.absmax"]
    with pytest.raises(ValueError, match="no 2.base.weight.absmax"):
        streamed.load_state_dict(dict(state))


def test_bitsandbytes_has_its_own_again():
    functions = bnb.autograd._functions
    streams = [mt.stream_weights(four_bits(True)[0], CODES) for _ in range(2)]
    assert functions.MatMul4Bit.__module__.startswith("memopt.")
    gc.collect()  # those of other tests
    for stream in streams:
        stream.remove()
    assert functions.MatMul4Bit.__module__.startswith("bitsandbytes.")
