"""Rules whose moments have the parameter's shape, with 32 or 8 bits."""

from __future__ import annotations

from typing import Any, Dict

import torch

from . import _format
from ._whole import WholeOptimizer


class CodedOptimizer(WholeOptimizer):
    """Rules whose moments have the parameter's shape, with 32 or 8 bits; shards are stepped too."""

    _takes_shards = True

    def _own_state(
        self,
        parameter: torch.Tensor,
        dense: torch.Tensor,
        group: Dict[str, Any],
        name: str,
        made: Dict[torch.Tensor, _format.State],
    ) -> _format.State:
        state = self._state_for(parameter, dense, group, name, made)
        assert state is not None
        return state
