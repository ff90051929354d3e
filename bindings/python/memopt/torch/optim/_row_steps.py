"""AdamW's update by the library where 8-bit moments have blocks that begin anew in each row.

The library's blocks are consecutive, so pieces of the moments are copied into scratch memory in which each
row is whole blocks. It is for one piece, and stays between steps: the library knows its addresses.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Tuple

import torch

from ..._abi import OptimizerKind, StateFormat
from . import _format, _row_codes
from ._binding import Facts
from ._fused import Part, Values

#: The moments, and whether they have signs.
MOMENTS = (("exp_avg", "absmax1", True), ("exp_avg_sq", "absmax2", False))


class _Room(NamedTuple):
    """Scratch memory of some rows, and the library's step on it."""

    gradient: torch.Tensor
    target: torch.Tensor
    state: Dict[str, torch.Tensor]
    part: Part


class RowSteps:
    """Scratch memory of an optimizer, which copies and pickles do not have."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        """With no memory yet, in this process."""
        self._memory: Dict[Tuple[torch.device, str], torch.Tensor] = {}
        self._rooms: Dict[Tuple[torch.device, int, int], _Room] = {}
        self._process = os.getpid()

    def update(
        self,
        state: Dict[str, torch.Tensor],
        gradient: torch.Tensor,
        values: Values,
        steps: int,
        into: torch.Tensor,
    ) -> None:
        """Brings the codes and scales of some rows up to date by the step of this number; `into` gets
        minus what the step adds to a parameter."""
        if os.getpid() != self._process:  # a child's handles are the parent's
            self._start()
        rows, columns = gradient.shape
        wide = _row_codes.scales_shape((rows, columns))[1] * _row_codes.BLOCK
        room = self._room(gradient.device, rows, wide)
        room.gradient[:, :columns].copy_(gradient)
        room.gradient[:, columns:].zero_()
        room.target.zero_()
        room.state["step"].fill_(steps - 1)
        for key, scale, signed in MOMENTS:
            room.state[key][:, :columns].copy_(state[key])
            room.state[key][:, columns:].fill_(_format.zero_byte(StateFormat.BITS8, signed))
            room.state[scale].copy_(state[scale])
        room.part.run([room.gradient], [values], Facts(), "AdamW")
        for key, scale, _ in MOMENTS:
            state[key].copy_(room.state[key][:, :columns])
            state[scale].copy_(room.state[scale])
        into.copy_(room.target[:, :columns].neg_())

    def _room(self, device: torch.device, rows: int, wide: int) -> _Room:
        known = self._rooms.get((device, rows, wide))
        if known is not None:
            return known
        count, blocks = rows * wide, rows * wide // _row_codes.BLOCK
        gradient, target = (
            self._taken(device, use, count, torch.float32).view(rows, wide)
            for use in ("gradient", "target")
        )
        state = {"step": self._taken(device, "step", 1, torch.int64).view(())}
        for key, scale, _ in MOMENTS:
            state[key] = self._taken(device, key, count, torch.uint8).view(rows, wide)
            state[scale] = self._taken(device, scale, blocks, torch.float32).view(rows, -1)
        part = Part(OptimizerKind.ADAMW, StateFormat.BITS8, [state], [target])
        room = self._rooms[device, rows, wide] = _Room(gradient, target, state, part)
        return room

    def _taken(
        self, device: torch.device, use: str, count: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """The begin of the memory for a use, which all shapes share."""
        memory = self._memory.get((device, use))
        if memory is None or memory.numel() < count:
            if memory is not None:  # rooms in it are of no more use
                self._rooms = {k: v for k, v in self._rooms.items() if k[0] != device}
            memory = self._memory[device, use] = torch.empty(count, dtype=dtype, device=device)
        return memory[:count]


def of(optimizer: Any) -> RowSteps:
    """The optimizer's."""
    steps: RowSteps = optimizer.__dict__.setdefault("_row_steps", RowSteps())
    return steps
