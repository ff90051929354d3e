"""roundup_power2_divisions: torch's own parser and the library's round the same sizes alike."""

from __future__ import annotations

import ctypes
import os
import random

import pytest

torch = pytest.importorskip("torch")

import memopt  # noqa: E402

MIB = 1 << 20

#: size_t c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions(size_t)
DIVISIONS = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm"


@pytest.fixture
def divisions():
    """torch's function; its settings are reset afterwards."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        function = getattr(ctypes.CDLL(path), DIVISIONS)
    except (OSError, AttributeError):
        pytest.skip("this torch has no AcceleratorAllocatorConfig")
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_size_t
    yield function
    torch._C._accelerator_setAllocatorSettings("")


def rounded(size, divisions):
    """As CUDACachingAllocator's round_size()."""
    if divisions <= 1 or size <= 512 * divisions:
        return -(-size // 512) * 512
    unit = (1 << (size.bit_length() - 1)) // divisions
    return -(-size // unit) * unit


def test_sizes_are_rounded_as_in_torch(divisions):
    source = random.Random(17)
    device = memopt.Device("cpu")
    different = 0
    for _ in range(40):
        keys = [source.choice([">", *(1 << i for i in range(8))]) for _ in range(source.randint(0, 5))]
        entries = ["%s:%d" % (key, source.choice([0, 1, 2, 4, 8, 16])) for key in keys]
        config = "roundup_power2_divisions:[%s]" % ",".join(entries)
        torch._C._accelerator_setAllocatorSettings("")
        torch._C._accelerator_setAllocatorSettings(config)
        with memopt.Allocator(device, "expandable_segments:True," + config) as allocator:
            for size in [source.randint(1, 1 << i) for i in range(9, 28)]:
                with allocator.alloc(size) as block:
                    found = allocator.block(block)[1]
                wanted = rounded(size, divisions(size))
                assert found == wanted, (config, size)
                different += wanted != rounded(size, 0)
    assert different > 100
    device.close()
