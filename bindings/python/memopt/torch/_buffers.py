"""Which storages belong to the buffers of modules, so that save_on_cpu leaves them where they are.

While at least one context is active, every called module registers its buffers; a compiled one
registers those of all its parts, whose calls are not seen. Storages are known by their Python
object, which torch keeps as long as the storage lives.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any, Dict, List

import torch
from torch.nn.modules import module as _module

_known: Dict[int, "weakref.ref[torch.UntypedStorage]"] = {}
#: The contexts that are active, each as often as it was entered.
watchers: List[Any] = []
#: What register_module_forward_pre_hook() writes to; a context is entered and left at every step.
_hooks: Dict[Any, Any] = _module._global_forward_pre_hooks
_KEY = "memopt.save_on_cpu"
_filter: Any = None


def settle() -> None:
    """Hooks modules while there are watchers: whoever changes those calls this afterwards, and the last
    one to look finds it right."""
    while bool(watchers) != (_KEY in _hooks):
        if watchers:
            _allow_compiled()
            _hooks[_KEY] = _note
        else:
            _hooks.pop(_KEY, None)


def _allow_compiled() -> None:
    """That our hook is called for a compiled module is what is wanted: no warning."""
    global _filter
    if _filter is None or warnings.filters[:1] != [_filter]:
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        _filter = warnings.filters[0]


def is_buffer(storage: torch.UntypedStorage) -> bool:
    """Whether a buffer of a module that was called has this storage."""
    reference = _known.get(id(storage))
    return reference is not None and reference() is storage


def _note(module: torch.nn.Module, arguments: Any) -> None:
    if torch.compiler.is_compiling():  # keep this out of a graph
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
