"""Families of Hugging Face models that the planner knows: whose layers, and the defaults of what a
``config.json`` leaves out.

A family is here only where its parameters are counted exactly: a test builds each on the meta
device.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional


class Family(NamedTuple):
    """How the configuration of a model_type is read."""

    family: str
    defaults: Dict[str, Any]
    #: Keys with the only values that are known; another value is another architecture. "a.b" is b
    #: in the object a.
    only: Dict[str, Any] = {}
    #: How the layers' code differs from the family's own.
    variant: Optional[str] = None


_LLAMA: Dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False, "tie_word_embeddings": False, "attention_dropout": 0.0, "use_cache": True,
}  # fmt: skip
_BERT: Dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
_VIT: Dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "image_size": 224,
    "patch_size": 16, "num_channels": 3, "qkv_bias": True,
}  # fmt: skip

_QWEN2 = dict(_LLAMA, vocab_size=151936, intermediate_size=22016, num_key_value_heads=32, qkv_bias=True)
_MIXTRAL = dict(_LLAMA, intermediate_size=14336, num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2)
_ENCODER = {"is_decoder": False, "add_cross_attention": False}


#: model_type: how it is read.
FAMILIES: Dict[str, Family] = {
    "llama": Family("llama", _LLAMA),
    "mistral": Family("llama", dict(_LLAMA, intermediate_size=14336, num_key_value_heads=8)),
    "qwen2": Family("llama", _QWEN2),
    "qwen3": Family("llama", dict(_QWEN2, qkv_bias=None, head_dim=128, qk_norm=True)),
    "smollm3": Family(
        "llama",
        dict(
            _LLAMA, vocab_size=128256, hidden_size=2048, num_hidden_layers=36,
            num_attention_heads=16, num_key_value_heads=4, tie_word_embeddings=True,
        ),
    ),
    "mixtral": Family("mixtral", _MIXTRAL),
    "qwen3_moe": Family(
        "mixtral",
        dict(
            _MIXTRAL, vocab_size=151936, hidden_size=2048, num_hidden_layers=24,
            num_key_value_heads=4, intermediate_size=6144, moe_intermediate_size=768,
            num_local_experts=128, num_experts_per_tok=8, qk_norm=True,
        ),
        only={"mlp_only_layers": [], "decoder_sparse_step": 1},
        variant="qwen-moe",
    ),
    "gpt2": Family(
        "gpt2",
        {
            "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
            "n_inner": None, "activation_function": "gelu_new", "resid_pdrop": 0.1,
            "embd_pdrop": 0.1, "attn_pdrop": 0.1, "tie_word_embeddings": True, "use_cache": True,
        },
        only={"add_cross_attention": False, "reorder_and_upcast_attn": False},
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
        only={"layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
    ),
    "bert": Family("bert", _BERT, only=_ENCODER),
    "roberta": Family("bert", dict(_BERT, vocab_size=50265), only=_ENCODER, variant="roberta"),
    "xlm-roberta": Family("bert", _BERT, only=_ENCODER, variant="roberta"),
    "camembert": Family("bert", _BERT, only=_ENCODER, variant="roberta"),
    "vit": Family("vit", _VIT),
}  # fmt: skip
