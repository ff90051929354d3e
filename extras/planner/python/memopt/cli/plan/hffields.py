"""Keys of a Hugging Face configuration as fields of a Model, family by family."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

_KNOWN_ABSURD = 1 << 40


class ConfigError(Exception):
    """The configuration cannot be read as a model."""


_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu", "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu-new", "gelu_fast": "gelu-fast", "relu": "relu", "quick_gelu": "quick-gelu", "tanh": "tanh",
}  # fmt: skip


#: Keys by what JSON has to have there; those of numbers are checked where they are read.
_TYPES: Tuple[Tuple[type, str, Tuple[str, ...]], ...] = (
    (str, "text", ("model_type", "dtype", "torch_dtype", "hidden_act", "hidden_activation",
                   "activation_function", "vision_feature_select_strategy")),
    (bool, "true or false", ("tie_word_embeddings", "attention_bias", "qkv_bias", "use_qkv_bias",
                             "mlp_bias", "qk_norm", "use_sliding_window", "enable_bias",
                             "do_layer_norm_before", "use_cache")),
    (list, "a list", ("architectures",)),
    (dict, "an object", ("text_config", "vision_config", "id2label", "quantization_config")),
)  # fmt: skip


_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def dtype_of(config: Dict[str, Any]) -> Optional[str]:
    """The dtype that Transformers loads the weights in, where a configuration says it."""
    value = config.get("dtype") or config.get("torch_dtype")
    return _DTYPES.get(str(value).replace("torch.", ""))


def check_types(config: Dict[str, Any]) -> None:
    """ConfigError where a value is of another kind than its key; a null is of any."""
    for kind, name, keys in _TYPES:
        for key in keys:
            value = config.get(key)
            if value is not None and not isinstance(value, kind):
                raise ConfigError("%s is %r, not %s" % (key, value, name))


def _pairs(fields: str) -> List[List[str]]:
    return [pair.split("=") for pair in fields.split()]


class Keys:
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
            raise ConfigError("%s is %d; a size of a model is from 1 to 2^40" % (names[0], value))
        return value

    def side(self, *names: str) -> Optional[int]:
        """A number of pixels; [224, 224] is 224."""
        value = self.get(*names)
        if isinstance(value, list):
            if len(value) != 2 or value[0] != value[1]:
                raise ConfigError("%s is %r; only squares are known" % (names[0], value))
            return Keys({names[0]: value[0]}, {}).count(names[0])
        return self.count(*names)

    def share(self, *names: str) -> float:
        value = self.get(*names)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ConfigError("%s is %r, not a share from 0 to below 1" % (names[0], value))
        return float(value)

    def counts(self, fields: str) -> Dict[str, Optional[int]]:
        """Of "field=key field=key …"."""
        return {field: self.count(key) for field, key in _pairs(fields)}

    def flags(self, fields: str) -> Dict[str, bool]:
        return {field: bool(self.get(key)) for field, key in _pairs(fields)}

    def shares(self, fields: str) -> Dict[str, float]:
        return {field: self.share(key) for field, key in _pairs(fields)}

    def activation(self, *names: str) -> str:
        value = self.get(*names)
        if value not in _ACTIVATIONS:
            known = ", ".join(sorted(_ACTIVATIONS))
            raise ConfigError("%s is %r; known are %s" % (names[0], value, known))
        return _ACTIVATIONS[value]


def _decoder(keys: Keys) -> Dict[str, Any]:
    bias = keys.get("attention_bias", "qkv_bias", "use_qkv_bias")
    fields = {
        **keys.counts("layers=num_hidden_layers hidden=hidden_size heads=num_attention_heads head_dim=head_dim "
                      "ffn=intermediate_size vocabulary=vocab_size"),
        **keys.flags("tied=tie_word_embeddings output_bias=attention_bias mlp_bias=mlp_bias qk_norm=qk_norm"),
        "kv_heads": keys.count("num_key_value_heads") or keys.count("num_attention_heads"),
        "activation": keys.activation("hidden_act", "hidden_activation"),
        "gated": True,
        "attention_bias": bool(bias) or bool(keys.get("qkv_bias")),
        "attention_dropout": keys.share("attention_dropout"),
    }  # fmt: skip
    if keys.get("sliding_window") and keys.get("use_sliding_window") is not False:
        fields["sliding_window"] = keys.count("sliding_window")
    return fields


def _mixture(keys: Keys) -> Dict[str, Any]:
    fields = _decoder(keys)
    fields.update(
        ffn=keys.count("moe_intermediate_size") or keys.count("intermediate_size"),
        experts=keys.count("num_local_experts", "num_experts"),
        experts_per_token=keys.count("num_experts_per_tok"),
    )
    return fields


def _gpt2(keys: Keys) -> Dict[str, Any]:
    hidden = keys.count("n_embd", "hidden_size")
    return {
        **keys.shares("embedding_dropout=embd_pdrop attention_dropout=attn_pdrop hidden_dropout=resid_pdrop"),
        "layers": keys.count("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": keys.count("n_head", "num_attention_heads"),
        "ffn": keys.count("n_inner") or (4 * hidden if hidden else None),
        "vocabulary": keys.count("vocab_size"),
        "positions": keys.count("n_positions", "max_position_embeddings"),
        "activation": keys.activation("activation_function"),
        "tied": bool(keys.get("tie_word_embeddings")),
    }


def _opt(keys: Keys) -> Dict[str, Any]:
    return {
        **keys.counts("layers=num_hidden_layers hidden=hidden_size heads=num_attention_heads ffn=ffn_dim "
                      "vocabulary=vocab_size positions=max_position_embeddings embedding=word_embed_proj_dim"),
        **keys.flags("tied=tie_word_embeddings attention_bias=enable_bias output_bias=enable_bias mlp_bias=enable_bias"),
        **keys.shares("hidden_dropout=dropout attention_dropout=attention_dropout"),
        "activation": keys.activation("activation_function"),
        "post_norm": not keys.get("do_layer_norm_before"),
    }  # fmt: skip


def _encoder(keys: Keys) -> Dict[str, Any]:
    """What BERT and ViT have in common."""
    return {
        **keys.counts("layers=num_hidden_layers hidden=hidden_size heads=num_attention_heads ffn=intermediate_size"),
        **keys.shares("embedding_dropout=hidden_dropout_prob hidden_dropout=hidden_dropout_prob"),
        "activation": keys.activation("hidden_act"),
    }


def _bert(keys: Keys) -> Dict[str, Any]:
    return {
        **_encoder(keys),
        **keys.counts("vocabulary=vocab_size positions=max_position_embeddings token_types=type_vocab_size"),
        **keys.flags("tied=tie_word_embeddings"),
        **keys.shares("attention_dropout=attention_probs_dropout_prob"),
    }


def _vit(keys: Keys) -> Dict[str, Any]:
    return {
        **_encoder(keys),
        **keys.flags("attention_bias=qkv_bias"),
        "attention_dropout": keys.share("attention_probs_dropout_prob", "attention_dropout"),
        "image_size": keys.side("image_size"),
        "patch_size": keys.side("patch_size"),
        "channels": keys.count("num_channels"),
    }


FIELDS = {"llama": _decoder, "mixtral": _mixture, "gpt2": _gpt2, "opt": _opt, "bert": _bert, "vit": _vit}
