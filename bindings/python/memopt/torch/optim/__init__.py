"""Optimizers for torch: AdamW, Lion and SGD with states of 4 to 32 bits, AdEMAMix and schedule-free AdamW, one
fused call a step; Muon with 8 or 32 bits, by torch's matrix products; LAMB, LARS; Adafactor.

They are ``torch.optim.Optimizer``s with torch's argument names: parameter groups, state dicts,
schedulers, hooks, closures, deepcopy and pickle work as with torch's. ``help(AdamW8bit)`` explains
the additional arguments; `portable_states` converts states for torch's optimizers.
"""

from __future__ import annotations

from ._adafactor import Adafactor
from ._ademamix import AdEMAMix, AdEMAMix8bit
from ._host import CPUOffloadOptimizer
from ._keep import keep_32bit
from ._muon import Muon, Muon8bit
from ._release import GradientRelease, release_gradients
from ._paged import (
    PagedAdEMAMix,
    PagedAdEMAMix8bit,
    PagedAdam,
    PagedAdam8bit,
    PagedAdamW,
    PagedAdamW8bit,
    PagedLion,
    PagedLion8bit,
)
from ._rmsprop import Adagrad, Adagrad8bit, RMSprop, RMSprop8bit
from ._rules import (
    SGD,
    Adam,
    Adam8bit,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    AdamW8bitCompanded,
    AdamWBf16,
    AdamWFp8,
    Lion,
    Lion8bit,
    SGD8bit,
)
from ._schedule_free import AdamWScheduleFree
from ._save import portable_states, to_bitsandbytes
from ._trust import LAMB, LAMB8bit, LARS, LARS8bit

__all__ = [
    "AdEMAMix",
    "AdEMAMix8bit",
    "Adafactor",
    "Adagrad",
    "Adagrad8bit",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW4bit",
    "AdamW8bit",
    "AdamW8bitCompanded",
    "AdamWBf16",
    "AdamWFp8",
    "AdamWScheduleFree",
    "CPUOffloadOptimizer",
    "GradientRelease",
    "LAMB",
    "LAMB8bit",
    "LARS",
    "LARS8bit",
    "Lion",
    "Lion8bit",
    "Muon",
    "Muon8bit",
    "PagedAdEMAMix",
    "PagedAdEMAMix8bit",
    "PagedAdam",
    "PagedAdam8bit",
    "PagedAdamW",
    "PagedAdamW8bit",
    "PagedLion",
    "PagedLion8bit",
    "RMSprop",
    "RMSprop8bit",
    "SGD",
    "SGD8bit",
    "keep_32bit",
    "portable_states",
    "release_gradients",
    "to_bitsandbytes",
]
