"""Goes before a module's forward."""

from __future__ import annotations

import copy
import weakref
from typing import Any, Callable, Dict, Optional

import torch


class ForwardCall:
    """Stands in a module for its forward, or for another method: where gradients are recorded,
    ``run(self, args, kwargs)`` is called. A copy of the module, and a pickled one, has the plain method."""

    def __init__(self, module: torch.nn.Module, method: str, run: Callable[..., Any]) -> None:
        self.method = method
        self.own = module.__dict__.get(method)
        #: The method as it was.
        self.function: Callable[..., Any] = getattr(module, method)
        self.module = weakref.ref(module)
        self.run: Optional[Callable[..., Any]] = run
        setattr(module, method, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.run is None or not torch.is_grad_enabled():
            return self.function(*args, **kwargs)
        return self.run(self, args, kwargs)

    def remove(self) -> None:
        """The module is as it was; where others have wrapped this, it only calls the method."""
        module, self.run = self.module(), None
        if module is None or module.__dict__.get(self.method) is not self:
            return
        if self.own is None:
            delattr(module, self.method)
        else:
            setattr(module, self.method, self.own)

    @property
    def __wrapped__(self) -> Callable[..., Any]:  # frameworks look at the names of its arguments
        return self.function

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        return _plain(memo[id(self.module())], self.method, copy.deepcopy(self.own, memo))

    def __reduce__(self) -> Any:
        return _plain, (self.module(), self.method, self.own)


def _plain(module: torch.nn.Module, method: str, own: Any) -> Any:
    return getattr(type(module), method).__get__(module) if own is None else own
