"""What kernels take beside tensors while they run, in bytes, from an operation's arguments and result.

A convolution copies its tensors to the layout of its kernel and back, unless they are channels-last.
The rules are oneDNN's, found beside torch's own profiler of memory on a CPU; cuDNN's tensor cores want
the same layout. What the algorithms take that `cudnn.benchmark` finds is not known.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch

_aten = torch.ops.aten
#: Channels are filled up to this many.
_BLOCK = 16


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _is_last(tensor: Any) -> bool:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return last is not None and bool(tensor.is_contiguous(memory_format=last))


def _filled(tensor: Any, channels: int) -> int:
    return _bytes(tensor) * max(_BLOCK // max(channels, 1), 1)


def _copied(tensor: Any) -> int:
    """Of an input or output in the kernel's layout; nothing is copied that has it."""
    return 0 if _is_last(tensor) else _filled(tensor, tensor.shape[1])


def _weight(weight: Any, groups: int) -> int:
    return _filled(weight, weight.shape[1] if groups == 1 else _BLOCK)


def _convolution(args: Any, result: Any) -> int:
    x, weight, transposed, groups = args[0], args[1], args[6], args[8]
    wide = 2 if transposed or x.element_size() < 4 else 1
    more = max(_copied(result) - _bytes(result), 0)
    return max(_copied(x) + _weight(weight, groups), wide * _copied(result)) + more


def _convolution_backward(args: Any, result: Any) -> int:
    gradient, x, weight, groups = *args[:3], args[9]
    times = 2 if x.element_size() >= 4 else 8  # each thread sums in fp32
    if groups > 1 and weight.shape[1] == 1 and weight.numel() >= 49 * len(weight) and _is_last(x):
        times = 258  # a large depthwise kernel's gradient
    return _copied(x) + max(_copied(gradient), _copied(x)) + times * _weight(weight, groups)


def _batch_norm_backward(args: Any, result: Any) -> int:
    return _copied(args[1])


#: By operation.
KERNELS: Dict[Any, Callable[[Any, Any], int]] = {
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
}
