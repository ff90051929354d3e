"""The rows of the table: configurations (Hugging Face's keys) and ways to run them."""

from __future__ import annotations

from typing import Any, Dict, List

LORA = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


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


def qwen2(
    hidden: int, layers: int, heads: int, kv: int, ffn: int, vocabulary: int, **more: Any
) -> Any:
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


def mistral(
    hidden: int, layers: int, heads: int, kv: int, ffn: int, vocabulary: int, **more: Any
) -> Any:
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


def mixtral(
    hidden: int, layers: int, heads: int, kv: int, ffn: int, vocabulary: int, experts: int
) -> Any:
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


def bert(
    hidden: int, layers: int, heads: int, ffn: int, kind: str = "BertForMaskedLM", **more: Any
) -> Any:
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


def kin(kind: str, head: str, vocabulary: int = 16000, **more: Any) -> Any:
    """A model of a family with Llama's keys: `head` is its class, sizes are small."""
    return {
        "model_type": kind,
        "architectures": [head],
        "hidden_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
        "vocab_size": vocabulary,
        "pad_token_id": 1,
        "bos_token_id": 1,
        "eos_token_id": 1,
        **more,
    }


GEMMA = {"num_key_value_heads": 1, "head_dim": 128, "intermediate_size": 1536}
GRANITE = {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
           "attention_multiplier": 0.0156}
QWEN_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
            "head_dim": 96}
ENCODER = {"num_key_value_heads": 6, "max_position_embeddings": 514}

def llava(text: Any, vision: Any, layer: int = -2, **more: Any) -> Any:
    """A Llava: CLIP's tower, of which the output of the last layer but one is taken, and a text."""
    text = {key: value for key, value in text.items() if key != "architectures"}
    return {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": 1,
        "vision_feature_select_strategy": "default",
        "vision_feature_layer": layer,
        "text_config": text,
        "vision_config": vision,
        "tie_word_embeddings": text["tie_word_embeddings"],
        **more,
    }


def clip(hidden: int, layers: int, heads: int, image: int, patch: int, **more: Any) -> Any:
    """CLIP's tower for square images."""
    return {
        "model_type": "clip_vision_model",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "image_size": image,
        "patch_size": patch,
        **more,
    }


def adapted(number: int, family: str, dtype: str, checkpointing: str, optimizer: str) -> Any:
    """A row of fp32 adapters, as PEFT keeps them, on 16-bit weights: few and thin, or many."""
    many = number % 4 in (1, 2)  # with either optimizer, with and without checkpoints
    rank, size = (64, 320) if many else (8, 256)
    if family == "llama":
        config = llama(size, 3, 4, 2 * size, 2000, num_key_value_heads=2)
        targets = LORA + MLP if many else LORA
    else:
        config = opt(size, 3, 4, 2 * size, vocab_size=2000, max_position_embeddings=512)
        targets = ["q_proj", "v_proj"]
    name = "%s-adapters-%s-%s-%s" % (family, dtype, checkpointing, optimizer)
    run = {"dtype": dtype, "checkpointing": checkpointing, "optimizer": optimizer}
    return row(name, config, 16, 256, lora=rank, lora_targets=targets, **run)


LLAVA_TEXT = llama(384, 4, 6, 1024, 8000)

ADAPTED = [
    (family, dtype, checkpointing, optimizer)
    for family in ("llama", "opt")
    for dtype in ("bf16",)
    for checkpointing in ("none", "full")
    for optimizer in ("adamw", "adamw8bit")
]

ROWS: List[Dict[str, Any]] = [
    # Llama
    row("llama-fp32", llama(512, 8, 8, 1376, 32000), 4, 256),
    row("llama-eager", llama(512, 8, 8, 1376, 8000), 4, 256, attention="eager"),
    row("llama-checkpointed", llama(512, 8, 8, 1376, 32000), 4, 512, checkpointing="full"),
    row("llama-bf16", llama(768, 8, 12, 2048, 32000), 4, 256, dtype="bf16"),
    row("llama-fp16", llama(384, 4, 6, 1024, 16000), 2, 128, dtype="fp16"),
    row("llama-autocast", llama(512, 8, 8, 1376, 32000), 4, 256, autocast="bf16"),
    row("llama-small-vocabulary", llama(512, 8, 8, 1376, 256), 8, 512),
    row("llama-few-tokens", llama(640, 6, 10, 1728, 32000), 1, 48),
    row("llama-tied-few-tokens", llama(640, 4, 10, 1728, 64000, tie_word_embeddings=True), 1, 32),
    row("llama-long", llama(256, 6, 4, 688, 4000), 1, 2048),
    row("llama-long-eager", llama(256, 4, 4, 688, 4000), 1, 1024, attention="eager"),
    row("llama-long-checkpointed", llama(384, 8, 6, 1024, 4000), 1, 2048, checkpointing="full"),
    row("llama-deep-narrow", llama(192, 32, 3, 512, 8000), 4, 256),
    row("llama-shallow-wide", llama(2048, 2, 16, 5504, 8000), 1, 128),
    row("llama-short-many", llama(384, 6, 6, 1024, 8000), 32, 32),
    row("llama-gqa-eager", llama(512, 4, 8, 1376, 8000, num_key_value_heads=2), 2, 512,
        attention="eager"),
    row("llama-gqa-masked", llama(512, 4, 8, 1376, 8000, num_key_value_heads=2), 4, 256, mask=True),
    row("llama-big-vocabulary-bf16", llama(256, 4, 4, 688, 128256), 2, 256, dtype="bf16"),
    row("llama-checkpointed-autocast", llama(512, 8, 8, 1376, 8000), 4, 512, autocast="bf16",
        checkpointing="full"),
    row("llama-checkpointed-eager-bf16", llama(512, 6, 8, 1376, 8000), 4, 256, dtype="bf16",
        attention="eager", checkpointing="full"),
    row("llama-checkpointed-every-2", llama(512, 8, 8, 1376, 8000), 4, 512, checkpointing="full",
        every=2),
    row("llama-accumulation", llama(512, 6, 8, 1376, 16000), 2, 256, accumulation=2),
    row("llama-foreach", llama(512, 6, 8, 1376, 16000), 1, 128, optimizer="adamw-foreach"),
    row("llama-sgd-momentum", llama(512, 6, 8, 1376, 16000), 2, 128, optimizer="sgd-momentum"),
    row("llama-adamw8bit", llama(512, 6, 8, 1376, 16000), 2, 256, optimizer="adamw8bit"),
    row("llama-lora", llama(768, 8, 12, 2048, 16000), 2, 256, lora=8, lora_targets=LORA),
    row("llama-lora-bf16-checkpointed", llama(768, 8, 12, 2048, 32000), 2, 512, dtype="bf16",
        checkpointing="full", lora=16, lora_targets=LORA, adapters="bf16"),
    # GPT-2
    row("gpt2-dropout", gpt2(512, 6, 8), 4, 128),
    row("gpt2-no-dropout", gpt2(512, 6, 8, **NO_DROPOUT), 4, 256),
    row("gpt2-eager", gpt2(512, 6, 8, 8192), 4, 256, attention="eager"),
    row("gpt2-124M", gpt2(768, 12, 12), 1, 256),
    row("gpt2-long", gpt2(384, 6, 6, 8192, **NO_DROPOUT), 2, 1024),
    row("gpt2-checkpointed", gpt2(512, 8, 8, 16384), 4, 512, checkpointing="full"),
    row("gpt2-bf16", gpt2(512, 6, 8, 16384), 4, 256, dtype="bf16"),
    row("gpt2-autocast", gpt2(512, 6, 8, 16384), 4, 256, autocast="bf16"),
    # Qwen2
    row("qwen2-gqa-tied", qwen2(512, 6, 8, 2, 1408, 50000), 2, 256),
    row("qwen2-untied-checkpointed", qwen2(512, 8, 8, 4, 1408, 16000, tie_word_embeddings=False), 4,
        512, checkpointing="full"),
    row("qwen2-big-vocabulary", qwen2(256, 8, 4, 2, 1408, 151936), 1, 256),
    row("qwen2-bf16-long", qwen2(384, 6, 6, 1, 1024, 8000), 1, 2048, dtype="bf16"),
    # Mistral, Mixtral
    row("mistral-gqa", mistral(640, 6, 10, 2, 1792, 32000), 4, 256),
    row("mistral-window", mistral(384, 6, 6, 2, 1024, 8000, sliding_window=128), 2, 512),
    row("mistral-bf16-checkpointed", mistral(640, 6, 10, 2, 1792, 16000), 4, 512, dtype="bf16",
        checkpointing="full"),
    row("mixtral", mixtral(384, 4, 6, 2, 768, 16000, 4), 4, 256),
    row("mixtral-8-experts-bf16", mixtral(384, 4, 6, 3, 768, 8000, 8), 2, 256, dtype="bf16"),
    row("mixtral-checkpointed-eager", mixtral(384, 4, 6, 3, 768, 8000, 8), 2, 256,
        attention="eager", checkpointing="full"),
    # BERT, ViT, OPT
    row("bert-mlm", bert(512, 6, 8, 2048), 8, 128),
    row("bert-classifier", bert(512, 6, 8, 2048, "BertForSequenceClassification"), 8, 128),
    row("bert-base-eager", bert(768, 12, 12, 3072), 2, 128, attention="eager"),
    row("bert-classifier-checkpointed", bert(512, 8, 8, 2048, "BertForSequenceClassification"), 8,
        256, checkpointing="full", mask=True),
    row("bert-autocast", bert(512, 6, 8, 2048), 4, 128, autocast="bf16"),
    row("bert-bf16-autocast", bert(512, 6, 8, 2048), 4, 128, dtype="bf16", autocast="bf16"),
    row("llama-adapters-bf16-autocast", llama(320, 3, 4, 640, 2000, num_key_value_heads=2), 8, 256,
        dtype="bf16", autocast="bf16", lora=16, lora_targets=LORA + MLP),
    row("vit", vit(384, 8, 6, 1536), 8, 197),
    row("vit-base", vit(768, 12, 12, 3072), 2, 197),
    row("vit-eager-bf16", vit(384, 8, 6, 1536), 8, 197, attention="eager", dtype="bf16",
        images="bf16"),
    row("vit-checkpointed", vit(384, 12, 6, 1536), 16, 197, checkpointing="full"),
    row("opt", opt(512, 6, 8, 2048), 4, 128),
    row("opt-eager-bf16", opt(512, 6, 8, 2048), 4, 128, attention="eager", dtype="bf16"),
    row("opt-checkpointed", opt(512, 8, 8, 2048, dropout=0.0), 4, 256, checkpointing="full"),
    # Families with code of their own around the same parts
    row("qwen3", kin("qwen3", "Qwen3ForCausalLM", head_dim=96), 4, 256),
    row("qwen3-checkpointed-eager-bf16", kin("qwen3", "Qwen3ForCausalLM", head_dim=96), 4, 512,
        dtype="bf16", attention="eager", checkpointing="full"),
    row("gemma-bf16", kin("gemma", "GemmaForCausalLM", **GEMMA), 4, 256, dtype="bf16"),
    row("gemma-checkpointed-eager", kin("gemma", "GemmaForCausalLM", 1000, **GEMMA), 4, 256,
        attention="eager", checkpointing="full"),
    row("phi3", kin("phi3", "Phi3ForCausalLM"), 4, 256),
    row("phi3-checkpointed-bf16", kin("phi3", "Phi3ForCausalLM", 1000, num_key_value_heads=6,
        sliding_window=100), 8, 512, dtype="bf16", checkpointing="full"),
    row("phi3-eager-autocast", kin("phi3", "Phi3ForCausalLM"), 2, 256, attention="eager",
        autocast="bf16"),
    row("granite-bf16", kin("granite", "GraniteForCausalLM", **GRANITE), 4, 256, dtype="bf16"),
    row("granite-checkpointed-eager", kin("granite", "GraniteForCausalLM", 1000, **GRANITE), 4,
        256, attention="eager", checkpointing="full"),
    row("smollm3", kin("smollm3", "SmolLM3ForCausalLM"), 4, 256),
    row("smollm3-checkpointed-eager-bf16", kin("smollm3", "SmolLM3ForCausalLM"), 4, 512,
        dtype="bf16", attention="eager", checkpointing="full"),
    row("qwen3-moe-bf16", kin("qwen3_moe", "Qwen3MoeForCausalLM", **QWEN_MOE), 4, 256,
        dtype="bf16"),
    row("qwen3-moe-checkpointed-eager", kin("qwen3_moe", "Qwen3MoeForCausalLM", 1000, **QWEN_MOE),
        4, 256, attention="eager", checkpointing="full"),
    row("mixtral-small-vocabulary-checkpointed-bf16", mixtral(384, 4, 6, 2, 768, 1000, 4), 8, 256,
        dtype="bf16", checkpointing="full"),
    row("roberta-masked", kin("roberta", "RobertaForMaskedLM", **ENCODER), 4, 256, mask=True),
    row("roberta-token-eager-autocast", kin("roberta", "RobertaForTokenClassification", 1000,
        **ENCODER), 4, 256, attention="eager", autocast="bf16", mask=True),
    row("xlm-roberta-checkpointed-bf16", kin("xlm-roberta", "XLMRobertaForMaskedLM", 1000,
        **ENCODER), 8, 256, dtype="bf16", checkpointing="full"),
    row("camembert-classifier-eager", kin("camembert", "CamembertForSequenceClassification", 8000,
        **ENCODER), 4, 256, attention="eager"),
    row("bert-eager-autocast-masked", bert(384, 4, 6, 1024, vocab_size=1000), 4, 256,
        attention="eager", autocast="bf16", mask=True),
    # Activations in host memory
    row("llama-offload", llama(512, 8, 8, 1376, 8000), 4, 256, offload=True),
    row("llama-offload-eager-bf16", llama(512, 6, 8, 1376, 8000, num_key_value_heads=2), 4, 256,
        dtype="bf16", attention="eager", offload=True),
    row("llama-offload-autocast-masked", llama(512, 6, 8, 1376, 8000), 4, 256, autocast="bf16",
        mask=True, offload=True),
    row("llama-offload-small-vocabulary", llama(256, 8, 4, 688, 256), 8, 512, offload=True),
    row("gpt2-offload", gpt2(512, 6, 8, 8192), 4, 256, offload=True),
    row("gpt2-offload-eager-bf16", gpt2(384, 6, 6, 8192), 4, 256, dtype="bf16", attention="eager",
        offload=True),
    row("mixtral-offload", mixtral(384, 4, 6, 3, 768, 8000, 8), 2, 256, offload=True),
    row("bert-offload", bert(512, 6, 8, 2048), 8, 128, mask=True, offload=True),
    row("vit-offload", vit(384, 8, 6, 1536), 8, 197, offload=True),
    row("opt-offload-accumulation", opt(512, 6, 8, 2048), 4, 128, accumulation=2, offload=True),
    row("llama-checkpointed-offload", llama(512, 8, 8, 1376, 8000), 4, 512, checkpointing="full",
        offload=True),
    row("llama-checkpointed-offload-deep", llama(256, 24, 4, 688, 512), 4, 512,
        checkpointing="full", offload=True),
    row("llama-checkpointed-every-2-offload", llama(384, 8, 6, 1024, 4000), 4, 512,
        checkpointing="full", every=2, offload=True),
    row("qwen2-checkpointed-offload-autocast", qwen2(512, 6, 8, 2, 1408, 16000), 4, 512,
        autocast="bf16", checkpointing="full", offload=True),
    row("gpt2-checkpointed-offload", gpt2(512, 6, 8, 8192), 4, 512, checkpointing="full",
        offload=True),
    row("mixtral-checkpointed-offload", mixtral(384, 4, 6, 3, 768, 8000, 8), 4, 256,
        checkpointing="full", offload=True),
    row("vit-checkpointed-offload-bf16", vit(384, 12, 6, 1536), 16, 197, dtype="bf16",
        checkpointing="full", offload=True),
    # Adapters
    row("llama-lora-all-targets", llama(512, 8, 8, 1376, 8000), 4, 256, lora=16,
        lora_targets=LORA + MLP),
    row("llama-lora-rank-64-eager", llama(512, 6, 8, 1376, 8000, num_key_value_heads=2), 2, 512,
        attention="eager", lora=64, lora_targets=["q_proj", "v_proj"]),
    row("llama-lora-mlp-bf16-offload", llama(512, 8, 8, 1376, 8000), 4, 256, dtype="bf16", lora=4,
        lora_targets=MLP, adapters="bf16", offload=True),
    row("qwen2-lora-autocast", qwen2(512, 6, 8, 2, 1408, 50000), 4, 256, autocast="bf16", lora=8,
        lora_targets=["q_proj", "v_proj"]),
    row("mistral-lora-checkpointed-offload", mistral(640, 6, 10, 2, 1792, 16000), 4, 512,
        checkpointing="full", lora=32, lora_targets=LORA + MLP, offload=True),
    row("llama-lora-autocast-checkpointed", llama(256, 3, 4, 512, 4000), 8, 256, autocast="bf16",
        checkpointing="full", lora=8, lora_targets=LORA),
    *(adapted(number, *run) for number, run in enumerate(ADAPTED)),
    # Contrastive heads
    row("bert-contrastive", bert(512, 6, 8, 2048, "BertModel"), 4, 96, positives=1, negatives=3),
    row("llama-contrastive", llama(384, 6, 6, 1024, 8000, architectures=["LlamaModel"]), 4, 128,
        positives=1, negatives=7),
    row("llama-contrastive-positives", llama(384, 4, 6, 1024, 8000, architectures=["LlamaModel"]),
        8, 64, attention="eager", positives=3),
    row("mixtral-contrastive-lora-checkpointed", dict(mixtral(384, 4, 6, 3, 768, 8000, 8),
        architectures=["MixtralModel"]), 4, 128, autocast="bf16", checkpointing="full", lora=8,
        lora_targets=LORA, positives=1, negatives=7),
    row("llama-contrastive-wide-bf16", llama(64, 2, 2, 176, 1000, architectures=["LlamaModel"]),
        512, 16, dtype="bf16", positives=1, negatives=6),
    # Losses that never have all logits
    row("llama-fused", llama(512, 4, 8, 1376, 16000), 4, 256, loss="fused"),
    row("llama-fused-bf16-checkpointed", llama(512, 4, 8, 1376, 32000), 4, 256, dtype="bf16",
        checkpointing="full", loss="fused"),
    row("qwen2-fused-tied", qwen2(256, 4, 4, 2, 1408, 64000), 4, 256, loss="fused"),
    row("llama-fused-lora", llama(512, 4, 8, 1376, 16000), 4, 256, lora=8,
        lora_targets=LORA, loss="fused"),
    row("llama-chunked", llama(512, 4, 8, 1376, 16000), 4, 256, loss="chunked"),
    row("llama-chunked-bf16-checkpointed", llama(512, 4, 8, 1376, 32000), 4, 256, dtype="bf16",
        checkpointing="full", loss="chunked"),
    row("llama-fused-no-cache", llama(384, 4, 6, 1024, 8000, use_cache=False), 4, 256,
        autocast="bf16", loss="fused"),
    row("llama-fused-autocast-lora", llama(384, 4, 6, 1024, 8000), 4, 256, autocast="bf16", lora=8,
        lora_targets=LORA, loss="fused"),
    row("llama-fused-autocast-lora-checkpointed", llama(384, 4, 6, 1024, 8000), 8, 256,
        autocast="bf16", checkpointing="full", lora=16, lora_targets=LORA + MLP, loss="fused"),
    row("llama-fused-autocast-lora-offload", llama(384, 4, 6, 1024, 16000, num_key_value_heads=2), 8,
        256, autocast="bf16", lora=8, lora_targets=["q_proj", "v_proj"], loss="fused",
        offload=True),
    row("llama-fused-adapters-bf16", llama(384, 4, 6, 1024, 8000), 4, 256, dtype="bf16", lora=8,
        lora_targets=LORA, loss="fused"),
    row("llama-chunked-autocast-lora", llama(384, 4, 6, 1024, 8000), 4, 256, autocast="bf16",
        lora=8, lora_targets=LORA, loss="chunked"),
    # Small vision transformers in 16 bits: images as processors make them, and cast before
    row("vit-small-bf16", vit(192, 2, 3, 384, num_labels=10), 48, 197, dtype="bf16"),
    row("vit-tiny-bf16", vit(64, 1, 2, 128, num_labels=10), 96, 197, dtype="bf16"),
    row("vit-tiny-bf16-images", vit(64, 1, 2, 128, num_labels=10), 192, 197, dtype="bf16",
        images="bf16"),
    row("vit-tiny-fp16-checkpointed", vit(64, 4, 2, 256, num_labels=10), 96, 197, dtype="fp16",
        checkpointing="full"),
    row("vit-small-autocast", vit(192, 2, 3, 384, num_labels=10), 32, 197, autocast="bf16"),
    # Few tokens: what autocast makes of weights is most
    row("vit-one-layer-autocast", vit(1024, 1, 16, 4096, image_size=64), 8, 17, autocast="bf16",
        optimizer="sgd-momentum"),
    row("vit-autocast-narrow-images", vit(480, 3, 6, 1936, image_size=256, num_labels=2), 2, 257,
        attention="eager", autocast="bf16", images="bf16", optimizer="sgd-momentum"),
    row("llama-few-tokens-autocast", llama(384, 2, 6, 1168, 32001), 1, 16, checkpointing="full",
        autocast="bf16", accumulation=2),
    # Images are most, and are saved
    row("vit-images-offload", vit(192, 2, 3, 384, image_size=512, patch_size=64, num_labels=2), 16,
        65, offload=True, optimizer="sgd-momentum"),
    row("vit-images-offload-bf16", vit(192, 2, 3, 384, image_size=512, patch_size=64,
        num_labels=2), 48, 65, dtype="bf16", images="bf16", offload=True, optimizer="sgd-momentum"),
    # Several processes: replicas, sharded states, gathered weights
    row("llama-ddp", llama(256, 6, 4, 688, 8000), 4, 128, world_size=2, sharding="ddp"),
    row("llama-ddp-buckets", llama(512, 4, 8, 1376, 8000), 2, 64, world_size=2, sharding="ddp",
        bucket_mb=4),
    row("llama-ddp-bucket-view", llama(512, 4, 8, 1376, 8000), 2, 64, world_size=2, sharding="ddp",
        bucket_view=True, bucket_mb=4),
    row("gpt2-ddp-bucket-view-accumulation", gpt2(384, 4, 6, 8192), 2, 128, world_size=2,
        sharding="ddp", bucket_view=True, accumulation=2),
    row("llama-ddp-4-lora-autocast", llama(512, 4, 8, 1376, 8000), 2, 128, world_size=4,
        sharding="ddp", autocast="bf16", lora=8, lora_targets=LORA),
    row("llama-zero1", llama(512, 4, 8, 1376, 8000), 2, 64, world_size=2, sharding="zero1"),
    row("qwen2-zero1-4-bucket-view", qwen2(384, 4, 6, 2, 1024, 16000), 2, 64, world_size=4,
        sharding="zero1", bucket_view=True),
    row("bert-zero1-foreach", bert(384, 4, 6, 1536), 2, 128, world_size=2, sharding="zero1",
        optimizer="adamw-foreach"),
    row("llama-zero1-adamw8bit", llama(512, 4, 8, 1376, 8000), 4, 128, world_size=2,
        sharding="zero1", optimizer="adamw8bit"),
    row("llama-zero2", llama(512, 6, 8, 1376, 8000), 2, 64, world_size=2, sharding="zero2"),
    row("llama-zero2-gather-bf16", llama(512, 6, 8, 1376, 8000), 2, 128, world_size=2,
        sharding="zero2", gather="bf16"),
    row("llama-zero3", llama(512, 6, 8, 1376, 8000), 2, 64, world_size=2, sharding="zero3"),
    row("llama-zero3-wide", llama(1024, 3, 16, 2816, 1000), 1, 32, world_size=2, sharding="zero3"),
    row("llama-zero3-4-gather-bf16", llama(768, 4, 12, 2048, 2000), 1, 64, world_size=4,
        sharding="zero3", gather="bf16"),
    row("llama-zero3-checkpointed", llama(512, 6, 8, 1376, 8000), 4, 256, world_size=2,
        sharding="zero3", checkpointing="full"),
    row("llama-zero3-checkpointed-gather-bf16", llama(512, 6, 8, 1376, 8000), 4, 256, world_size=2,
        sharding="zero3", gather="bf16", checkpointing="full"),
    row("qwen2-zero3-tied-accumulation", qwen2(384, 4, 6, 2, 1024, 16000), 1, 64, world_size=2,
        sharding="zero3", accumulation=2),
    row("gpt2-zero3-adamw8bit", gpt2(384, 6, 6, 8192), 2, 128, world_size=2, sharding="zero3",
        optimizer="adamw8bit"),
    row("bert-zero2-checkpointed", bert(384, 6, 6, 1536), 4, 128, world_size=2, sharding="zero2",
        checkpointing="full"),
    row("vit-zero3-4-gather-bf16", vit(384, 6, 6, 1536), 4, 197, world_size=4, sharding="zero3",
        gather="bf16"),
    row("mixtral-zero3", mixtral(384, 3, 6, 2, 768, 4000, 4), 2, 64, world_size=2,
        sharding="zero3"),
    row("llama-zero3-autocast", llama(512, 6, 8, 1376, 8000), 2, 64, autocast="bf16", world_size=2,
        sharding="zero3"),
    row("llama-zero3-bf16", llama(512, 6, 8, 1376, 8000), 2, 128, dtype="bf16", world_size=2,
        sharding="zero3"),
    # Several processes with adapters, offload, a tower, experts, and micro-batches
    row("llama-ddp-adapters-bf16", llama(512, 6, 8, 1376, 16000), 4, 256, dtype="bf16",
        world_size=2, sharding="ddp", lora=16, lora_targets=LORA + MLP),
    row("llama-zero1-adapters-bf16-checkpointed", llama(512, 6, 8, 1376, 16000), 8, 256,
        dtype="bf16", checkpointing="full", world_size=2, sharding="zero1", lora=64,
        lora_targets=LORA + MLP),
    row("llama-zero3-lora", llama(512, 6, 8, 1376, 8000), 4, 128, world_size=2, sharding="zero3",
        lora=16, lora_targets=LORA + MLP),
    row("llama-zero3-adapters-bf16-checkpointed", llama(512, 6, 8, 1376, 16000), 8, 256,
        dtype="bf16", checkpointing="full", world_size=2, sharding="zero3", lora=16,
        lora_targets=LORA + MLP),
    row("llama-zero2-adapters-bf16-all-bf16", llama(512, 6, 8, 1376, 16000), 4, 256, dtype="bf16",
        adapters="bf16", world_size=2, sharding="zero2", lora=16, lora_targets=LORA),
    row("llama-zero3-adapters-gathered-bf16", llama(512, 6, 8, 1376, 16000), 4, 256, dtype="bf16",
        gather="bf16", world_size=2, sharding="zero3", lora=16, lora_targets=LORA + MLP),
    row("llama-zero3-lora-small-shards-8bit", llama(320, 4, 5, 864, 16000), 4, 256, world_size=2,
        sharding="zero3", lora=16, lora_targets=LORA + MLP, optimizer="adamw8bit"),
    row("llama-zero3-offload", llama(512, 6, 8, 1376, 8000), 4, 256, world_size=2,
        sharding="zero3", offload=True),
    row("llama-zero3-checkpointed-offload-lora", llama(512, 6, 8, 1376, 16000), 8, 256,
        dtype="bf16", checkpointing="full", world_size=2, sharding="zero3", lora=16,
        lora_targets=LORA, offload=True),
    row("llama-zero2-checkpointed-every-3-accumulation", llama(512, 6, 8, 1376, 8000), 4, 256,
        checkpointing="full", every=3, accumulation=2, world_size=2, sharding="zero2"),
    row("llama-zero3-reduced-last", llama(512, 6, 8, 1376, 8000), 2, 128, accumulation=2,
        sync="last", world_size=2, sharding="zero3"),
    row("llama-zero2-reduced-last-gather-bf16-checkpointed", llama(512, 6, 8, 1376, 8000), 4, 128,
        checkpointing="full", gather="bf16", accumulation=3, sync="last", world_size=2,
        sharding="zero2"),
    row("qwen2-zero3-reduced-last-tied", qwen2(384, 4, 6, 2, 1024, 32000), 1, 16, accumulation=3,
        sync="last", world_size=2, sharding="zero3"),
    row("mixtral-zero2-checkpointed-gather-bf16", mixtral(384, 3, 6, 2, 768, 4000, 4), 4, 128,
        checkpointing="full", gather="bf16", world_size=2, sharding="zero2"),
    # A tower in front
    row("llava-frozen-checkpointed", llava(LLAVA_TEXT, clip(256, 4, 4, 112, 14)), 8, 64,
        checkpointing="full", freeze_vision=True),
    row("llava-lora-bf16-checkpointed", llava(LLAVA_TEXT, clip(256, 6, 4, 96, 8)), 8, 64,
        dtype="bf16", checkpointing="full", freeze_vision=True, lora=8, lora_targets=LORA + MLP),
    row("llava-lora-tower-frames", llava(LLAVA_TEXT, clip(256, 4, 4, 64, 16), -3), 8, 64,
        frames=3, lora=8, lora_targets=["q_proj", "v_proj"]),
    row("llava-checkpointed-every-2", llava(LLAVA_TEXT, clip(256, 5, 4, 112, 14)), 8, 64,
        checkpointing="full", every=2),
    row("llava-ddp-unused", llava(LLAVA_TEXT, clip(256, 4, 4, 112, 14)), 4, 64, unused=True,
        world_size=2, sharding="ddp"),
    row("llava-zero2-frozen", llava(LLAVA_TEXT, clip(256, 4, 4, 112, 14)), 4, 64,
        freeze_vision=True, world_size=2, sharding="zero2"),
    row("llava-zero3-frozen-checkpointed-gather-bf16", llava(LLAVA_TEXT, clip(256, 4, 4, 112, 14)),
        8, 64, checkpointing="full", freeze_vision=True, gather="bf16", world_size=2,
        sharding="zero3"),
    row("llava-zero3-lora-bf16-checkpointed", llava(LLAVA_TEXT, clip(256, 4, 4, 112, 14)), 16, 64,
        dtype="bf16", checkpointing="full", freeze_vision=True, lora=8, lora_targets=LORA + MLP,
        world_size=2, sharding="zero3"),
]
