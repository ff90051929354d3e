"""Configurations of public families: counted exactly, traced, or refused with what to do."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List, Tuple

import pytest
import torch

transformers = pytest.importorskip("transformers")

from memopt.plan import Plan, Run
from memopt.cli import main
from memopt.cli.plan import hfconfig
from transformers.models.auto import modeling_auto

MAPPINGS = [
    getattr(modeling_auto, "MODEL_FOR_%s_MAPPING_NAMES" % task)
    for task in (
        "CAUSAL_LM", "MASKED_LM", "SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION",
        "IMAGE_CLASSIFICATION", "IMAGE_TEXT_TO_TEXT", "QUESTION_ANSWERING", "PRETRAINING",
    )
    if hasattr(modeling_auto, "MODEL_FOR_%s_MAPPING_NAMES" % task)
] + [modeling_auto.MODEL_MAPPING_NAMES]  # fmt: skip
KNOWN = sorted([*hfconfig.FAMILIES, "llava"])

#: Keys that change what is counted, away from the default.
CHANGED: List[Tuple[str, Dict[str, Any]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 96}),
    ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("mistral", {"head_dim": 160, "vocab_size": 131072}),
    ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 2, "num_attention_heads": 16}),
    ("qwen3", {"attention_bias": True, "head_dim": 64}),
    ("qwen3_moe", {"num_experts": 16, "moe_intermediate_size": 512, "head_dim": 128}),
    ("mixtral", {"num_local_experts": 4, "hidden_size": 1024}),
    ("gpt2", {"n_inner": 1000, "n_positions": 512, "tie_word_embeddings": False}),
    ("opt", {"word_embed_proj_dim": 512, "do_layer_norm_before": False, "hidden_size": 1024,
             "num_attention_heads": 16}),
    ("opt", {"enable_bias": False}),
    ("bert", {"type_vocab_size": 1, "max_position_embeddings": 514}),
    ("roberta", {"num_labels": 5}),
    ("vit", {"qkv_bias": False, "patch_size": 14, "num_channels": 1, "num_labels": 10}),
    ("llava", {"tie_word_embeddings": True}),
    ("llava", {"vision_config": {"model_type": "clip_vision_model", "hidden_size": 96,
                                 "num_attention_heads": 3}}),
    ("llava", {"text_config": {"model_type": "qwen2", "vocab_size": 1000}}),
]  # fmt: skip


def configuration(model_type: str, architecture: str, **values: Any) -> Any:
    config = transformers.AutoConfig.for_model(model_type, **values)
    config.architectures = [architecture]
    return config


def counted(config: Any) -> int:
    """Weights of Transformers' own class."""
    kind = getattr(transformers, config.architectures[0])
    with torch.device("meta"):
        model = kind._from_config(config)
    model.tie_weights()
    return sum(p.numel() for p in model.parameters())


def planned(config: Dict[str, Any]) -> int:
    model = hfconfig.interpret(config).model
    return int(Plan(model, Run(sequence=16)).parameter_count)


def architectures(model_type: str) -> List[str]:
    found = []
    for mapping in MAPPINGS:
        names = mapping.get(model_type) or []
        found += [names] if isinstance(names, str) else list(names)
    return sorted(set(found))


def check(config: Any) -> bool:
    """Whether a configuration is accepted; then all that is told of it is right."""
    try:
        short = planned(json.loads(config.to_json_string(use_diff=True)))
    except hfconfig.UnknownModel as refused:
        assert "module:function" in str(refused)
        return False
    whole = planned(json.loads(config.to_json_string(use_diff=False)))
    assert short == whole == counted(config), config.architectures
    return True


@pytest.mark.parametrize("model_type", KNOWN)
def test_all_that_is_accepted_is_counted_exactly(model_type: str) -> None:
    names = architectures(model_type)
    accepted = [name for name in names if check(configuration(model_type, name))]
    assert accepted, names


@pytest.mark.parametrize("model_type, values", CHANGED)
def test_keys_that_change_the_count(model_type: str, values: Dict[str, Any]) -> None:
    first = {"bert": "MASKED_LM", "roberta": "SEQUENCE_CLASSIFICATION"}
    first.update(vit="IMAGE_CLASSIFICATION", llava="IMAGE_TEXT_TO_TEXT")
    task = first.get(model_type, "CAUSAL_LM")
    name = getattr(modeling_auto, "MODEL_FOR_%s_MAPPING_NAMES" % task)[model_type]
    assert check(configuration(model_type, name, **values))


@pytest.mark.parametrize(
    "model_type",
    [
        "albert", "bloom", "clip", "clip_vision_model", "cohere", "deberta-v2", "deepseek_v2",
        "deepseek_v3", "deit", "distilbert", "electra", "falcon", "gemma", "gemma2", "gemma3",
        "granite", "phi3", "gemma3_text", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "llama4", "llama4_text",
        "llava_next", "mamba2", "modernbert", "mpt", "olmo2", "paligemma", "phi", "qwen2_moe",
        "qwen2_vl", "siglip", "siglip_vision_model", "stablelm", "starcoder2", "t5", "whisper",
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(model_type: str) -> None:
    """Not read as something else, and told what to do."""
    config = json.loads(transformers.AutoConfig.for_model(model_type).to_json_string())
    with pytest.raises(hfconfig.UnknownModel) as refused:
        hfconfig.interpret(config)
    for word in (model_type, "module:function", "a copy of config.json", "num_hidden_layers", "--params"):
        assert word in str(refused.value)


SMALL = {
    "model_type": "gpt_neox",
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 500,
}


def write(folder: pathlib.Path, config: Dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_what_is_not_known_is_traced(tmp_path: pathlib.Path, capsys: Any) -> None:
    values = {key: value for key, value in SMALL.items() if key != "architectures"}
    count = counted(configuration(values.pop("model_type"), "GPTNeoXForCausalLM", **values))
    command = ["plan", "--model", write(tmp_path, SMALL), "--seq", "32", "--batch", "2", "--json"]
    assert main(command) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["model"]["parameters"] == count
    assert plain["categories"]["parameters"] >= 4 * count
    assert main([*command, "--dtype", "bf16", "--checkpointing", "full"]) == 0
    less = json.loads(capsys.readouterr().out)
    assert less["peak_bytes"] < 0.6 * plain["peak_bytes"]


@pytest.mark.parametrize(
    "config, word",
    [
        (dict(SMALL, vision_config={}), "unknown model_type"),
        (dict(SMALL, model_type="brand_new"), "brand_new"),
        (dict(SMALL, hidden_size=65), "Transformers' own class was tried"),
    ],
)
def test_what_cannot_be_traced_is_refused(
    config: Dict[str, Any], word: str, tmp_path: pathlib.Path, capsys: Any
) -> None:
    assert main(["plan", "--model", write(tmp_path, config)]) == 1
    told = capsys.readouterr().err
    assert word in told and "module:function" in told


@pytest.mark.parametrize(
    "words, changed",
    [
        (["--lora", "8", "--lora-targets", "query_key_value"], "trainable"),
        (["--offload", "--world-size", "2"], "activations"),
        (["--zero", "3", "--world-size", "2"], "parameters"),
    ],
)
def test_options_that_a_trace_takes(words: List[str], changed: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    """Without a card and for one it is the same run."""
    command = ["plan", "--model", write(tmp_path, SMALL), "--seq", "32", "--batch", "2", "--json"]
    plain, bare, fitted = (
        _answer([*command, "--device", "cpu", *more], capsys) for more in ([], words, [*words, "--gpu-memory", "1GiB"])
    )
    assert bare["phases"] == fitted["phases"]
    if changed == "trainable":
        assert bare["model"]["trainable"] == 2 * (64 + 192) * 8
    else:
        phase = "load" if changed == "parameters" else "forward"
        assert bare["phases"][phase][changed] < plain["phases"][phase][changed]


def _answer(command: List[str], capsys: Any) -> Any:
    assert main(command) == 0
    return json.loads(capsys.readouterr().out)


def test_the_fused_loss_that_the_command_names():
    named = getattr(torch.nn.functional, "linear_cross_entropy", None)
    if named is None:
        pytest.skip("torch %s has no linear_cross_entropy" % torch.__version__)
    hidden = torch.randn(512, 16, requires_grad=True)
    head = torch.randn(2000, 16, requires_grad=True)
    labels = torch.randint(2000, (512,))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        loss = named(hidden, head, labels, options=torch.nn.LinearCrossEntropyOptions())
    wanted = torch.nn.functional.cross_entropy(hidden @ head.T, labels)
    torch.testing.assert_close(loss, wanted)
    assert sum(t.numel() for t in kept) < 512 * 2000 / 4  # no logits, but gradients
    ours, theirs = (torch.autograd.grad(of, (hidden, head)) for of in (loss, wanted))
    torch.testing.assert_close(ours, theirs)
