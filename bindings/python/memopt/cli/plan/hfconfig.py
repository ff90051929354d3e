"""Reads the configuration of a Hugging Face model as the fields of a PlanModel.

``config.json`` leaves out what has the family's default, so the defaults stand here, by model_type.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ...plan import PlanModel

_KNOWN_ABSURD = 1 << 40


class ConfigError(Exception):
    """The configuration cannot be read as a model."""


class Reading(NamedTuple):
    """A model and what was assumed about it."""

    model: PlanModel
    model_type: str
    notes: List[str]
    #: What the configuration says of the run: dtype, use_cache.
    run: Dict[str, Any]


class Family(NamedTuple):
    """How the configuration of a model_type is read."""

    family: str
    defaults: Dict[str, Any]
    note: str = ""


_LLAMA: Dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "use_cache": True,
}
_BERT: Dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "tie_word_embeddings": True,
}
_VIT: Dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
}

_QWEN2 = dict(
    _LLAMA, vocab_size=151936, intermediate_size=22016, num_key_value_heads=32, qkv_bias=True
)
_MIXTRAL = dict(
    _LLAMA,
    intermediate_size=14336,
    num_key_value_heads=8,
    num_local_experts=8,
    num_experts_per_tok=2,
    router_jitter_noise=0.0,
)
_LIKE_LLAMA = "read as Llama's kin: %s's own operations may differ by a few percent"


def _kin(name: str, **defaults: Any) -> Family:
    return Family("llama", dict(_LLAMA, **defaults), _LIKE_LLAMA % name)


#: model_type: how it is read.
FAMILIES: Dict[str, Family] = {
    "llama": Family("llama", _LLAMA),
    "mistral": Family("llama", dict(_LLAMA, intermediate_size=14336, num_key_value_heads=8)),
    "qwen2": Family("llama", _QWEN2),
    "qwen3": Family("llama", dict(_QWEN2, qkv_bias=None, head_dim=128, qk_norm=True)),
    "smollm3": _kin(
        "SmolLM3", vocab_size=128256, hidden_size=2048, num_hidden_layers=36,
        num_attention_heads=16, num_key_value_heads=4, tie_word_embeddings=True,
    ),
    "granite": _kin("Granite"),
    "olmo2": _kin("OLMo 2", vocab_size=50304, qk_norm=True),
    "phi3": _kin("Phi-3", vocab_size=32064, hidden_size=3072, intermediate_size=8192),
    "stablelm": _kin("StableLM", vocab_size=50304, hidden_size=2560, intermediate_size=6912),
    "gemma": _kin(
        "Gemma", vocab_size=256000, hidden_size=3072, intermediate_size=24576,
        num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=16, head_dim=256,
        hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True,
    ),
    "gemma2": _kin(
        "Gemma 2", vocab_size=256000, hidden_size=2304, intermediate_size=9216,
        num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4, head_dim=256,
        hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True,
    ),
    "mixtral": Family("mixtral", _MIXTRAL),
    "qwen3_moe": Family(
        "mixtral",
        dict(
            _MIXTRAL, vocab_size=151936, hidden_size=2048, num_hidden_layers=24,
            num_key_value_heads=4, intermediate_size=6144, moe_intermediate_size=768, num_local_experts=128,
            num_experts_per_tok=8, qk_norm=True,
        ),
        "read as Mixtral's kin: all layers are taken to be mixtures",
    ),
    "gpt2": Family(
        "gpt2",
        {
            "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
            "n_inner": None, "activation_function": "gelu_new", "resid_pdrop": 0.1,
            "embd_pdrop": 0.1, "attn_pdrop": 0.1, "tie_word_embeddings": True, "use_cache": True,
        },
    ),
    "opt": Family(
        "opt",
        {
            "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
            "max_position_embeddings": 2048, "num_attention_heads": 12,
            "activation_function": "relu", "dropout": 0.1, "attention_dropout": 0.0,
            "enable_bias": True, "tie_word_embeddings": True, "use_cache": True,
            "word_embed_proj_dim": None, "do_layer_norm_before": True,
        },
    ),
    "bert": Family("bert", _BERT),
    "roberta": Family("bert", dict(_BERT, vocab_size=50265)),
    "vit": Family("vit", _VIT),
    "deit": Family("vit", _VIT, "read as ViT with one more token"),
    "clip_vision_model": Family(
        "vit",
        dict(
            _VIT, patch_size=32, hidden_act="quick_gelu",
        ),
    ),
    "siglip_vision_model": Family("vit", dict(_VIT, hidden_act="gelu_pytorch_tanh")),
}  # fmt: skip

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu-new",
    "gelu_fast": "gelu-fast",
    "relu": "relu",
    "quick_gelu": "quick-gelu",
    "tanh": "tanh",
}

#: Ends of the names of architectures, by the head that they have.
_HEADS = (
    ("ForCausalLM", "causal-lm"),
    ("LMHeadModel", "causal-lm"),
    ("ForConditionalGeneration", "causal-lm"),
    ("ForMaskedLM", "masked-lm"),
    ("ForPreTraining", "masked-lm"),
    ("ForSequenceClassification", "sequence"),
    ("ForTokenClassification", "token"),
    ("ForImageClassification", "image"),
    ("Model", "none"),
)


def load(path: str) -> Tuple[Dict[str, Any], str]:
    """The JSON object in a file, or in ``config.json`` of a folder, and where it was."""
    place = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        with open(place, encoding="utf-8") as file:
            config = json.load(file)
    except FileNotFoundError:
        raise ConfigError("%s: there is no such file" % place) from None
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are both
        raise ConfigError("%s: not JSON: %s" % (place, error)) from None
    except OSError as error:
        raise ConfigError("%s: %s" % (place, error.strerror or error)) from None
    if not isinstance(config, dict):
        raise ConfigError("%s: a %s, not a JSON object" % (place, type(config).__name__))
    return config, place


def read(path: str, like: Optional[str] = None) -> Reading:
    """The model of a configuration. `like`: the model_type to read it as."""
    config, place = load(path)
    try:
        return interpret(config, like)
    except ConfigError as error:
        raise ConfigError("%s: %s" % (place, error)) from None


def interpret(config: Dict[str, Any], like: Optional[str] = None) -> Reading:
    """The model of the object of a ``config.json``."""
    if isinstance(config.get("text_config"), dict):
        return _with_tower(config, like)
    model_type = like or config.get("model_type")
    family = _family(config, model_type)
    keys = _Keys(config, family.defaults)
    fields = _FIELDS[family.family](keys)
    fields["family"] = family.family
    head = _head(config, family.family)
    fields.update(head)
    fields["labels"] = _labels(config)
    run: Dict[str, Any] = {}
    if keys.get("use_cache") is not None:
        run["use_cache"] = bool(keys.get("use_cache"))
    for key in ("dtype", "torch_dtype"):
        if isinstance(config.get(key), str):
            run.setdefault("dtype", config[key])
    notes = [family.note] if family.note else []
    try:
        model = PlanModel(**fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None
    return Reading(model, str(model_type), notes, run)


def _family(config: Dict[str, Any], model_type: Any) -> Family:
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    known = ", ".join(sorted(FAMILIES))
    if model_type is None:
        raise ConfigError(
            'no "model_type"; known are %s. Give --like TYPE to read it as one of them: that '
            "needs hidden_size, num_hidden_layers, num_attention_heads, intermediate_size and "
            "vocab_size" % known
        )
    raise ConfigError(
        'unknown model_type "%s"; known are %s. Give --like TYPE to read it as one of them '
        "(hidden_size, num_hidden_layers, num_attention_heads, intermediate_size and vocab_size "
        "are needed), --model module:function to trace it, or its totals by --params, --layers, "
        "--hidden, --heads and --vocab" % (model_type, known)
    )


class _Keys:
    """The values of a configuration, checked; the family's default for what is not there."""

    def __init__(self, config: Dict[str, Any], defaults: Dict[str, Any]) -> None:
        self._config = config
        self._defaults = defaults

    def get(self, *names: str) -> Any:
        """The first of the names that is there; a null counts as not there."""
        for table in (self._config, self._defaults):
            for name in names:
                if table.get(name) is not None:
                    return table[name]
        return None

    def count(self, *names: str) -> Optional[int]:
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError("%s is %r, not a whole number" % (names[0], value))
        if not 0 < value < _KNOWN_ABSURD:
            raise ConfigError("%s is %d, which is no size of a model" % (names[0], value))
        return value

    def side(self, *names: str) -> Optional[int]:
        """A number of pixels; [224, 224] is 224."""
        value = self.get(*names)
        if isinstance(value, list):
            if len(value) != 2 or value[0] != value[1]:
                raise ConfigError("%s is %r; only squares are known" % (names[0], value))
            return _Keys({names[0]: value[0]}, {}).count(names[0])
        return self.count(*names)

    def share(self, *names: str) -> float:
        value = self.get(*names)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ConfigError("%s is %r, not a share from 0 to below 1" % (names[0], value))
        return float(value)

    def activation(self, *names: str) -> str:
        value = self.get(*names)
        if value not in _ACTIVATIONS:
            known = ", ".join(sorted(_ACTIVATIONS))
            raise ConfigError("%s is %r; known are %s" % (names[0], value, known))
        return _ACTIVATIONS[value]


def _decoder(keys: _Keys) -> Dict[str, Any]:
    bias = keys.get("attention_bias", "qkv_bias", "use_qkv_bias")
    fields = {
        "layers": keys.count("num_hidden_layers"),
        "hidden": keys.count("hidden_size"),
        "heads": keys.count("num_attention_heads"),
        "kv_heads": keys.count("num_key_value_heads") or keys.count("num_attention_heads"),
        "head_dim": keys.count("head_dim"),
        "ffn": keys.count("intermediate_size"),
        "vocabulary": keys.count("vocab_size"),
        "activation": keys.activation("hidden_act", "hidden_activation"),
        "gated": True,
        "tied": bool(keys.get("tie_word_embeddings")),
        "attention_bias": bool(bias) or bool(keys.get("qkv_bias")),
        "output_bias": bool(keys.get("attention_bias")),
        "mlp_bias": bool(keys.get("mlp_bias")),
        "qk_norm": bool(keys.get("qk_norm")),
        "attention_dropout": keys.share("attention_dropout"),
    }
    window = keys.get("sliding_window")
    if isinstance(window, int) and keys.get("use_sliding_window") is not False:
        fields["sliding_window"] = window
    return fields


def _mixture(keys: _Keys) -> Dict[str, Any]:
    fields = _decoder(keys)
    fields.update(
        ffn=keys.count("moe_intermediate_size") or keys.count("intermediate_size"),
        experts=keys.count("num_local_experts", "num_experts"),
        experts_per_token=keys.count("num_experts_per_tok"),
        router_jitter=float(keys.get("router_jitter_noise") or 0),
    )
    return fields


def _gpt2(keys: _Keys) -> Dict[str, Any]:
    hidden = keys.count("n_embd", "hidden_size")
    return {
        "layers": keys.count("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": keys.count("n_head", "num_attention_heads"),
        "ffn": keys.count("n_inner") or (4 * hidden if hidden else None),
        "vocabulary": keys.count("vocab_size"),
        "positions": keys.count("n_positions", "max_position_embeddings"),
        "activation": keys.activation("activation_function"),
        "tied": bool(keys.get("tie_word_embeddings")),
        "embedding_dropout": keys.share("embd_pdrop"),
        "attention_dropout": keys.share("attn_pdrop"),
        "hidden_dropout": keys.share("resid_pdrop"),
    }


def _opt(keys: _Keys) -> Dict[str, Any]:
    bias = bool(keys.get("enable_bias"))
    return {
        "layers": keys.count("num_hidden_layers"),
        "hidden": keys.count("hidden_size"),
        "heads": keys.count("num_attention_heads"),
        "ffn": keys.count("ffn_dim"),
        "vocabulary": keys.count("vocab_size"),
        "positions": keys.count("max_position_embeddings"),
        "embedding": keys.count("word_embed_proj_dim"),
        "activation": keys.activation("activation_function"),
        "tied": bool(keys.get("tie_word_embeddings")),
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
        "post_norm": not keys.get("do_layer_norm_before"),
        "hidden_dropout": keys.share("dropout"),
        "attention_dropout": keys.share("attention_dropout"),
    }


def _bert(keys: _Keys) -> Dict[str, Any]:
    return {
        "layers": keys.count("num_hidden_layers"),
        "hidden": keys.count("hidden_size"),
        "heads": keys.count("num_attention_heads"),
        "ffn": keys.count("intermediate_size"),
        "vocabulary": keys.count("vocab_size"),
        "positions": keys.count("max_position_embeddings"),
        "token_types": keys.count("type_vocab_size"),
        "activation": keys.activation("hidden_act"),
        "tied": bool(keys.get("tie_word_embeddings")),
        "embedding_dropout": keys.share("hidden_dropout_prob"),
        "hidden_dropout": keys.share("hidden_dropout_prob"),
        "attention_dropout": keys.share("attention_probs_dropout_prob"),
    }


def _vit(keys: _Keys) -> Dict[str, Any]:
    return {
        "layers": keys.count("num_hidden_layers"),
        "hidden": keys.count("hidden_size"),
        "heads": keys.count("num_attention_heads"),
        "ffn": keys.count("intermediate_size"),
        "activation": keys.activation("hidden_act"),
        "attention_bias": bool(keys.get("qkv_bias")),
        "embedding_dropout": keys.share("hidden_dropout_prob"),
        "hidden_dropout": keys.share("hidden_dropout_prob"),
        "attention_dropout": keys.share("attention_probs_dropout_prob", "attention_dropout"),
        "image_size": keys.side("image_size"),
        "patch_size": keys.side("patch_size"),
        "channels": keys.count("num_channels"),
    }


_FIELDS = {
    "llama": _decoder,
    "mixtral": _mixture,
    "gpt2": _gpt2,
    "opt": _opt,
    "bert": _bert,
    "vit": _vit,
}


def _head(config: Dict[str, Any], family: str) -> Dict[str, Any]:
    architectures = config.get("architectures") or [""]
    name = str(architectures[0])
    for end, head in _HEADS:
        if name.endswith(end):
            pooled = head in ("none", "sequence") and family == "bert"
            return {"head": head, "pooler": True} if pooled else {"head": head}
    return {}


def _labels(config: Dict[str, Any]) -> int:
    table = config.get("id2label")
    if isinstance(table, dict) and table:
        return len(table)
    count = config.get("num_labels")
    return count if isinstance(count, int) and count > 0 else 2


def _with_tower(config: Dict[str, Any], like: Optional[str]) -> Reading:
    """A language model with a vision tower: Llava and its kin."""
    text = dict(config["text_config"])
    text.setdefault("architectures", config.get("architectures"))
    if "tie_word_embeddings" in config:
        text.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    text.setdefault("model_type", "llama")
    text["model_type"] = _TEXT_TYPES.get(text["model_type"], text["model_type"])
    reading = interpret(text, like)
    vision = config.get("vision_config")
    notes = list(reading.notes)
    model = reading.model
    if isinstance(vision, dict):
        model = model.replace(**_tower(vision))
        notes.append(
            "the vision tower is read as a ViT with a projector; it learns (--freeze-vision)"
        )
    return Reading(model, str(config.get("model_type")), notes, reading.run)


_TEXT_TYPES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "gemma3_text": "gemma2"}


def _tower(vision: Dict[str, Any]) -> Dict[str, Any]:
    keys = _Keys(vision, {"image_size": 336, "patch_size": 14, "num_channels": 3})
    hidden = keys.count("hidden_size", "embed_dim") or 1024
    return {
        "vision_layers": keys.count("num_hidden_layers", "depth") or 24,
        "vision_hidden": hidden,
        "vision_heads": keys.count("num_attention_heads", "num_heads") or 16,
        "vision_ffn": keys.count("intermediate_size") or 4 * hidden,
        "image_size": keys.side("image_size"),
        "patch_size": keys.side("patch_size"),
        "channels": keys.count("num_channels", "in_channels"),
    }
