"""The rules of a GPU's kernels and workspaces, of configurations and of traces: neither is read off the other."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from memopt.cli.plan import hfconfig
from memopt.plan import Card, Plan, Run
from memopt.torch._step import StepRecorder
from memopt.torch._target import target_of
from memopt.torch._trace_model import Trace

SIZES = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 2000}
GATED = {**SIZES, "intermediate_size": 704, "num_key_value_heads": 4}
MODELS = {
    "BertForMaskedLM": {"model_type": "bert", **SIZES, "intermediate_size": 1024},
    "GPT2LMHeadModel": {"model_type": "gpt2", "n_embd": 256, "n_layer": 3, "n_head": 4,
                        "vocab_size": 2000},
    "LlamaForCausalLM": {"model_type": "llama", **GATED},
    "MixtralForCausalLM": {"model_type": "mixtral", **GATED, "num_local_experts": 4},
}  # fmt: skip


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("autocast", [None, "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_trace_and_the_plan_agree(name, autocast, attention):
    config = transformers.AutoConfig.for_model(**MODELS[name])
    with torch.device("meta"):
        model = getattr(transformers, name)._from_config(config, attn_implementation=attention)
    model.train().tie_weights()
    reading = hfconfig.interpret(dict(MODELS[name], architectures=[name]))
    run = Run(batch=4, sequence=256, compute_dtype=autocast, attention=attention, **reading.run)
    dtype = {"bf16": torch.bfloat16}.get(autocast)
    found = {}
    for device in ("cpu", "cuda"):
        traced = Trace(model, sequence=256, autocast=dtype, gpu=device == "cuda").at(4)
        plan = Plan(reading.model, run, Card(device=device))
        for phase, of in traced.phases.items():
            planned = plan.phases[{"optimizer": "step"}.get(phase, phase)]
            live = sum(of.values())
            assert live <= planned.total - planned.overhead <= 1.02 * live, (device, phase)
        found[device] = traced.peak_bytes
    dropout = name.startswith(("Bert", "GPT2"))
    assert (found["cuda"] < 0.9 * found["cpu"]) == (dropout and attention == "sdpa")


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_runs_again_runs_by_the_same_rules(reentrant):
    """Dropout's masks and what autocast computes in fp32 are the GPU's in backward, too."""
    config = transformers.AutoConfig.for_model(**MODELS["BertForMaskedLM"])
    with torch.device("meta"):
        model = transformers.BertForMaskedLM._from_config(config)
    model.train().tie_weights()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    run = Run(batch=4, sequence=256, compute_dtype="bf16", checkpointing="full")
    reading = hfconfig.interpret(dict(MODELS["BertForMaskedLM"], architectures=["BertForMaskedLM"]))
    planned = Plan(reading.model, run, Card(device="cuda")).peak
    traced = Trace(model, sequence=256, autocast=torch.bfloat16, gpu=True).at(4)
    live = planned.total - planned.overhead
    assert traced.peak_bytes <= live <= 1.02 * traced.peak_bytes


def test_workspaces_of_recurrent_layers():
    """A trace's kernels make them too."""
    module = torch.nn.LSTM(64, 128, 2, batch_first=True)
    target = target_of((module, lambda n: torch.randn(n, 32, 64), lambda out, x: out[0].mean()))
    real = StepRecorder(target).record(lambda: target.inputs(4)).account.peak().bytes
    assert 0 <= real - max(map(sum, Trace(target).series(4).rows)) <= real / 1000
