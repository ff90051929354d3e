"""Rows under DeepSpeed: configurations (Hugging Face's keys) and ways to run them.

Settings are DeepSpeed's: buckets in elements; what is not said is its default (a reduce bucket of 5e8
elements).
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
SMALL = {"reduce_bucket": 1000000}

ROWS: List[Dict[str, Any]] = [
    row("zero1", LLAMA, 2, 64, 1, **SMALL),
    row("zero1-default-buckets", LLAMA, 2, 64, 1),
    row("zero1-bf16", LLAMA, 4, 256, 1, dtype="bf16", **SMALL),
    row("zero1-accumulation", LLAMA, 2, 128, 1, accumulation=2, **SMALL),
    row("zero1-overlap", LLAMA, 4, 256, 1, overlap=True, **SMALL),
    row("zero1-4", DEEP, 4, 256, 1, world_size=4, **SMALL),
    row("zero1-gpt2", rows.gpt2(384, 4, 6, 8192), 4, 256, 1, reduce_bucket=2000000),
    row("zero2", LLAMA, 2, 64, 2, **SMALL),
    row("zero2-default-buckets", LLAMA, 2, 64, 2),
    row("zero2-bf16", LLAMA, 4, 256, 2, dtype="bf16", **SMALL),
    row("zero2-checkpointed", DEEP, 4, 512, 2, checkpointing="full", **SMALL),
    row("zero2-bf16-checkpointed-accumulation", DEEP, 4, 512, 2, checkpointing="full",
        dtype="bf16", accumulation=2, reduce_bucket=500000),
    row("zero2-overlap", LLAMA, 4, 256, 2, overlap=True, **SMALL),
    row("zero2-4-accumulation", DEEP, 4, 256, 2, world_size=4, accumulation=2,
        reduce_bucket=2000000),
    row("zero2-bert", rows.bert(384, 4, 6, 1536), 4, 128, 2, reduce_bucket=5000000),
    row("zero2-lora", LLAMA, 4, 256, 2, lora=8, lora_targets=rows.LORA, reduce_bucket=100000),
    row("zero3-default-settings", LLAMA, 2, 64, 3),
    row("zero3-bf16-default-distances", LLAMA, 8, 256, 3, dtype="bf16", **SMALL),
]
