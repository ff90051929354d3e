"""Names that memopt.torch had, and what to use now."""

from __future__ import annotations

from typing import Dict

_IN = {
    "allocator": ("TorchAllocator", "enabled_allocator"),
    "blocks": ("dequantize_blocks", "quantize_blocks"),
    "cast": ("accumulate_",),
    "monitor": ("MemoryMonitor", "MemoryWarning"),
    "optim": ("AdEMAMix", "Adagrad", "LAMB", "LARS", "RMSprop", "to_bitsandbytes"),
    "pausing": ("paused_tags",),
    "reports": ("MemoryReport",),
    "sharing": ("TensorExport", "import_tensor", "share_tensor"),
}
_PAGED = ("AdamW", "AdamW8bit", "Adam", "Adam8bit", "Lion", "Lion8bit", "AdEMAMix", "AdEMAMix8bit")

#: What an AttributeError says, by name.
MOVED: Dict[str, str] = {
    **{n: "it is memopt.torch.%s.%s now" % (m, n) for m, names in _IN.items() for n in names},
    **{
        "%s8bit" % name: 'take memopt.torch.optim.%s(..., states="8bit"), or memopt.torch.bnb.%s8bit'
        % (name, name)
        for name in ("AdEMAMix", "Adagrad", "LAMB", "LARS", "RMSprop")
    },
    **{
        "Paged" + name: "take %s(..., paged=True), or memopt.torch.bnb.Paged%s" % (name, name)
        for name in _PAGED
    },
    "AdamWBf16": 'take AdamW(..., states="bf16")',
    "AdamW8bitCompanded": 'take AdamW8bit, which has these codes now; bitsandbytes\' are codes="dynamic"',
    "AdamWFp8": "it is gone; AdamW8bit is nearer to fp32 with as many bytes and loads its state dicts",
}
MOVED = {name: "memopt.torch.%s: %s" % (name, text) for name, text in MOVED.items()}
