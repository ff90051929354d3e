"""What a plan says that PyTorch reserves, beside torch's own caching allocator: the blocks of two real
steps, in their order, through libc10_cuda on the simulated driver, and through the library's allocator
under torch there. (torch's own expandable segments need more of the driver.) The same of traced models."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

transformers = pytest.importorskip("transformers")

from memopt.cli.plan.reserved import CLASSIC, EXPANDABLE, blocks_of, peak_bytes
from memopt.plan import Card, Model, Plan, Run
from memopt.torch._features import Features
from memopt.torch._target import Target
from memopt.torch._trace_model import Trace
from simulated import run

SIZES = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 4000}
GATED = {"intermediate_size": 704}
#: What the families call by names of their own.
OTHERS = {
    "llama": GATED,
    "mistral": {**GATED, "num_key_value_heads": 2, "sliding_window": None},
    "qwen2": {**GATED, "num_key_value_heads": 4},
    "opt": {"ffn_dim": 1024, "word_embed_proj_dim": 256, "dropout": 0.0},
    "gpt2": {"n_inner": 1024, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
#: ... and what the planner is told of them.
MODELS = {
    "llama": {"family": "llama", "ffn": 704},
    "mistral": {"family": "llama", "ffn": 704, "kv_heads": 2},
    "qwen2": {"family": "llama", "ffn": 704, "kv_heads": 4, "attention_bias": True},
    "opt": {"family": "opt", "ffn": 1024},
    "gpt2": {"family": "gpt2", "ffn": 1024},
}
#: A rate of dropout by its names there and here.
DROPOUTS = {
    "gpt2": (("resid_pdrop", "embd_pdrop", "attn_pdrop"), ("hidden_dropout", "embedding_dropout", "attention_dropout")),
    "llama": (("attention_dropout",), ("attention_dropout",)),
}

PROGRAM = """
import json
allocator = mt.enable_allocator("expandable_segments:True") if %r else None
alive = {}
for block, nbytes in json.load(open(%r)):
    if nbytes > 0:
        alive[block] = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    else:
        alive.pop(block, None)
if allocator is None:
    print(torch.cuda.max_memory_reserved())
else:
    print(allocator.stats(0)["reserved_bytes.all.peak"])
"""


class Row(NamedTuple):
    """A training run."""

    family: str
    batch: int = 8
    sequence: int = 192
    dropout: float = 0.0
    checkpointing: bool = False
    accumulation: int = 1
    dtype: str = "fp32"

    def plan(self):
        """What the planner makes of it."""
        rates = {key: self.dropout for key in DROPOUTS[self.family][1]} if self.dropout else {}
        shape = {"hidden": 256, "layers": 6, "heads": 8, "vocabulary": 4000}
        run = Run(
            batch=self.batch,
            sequence=self.sequence,
            accumulation=self.accumulation,
            checkpointing="full" if self.checkpointing else "none",
            weight_dtype=self.dtype,
        )
        model = Model(**shape, **MODELS[self.family], **rates)
        return Plan(model, run, Card(device="cpu"))

    def module(self):
        """Transformers' own."""
        rates = {key: self.dropout for key in DROPOUTS[self.family][0]} if self.dropout else {}
        options = {**SIZES, **OTHERS[self.family], **rates}
        config = transformers.AutoConfig.for_model(self.family, **options)
        dtype = torch.bfloat16 if self.dtype == "bf16" else torch.float32
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).train()

    def words(self, batch):
        """A batch."""
        ids = torch.zeros(batch, self.sequence, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}

    def traced_plan(self):
        """The same of a trace of four of its six layers, at other batch sizes."""
        with torch.device("meta"):
            module = self.module()
        module.tie_weights()
        trace = Trace(
            Target(module, self.words, lambda outputs, inputs: outputs.loss, []),
            accumulation=min(self.accumulation, 2),
            features=Features(checkpointing="full" if self.checkpointing else "none"),
        )
        events = trace.line((6, 7)).blocks(self.batch, trace.optimizer())
        return Plan.measured({}, events=events)


def steps(row):
    """Blocks of the making of a model and of two steps on the CPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        model = row.module()
        if row.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(2):
            for _ in range(row.accumulation):
                words = row.words(row.batch)
                loss = model(**words).loss
                loss.backward()
                del loss, words
            optimizer.step()
            optimizer.zero_grad()
    found, left = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while left:
        event = left.pop()
        left.extend(event.children)
        if hasattr(event.extra_fields, "alloc_size"):
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    return [(block, nbytes) for _, block, nbytes in sorted(found, key=lambda one: one[0])]


SHORT = [Row("llama"), Row("opt"), Row("gpt2", dropout=0.1)]
LONG = [
    Row("gpt2"),
    Row("gpt2", batch=5, sequence=160),
    Row("gpt2", batch=2, sequence=512),
    Row("llama", batch=3, sequence=320),
    Row("llama", dropout=0.1),
    Row("llama", checkpointing=True),
    Row("llama", batch=2, sequence=512),
    Row("llama", accumulation=2),
    Row("gpt2", accumulation=3, batch=3),
    Row("gpt2", dropout=0.2, batch=4),
    Row("opt", batch=16, sequence=100),
    Row("opt", checkpointing=True),
    Row("llama", dtype="bf16"),
    Row("mistral"),
    Row("qwen2", batch=5, sequence=100),
]


ROWS = [
    *SHORT,
    *[pytest.param(row, marks=pytest.mark.long) for row in LONG],
    pytest.param(
        Row("llama", checkpointing=True, dtype="bf16"),
        marks=[pytest.mark.long, pytest.mark.xfail(strict=True, reason="1.032 of 126 MiB, with expandable segments")],
    ),
]


@functools.lru_cache(maxsize=None)
def reserved_by_torch(row, settings):
    """What the real steps take from the device at most."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "blocks.json"
        path.write_text(json.dumps(steps(row)))
        program = PROGRAM % (settings == EXPANDABLE, str(path))
        output = run(program, torch_too=True, MEMOPT_SIM_MEMORY="4G")
    return int(output.splitlines()[-1])


def compare(row, plan):
    """Not below, and above by three hundredths at most."""
    with blocks_of(plan) as planned:
        for settings in (CLASSIC, EXPANDABLE):
            real, ours = reserved_by_torch(row, settings), peak_bytes(planned, settings)
            assert real <= ours <= 1.03 * real, (settings, ours / real)


@pytest.mark.parametrize("row", ROWS)
def test_the_planned_reserved_bytes_are_torchs(row):
    compare(row, row.plan())


@pytest.mark.parametrize("row", ROWS)
def test_those_of_a_trace_are_torchs(row):
    compare(row, row.traced_plan())
