"""The processes that share a sharded parameter, and sums over them."""

from __future__ import annotations

from typing import Any, List

import torch


class Team:
    """The processes that have parts of a parameter; of one that is not sharded this process alone."""

    def __init__(self, owner: torch.Tensor) -> None:
        self.shape = owner.shape
        own: Any = owner
        placements: Any = getattr(owner, "placements", ())
        self._groups: List[Any] = [own.device_mesh.get_group(i) for i, p in enumerate(placements) if not p.is_replicate()]

    def add(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of their values, which takes the place of this one."""
        for group in self._groups:
            torch.distributed.all_reduce(value, group=group)
        return value

    def add_columns(self, value: torch.Tensor) -> torch.Tensor:
        """The same of sums over rows; a stack of matrices is not cut within them."""
        return self.add(value) if len(self.shape) == 2 else value


def check_rows(parameter: torch.Tensor, name: str, rule: str) -> None:
    """Refuses shards of other dimensions than the first."""
    placements = getattr(parameter, "placements", ())
    cut = [p for p in placements if not p.is_replicate()]
    if len(cut) > 1 or any(type(p).__name__ != "Shard" or p.dim != 0 for p in cut):
        raise TypeError("%s is placed %s; %s takes shards of dimension 0" % (name, tuple(placements), rule))
