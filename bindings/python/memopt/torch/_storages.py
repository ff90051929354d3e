"""The storages behind tensors: what takes memory, each counted once."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List

import torch
from torch.utils._pytree import tree_iter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The strided tensors that a tensor consists of: itself, the parts of a sparse one, what a
    wrapper such as a DTensor holds here. Nothing for those without memory."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            part = getattr(tensor, name)
            if isinstance(part, torch.Tensor):
                yield from plain_tensors(part)
        return
    for part in _parts(tensor):
        if part.device.type != "meta":
            yield part


def _parts(tensor: torch.Tensor) -> List[torch.Tensor]:
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []  # mkldnn and the like do not tell


def parameters_and_buffers(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The tensors that belong to a model."""
    yield from model.parameters()
    yield from model.buffers()


def gradients(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The gradients that there are."""
    for tensor in tensors:
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad


def states(optimizer: Any) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer's state, however nested."""
    for value in list(optimizer.state.values()):
        for leaf in tree_iter(value):
            if isinstance(leaf, torch.Tensor):
                yield leaf
