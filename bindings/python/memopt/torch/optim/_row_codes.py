"""8-bit states whose blocks begin anew in each row (index of dimension 0): scales have the rows of their
codes, so shards of rows are cut from a state, and joined to one, byte by byte."""

from __future__ import annotations

from typing import Tuple

import torch

from ..._abi import StateFormat
from . import _format

BLOCK = _format.BLOCKS[StateFormat.BITS8]


def _columns(shape: Tuple[int, ...]) -> int:
    return torch.Size(shape[1:]).numel()


def scales_shape(shape: Tuple[int, ...]) -> Tuple[int, int]:
    """The shape of the scales of codes of a shape."""
    return shape[0], -(-_columns(shape) // BLOCK)


class Rows:
    """Some rows as floats, which may be changed in place and stored again."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, signed: bool) -> None:
        self._codes, self._scales, self._signed = codes, scales, signed
        rows, columns = codes.shape[0], _columns(codes.shape)
        self._flat = codes.view(rows, columns)
        wide = self._flat
        if columns % BLOCK:
            wide = codes.new_full((rows, scales.shape[1] * BLOCK), _zero(signed))
            wide[:, :columns] = self._flat
        self._wide = wide
        self._floats = torch.empty(wide.shape, dtype=torch.float32, device=codes.device)
        if codes.numel():
            _format.decode(self._floats, wide, scales, StateFormat.BITS8, signed)
        #: Of two dimensions.
        self.values = self._floats[:, :columns]

    def store(self) -> None:
        """Codes the floats again."""
        if not self._codes.numel():
            return
        _format.encode(self._floats, self._wide, self._scales, StateFormat.BITS8, self._signed)
        if self._wide is not self._flat:
            self._flat.copy_(self._wide[:, : self._flat.shape[1]])


def _zero(signed: bool) -> int:
    return _format.zero_byte(StateFormat.BITS8, signed)


def new(shape: Tuple[int, ...], signed: bool, device: torch.device) -> torch.Tensor:
    """Codes of zeros."""
    return torch.full(shape, _zero(signed), dtype=torch.uint8, device=device)


def decoded(codes: torch.Tensor, scales: torch.Tensor, signed: bool) -> torch.Tensor:
    """All values, in the codes' shape."""
    return Rows(codes, scales, signed).values.reshape(codes.shape)


def coded(floats: torch.Tensor, signed: bool) -> Tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of floats."""
    shape = tuple(floats.shape)
    codes = new(shape, signed, floats.device)
    scales = torch.zeros(scales_shape(shape), dtype=torch.float32, device=floats.device)
    rows = Rows(codes, scales, signed)
    rows.values.copy_(floats.reshape(rows.values.shape))
    rows.store()
    return codes, scales
