"""Every saver of libmemopt as a drop-in for PyTorch.

    import memopt.torch as mt

    optimizer = mt.AdamW8bit(model.parameters(), lr=3e-4)
    with mt.save_on_cpu():
        loss = mt.checkpoint(block, x).sum()

What costs time or memory happens in C; the modules here only adapt it to torch's classes and hooks.
Nothing is compiled at run time.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "memopt.torch needs PyTorch, and it cannot be imported: %s. Install it with"
        " `pip install torch`." % error
    ) from error

from . import blocks, bnb, sharing  # noqa: E402, F401
from ._moved import MOVED  # noqa: E402
from .allocator import enable_allocator  # noqa: E402
from .amp import GradScaler, clip_grad_norm_  # noqa: E402
from .cast import cast_  # noqa: E402
from .chain import checkpoint_sequential  # noqa: E402
from .checkpointing import CheckpointError, attach_checkpoint, checkpoint  # noqa: E402
from .fitting import Fit, fit  # noqa: E402
from .load import load_safetensors  # noqa: E402
from .optim import (  # noqa: E402
    SGD,
    Adafactor,
    Adam,
    Adam8bit,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    AdamWScheduleFree,
    CPUOffloadOptimizer,
    Lion,
    Lion8bit,
    Muon,
    Muon8bit,
    SGD8bit,
    keep_32bit,
    portable_states,
    release_gradients,
)
from .pausing import pause, resume, tagged  # noqa: E402
from .racing import race  # noqa: E402
from .reports import report  # noqa: E402
from .saving import save_on_cpu  # noqa: E402
from .streaming import stream_weights  # noqa: E402

__all__ = [
    "Adafactor", "Adam", "Adam8bit", "AdamW", "AdamW4bit", "AdamW8bit", "AdamWScheduleFree",
    "CPUOffloadOptimizer", "CheckpointError", "Fit", "GradScaler", "Lion", "Lion8bit",
    "Muon", "Muon8bit", "SGD", "SGD8bit", "attach_checkpoint", "cast_", "checkpoint",
    "checkpoint_sequential", "clip_grad_norm_", "enable_allocator", "fit", "keep_32bit",
    "load_safetensors", "pause", "portable_states", "race", "release_gradients", "report", "resume",
    "save_on_cpu", "stream_weights", "tagged",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Says where a name is now."""
    raise AttributeError(MOVED.get(name, "module %r has no attribute %r" % (__name__, name)))
