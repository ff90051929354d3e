"""Hooks for what autograd saves, set so that no signal leaves them in place.

torch's context managers end with a Python function; a signal at its start ends it before it has
done anything.
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
    pack: Pack, unpack: Unpack, function: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any]
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
