"""Adapters and weights of few bits as modules that take what PEFT's and bitsandbytes' take, for
traces: their operations make the same tensors, and need neither library."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional


def sizes_of(linear: Any) -> Optional[Tuple[int, int]]:
    """What goes into a linear layer and what comes out of it; None of other modules."""
    if isinstance(linear, nn.Linear):
        return linear.in_features, linear.out_features
    if type(linear).__name__ == "Conv1D":  # of Transformers: inputs first
        return linear.weight.shape[0], linear.weight.shape[1]
    return None


def _thin(inside: int, outside: int, dtype: torch.dtype) -> nn.Linear:
    return nn.Linear(inside, outside, bias=False, dtype=dtype, device="meta")


class Lora(nn.Module):
    """A frozen layer and the product of two thin ones (`peft.tuners.lora`). `cast` says whether PEFT
    casts beside a quantised weight: on a GPU it leaves that to autocast."""

    def __init__(self, base: Any, sizes: Tuple[int, int], rank: int, dropout: float, dtype: Any, cast: bool) -> None:
        super().__init__()
        self.base = base
        self.down = _thin(sizes[0], rank, dtype)
        self.up = _thin(rank, sizes[1], dtype)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self._few = isinstance(base, (FourBits, EightBits))
        self._clones = isinstance(base, FourBits) and base.clones
        self._cast = cast or not self._few

    @property
    def weight(self) -> Any:
        """The frozen one, for a model that does not call the layer."""
        return self.base.weight

    @property
    def bias(self) -> Any:
        """The frozen one."""
        return self.base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x)
        if self._clones:
            result = result.clone()
        dtype = result.dtype
        if self._cast:
            x = x.to(self.down.weight.dtype)
        if not self._few:
            result = result + self.up(self.down(self.dropout(x))) * 2.0
            result = result.to(dtype)
            return result
        output = self.up(self.down(self.dropout(x))) * 2.0
        if self._cast:
            output = output.to(dtype)
        result = result + output
        return result.to(dtype) if self._cast else result


class Experts(nn.Module):
    """Experts, whose weights are one parameter, or their router with adapters (PEFT's
    `target_parameters`): a copy of the parameter with what the thin ones make."""

    def __init__(self, base: nn.Module, ranks: List[Tuple[str, int]], dtype: torch.dtype) -> None:
        super().__init__()
        self.base = base
        self._names = [name for name, _ in ranks]
        self._inputs_first = bool(getattr(base, "is_transposed", False))
        for name, rank in ranks:
            *counts, a, b = base._parameters[name].shape  # type: ignore[union-attr]
            (count,), sizes = counts or (1,), (a, b)
            inside, outside = sizes if self._inputs_first else reversed(sizes)
            setattr(self, name + "_down", _thin(inside, count * rank, dtype))
            setattr(self, name + "_up", _thin(count * rank, outside, dtype))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for name in self._names:
                stack.enter_context(self._adapted(name))
            return self.base(*inputs, **named)

    @contextlib.contextmanager
    def _adapted(self, name: str) -> Iterator[None]:
        parameters = self.base._parameters
        weight: Any = parameters[name]
        down, up = (getattr(self, name + part).weight for part in ("_down", "_up"))
        del parameters[name]
        whole, held = (self._of_each if weight.dim() == 3 else self._of_one)(weight, down, up)
        self.base.__dict__[name] = whole
        del whole
        try:
            yield
        finally:
            del self.base.__dict__[name], held
            parameters[name] = weight

    @staticmethod
    def _of_one(weight: Any, down: Any, up: Any) -> Tuple[Any, Any]:
        """The weight with what the adapters make, and what is held with it."""
        delta = ((up @ down) * 2.0).to(weight.dtype)
        return weight + delta, delta

    def _of_each(self, weight: Any, down: Any, up: Any) -> Tuple[Any, Any]:
        """The same of all experts."""
        count = len(weight)
        a = down.reshape(count, -1, down.shape[-1]).to(weight.dtype)
        b = up.reshape(len(up), -1, count).permute(2, 0, 1).to(weight.dtype)
        if self._inputs_first:
            a, b = b.transpose(-2, -1), a.transpose(-2, -1)
        with torch.autocast("cpu", enabled=False):
            return torch.baddbmm(weight, b, a, alpha=2.0), (a, b)


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="meta")


def _parts(count: int, of: int) -> int:
    return -(-count // of)


class _FourBitProduct(torch.autograd.Function):
    """bitsandbytes' `MatMul4Bit`: the weight is whole within the kernel, which a CPU's allocates
    unseen, and again in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Any) -> torch.Tensor:
        ctx.layer, ctx.shape = layer, x.shape
        y = x.new_empty((*x.shape[:-1], layer.sizes[1]))
        whole = layer.whole(x.dtype) if layer.seen else None
        del whole
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        whole = ctx.layer.whole(gradient.dtype)
        result = gradient.new_empty(ctx.shape)
        del whole
        return result, None


class FourBits(nn.Module):
    """A linear layer of 4 bits: "nf4", "nf4-double", "gptq" or "awq"; `seen` if its kernel's
    temporaries are a GPU's, `storage` what its codes are stored in (`bnb_4bit_quant_storage`)."""

    def __init__(
        self, linear: Any, kind: str, dtype: Optional[torch.dtype], seen: bool, storage: torch.dtype = torch.uint8
    ) -> None:
        super().__init__()
        inside, outside = self.sizes = sizes_of(linear) or (0, 0)
        count, self.seen, self.clones = inside * outside, seen, kind.startswith("nf4")
        self._dtype = dtype if self.clones else None
        blocks, groups = _parts(count, 64), _parts(inside, 128) * outside
        self._blocks = blocks if kind == "nf4-double" else 0
        scales = {
            "nf4": 4 * blocks + 64,
            "nf4-double": blocks + 4 * _parts(blocks, 256) + 64 + 4 + 1024,
            "gptq": 2 * groups + _parts(groups, 2) + 4 * inside,
            "awq": 2 * groups + _parts(groups, 2),
        }[kind]
        codes = torch.empty(_parts(count, 2 * storage.itemsize), dtype=storage, device="meta")
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.register_buffer("scales", _bytes(scales))
        self.bias = linear.bias

    def whole(self, dtype: torch.dtype) -> Tuple[torch.Tensor, torch.Tensor]:
        """The weight in a type, and its scales."""
        scales = self.weight.new_empty(self._blocks, dtype=torch.float32)
        return self.weight.new_empty(self.sizes, dtype=dtype), scales

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = x.dtype
        x = x.to(self._dtype or own)
        result: torch.Tensor = _FourBitProduct.apply(x, self)
        return result.to(own)


class _EightBitProduct(torch.autograd.Function):
    """bitsandbytes' `MatMul8bitFp`; on a GPU `MatMul8bitLt`, whose temporaries are narrower. The
    input is no saved tensor, so that a checkpoint does not let it go."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Any) -> torch.Tensor:
        ctx.x, ctx.layer = x, layer
        if layer.seen:
            y = x.new_empty((*x.shape[:-1], len(layer.weight)))
            narrow = x.new_empty(3 * x.numel() + 6 * y.numel(), dtype=torch.uint8)
            del narrow
            return y
        return functional.linear(x, layer.whole(x.dtype), layer.bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        flat = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        whole = ctx.layer.whole(ctx.x.dtype)
        return torch.matmul(flat.to(ctx.x.dtype), whole).view(ctx.x.shape), None


class EightBits(nn.Module):
    """A linear layer of 8 bits."""

    scales: torch.Tensor

    def __init__(self, linear: Any, seen: bool) -> None:
        super().__init__()
        inside, outside = sizes_of(linear) or (0, 0)
        self.seen = seen
        weight = torch.empty(outside, inside, dtype=torch.int8, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scales", torch.empty(outside, device="meta"))
        self.bias = linear.bias

    def whole(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight in a type."""
        return self.weight.to(dtype, copy=True).mul_(self.scales.unsqueeze(1).mul(1.0 / 127.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _EightBitProduct.apply(x, self)
        return product
