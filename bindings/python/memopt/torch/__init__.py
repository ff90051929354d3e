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

from .allocator import TorchAllocator, enable_allocator, enabled_allocator  # noqa: E402
from .amp import GradScaler, clip_grad_norm_  # noqa: E402
from .blocks import dequantize_blocks, quantize_blocks  # noqa: E402
from .cast import accumulate_, cast_  # noqa: E402
from .chain import checkpoint_sequential  # noqa: E402
from .checkpointing import CheckpointError, checkpoint  # noqa: E402
from .load import load_safetensors  # noqa: E402
from .optim import (  # noqa: E402
    LAMB,
    LARS,
    SGD,
    Adafactor,
    Adagrad,
    Adagrad8bit,
    Adam,
    Adam8bit,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    AdamW8bitCompanded,
    AdamWBf16,
    AdamWFp8,
    AdamWScheduleFree,
    AdEMAMix,
    AdEMAMix8bit,
    CPUOffloadOptimizer,
    LAMB8bit,
    LARS8bit,
    Lion,
    Lion8bit,
    Muon,
    Muon8bit,
    PagedAdEMAMix,
    PagedAdEMAMix8bit,
    PagedAdam,
    PagedAdam8bit,
    PagedAdamW,
    PagedAdamW8bit,
    PagedLion,
    PagedLion8bit,
    RMSprop,
    RMSprop8bit,
    SGD8bit,
    keep_32bit,
    release_gradients,
)
from .pausing import pause, paused_tags, resume, tagged  # noqa: E402
from .reports import MemoryReport, report  # noqa: E402
from .saving import save_on_cpu  # noqa: E402
from .sharing import TensorExport, import_tensor, share_tensor  # noqa: E402

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
    "CheckpointError",
    "GradScaler",
    "LAMB",
    "LAMB8bit",
    "LARS",
    "LARS8bit",
    "Lion",
    "Lion8bit",
    "MemoryReport",
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
    "TensorExport",
    "TorchAllocator",
    "accumulate_",
    "cast_",
    "checkpoint",
    "checkpoint_sequential",
    "clip_grad_norm_",
    "dequantize_blocks",
    "enable_allocator",
    "enabled_allocator",
    "import_tensor",
    "keep_32bit",
    "load_safetensors",
    "pause",
    "paused_tags",
    "quantize_blocks",
    "release_gradients",
    "report",
    "resume",
    "save_on_cpu",
    "share_tensor",
    "tagged",
]
