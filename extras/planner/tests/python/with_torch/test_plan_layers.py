"""Of many equal layers four are run; what they say of all is what all would have said."""

from __future__ import annotations

from typing import Any, Dict

import pytest
import torch

transformers = pytest.importorskip("transformers")

from memopt.torch._features import Features
from memopt.torch._target import TargetError
from memopt.torch._trace_model import Trace

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 7,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "state_size": 4,
}


def model_of(kind: str, **values: Any) -> Any:
    config = transformers.AutoConfig.for_model(kind, **dict(SMALL, **values))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return model.train()


def traced(model: Any, few: bool, **options: Any) -> Any:
    trace = Trace(model, sequence=8, **options)
    layers = trace._layers
    assert layers.few
    layers.few = few
    series = trace.series(2)
    assert layers.few == few  # it did not fall back
    return series


@pytest.mark.parametrize(
    "kind, checkpointing, options",
    [
        ("mamba", False, {}),
        ("mamba", False, {"accumulation": 2, "gpu": True, "autocast": torch.bfloat16}),
        ("mamba", True, {}),
        ("llama", False, {}),
        ("llama", True, {"accumulation": 2}),
        ("llama", True, {"features": Features(lora_rank=2, quantize="nf4")}),
        ("llama", False, {"features": Features(loss="fused")}),
        ("llama", False, {"features": Features(world_size=2, bucket_view=True)}),
    ],
)
def test_few_layers_are_all_to_the_byte(kind: str, checkpointing: bool, options: Dict[str, Any]) -> None:
    model = model_of(kind)
    if checkpointing:
        model.gradient_checkpointing_enable()
    few, all_of_them = traced(model, True, **options), traced(model, False, **options)
    assert few.highest() == all_of_them.highest()
    assert (few.phases, few.shape) == (all_of_them.phases, all_of_them.shape)


def test_what_has_no_attention_has_none_that_runs_again() -> None:
    selective = Features(checkpointing="selective")
    Trace(model_of("llama"), sequence=8, features=selective)
    with pytest.raises(TargetError, match="Mamba.* has no attention"):
        Trace(model_of("mamba"), sequence=8, features=selective)


def test_layers_that_differ_are_all_run() -> None:
    told_apart = ["sliding_attention", "full_attention"] * 3 + ["full_attention"]
    assert not Trace(model_of("llama", layer_types=told_apart), sequence=8)._layers.few
    model = model_of("llama")
    model.model.layers[5].mlp.act_fn = torch.nn.ReLU()
    assert not Trace(model, sequence=8)._layers.few


def test_layers_that_do_not_repeat_are_all_run() -> None:
    """Equal layers, of which a model runs each second one twice."""
    model = model_of("llama")
    twice = model.model.layers[2]
    original, odd = type(twice).forward, lambda *x, **named: original(twice, *x, **named)
    trace = Trace(model, sequence=8)
    twice.forward = lambda x, *rest, **named: odd(odd(x, *rest, **named), *rest, **named)
    assert trace._layers.few
    few = trace.series(2)
    assert not trace._layers.few
    assert few.rows == Trace(model, sequence=8).series(2).rows
