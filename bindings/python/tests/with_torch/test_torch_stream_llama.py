"""Llama-3-8B with LoRA at 2048 tokens on 8 GiB, at a 32nd of every size: widths, vocabulary and tokens, so that bytes are
a 1024th. The weights of its layers alone are 13 MiB of these 8."""

from __future__ import annotations

import pytest
import torch
from stream_models import Adapter, run, same

import memopt.torch as mt
from memopt.torch._live_bytes import LiveBytes

transformers = pytest.importorskip("transformers")
CARD = 8 << 20
SCALE = 32


def llama(scale=SCALE, checkpoints=True):
    """The model in bf16, adapters at queries and values, layers that run again in backward; and its step."""
    torch.manual_seed(0)
    heads = max(4, 32 // scale)
    config = transformers.LlamaConfig(
        hidden_size=4096 // scale,
        intermediate_size=14336 // scale,
        num_hidden_layers=32,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        vocab_size=128256 // scale,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj, layer.self_attn.v_proj = map(Adapter, (layer.self_attn.q_proj, layer.self_attn.v_proj))
    model.bfloat16().train()
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    ids = torch.randint(0, config.vocab_size, (1, 2048 // scale), device="cpu")
    return model, lambda: model(input_ids=ids, labels=ids).loss


@pytest.mark.parametrize("store, budget, copies", [(None, "1280KiB", 2 * (32 - 3)), ("nf4", "800KiB", 2 * (32 - 3))])
def test_eight_gibibytes(store, budget, copies):
    """What it says before the first step is what it does: the bits of the resident model, and all of it on the card. The
    judge counts the arena's layers that operations touch, and the budget is counted, too."""
    model, step = llama()
    weights = sum(p.nbytes for p in model.parameters())
    assert sum(p.nbytes for p in model.model.layers.parameters()) > CARD
    stream = mt.stream_weights(model.model.layers, budget, store=store)
    assert stream.stats()["copies_a_step"] == copies
    trained = [p for p in model.parameters() if p.requires_grad]
    if store is None:
        assert same(run(model, step, steps=2), run(*llama(), steps=2))
    optimizer = mt.AdamW8bit(trained, lr=1e-3)
    fixed = [p for p in model.parameters() if p.untyped_storage().nbytes() == p.nbytes]
    for p in trained:
        p.grad = None
    with LiveBytes(fixed) as live:
        for _ in range(2):
            loss = step()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    stats = stream.stats()
    assert loss.isfinite() and stats["resident_bytes_peak"] <= stats["budget"]
    assert sum(p.nbytes for p in fixed) + live.peak + stats["budget"] <= CARD < weights
