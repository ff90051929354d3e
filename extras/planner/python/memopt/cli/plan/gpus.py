"""Cards by name. Rates are those of the vendors' data sheets; memory is what the drivers report."""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional

#: What training reaches of a data sheet's rate.
_SUSTAINED = 0.4


class Gpu(NamedTuple):
    """A card."""

    #: MiB that nvidia-smi or rocm-smi shows, with error correction as the card is shipped.
    memory: int
    #: Dense products of 16 bits, in 10^12 operations a second.
    tflops: float
    bf16: bool = True
    device: str = "cuda"

    @property
    def flops(self) -> float:
        """Operations a second of training."""
        return _SUSTAINED * 1e12 * self.tflops


GPUS: Dict[str, Gpu] = {
    "P100": Gpu(16384, 18.7, False),
    "V100-16": Gpu(16384, 125, False),
    "V100-32": Gpu(32768, 125, False),
    "T4": Gpu(15360, 65, False),
    "RTX2080Ti": Gpu(11264, 53.8, False),
    "RTX3060": Gpu(12288, 25.5),
    "RTX3090": Gpu(24576, 71),
    "RTX4090": Gpu(24564, 165.2),
    "RTX5090": Gpu(32607, 209.5),
    "A10": Gpu(23028, 125),
    "A40": Gpu(46068, 149.7),
    "A6000": Gpu(49140, 154.8),
    "A100-40": Gpu(40960, 312),
    "A100-80": Gpu(81920, 312),
    "L4": Gpu(23034, 121),
    "L40S": Gpu(46068, 362),
    "H100": Gpu(81559, 989),
    "H200": Gpu(143771, 989),
    "B200": Gpu(183359, 2250),
    "RX6750XT": Gpu(12272, 26.6, False, "hip"),
    "RX7900XTX": Gpu(24560, 122.8, True, "hip"),
    "MI210": Gpu(65520, 181, True, "hip"),
    "MI300X": Gpu(196592, 1307, True, "hip"),
}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]|(?<=[^a-z0-9]\d\d)gb?$", "", name.lower())


def named(name: str) -> Optional[str]:
    """The table's name of what a person calls a card: "rtx 3090", "A100-80GB"."""
    return next((key for key in GPUS if _plain(key) == _plain(name)), None)


def recognised(name: str) -> Optional[Gpu]:
    """The card of a driver's name, "NVIDIA A100-SXM4-80GB"; its memory may be another variant's."""
    for key, gpu in GPUS.items():
        parts = " ?".join(re.findall(r"\d+|[a-z]+", key.partition("-")[0].lower()))
        if re.search(r"\b%s(?!\w| ti\b| xt)" % parts, name.lower()):
            return gpu
    return None
