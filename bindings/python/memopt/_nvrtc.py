"""NVRTC from a wheel (`nvidia-cuda-nvrtc`, which torch brings): it is in a folder of its own, where no
loader looks. The library uses what the program has loaded, so loading it is enough."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from typing import List, Tuple

_PLACE = os.path.join("nvidia", "*", "lib", "libnvrtc.so.*")
_VERSION = re.compile(r"\.so((?:\.\d+)+)$")


def load(driver_version: int) -> bool:
    """Loads the best that there is, and says whether there is one. MEMOPT_NVRTC and
    MEMOPT_DRIVER_PATH name what is to be used instead."""
    if os.environ.get("MEMOPT_NVRTC") or os.environ.get("MEMOPT_DRIVER_PATH"):
        return False
    for file in files(driver_version):
        try:
            ctypes.CDLL(file)
            return True
        except OSError:  # of another architecture, say
            continue
    return False


def files(driver_version: int) -> List[str]:
    """Those in `sys.path`: the newest that is not newer than the driver (13000 for 13.0; 0: unknown)
    first, and what is newer last."""
    import glob  # this is rarely called

    found: List[Tuple[bool, List[int], str]] = []
    for folder in filter(os.path.isabs, sys.path):
        for file in glob.glob(os.path.join(glob.escape(folder), _PLACE)):
            version = _VERSION.search(file)
            if version is not None:
                numbers = [int(part) for part in version[1][1:].split(".")]
                fits = driver_version == 0 or numbers[0] <= driver_version // 1000
                found.append((fits, numbers, file))
    found.sort(key=lambda one: one[:2], reverse=True)
    return [file for _, _, file in found]
