"""Optimizers for torch, one fused call of the library a step; Muon by torch's matrix products.

They are ``torch.optim.Optimizer``s with torch's argument names: parameter groups, state dicts,
schedulers, hooks, closures, deepcopy and pickle work as with torch's. ``help(AdamW)`` explains the
additional arguments, among them how states are kept and where; `portable_states` converts states for
torch's optimizers.
"""

from __future__ import annotations

from ._adafactor import Adafactor
from ._host import CPUOffloadOptimizer
from ._keep import keep_32bit
from ._muon import Muon, Muon8bit
from ._release import GradientRelease, release_gradients
from ._rules import (
    SGD,
    Adagrad,
    Adam,
    Adam8bit,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    AdEMAMix,
    Lion,
    Lion8bit,
    RMSprop,
    SGD8bit,
)
from ._save import portable_states, to_bitsandbytes
from ._schedule_free import AdamWScheduleFree
from ._trust import LAMB, LARS

__all__ = [
    "AdEMAMix", "Adafactor", "Adagrad", "Adam", "Adam8bit", "AdamW", "AdamW4bit", "AdamW8bit",
    "AdamWScheduleFree", "CPUOffloadOptimizer", "GradientRelease", "LAMB",
    "LARS", "Lion", "Lion8bit", "Muon", "Muon8bit", "RMSprop", "SGD", "SGD8bit", "keep_32bit",
    "portable_states", "release_gradients", "to_bitsandbytes",
]  # fmt: skip
