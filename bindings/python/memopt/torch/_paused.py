"""Pausing by tag what lies behind memopt/pluggable.h: all allocators of the devices together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections import Counter
from typing import Dict, FrozenSet, Iterator, List, Sequence, Tuple, Union

from .. import errors
from .._abi import Status
from .._library import c_text, lib, output
from .._lock import Guard
from ..allocator import Paused, pause_options, paused_bits
from ..oom import tag_names
from . import _pluggable

_ALL = (1 << 64) - 1
_lock = Guard()
_in_pools: Dict[str, int] = Counter()  # contexts in which torch splits segments itself, by tag


class _Open(threading.local):
    """This thread's contexts of that kind: the tags by device."""

    def __init__(self) -> None:
        self.tags: Dict[int, str] = {}


_open = _Open()


def set_tag(name: str) -> str:
    """Sets this thread's tag; what it was."""
    before = ctypes.c_char_p()
    lib.memopt_pluggable_set_tag(c_text(name, "a tag"), before)
    return (before.value or b"other").decode()


def this_tag() -> str:
    """This thread's tag."""
    name = set_tag("other")
    set_tag(name)
    return name


@contextlib.contextmanager
def in_pool(name: str, device: int) -> Iterator[None]:
    """torch may reuse free parts of blocks of this tag meanwhile, without asking the library."""
    with _lock:
        _in_pools[name] += 1
    _open.tags[device] = name
    try:
        yield
    finally:
        del _open.tags[device]
        with _lock:
            _in_pools[name] -= 1


def refuse_nested(call: str, device: int) -> None:
    """Of pools inside each other, torch uses the outermost: what is inside gets that one's tag."""
    if device in _open.tags:
        raise errors.BusyError(
            Status.BUSY,
            "%s: this thread is inside tagged() or pool() on cuda:%d already, with the tag %r, and "
            "torch allocates from that pool until it is left; leave it first, or call "
            "enable_allocator(), with which tags can be nested" % (call, device, _open.tags[device]),
        )


def paused_tags(devices: Sequence[int]) -> FrozenSet[str]:
    """The tags that are paused on one of the devices."""
    found = set()
    for device in devices:
        for handle in _pluggable.handles(device):
            bits = paused_bits(handle)
            found |= {name for i, name in enumerate(tag_names(handle)) if bits >> i & 1}
    return frozenset(found)


def pause(
    devices: Sequence[int], names: Sequence[str], keep: bool, file: Union[str, "os.PathLike[str]", None]
) -> Paused:
    """Pauses the tags, or all, on all devices; after a failure none is paused."""
    options, reports, done = pause_options(keep, file), [], []
    _refuse_open(names)
    try:
        for handle, bits in _where(devices, names, paused=False):
            before = paused_bits(handle)
            options.tags = bits
            reports.append(output(lib.memopt_pool_pause_sync, handle, options))
            done.append((handle, paused_bits(handle) & ~before))
    except BaseException:
        for handle, bits in done:
            lib.memopt_pool_resume_sync(handle, bits)
        raise
    return Paused.of(reports)


def resume(devices: Sequence[int], names: Sequence[str]) -> None:
    """Resumes the tags, or all that are paused; after a failure the call can be repeated."""
    for handle, bits in _where(devices, names, paused=True):
        lib.memopt_pool_resume_sync(handle, bits)


def _refuse_open(names: Sequence[str]) -> None:
    with _lock:
        used = [name for name, count in _in_pools.items() if count and (not names or name in names)]
    if used:
        raise errors.BusyError(
            Status.BUSY, "pause: tagged(%r) or a pool() is not left yet, and torch could reuse what is paused" % used[0]
        )


def _where(devices: Sequence[int], names: Sequence[str], paused: bool) -> List[Tuple[int, int]]:
    """The allocators with the bits of tags that a call is to pause or, if they are `paused`, to
    resume; 0 for all. A tag has to be known, and to be as the call wants it, on one device at least."""
    found, known, right = [], set(), set()
    for handle in (h for device in devices for h in _pluggable.handles(device)):
        numbers = {name: i for i, name in enumerate(tag_names(handle))}
        state = paused_bits(handle)
        fit = state if paused else ~state & _ALL
        bits = _ALL if not names else sum(1 << numbers[n] for n in set(names) if n in numbers)
        known |= set(numbers)
        right |= {name for name, number in numbers.items() if fit >> number & 1}
        if bits & fit:
            found.append((handle, bits & fit if names else 0))
    call, wanted = ("resume", "not paused") if paused else ("pause", "paused already")
    for name in names:
        if name not in known:
            raise ValueError("%s: tag %r is not known; the tags are %s" % (call, name, ", ".join(sorted(known))))
        if name not in right:
            raise errors.BusyError(Status.BUSY, "%s: tag %r is %s" % (call, name, wanted))
    if not found:
        raise errors.BusyError(Status.BUSY, "%s: everything is %s" % (call, wanted))
    return found
