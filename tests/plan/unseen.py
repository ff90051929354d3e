#!/usr/bin/env python3
"""Models that nobody has looked at: the planner beside traces, on random configurations.

    PYTHONPATH=bindings/python python tests/plan/unseen.py [--seed 1] [--count 100] [--measure]
        [--several 30]

truth.json is what the planner was written against. Here family, width, depth, heads, vocabulary,
batch, sequence, dtypes, attention, checkpointing, optimizer, dropout, masks, windows, LoRA, accumulation,
contrastive samples and losses in chunks are drawn at random. A trace on fake tensors, which is exact on the rows of truth.json, says what is
right; with --measure a real step does (slow, and rows over 2 GiB are left out). Exits with 1 where the
planner is under, or over by more than a tenth. --several draws steps of two processes too, which are
run: replicas, sharded states, FSDP, with adapters, towers, checkpoints, offload and micro-batches.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import random
import sys
from typing import Any, Dict, Iterator, List, Tuple

import measure
import models
import report
import rows

FAMILIES = (
    "llama", "llama", "gpt2", "qwen2", "mistral", "mixtral", "bert", "vit", "opt",
    "qwen3", "gemma", "phi3", "granite", "smollm3", "qwen3_moe", "roberta",
)  # fmt: skip
#: Those whose projections have Llama's names.
LIKE_LLAMA = ("llama", "qwen2", "mistral", "qwen3", "gemma", "smollm3")

CONTRASTIVE = {"positives": 1, "negatives": 2}


#: Of what several processes run.
SHARDED = ("llama", "llama", "qwen2", "gpt2", "opt", "bert", "mixtral", "vit", "llava", "llava")


class Draw:
    """Random rows from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._small = False

    def _one(self, *values: Any) -> Any:
        return self._random.choice(values)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def row(self, number: int) -> Dict[str, Any]:
        """The next one."""
        family = self._one(*FAMILIES)
        sequence = self._one(16, 33, 64, 128, 300, 512)
        batch = min(self._one(1, 2, 3, 4, 8, 16), max(4096 // sequence, 1))
        run = self._run(family)
        config = getattr(self, "_" + family)()
        if models.contrastive(run):
            base = config["architectures"][0].replace("ForCausalLM", "Model")
            config, batch = dict(config, architectures=[base]), (batch + 2) // 3
        return rows.row("%d-%s" % (number, family), config, batch, sequence, **run)

    def several(self, number: int) -> Dict[str, Any]:
        """The next one of two processes: small, as they measure what they need."""
        family = self._one(*SHARDED)
        run = {**self._run(family), **self._shared()}
        for key in ("positives", "negatives"):
            run.pop(key, None)
        if run.pop("every_other", False) and run["checkpointing"] == "full":
            run["every"] = 2
        sequence, batch = self._one(8, 16, 33, 64, 128), self._one(1, 2, 4, 8)
        self._small = True
        config = self._llava(run) if family == "llava" else getattr(self, "_" + family)()
        self._small = False
        if "lora" in run and family == "opt":
            run["lora_targets"] = ["q_proj", "v_proj"]
        return rows.row("%d-%s-%s" % (number, run["sharding"], family), config, batch, sequence,
                        **run)

    def _shared(self) -> Dict[str, Any]:
        """How two processes share the work."""
        kind = self._one("ddp", "zero1", "zero2", "zero3", "zero3")
        run: Dict[str, Any] = {"world_size": 2, "sharding": kind}
        run["accumulation"] = self._one(1, 1, 2, 3)
        run["every_other"] = self._chance(0.3)
        if self._chance(0.25):
            run["offload"] = True
        if kind in ("ddp", "zero1"):
            run["bucket_view"] = self._chance(0.5)
            return run
        if self._chance(0.4):
            run["gather"] = "bf16"
        if run["accumulation"] > 1 and self._chance(0.6):
            run["sync"] = "last"
        return run

    def _llava(self, run: Dict[str, Any]) -> Any:
        """A tower in front of a Llama or a Qwen2, and what of it learns."""
        text = getattr(self, self._one("_llama", "_qwen2"))()
        heads, patch = self._one(2, 3), self._one(8, 14, 16)
        width, side = heads * self._one(32, 64), self._one(2, 4, 7)
        tower = rows.clip(width, self._one(2, 3, 5), heads, side * patch, patch)
        layer = self._one(-1, -2, -2)
        run["frames"] = self._one(1, 1, 2)
        run["freeze_vision"] = self._chance(0.7)
        for key in ("mask", "loss", "lora"):
            run.pop(key, None)
        if self._chance(0.5):
            run["lora"], run["lora_targets"] = self._one(4, 16), rows.LORA + rows.MLP
            if not run["freeze_vision"]:  # names are the tower's too, but for the output's
                run["lora_targets"] = ["q_proj", "v_proj"]
            elif run["sharding"] == "zero1" and run["dtype"] == "bf16":
                run["adapters"] = "bf16"  # the projector learns, too: torch wants one type
        if not run["freeze_vision"]:
            run["unused"] = True
        return rows.llava(text, tower, layer)

    def _run(self, family: str) -> Dict[str, Any]:
        run: Dict[str, Any] = {
            "dtype": self._one("fp32", "fp32", "bf16"),
            "attention": self._one("sdpa", "sdpa", "eager"),
            "checkpointing": self._one("none", "none", "full"),
            "optimizer": self._one("adamw", "adamw", "adamw-foreach", "adamw8bit", "sgd-momentum"),
        }
        if self._chance(0.3):
            run["autocast"] = "bf16"
        if self._chance(0.15):
            run["accumulation"] = 2
        if family != "vit" and self._chance(0.2):
            run["mask"] = True
        if family in LIKE_LLAMA and self._chance(0.15):
            run["lora"] = self._one(4, 16)
            run["lora_targets"] = self._one(rows.LORA, ["q_proj", "v_proj"], rows.LORA + rows.MLP)
            if run["dtype"] == "bf16" and self._chance(0.3):
                run["adapters"] = "bf16"
        if family in LIKE_LLAMA and self._chance(0.3):
            run.update(self._one(CONTRASTIVE, {"loss": "fused"}, {"loss": "chunked"}))
            run.pop("mask", None)
        if family == "vit":
            run["images"] = self._one("fp32", "fp32", run["dtype"])
        return run

    def _sizes(self) -> List[int]:
        """Hidden, layers, heads, FFN."""
        heads = self._one(2, 4) if self._small else self._one(2, 4, 6, 8)
        hidden = heads * (32 if self._small else self._one(32, 64, 80))
        return [hidden, self._one(1, 2, 3, 5, 8), heads, self._one(2, 3, 4) * hidden + 16]

    def _vocabulary(self) -> int:
        words = (100, 1000, 4001) if self._small else (100, 1000, 8000, 32001, 50257)
        return int(self._one(*words))

    def _llama(self) -> Any:
        hidden, layers, heads, ffn = self._sizes()
        return rows.llama(
            hidden,
            layers,
            heads,
            ffn,
            self._vocabulary(),
            num_key_value_heads=self._one(1, 2, heads),
            tie_word_embeddings=self._one(True, False),
            attention_bias=self._chance(0.2),
            use_cache=self._chance(0.8),
        )

    def _qwen2(self) -> Any:
        hidden, layers, heads, ffn = self._sizes()
        tied = self._one(True, False)
        return rows.qwen2(
            hidden, layers, heads, 2, ffn, self._vocabulary(), tie_word_embeddings=tied
        )

    def _mistral(self) -> Any:
        hidden, layers, heads, ffn = self._sizes()
        window = self._one(None, 4096, 64)
        return rows.mistral(
            hidden, layers, heads, self._one(1, 2), ffn, self._vocabulary(), sliding_window=window
        )

    def _mixtral(self) -> Any:
        hidden, layers, heads, ffn = self._sizes()
        return rows.mixtral(
            hidden, layers, heads, self._one(1, 2), ffn, self._vocabulary(), self._one(2, 4, 8)
        )

    def _gpt2(self) -> Any:
        hidden, layers, heads, _ = self._sizes()
        dropout = self._one({}, rows.NO_DROPOUT, {"attn_pdrop": 0.0})
        return rows.gpt2(hidden, layers, heads, self._vocabulary(), **dropout)

    def _bert(self) -> Any:
        kind = self._one("BertForMaskedLM", "BertForSequenceClassification")
        none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        words = self._vocabulary()
        return rows.bert(*self._sizes(), kind, **dict(self._one({}, none), vocab_size=words))

    def _vit(self) -> Any:
        size, labels = self._one(64, 224, 256), self._one(2, 1000)
        return dict(rows.vit(*self._sizes()), image_size=size, num_labels=labels)

    def _kin(self, kind: str, head: str, **more: Any) -> Any:
        hidden, layers, heads, ffn = self._sizes()
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": ffn}
        kv = self._one(1, 2, heads)
        heads_of = {"num_attention_heads": heads, "num_key_value_heads": kv}
        chosen = {"attention_dropout": 0.1} if self._chance(0.2) else {}
        return rows.kin(kind, head, self._vocabulary(), **{**sizes, **heads_of, **chosen, **more})

    def _qwen3(self) -> Any:
        return self._kin("qwen3", "Qwen3ForCausalLM", head_dim=self._one(32, 64, 96))

    def _gemma(self) -> Any:
        return self._kin("gemma", "GemmaForCausalLM", head_dim=self._one(64, 128))

    def _phi3(self) -> Any:
        return self._kin("phi3", "Phi3ForCausalLM", sliding_window=self._one(None, 4096, 50))

    def _granite(self) -> Any:
        return self._kin("granite", "GraniteForCausalLM", **rows.GRANITE)

    def _smollm3(self) -> Any:
        return self._kin("smollm3", "SmolLM3ForCausalLM", tie_word_embeddings=self._chance(0.5))

    def _qwen3_moe(self) -> Any:
        return self._kin("qwen3_moe", "Qwen3MoeForCausalLM", **rows.QWEN_MOE)

    def _roberta(self) -> Any:
        kind = self._one("MaskedLM", "SequenceClassification", "TokenClassification")
        none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        more = dict(rows.ENCODER, max_position_embeddings=600, **self._one({}, none))
        return self._kin("roberta", "RobertaFor" + kind, **more)

    def _opt(self) -> Any:
        none = {"dropout": 0.0, "attention_dropout": 0.0}
        dropout = self._one({}, none, {"attention_dropout": 0.1})
        return rows.opt(*self._sizes(), **dict(dropout, vocab_size=self._vocabulary()))


def errors(
    seed: int, count: int, measured: bool = False
) -> Iterator[Tuple[Dict[str, Any], int, float]]:
    """Rows, what they need, and the planner's relative error."""
    draw = Draw(seed)
    for number in range(count):
        row = draw.row(number)
        right = report.traced(row, models.build(row, "meta"))
        if measured:
            if right > 2 << 30:
                continue
            right = measure.measure(row)["peak_bytes"]
        yield row, right, report.memopt_plan(row) / right - 1.0


def several_errors(seed: int, count: int) -> Iterator[Tuple[Dict[str, Any], int, float]]:
    """The same of rows of several processes, which measure: no trace follows them."""
    draw = Draw(seed)
    drawn = [draw.several(number) for number in range(count)]
    for row in importlib.import_module("several").measure(drawn) if drawn else ():
        right = row["peak_bytes"]
        yield row, right, report.memopt_plan(row) / right - 1.0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--measure", action="store_true", help="run real steps, not traces")
    parser.add_argument("--several", type=int, default=0, help="and so many of two processes")
    options = parser.parse_args()
    all_errors, missed = [], 0
    found = itertools.chain(
        errors(options.seed, options.count, options.measure),
        several_errors(options.seed, options.several),
    )
    for row, right, error in found:
        all_errors.append(error)
        line = "%-16s %9.1f MiB %9s" % (row["name"], right / 2**20, report.percent(error))
        if not report.within(row, error):
            missed += 1
            line += "  missed: " + json.dumps({**row["config"], **row["run"]})
        print(line, flush=True)
    low, high = report.percent(min(all_errors)), report.percent(max(all_errors))
    print("%d models: from %s to %s, %d missed" % (len(all_errors), low, high, missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
