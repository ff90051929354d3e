"""The processes that share a sharded parameter: sums over them, and which rows each has."""

from __future__ import annotations

import math
from typing import Any, List

import torch

from . import _layout
from ._whole import PIECE

#: Between these norms of a piece, the squares of elements that count are fp32 numbers.
_SMALL, _LARGE = 1e-12, 1e18


class Team:
    """The processes that have parts of a parameter; of one that is not sharded this process alone."""

    def __init__(self, owner: torch.Tensor) -> None:
        self.shape = owner.shape
        own: Any = owner
        placements: Any = getattr(owner, "placements", ())
        self._cut = [i for i, p in enumerate(placements) if not p.is_replicate()]
        self._mesh: Any = getattr(own, "device_mesh", None)
        self._groups: List[Any] = [own.device_mesh.get_group(i) for i in self._cut]

    def add(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of their values, which takes the place of this one."""
        for group in self._groups:
            torch.distributed.all_reduce(value, group=group)
        return value

    def add_columns(self, value: torch.Tensor) -> torch.Tensor:
        """The same of sums over rows; a stack of matrices is not cut within them."""
        return self.add(value) if len(self.shape) == 2 else value

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """The whole tensor of which each process has these rows."""
        if not self._cut:
            return part
        from torch.distributed.tensor import DTensor, Replicate, Shard

        placements = [
            Shard(0) if i in self._cut else Replicate() for i in range(self._mesh.ndim)
        ]
        tensor: Any = DTensor.from_local(
            part,
            self._mesh,
            placements,
            run_check=False,
            shape=self.shape,
            stride=torch.empty(self.shape, device="meta").stride(),
        )
        whole: torch.Tensor = tensor.full_tensor()
        return whole

    def norm(self, part: torch.Tensor) -> float:
        """The norm of a tensor of which this process has a part."""
        total = _square_sum(part)
        if self._groups:
            total = float(self.add(torch.tensor(total, dtype=torch.float64, device=part.device)))
        return math.sqrt(total)

    def rows(self) -> slice:
        """The rows of the parameter that this process has, cut as fully_shard does."""
        total = self.shape[0]
        if not self._cut:
            return slice(0, total)
        each = -(-total // self._mesh.size(self._cut[0]))
        first = min(total, each * self._mesh.get_local_rank(self._cut[0]))
        return slice(first, min(total, first + each))


def _square_sum(tensor: torch.Tensor) -> float:
    """By fp32 norms of pieces; in 64 bits, which take ten times as long, where squares of elements
    are beyond fp32."""
    pieces = torch.split(_layout.elements(tensor), PIECE[tensor.device.type])
    norms = torch.stack([torch.linalg.vector_norm(piece) for piece in pieces]).double()
    least, most = (float(value) for value in torch.aminmax(norms))
    if not (_SMALL < least or least == most == 0.0 and not bool(tensor.any())) or most > _LARGE:
        norms = torch.stack([torch.linalg.vector_norm(p, dtype=torch.float64) for p in pieces])
    return float(norms.square().sum())


def check_rows(parameter: torch.Tensor, name: str, rule: str) -> None:
    """Refuses shards of other dimensions than the first."""
    placements = getattr(parameter, "placements", ())
    cut = [p for p in placements if not p.is_replicate()]
    if len(cut) > 1 or any(type(p).__name__ != "Shard" or p.dim != 0 for p in cut):
        raise TypeError(
            "%s is placed %s; %s takes shards of dimension 0" % (name, tuple(placements), rule)
        )
