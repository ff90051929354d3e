"""What a training step of a model needs before it runs; what fits; what to change where nothing
does.

    from memopt import plan

    model = plan.Model(family="llama", layers=22, hidden=2048, heads=32, kv_heads=4)
    run = plan.Run(batch=4, sequence=2048, weight_dtype="bf16", optimizer="adamw8bit")
    found = plan.Plan(model, run, plan.Card(capacity="24GiB"))
    print(found.peak.total, found.peak_phase, found.fits)
"""

from .results import Bytes, Change, Layer, Phases, Plan, Solution
from .settings import Card, Key, Model, Run, Target, keys, words

__all__ = [
    "Bytes",
    "Card",
    "Change",
    "Key",
    "Layer",
    "Model",
    "Phases",
    "Plan",
    "Run",
    "Solution",
    "Target",
    "keys",
    "words",
]
