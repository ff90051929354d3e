"""Cards by name. Rates are those of the vendors' data sheets; memory is what the drivers report."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional

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
    "RTX6000": Gpu(23040, 130.5, False),
    "RTX3060": Gpu(12288, 25.5),
    "RTX3070": Gpu(8192, 40.6),
    "RTX3080": Gpu(10240, 59.5),
    "RTX3090": Gpu(24576, 71),
    "RTX4060Ti-8": Gpu(8188, 44),
    "RTX4060Ti-16": Gpu(16380, 44),
    "RTX4070": Gpu(12282, 58.3),
    "RTX4070TiSuper": Gpu(16376, 88.2),
    "RTX4080": Gpu(16376, 97.5),
    "RTX4090": Gpu(24564, 165.2),
    "RTX5070": Gpu(12227, 61.7),
    "RTX5080": Gpu(16303, 112.6),
    "RTX5090": Gpu(32607, 209.5),
    "A10": Gpu(23028, 125),
    "A30": Gpu(24576, 165),
    "A40": Gpu(46068, 149.7),
    "A4000": Gpu(16376, 76.7),
    "A5000": Gpu(24564, 111.1),
    "A6000": Gpu(49140, 154.8),
    "RTX6000Ada": Gpu(49140, 364.2),
    "A100-40": Gpu(40960, 312),
    "A100-80": Gpu(81920, 312),
    "L4": Gpu(23034, 121),
    "L40": Gpu(46068, 181),
    "L40S": Gpu(46068, 362),
    "H100": Gpu(81559, 989),
    "H200": Gpu(143771, 989),
    "B200": Gpu(183359, 2250),
    "RX6750XT": Gpu(12272, 26.6, False, "hip"),
    "RX6800XT": Gpu(16368, 41.5, False, "hip"),
    "RX7800XT": Gpu(16368, 74.7, True, "hip"),
    "RX7900XTX": Gpu(24560, 122.8, True, "hip"),
    "RX9070XT": Gpu(16304, 195, True, "hip"),
    "MI210": Gpu(65520, 181, True, "hip"),
    "MI250X": Gpu(65520, 191.5, True, "hip"),
    "MI300X": Gpu(196592, 1307, True, "hip"),
}

#: What drivers and people put around a card's name.
_AROUND = (
    r"nvidia|tesla|geforce|quadro|amd|radeon|instinct|graphics|generation|sxm\d*|pcie?|hbm\d*e?|oam|"
    r"(?<=\d)gi?b\b|rtx(?= ?a\d)|[^a-z0-9]"
)


def _plain(name: str) -> str:
    return re.sub(_AROUND, "", name.lower())


def named(name: str) -> List[str]:
    """The table's names of what a person or nvidia-smi calls a card: "rtx 3090", "Tesla T4"; several where
    the name leaves the memory open."""
    plain = _plain(name)
    whole = [key for key in GPUS if plain in (_plain(key), _plain(key).replace("rtx", "").replace("rx", ""))]
    return whole or [key for key in GPUS if "-" in key and plain == _plain(key.partition("-")[0])]


def recognised(name: str) -> Optional[Gpu]:
    """The card of a driver's name; its memory may be another variant's."""
    found = named(name)
    return GPUS[found[0]] if found else None
