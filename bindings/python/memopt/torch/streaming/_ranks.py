"""Several processes that train the same layers on the host: their gradients are averaged there."""

from __future__ import annotations

from typing import Any, List, Optional

import torch
from torch import distributed


class Ranks:
    """A group over the host of all processes; making one waits for all of them."""

    def __init__(self) -> None:
        self.size = distributed.get_world_size()
        self._group: Any = distributed.new_group(backend="gloo")

    def same(self, tensors: List[torch.Tensor]) -> None:
        """All processes have those of the first one."""
        for tensor in tensors:
            distributed.broadcast(tensor, 0, group=self._group)

    @torch.no_grad()
    def average(self, parameters: List[torch.nn.Parameter]) -> None:
        """Gradients become their mean over the processes, each divided before it is added, as DDP does. One that only
        some have counts as 0 in the others."""
        there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        distributed.all_reduce(there, distributed.ReduceOp.MAX, group=self._group)
        for p, anyone in zip(parameters, there.tolist()):
            if anyone:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad.div_(self.size)
                distributed.all_reduce(p.grad, group=self._group)


def ranks() -> Optional[Ranks]:
    """Those of a program of several processes."""
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    return Ranks()
