"""The rows of the table: configurations (Hugging Face's keys) and ways to run them."""

from __future__ import annotations

from typing import Any, Dict, List

LORA = ["q_proj", "k_proj", "v_proj", "o_proj"]


def row(name: str, config: Dict[str, Any], batch: int, seq: int, **run: Any) -> Dict[str, Any]:
    """One row. What is not said: fp32, SDPA, no checkpointing, AdamW without foreach."""
    plain = {"dtype": "fp32", "attention": "sdpa", "checkpointing": "none", "optimizer": "adamw"}
    return {"name": name, "config": config, "run": {"batch": batch, "seq": seq, **plain, **run}}


def llama(hidden: int, layers: int, heads: int, ffn: int, vocabulary: int, **more: Any) -> Any:
    """A Llama."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        **more,
    }


def gpt2(hidden: int, layers: int, heads: int, vocabulary: int = 50257, **more: Any) -> Any:
    """A GPT-2; dropout 0.1 as it comes."""
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "vocab_size": vocabulary,
        "n_positions": 1024,
        **more,
    }


NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def qwen2(hidden: int, layers: int, heads: int, kv: int, ffn: int, vocabulary: int, **more: Any) -> Any:
    """A Qwen2: biases at q, k, v; tied embeddings unless said."""
    return {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        **more,
    }


def mistral(hidden: int, layers: int, heads: int, kv: int, ffn: int, vocabulary: int, **more: Any) -> Any:
    """A Mistral."""
    return {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        **more,
    }


def mixtral(hidden: int, layers: int, heads: int, kv: int, ffn: int, vocabulary: int, experts: int) -> Any:
    """A Mixtral; two experts a token."""
    return {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }


def bert(hidden: int, layers: int, heads: int, ffn: int, kind: str = "BertForMaskedLM", **more: Any) -> Any:
    """A BERT; dropout 0.1 as it comes."""
    return {
        "model_type": "bert",
        "architectures": [kind],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": 30522,
        **more,
    }


def vit(hidden: int, layers: int, heads: int, ffn: int, **more: Any) -> Any:
    """A ViT for images of 224 × 224 in patches of 16."""
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "num_labels": 1000,
        **more,
    }


def opt(hidden: int, layers: int, heads: int, ffn: int, **more: Any) -> Any:
    """An OPT; dropout 0.1 as it comes, tied embeddings."""
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "ffn_dim": ffn,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": hidden,
        **more,
    }


ROWS: List[Dict[str, Any]] = [
    row("llama-fp32", llama(512, 8, 8, 1376, 32000), 4, 256),
    row("llama-eager", llama(512, 8, 8, 1376, 8000), 4, 256, attention="eager"),
    row("llama-checkpointed", llama(512, 8, 8, 1376, 32000), 4, 512, checkpointing="full"),
    row("llama-bf16", llama(768, 8, 12, 2048, 32000), 4, 256, dtype="bf16"),
    row("llama-autocast", llama(512, 8, 8, 1376, 32000), 4, 256, autocast="bf16"),
    row("llama-small-vocabulary", llama(512, 8, 8, 1376, 256), 8, 512),
    row("gpt2-dropout", gpt2(512, 6, 8), 4, 128),
    row("gpt2-no-dropout", gpt2(512, 6, 8, **NO_DROPOUT), 4, 256),
    row("gpt2-eager", gpt2(512, 6, 8, 8192), 4, 256, attention="eager"),
    row("qwen2-gqa-tied", qwen2(512, 6, 8, 2, 1408, 50000), 2, 256),
    row("mistral-gqa", mistral(640, 6, 10, 2, 1792, 32000), 4, 256),
    row("mixtral", mixtral(384, 4, 6, 2, 768, 16000, 4), 4, 256),
    row("bert-mlm", bert(512, 6, 8, 2048), 8, 128),
    row("vit", vit(384, 8, 6, 1536), 8, 197),
    row("opt", opt(512, 6, 8, 2048), 4, 128),
]
