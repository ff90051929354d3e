"""A cross-entropy over the results of a last Linear by pieces of tokens, so that logits are never whole.

A :class:`Logits` stands for what the layer would give. F.cross_entropy() takes it with the layer's inputs; what
else is done with it makes the logits whole, and is then what it would be without. The losses of given logits and
their gradients have the bits of memopt_cross_entropy_add() and its neighbours, the same on each device and for any
number of threads; products are torch's own. So last bits differ from those of torch's loss.

Gradients are made in forward, in place of each piece's logits (Hsu et al., "Liger Kernel", 2024), as those of the
sum of all losses: backward multiplies them by what it is given, so 16 bits do not lose what a loss scale saves.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from ... import _abi
from ..._library import lib
from .. import _tensor_lists
from .._native import native

#: Tokens of a piece, at least; else its logits take what the layer's inputs take.
LEAST_TOKENS = 64

#: Is told what makes logits whole.
Told = Callable[[str], None]


def may_be_chunked(module: torch.nn.Module) -> bool:
    """Whether a module is a plain Linear."""
    return type(module) is torch.nn.Linear and type(module).forward is torch.nn.Linear.forward


@contextlib.contextmanager
def chunked(module: Any) -> Iterator[List[str]]:
    """Meanwhile a Linear gives Logits. Gives a list of what made them whole, and of the losses, which are ""."""
    own = module.__dict__.get("forward")
    found: List[str] = []
    module.forward = lambda *args, **kwargs: Logits(module, found.append, *args, **kwargs)
    try:
        yield found
    finally:
        del module.forward
        if own is not None:
            module.forward = own


class Logits:
    """What a Linear would give for `input`. `told` gets the name of what makes it whole, "" from a loss."""

    def __init__(self, module: torch.nn.Linear, told: Told, input: torch.Tensor) -> None:
        self._module, self._hidden, self._told = module, input, told
        kind = input.device.type
        self._autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        self._dtype, self._made = self._autocast or input.dtype, None  # type: Any, Any
        #: Of a view: what it is a view of, and how it is made.
        self._parent: Optional[Tuple[Logits, Callable[[Any], Any]]] = None

    def _derived(self, make: Callable[[Any], Any], hidden: torch.Tensor, dtype: Optional[torch.dtype] = None) -> Any:
        if self._is_whole():
            return make(self._whole(""))
        made = Logits.__new__(Logits)
        vars(made).update(vars(self), _hidden=hidden, _dtype=dtype or self._dtype, _made=None, _parent=(self, make))
        return made

    def _is_whole(self) -> bool:
        return self._made is not None or (self._parent is not None and self._parent[0]._is_whole())

    def _whole(self, why: str) -> torch.Tensor:
        """The logits; from then on it is them."""
        if self._made is None:
            if self._parent is not None:
                parent, make = self._parent
                self._made = make(parent._whole(why))
            else:
                self._told(why)
                kind, dtype = self._hidden.device.type, self._autocast
                with torch.enable_grad(), torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
                    self._made = F.linear(self._hidden, self._module.weight, self._module.bias)
        return self._made  # type: ignore[no-any-return]

    # --- what they are without being there ---

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self._hidden.shape[:-1], self._module.out_features))

    def size(self, dim: Optional[int] = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    dtype = property(lambda self: self._dtype)
    device = property(lambda self: self._hidden.device)
    ndim = property(lambda self: self._hidden.dim())

    def dim(self) -> int:
        return self._hidden.dim()

    def numel(self) -> int:
        return self.shape.numel()

    # --- what tokens alone are in ---

    def contiguous(self) -> Any:
        return self._derived(lambda whole: whole.contiguous(), self._hidden)

    def float(self) -> Any:
        return self._derived(lambda whole: whole.float(), self._hidden, torch.float32)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 1 or args[0] not in (torch.float32, self.dtype, self.device):
            return self._whole("to").to(*args, **kwargs)
        dtype = args[0] if isinstance(args[0], torch.dtype) else None
        return self._derived(lambda whole: whole.to(args[0]), self._hidden, dtype)

    def reshape(self, *shape: Any) -> Any:
        sizes = tuple(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        if len(sizes) < 2 or sizes[-1] != self.shape[-1]:
            return self._whole("reshape").reshape(sizes)
        return self._derived(lambda whole: whole.reshape(sizes), self._hidden.reshape(*sizes[:-1], self._hidden.shape[-1]))

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        if not 0 <= start_dim <= end_dim % self.dim() < self.dim() - 1:
            return self._whole("flatten").flatten(start_dim, end_dim)
        return self._derived(lambda whole: whole.flatten(start_dim, end_dim), self._hidden.flatten(start_dim, end_dim))

    def __getitem__(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        plain = all(isinstance(item, (int, slice, type(...))) and not isinstance(item, bool) for item in items)
        last = isinstance(items[-1], slice) and items[-1] == slice(None) if items else False
        if not plain or not (last if ... in items else len(items) < self.dim() or last):
            return self._whole("indexing")[index]
        return self._derived(lambda whole: whole[index], self._hidden[index])

    # --- all else ---

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._whole(name), name)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._whole("indexing")[index] = value

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return "Logits(shape=%s, dtype=%s: made when they are used)" % (tuple(self.shape), self.dtype)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.cross_entropy:
            found = _cross_entropy(*args, **kwargs)
            if found is not None:
                return found
        name = function.__name__
        if name in ("flatten", "reshape") and isinstance(args[0], Logits):
            return getattr(args[0], name)(*args[1:], **kwargs)
        args, kwargs = torch.utils._pytree.tree_map_only(Logits, lambda one: one._whole(name), (args, kwargs))
        return function(*args, **kwargs)


def _operator(name: str) -> Callable[..., Any]:
    def call(self: Logits, *args: Any) -> Any:
        return getattr(self._whole(name), name)(*args)

    return call


for _name in "add radd sub rsub mul rmul truediv rtruediv matmul neg pow eq ne lt le gt ge iadd isub imul itruediv".split():
    setattr(Logits, "__%s__" % _name, _operator("__%s__" % _name))


def _cross_entropy(
    logits: Any,
    target: torch.Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Optional[torch.Tensor]:
    """By pieces; None: only the whole will do."""
    strange = weight is not None or size_average is not None or reduce is not None or label_smoothing != 0.0
    if strange or reduction not in ("mean", "sum") or not isinstance(logits, Logits) or logits._is_whole():
        return None
    if logits.dim() != 2 or target.shape != logits.shape[:1] or target.dtype is not torch.int64:
        return None
    hidden, module, product = logits._hidden, logits._module, logits._autocast or logits._hidden.dtype
    if product not in _tensor_lists.FLOAT_TYPES:
        return None
    logits._told("")
    with torch.autocast(hidden.device.type, enabled=False):
        total: Any = _Losses.apply(hidden, module.weight, module.bias, target, ignore_index, product)
        loss = total if reduction == "sum" else total / (target != ignore_index).sum()
    return loss if logits._autocast is not None else loss.to(logits.dtype)  # type: ignore[no-any-return]


class _Losses(torch.autograd.Function):
    """The sum of all losses."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: Any, bias: Any, target: torch.Tensor, ignored: int, product: torch.dtype
    ) -> torch.Tensor:
        needs, cast, exact = ctx.needs_input_grad, weight.to(product), torch.float32
        added = None if bias is None else bias.to(product)
        for_hidden = torch.empty_like(hidden) if needs[0] else None
        for_weight = torch.zeros_like(weight, dtype=exact) if needs[1] else None
        for_bias = torch.zeros_like(bias, dtype=exact) if needs[2] else None
        losses = hidden.new_empty(len(hidden), dtype=exact)
        classes = target.where(target >= 0, len(weight)).masked_fill_(target == ignored, -1).to(torch.int32)
        count = max(LEAST_TOKENS, -(-hidden.numel() // len(weight)))
        for first in range(0, len(hidden), count):
            piece = slice(first, first + count)
            x = hidden[piece].to(product)
            gradient = F.linear(x, cast, added)
            _differentiate(gradient, classes[piece], losses[piece])
            if for_bias is not None:
                for_bias += gradient.sum(0, dtype=exact)
            if for_hidden is not None:
                for_hidden[piece] = gradient @ cast
            if for_weight is not None:
                _add_product(for_weight, gradient, x)
        ctx.made, ctx.dtypes = (for_hidden, for_weight, for_bias), (hidden.dtype, weight.dtype, weight.dtype)
        return losses.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        made, ctx.made = ctx.made, None
        if made is None:
            raise RuntimeError("fit: a loss in pieces has one backward; do without allow='chunked_loss' for another one")
        found = [None if g is None else g.mul_(gradient).to(dtype) for g, dtype in zip(made, ctx.dtypes)]
        return (*found, None, None, None)


def _differentiate(logits: torch.Tensor, classes: torch.Tensor, losses: torch.Tensor) -> None:
    """Writes the losses of rows, and the gradients of their sum in place of the logits. A class below 0 does not
    count; of one that is not there the loss is NaN."""
    rows = torch.zeros(len(logits), ctypes.sizeof(_abi.CrossEntropyRow), dtype=torch.uint8, device=logits.device)
    if isinstance(logits, FakeTensor):
        return
    side = native(logits.device)
    device, stream, of = side.device._handle.pointer, side.stream(), classes.data_ptr()
    given = _abi.Logits(
        data=logits.data_ptr(), rows=len(logits), columns=logits.shape[1], dtype=_tensor_lists.CODES[logits.dtype]
    )
    known = ctypes.cast(rows.data_ptr(), ctypes.POINTER(_abi.CrossEntropyRow))
    lib.memopt_cross_entropy_add(device, given, of, known, stream)
    made = ctypes.cast(losses.data_ptr(), ctypes.POINTER(ctypes.c_float))
    lib.memopt_cross_entropy_losses(device, known, of, len(logits), made, stream)
    lib.memopt_cross_entropy_gradient(device, given, of, known, 1.0, stream)
    _tensor_lists.changed([logits, losses])


def _add_product(total: torch.Tensor, gradient: torch.Tensor, x: torch.Tensor) -> None:
    """Adds gradientᵀ × x; in 16 bits by classes, for products come in that type."""
    if total.dtype is x.dtype:
        total.addmm_(gradient.t(), x)
        return
    step = max(1, gradient.numel() // x.shape[1])
    for first in range(0, len(total), step):
        total[first : first + step] += gradient[:, first : first + step].t() @ x
