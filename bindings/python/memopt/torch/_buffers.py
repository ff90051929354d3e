"""Which storages belong to the buffers of modules, so that save_on_cpu leaves them where they are.

While at least one context is active, every module that is called tells its buffers; a compiled one
those of all its parts, whose calls are not seen. Storages are known by their Python object, which
torch keeps as long as the storage lives.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any, Dict

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from .._lock import Guard

_known: Dict[int, "weakref.ref[torch.UntypedStorage]"] = {}
_lock = Guard()
_watchers = 0
_hook: Any = None


def watch() -> None:
    """Begins to look at modules; ended by unwatch()."""
    global _watchers, _hook
    with _lock:
        if _hook is None:
            # Calling the hook for a compiled module is what is wanted.
            told = r"Using `torch\.compile\(module\)` when there are global hooks"
            warnings.filterwarnings("ignore", told)
            _hook = register_module_forward_pre_hook(_note)
        _watchers += 1


def unwatch() -> None:
    global _watchers, _hook
    with _lock:
        _watchers -= 1
        if _watchers == 0 and _hook is not None:
            hook, _hook = _hook, None
            hook.remove()


def is_buffer(storage: torch.UntypedStorage) -> bool:
    """Whether a buffer of a module that was called has this storage."""
    reference = _known.get(id(storage))
    return reference is not None and reference() is storage


def _note(module: torch.nn.Module, arguments: Any) -> None:
    if torch.compiler.is_compiling():  # nothing of this is to be in a graph
        return
    if "_orig_mod" in module._modules:
        for part in module.modules():
            _note_buffers(part)
    else:
        _note_buffers(module)


def _note_buffers(module: torch.nn.Module) -> None:
    for buffer in module._buffers.values():
        if type(buffer) is torch.Tensor and buffer.layout is torch.strided:
            storage = buffer.untyped_storage()
            if not is_buffer(storage):
                _known[id(storage)] = weakref.ref(storage, functools.partial(_forget, id(storage)))


def _forget(key: int, gone: Any) -> None:
    if _known.get(key) is gone:
        del _known[key]
