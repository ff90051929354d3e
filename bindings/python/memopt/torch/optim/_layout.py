"""The memory layout of tensors, and what an optimizer can work on."""

from __future__ import annotations

from typing import Any, Dict

import torch

from .._tensor_lists import GRADIENT_TYPES
from .._tensor_lists import is_dense as is_dense


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for shards of several processes (a DTensor)."""
    return hasattr(type(tensor), "to_local")


def is_flattened(tensor: torch.Tensor) -> bool:
    """Whether a tensor is FullyShardedDataParallel's: a piece of many concatenated parameters."""
    return getattr(tensor, "_fsdp_flattened", False) is True


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of this process behind a tensor: of a sharded one, its shard."""
    shard: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return shard


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The value of a tensor of one process, or of a sharded one (a collective call)."""
    value: torch.Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return value


def same_in_all(value: torch.Tensor, mesh: Any) -> torch.Tensor:
    """A value that is the same in all processes of a mesh, as a DTensor."""
    from torch.distributed.tensor import DTensor, Replicate

    every = [Replicate()] * mesh.ndim
    result: torch.Tensor = DTensor.from_local(value, mesh, every, run_check=False)
    return result


def name_of(group: Dict[str, Any], group_index: int, index: int) -> str:
    """What messages call a parameter."""
    names = group.get("param_names")
    if names is not None and index < len(names):
        return "parameter %r" % names[index]
    return "parameter %d of group %d" % (index, group_index)


def check_parameter(tensor: torch.Tensor, name: str, later: bool = False) -> None:
    """Refuses what cannot be trained here. `later`: it may get its memory before the first step."""
    if tensor.layout is not torch.strided:
        raise TypeError("%s is sparse; only dense parameters are supported" % name)
    if tensor.dtype not in GRADIENT_TYPES:
        raise TypeError("%s is %s; float32, bfloat16 and float16 are supported" % (name, tensor.dtype))
    if tensor.is_meta:
        if later:
            return
        raise RuntimeError("%s is a meta tensor, without data; materialise the model first" % name)
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError("%s is on %s; cpu and cuda are supported" % (name, tensor.device))


def check_gradient(gradient: torch.Tensor, parameter: torch.Tensor, name: str, rule: str) -> None:
    """Refuses a gradient that a step cannot take."""
    if gradient.layout is not torch.strided:
        raise RuntimeError("%s does not support sparse gradients: that of %s is" % (rule, name))
    if gradient.is_complex():
        raise RuntimeError("%s does not support complex gradients: that of %s is" % (rule, name))
    if gradient.dtype not in GRADIENT_TYPES:
        raise TypeError(
            "the gradient of %s is %s; float32, bfloat16 and float16 are supported" % (name, gradient.dtype)
        )
    if gradient.device != parameter.device or gradient.shape != parameter.shape:
        raise RuntimeError(
            "the gradient of %s has shape %s on %s, the parameter %s on %s"
            % (name, tuple(gradient.shape), gradient.device, tuple(parameter.shape), parameter.device)
        )
    if gradient.numel() and not gradient.data_ptr():
        raise RuntimeError("the gradient of %s has no memory: its storage was freed" % name)


def shares_elements(tensor: torch.Tensor) -> bool:
    """Whether two indices may mean one place in memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def same_order(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether dense tensors of one shape have their elements in the same order of memory."""
    if a.stride() == b.stride():
        return True
    return all(x == y for x, y, size in zip(a.stride(), b.stride(), a.shape) if size != 1) and a.dim() == b.dim()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements in the order of memory."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset())


def like(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An empty dense tensor with the parameter's shape, in its order of memory if it is dense."""
    return torch.empty_like(parameter, dtype=dtype, memory_format=torch.preserve_format)


def dense(memory: torch.Tensor) -> torch.Tensor:
    """The memory itself, or an empty tensor like it without gaps."""
    return memory if is_dense(memory) else like(memory, memory.dtype)
