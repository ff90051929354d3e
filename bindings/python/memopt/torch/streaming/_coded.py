"""Stores of fewer bits: codes stream, and the layer that runs is decoded.

The budget is one decoded layer, the largest, and an arena for the codes of the others. So codes of many
layers stay on the device, and of a small model all of them. A layer's codes are free once it is decoded.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Set, Tuple, Union

import torch

from ... import errors
from ..._abi import BlockFormat, Status
from ..._library import lib
from ...sizes import format_size
from .. import _tensor_lists
from .._native import native
from ..blocks import _empty, _matrix, _sizes, quantize_blocks
from ._arena import ARENA_UNIT, Arena, Lent, memory_at
from ._four_bits import Packed
from ._parts import Part, rounded

FORMATS: Dict[str, Optional[BlockFormat]] = {
    "bf16": None,
    "mxfp8": BlockFormat.MXFP8_E4M3,
    "nvfp4": BlockFormat.NVFP4,
    "nf4": BlockFormat.NF4,
}
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Code:
    """How a parameter's bytes are made of the store's pieces: as they are, by a cast, or of a block format."""

    def __init__(self, part: Part, kind: str) -> None:
        self.part, self.kind = part, kind
        self.format = FORMATS[kind]
        matrix = len(part.shape) > 1 and part.dtype in _FLOATS and part.parameter.is_contiguous()
        self.has_amax = self.format == BlockFormat.NVFP4
        self.is_exact = not matrix or (self.format is None and part.dtype is torch.bfloat16)
        if self.is_exact:
            self.pieces = [part.nbytes]
        elif self.format is None:
            self.pieces = [2 * part.shape.numel()]
        else:
            self.rows, self.columns, layout = _sizes(self.format, part.shape)
            self._codes, self._scales = _empty(self.format, part.shape, layout, torch.device("meta"))
            self.pieces = [self._codes.nbytes, self._scales.nbytes, *([4] if self.has_amax else [])]

    @property
    def nbytes(self) -> int:
        """What it takes in an arena."""
        return sum(map(rounded, self.pieces))

    def encode(self, value: Union[torch.Tensor, Packed]) -> List[torch.Tensor]:
        """The pieces of a weight."""
        if isinstance(value, Packed):
            if value.name() == self.kind and not self.is_exact:
                return [value.codes, value.scales]
            value = value.tensor(self.part.dtype)
        value = value.detach().to(self.part.dtype)
        if self.is_exact:
            return [value]
        if self.format is None:
            return [value.to(torch.bfloat16)]
        value = value.contiguous()
        amax = value.abs().amax().float().reshape(1) if self.has_amax else None
        codes, scales = quantize_blocks(value, self.format, tensor_amax=amax)
        return [codes, scales] if amax is None else [codes, scales, amax]

    def decode(self, pieces: List[torch.Tensor], result: torch.Tensor) -> None:
        """Writes the weight, in the order of the current stream. The pieces are bytes."""
        if self.is_exact:
            result.copy_(self.part.of(pieces[0], 0))
        elif self.format is None:
            result.copy_(pieces[0].view(torch.bfloat16).view(result.shape))
        else:
            side = native(result.device)
            amax = pieces[2].data_ptr() if self.has_amax else None
            lib.memopt_blocks_dequantize(
                side.device._handle.pointer,
                _tensor_lists.array([result]),
                _matrix(self.format, self.rows, self.columns, pieces[0], pieces[1], amax),
                1,
                side.stream(),
            )


class CodedStore:
    """Codes in page-locked memory. A part's `stored` is its code, its tickets and their memory."""

    def __init__(self, arena: "Decoded", kind: str) -> None:
        self._arena, self.kind, self.where = arena, kind, "host memory, as %s" % kind

    def add(self, parts: List[Part]) -> List[Tuple[int, int]]:
        """Takes a layer's weights: its tickets and their bytes."""
        tickets = []
        codes = []
        for part in parts:
            code = Code(part, self.kind)
            places = [self._arena.reserve(nbytes) for nbytes in code.pieces]
            memory = [self._arena.host_memory(at, n) for (_, at), n in zip(places, code.pieces)]
            part.stored = code, [ticket for ticket, _ in places], memory
            if part.parameter.is_meta:
                for piece in memory:
                    piece.fill_(0xFF)
            else:
                self._put(part, part.parameter)
            codes.append(code)
            tickets += [(ticket, nbytes) for (ticket, _), nbytes in zip(places, code.pieces)]
        self._arena.learn(codes)
        return tickets

    def _put(self, part: Part, value: Union[torch.Tensor, Packed]) -> None:
        code, _, memory = part.stored
        for piece, target in zip(code.encode(value), memory):
            bytes_ = piece if code.is_exact else piece.reshape(-1).view(torch.uint8)
            (code.part.of(target, 0) if code.is_exact else target).copy_(bytes_)

    def read(self, part: Part) -> torch.Tensor:
        """The weights on the host, decoded."""
        code, _, memory = part.stored
        result = torch.empty_strided(part.shape, part.stride, dtype=part.dtype)
        code.decode(memory, result)
        return result

    def write(self, part: Part, value: Union[torch.Tensor, Packed]) -> bool:
        """New weights. Whether the tickets must be made anew."""
        _, tickets, _ = part.stored
        try:
            for ticket in tickets:
                self._arena.writing(ticket, True)
            self._put(part, value)
        finally:
            for ticket in tickets:
                self._arena.writing(ticket, False)
        return False


class Decoded(Arena):
    """An arena of codes, and one block for the layer that is decoded. The budget is of both."""

    def __init__(self, device: torch.device, budget: int, block: int) -> None:
        self.block = block
        super().__init__(device, budget)
        self._memory = torch.empty(block, dtype=torch.uint8, device=device)
        self._codes: List[List[Code]] = []  # of each layer
        self._decoded: Optional[Lent] = None
        self._ended: List[Lent] = []

    def _open(self, budget: int) -> None:
        super()._open(max(budget - self.block, ARENA_UNIT))
        self.budget = budget

    def learn(self, codes: List[Code]) -> None:
        """The next layer's codes."""
        self._codes.append(codes)

    def lend(self, layer: int, nbytes: int) -> Tuple[torch.Tensor, Lent]:
        """A layer's weights in the block, in the order of the current stream."""
        if self._decoded is not None:
            raise errors.make(
                Status.LIMIT_REACHED, "the block of %s for a decoded layer is in use" % format_size(self.block)
            )
        flat, lent = super().lend(layer, sum(code.nbytes for code in self._codes[layer]))
        start = 0
        for code in self._codes[layer]:
            pieces = []
            for size in code.pieces:
                pieces.append(flat[start : start + size])
                start += rounded(size)
            code.decode(pieces, code.part.of(self._memory))
        stream = lent.streams[0]
        del flat, pieces, lent
        super().take_back()
        memory, owner = memory_at(self.device, self._memory.data_ptr(), nbytes, self)
        self._decoded = Lent(owner, self._ended.append)
        self._decoded.layer, self._decoded.streams = layer, [stream]
        return memory, self._decoded

    def follow(self, lent: Lent) -> None:
        """The lent layer is also used on the current stream: behind its decoding, and before the next one."""
        if self.device.type == "cuda":
            current = torch.cuda.current_stream(self.device)
            if (current.cuda_stream or None) not in lent.streams:
                current.wait_stream(_stream(lent.streams[0], self.device))
                lent.streams.append(current.cuda_stream or None)

    def take_back(self) -> None:
        """Looks whether the block is free."""
        while self._ended:
            if self.device.type == "cuda":
                for stream in self._ended[0].streams:
                    torch.cuda.current_stream(self.device).wait_stream(_stream(stream, self.device))
            self._decoded = None
            del self._ended[0]
        super().take_back()

    def held(self) -> Set[int]:
        """The layer whose weights somebody refers to."""
        return set() if self._decoded is None else {self._decoded.layer}

    def lends(self, address: int) -> bool:
        """Whether it is the block, or codes that are being decoded."""
        return address == self._memory.data_ptr() or super().lends(address)

    def stats(self) -> Dict[str, int]:
        """The streamer's, and the block."""
        stats = super().stats()
        for key in ("resident_bytes", "resident_bytes_peak"):
            stats[key] += self.block
        return stats


def _stream(handle: Optional[int], device: torch.device) -> Any:
    return torch.cuda.ExternalStream(handle or 0, device=device)  # type: ignore[no-untyped-call]
