"""Rows under DeepSpeed: configurations (Hugging Face's keys) and ways to run them.

Settings are DeepSpeed's: buckets, thresholds and distances in elements; what is not said is its
default (a reduce bucket of 5e8 elements).
"""

from __future__ import annotations

from typing import Any, Dict, List

import rows


def row(name: str, config: Dict[str, Any], batch: int, seq: int, stage: int, **run: Any) -> Any:
    """One row, of two processes unless said."""
    named = {"world_size": 2, "engine": "deepspeed", "sharding": "zero%d" % stage, **run}
    return rows.row(name, config, batch, seq, **named)


LLAMA = rows.llama(512, 4, 8, 1376, 8000)
DEEP = rows.llama(384, 8, 6, 1024, 4000)
#: Stage 3 with what it gathers kept small, as for a model that is large beside them.
TIGHT = {"prefetch_bucket": 500000, "live": 2000000, "reuse": 500000}
SMALL = {"reduce_bucket": 1000000}

ROWS: List[Dict[str, Any]] = [
    row("zero1", LLAMA, 2, 64, 1, **SMALL),
    row("zero1-default-buckets", LLAMA, 2, 64, 1),
    row("zero1-bf16", LLAMA, 4, 256, 1, dtype="bf16", **SMALL),
    row("zero1-accumulation", LLAMA, 2, 128, 1, accumulation=2, **SMALL),
    row("zero1-noncontiguous", LLAMA, 4, 256, 1, contiguous=False, **SMALL),
    row("zero1-overlap", LLAMA, 4, 256, 1, overlap=True, **SMALL),
    row("zero1-4", DEEP, 4, 256, 1, world_size=4, **SMALL),
    row("zero1-gpt2", rows.gpt2(384, 4, 6, 8192), 4, 256, 1, reduce_bucket=2000000),
    row("zero2", LLAMA, 2, 64, 2, **SMALL),
    row("zero2-default-buckets", LLAMA, 2, 64, 2),
    row("zero2-bf16", LLAMA, 4, 256, 2, dtype="bf16", **SMALL),
    row("zero2-checkpointed", DEEP, 4, 512, 2, checkpointing="full", **SMALL),
    row("zero2-bf16-checkpointed-accumulation", DEEP, 4, 512, 2, checkpointing="full",
        dtype="bf16", accumulation=2, reduce_bucket=500000),
    row("zero2-noncontiguous", LLAMA, 4, 256, 2, contiguous=False, **SMALL),
    row("zero2-overlap", LLAMA, 4, 256, 2, overlap=True, **SMALL),
    row("zero2-4-accumulation", DEEP, 4, 256, 2, world_size=4, accumulation=2,
        reduce_bucket=2000000),
    row("zero2-bert", rows.bert(384, 4, 6, 1536), 4, 128, 2, reduce_bucket=5000000),
    row("zero2-lora", LLAMA, 4, 256, 2, lora=8, lora_targets=rows.LORA, reduce_bucket=100000),
    row("zero3", LLAMA, 2, 64, 3, **SMALL, **TIGHT),
    row("zero3-default-settings", LLAMA, 2, 64, 3),
    row("zero3-bf16", LLAMA, 4, 256, 3, dtype="bf16", **SMALL, **TIGHT),
    row("zero3-bf16-default-distances", LLAMA, 8, 256, 3, dtype="bf16", **SMALL),
    row("zero3-checkpointed", DEEP, 4, 512, 3, checkpointing="full", **SMALL, **TIGHT),
    row("zero3-accumulation", LLAMA, 4, 256, 3, accumulation=2, **SMALL, **TIGHT),
    row("zero3-noncontiguous", LLAMA, 4, 256, 3, contiguous=False, **SMALL, **TIGHT),
    row("zero3-4-overlap", DEEP, 4, 256, 3, world_size=4, overlap=True, **SMALL, **TIGHT),
    row("zero3-qwen2-tied", rows.qwen2(384, 4, 6, 2, 1024, 16000), 2, 128, 3, **SMALL, **TIGHT),
    row("zero3-gpt2", rows.gpt2(384, 4, 6, 8192), 4, 256, 3, **SMALL, **TIGHT),
    row("zero3-bert-bf16", rows.bert(384, 6, 6, 1536), 8, 128, 3, dtype="bf16", **SMALL, **TIGHT),
    row("zero3-vit", rows.vit(384, 6, 6, 1536), 8, 197, 3, **SMALL, **TIGHT),
    row("zero3-4-ahead", DEEP, 2, 128, 3, world_size=4, reduce_bucket=2000000,
        prefetch_bucket=1000000, live=6000000, reuse=3000000),
]
