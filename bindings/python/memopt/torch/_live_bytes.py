"""Counts the bytes of tensors that are made and still alive, exactly, on any device."""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, follows every storage that operations make. Those known before do not count."""

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: Bytes alive now, and the most there were.
        self.live = 0
        self.peak = 0
        self._seen: Dict[int, Any] = {}
        for tensor in known:
            self._note(tensor, count=False)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._note(value, count=True)
        return result

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Stops counting a tensor's storage."""
        key = tensor.untyped_storage()._cdata
        finalizer = self._seen.get(key)
        if finalizer is not None:
            finalizer()
            self._note(tensor, count=False)

    def _note(self, tensor: torch.Tensor, count: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes() if count else 0
        self._seen[key] = weakref.finalize(storage, self._forget, key, size)
        self.live += size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int, size: int) -> None:
        self._seen.pop(key, None)
        self.live -= size
