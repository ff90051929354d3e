"""Fixtures and hooks of all Python tests, and the rule for each: whatever was opened is closed, and nothing
leaks. A conftest.py takes all of it."""

from __future__ import annotations

import collections
import gc
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

import memopt

MIB = 1 << 20
MANY = 12


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with many cases ./check runs a quarter, always the same one but for MEMOPT_TEST_SEED."""
    if config.option.markexpr != "not long" or "MEMOPT_TEST_LONG" in os.environ:
        return
    names = [item.nodeid.partition("[")[0] for item in items]
    count = collections.Counter(names)
    left: collections.Counter[str] = collections.Counter()
    left.update({name: int(os.environ.get("MEMOPT_TEST_SEED", "0")) % 4 for name in count})
    kept, dropped = [], []
    for item, name in zip(items, names):
        left[name] += 1
        (kept if count[name] < MANY or left[name] % 4 == 0 else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


@pytest.fixture
def device() -> Iterator[memopt.Device]:
    """A small card; after the test nothing of it may be left but what the test still holds."""
    gc.freeze()  # what was there before is not looked through after each test
    device = memopt.Device("cpu", capacity=64 * MIB, threads=2)
    yield device
    gc.collect()
    if not device.closed:
        info = device.memory_info()
        assert info.used == 0, "device memory leaked"
        assert info.pinned == 0, "page-locked memory leaked"
        assert info.registered == 0, "a registration leaked"
        device.close()


@pytest.fixture
def allocator(device: memopt.Device) -> Iterator[memopt.Allocator]:
    """An allocator of the small card; every block must be freed by the end."""
    allocator = memopt.Allocator(device, "expandable_segments:True")
    yield allocator
    gc.collect()
    if not allocator.closed:
        allocator.close()  # BusyError where a block leaked


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    options = ["-t", "tmpfs", "-o", "size=65536", "memopt-test", str(place)]
    if mount is None or subprocess.run([mount, *options], capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run([umount, "-l", str(place)], check=True)  # a store may have its file there until it is collected


def _heed_signals() -> None:
    """Who starts the tests in the background, or under nohup, has signals ignored or blocked, and
    what is started here would have them so too."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        if signal.getsignal(number) is signal.SIG_IGN:
            interrupts = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if interrupts else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def pytest_configure(config: pytest.Config) -> None:
    """For runs from the repository's root, where this package's own settings are not read."""
    _heed_signals()
    try:
        from hypothesis import settings
    except ImportError:
        pass
    else:  # nothing is written beside the tests
        fixed = "MEMOPT_TEST_SEED" not in os.environ  # with it tests/tools/python gives a seed
        settings.register_profile("memopt", database=None, deadline=None, derandomize=fixed)
        settings.load_profile("memopt")
    config.addinivalue_line("markers", "long: takes a minute (builds a wheel, trains a model); ./check --long runs it")
