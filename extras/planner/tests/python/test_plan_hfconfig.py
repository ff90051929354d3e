"""Configurations of Hugging Face models as the planner reads them."""

from __future__ import annotations

import json
import math

import pytest

from memopt.cli.plan import hfconfig
from memopt.plan import Plan, Run


def interpret(**config):
    return hfconfig.interpret(config)


def test_what_is_said_wins_over_the_default():
    reading = interpret(model_type="mistral", hidden_size=512, num_attention_heads=8, tie_word_embeddings=True)
    assert reading.model.hidden == 512
    assert reading.model.kv_heads == 8  # Mistral's own default, not that of Llama
    assert reading.model.as_dict()["tied"] == "yes"


_SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 500,
}
_CLIP = {"model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 28, "patch_size": 14}  # fmt: skip


@pytest.mark.parametrize(
    "config, learn",
    [
        ({"model_type": "llama", "num_key_value_heads": 2}, 24576),
        ({"model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 4}, 92208),
        ({"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4}, 16384),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, 22528),
        # PEFT's are 38,656: with the tower's last layer, which gets no gradient.
        ({"model_type": "llava", "text_config": _SIZES, "vision_config": _CLIP}, 35072),
    ],
)
def test_all_linear_is_what_it_is_to_peft(config, learn):
    """Weights that learn with LoraConfig(r=4, target_modules="all-linear") of PEFT 0.21.2."""
    model = hfconfig.interpret({**_SIZES, **config}).model
    model = model.replace(lora_rank=4, lora_targets=["all-linear"])
    assert Plan(model, Run(batch=1, sequence=32)).trainable_count == learn


def test_key_value_heads_follow_the_heads_where_nothing_is_said():
    assert interpret(model_type="llama", num_attention_heads=12).model.kv_heads == 12
    assert interpret(model_type="llama", num_key_value_heads=None).model.kv_heads == 32


def test_biases():
    qwen = interpret(model_type="qwen2").model.as_dict()
    assert qwen["attention_bias"] == "yes" and qwen["output_bias"] == "no"
    llama = interpret(model_type="llama", attention_bias=True).model.as_dict()
    assert llama["attention_bias"] == llama["output_bias"] == "yes"
    vit = interpret(model_type="vit", qkv_bias=False).model.as_dict()
    assert vit["attention_bias"] == "no"


@pytest.mark.parametrize(
    "model_type, architecture, head",
    [
        ("llama", "LlamaForCausalLM", "causal-lm"),
        ("gpt2", "GPT2LMHeadModel", "causal-lm"),
        ("bert", "BertForMaskedLM", "masked-lm"),
        ("bert", "BertForSequenceClassification", "sequence"),
        ("bert", "BertForTokenClassification", "token"),
        ("vit", "ViTForImageClassification", "image"),
        ("llama", "LlamaModel", "none"),
    ],
)
def test_heads(model_type, architecture, head):
    reading = interpret(model_type=model_type, architectures=[architecture])
    assert reading.model.as_dict()["head"] == head


@pytest.mark.parametrize(
    "model_type, architecture",
    [
        ("bert", "BertLMHeadModel"),
        ("bert", "BertForPreTraining"),
        ("bert", "BertForQuestionAnswering"),
        ("gpt2", "GPT2DoubleHeadsModel"),
        ("llama", "LlamaForQuestionAnswering"),
        ("llama", "BertForMaskedLM"),
        ("vit", "ViTForMaskedImageModeling"),
    ],
)
def test_heads_that_are_not_known_are_refused(model_type, architecture):
    """Each of them has other weights than the heads that are known."""
    text = refused(model_type=model_type, architectures=[architecture])
    assert architecture in text and "module:function" in text


@pytest.mark.parametrize(
    "config, key",
    [
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention"),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"model_type": "opt", "layer_norm_elementwise_affine": False}, "affine"),
        ({"model_type": "llava", "text_config": {}, "vision_feature_layer": [1, 2]}, "layer"),
        ({"model_type": "llava_next", "text_config": {}}, "llava_next"),
        ({"model_type": "llava", "text_config": {}, "vision_config": {"model_type": "siglip_vision_model"}}, "siglip"),
    ],
)
def test_parts_that_are_not_known_are_refused(config, key):
    text = refused(**config)
    assert key in text and "module:function" in text


def test_labels():
    table = {str(i): "label %d" % i for i in range(37)}
    assert interpret(model_type="vit", id2label=table).model.labels == 37
    assert interpret(model_type="vit").model.labels == 2


def test_a_sliding_window_counts_only_where_it_is_used():
    used = {"model_type": "mistral", "sliding_window": 128}
    assert hfconfig.interpret(used).model.sliding_window == 128
    unused = {"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False}
    assert hfconfig.interpret(unused).model.sliding_window is None


def test_a_vision_tower():
    reading = interpret(
        model_type="llava",
        text_config={"model_type": "llama", "hidden_size": 512},
        vision_config={
            "hidden_size": 256, "num_hidden_layers": 6, "image_size": 224, "hidden_act": "gelu",
            "num_attention_heads": 4,
        },
    )  # fmt: skip
    model = reading.model
    assert (model.hidden, model.vision_layers, model.vision_hidden) == (512, 6, 256)
    assert model.as_dict()["vision_activation"] == "gelu" and model.vision_skipped == 1
    assert any("tower" in note for note in reading.notes)


def refused(**config):
    with pytest.raises(hfconfig.ConfigError) as caught:
        hfconfig.interpret(config)
    return str(caught.value)


def test_unknown_architectures_say_what_is_needed():
    text = refused(model_type="brand_new")
    assert "brand_new" in text and "num_hidden_layers" in text


@pytest.mark.parametrize(
    "key, value, says",
    [
        ("model_type", ["llama"], "not text"),
        ("hidden_act", {}, "not text"),
        ("torch_dtype", 16, "not text"),
        ("tie_word_embeddings", "yes", "not true or false"),
        ("architectures", 7, "not a list"),
        ("text_config", "llama", "not an object"),
        ("id2label", [], "not an object"),
        ("num_labels", "many", "not a whole number"),
        ("sliding_window", 1.5, "not a whole number"),
        *(("num_hidden_layers", value, "") for value in (0, -3, 2.5, True, "many", 10**15, [1])),
        *(("attention_dropout", value, "") for value in (1.5, -0.1, "high", True)),
    ],
)
def test_values_of_another_kind(key, value, says):
    told = refused(**{"model_type": "llama", key: value})
    assert key in told and (("%s is %r, %s" % (key, value, says)) in told or not says)


def test_no_value_of_a_key_is_a_traceback():
    """Each key that a family or a tower has, with each kind of JSON."""
    values = [[], ["x"], [1, 2], {}, {"x": 1}, "", "x", 1.5, -1, True, 10**30, math.inf, math.nan]
    llava = {"model_type": "llava", "text_config": {}, "vision_config": {}}
    outside = [*llava, "architectures", "vision_feature_layer", "num_labels", "id2label"]
    places = [(llava, llava, key) for key in outside]
    places += [(llava, llava["text_config"], key) for key in hfconfig.FAMILIES["llama"].defaults]
    places += [(llava, llava["vision_config"], key) for key in hfconfig._CLIP]
    for kind, family in hfconfig.FAMILIES.items():
        config = {"model_type": kind}
        places += [(config, config, key) for key in (*family.defaults, *family.only, *outside)]
    for config, place, key in places:
        for value in values:
            before = dict(place)
            place[key] = value
            try:
                hfconfig.interpret(config)
            except hfconfig.ConfigError as error:
                assert str(error)
            finally:
                place.clear()
                place.update(before)


def test_unknown_activations():
    text = refused(model_type="llama", hidden_act="swoosh")
    assert "swoosh" in text and "silu" in text


def test_files(tmp_path):
    """By name or by folder; with a byte order mark, which editors on Windows put there."""
    place = tmp_path / "config.json"
    place.write_bytes(b"\xef\xbb\xbf" + json.dumps({"model_type": "gpt2"}).encode())
    for path in (place, tmp_path):
        assert hfconfig.read(str(path)).model_type == "gpt2"
    with pytest.raises(hfconfig.ConfigError, match="no such file"):
        hfconfig.read(str(tmp_path / "absent.json"))
    assert hfconfig.interpret({"model_type": "vit", "image_size": [96, 96]}).model.image_size == 96
    assert "squares" in refused(model_type="vit", image_size=[96, 64])


@pytest.mark.parametrize(
    "content, words",
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"[" * 100000, "not JSON"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, content, words):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(hfconfig.ConfigError, match=words) as caught:
        hfconfig.read(str(path))
    assert str(path) in str(caught.value)


def test_saved_by_transformers(tmp_path):
    """What Transformers leaves out of the file, because it is the default, is the default here."""
    transformers = pytest.importorskip("transformers")
    for kind, table in sorted(hfconfig.FAMILIES.items()):
        config = transformers.CONFIG_MAPPING[kind]()
        whole = config.to_dict()
        for key, value in table.defaults.items():
            if key in whole and not isinstance(whole[key], dict) and value is not None:
                assert whole[key] == value, "%s: %s" % (kind, key)
        folder = tmp_path / kind
        config.save_pretrained(folder)
        assert hfconfig.read(str(folder)).model == hfconfig.interpret(whole).model, kind
