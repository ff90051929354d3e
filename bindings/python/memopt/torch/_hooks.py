"""Hooks for what autograd saves, put in place so that no signal leaves them there.

The end of torch's context managers is a function of Python's. A signal that is heard as it begins
ends it before it has done anything.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

import torch
from torch.autograd.graph import saved_tensors_hooks

_autograd: Any = torch._C._autograd
#: Whether there may be hooks: else push() raises.
enabled = _autograd._saved_tensors_hooks_is_enabled
push = _autograd._push_saved_tensors_default_hooks
pop = _autograd._pop_saved_tensors_default_hooks

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


def hooked(
    pack: Pack,
    unpack: Unpack,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Dict[str, Any],
) -> Any:
    """Calls a function with hooks in place."""
    if not enabled():
        with saved_tensors_hooks(pack, unpack):  # raises, and tells why
            return function(*args, **kwargs)
    try:
        push(pack, unpack)
        return function(*args, **kwargs)
    finally:
        pop()
