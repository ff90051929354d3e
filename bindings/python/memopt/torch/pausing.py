"""Tensors that sleep: tagged(), pause() and resume() of the process's allocator.

allocator = mt.enable_allocator("expandable_segments:True")
with mt.tagged("weights"):
    model = build()
mt.pause("weights")     # another engine uses the GPU
mt.resume("weights")    # the same addresses, the same bits
"""

from __future__ import annotations

import os
from typing import Any, ContextManager, FrozenSet, Union

from ..allocator import Paused
from .allocator import DeviceLike, any_allocator


def tagged(name: str, device: DeviceLike = None) -> ContextManager[Any]:
    """:meth:`TorchAllocator.tagged` of the allocator that is enabled, or of the last one made."""
    return any_allocator("tagged").tagged(name, device)


def pause(
    *tags: str, keep: bool = True, file: Union[str, "os.PathLike[str]", None] = None, device: DeviceLike = None
) -> Paused:
    """:meth:`TorchAllocator.pause` of the allocator that is enabled, or of the last one made."""
    return any_allocator("pause").pause(*tags, keep=keep, file=file, device=device)


def resume(*tags: str, device: DeviceLike = None) -> None:
    """:meth:`TorchAllocator.resume` of the allocator that is enabled, or of the last one made."""
    any_allocator("resume").resume(*tags, device=device)


def paused_tags(device: DeviceLike = None) -> FrozenSet[str]:
    """:meth:`TorchAllocator.paused_tags` of the allocator that is enabled, or of the last one made."""
    return any_allocator("paused_tags").paused_tags(device)
