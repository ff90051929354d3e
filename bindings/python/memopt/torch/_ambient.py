"""What a function's result depends on beside its arguments: random states, autocast settings, and
the device that ``with torch.device(…)`` makes the default."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Iterable, Iterator, List, Optional, Tuple

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

_is_autocast = torch.is_autocast_enabled
_autocast_dtype = torch.get_autocast_dtype
_cpu_generator = torch.default_generator
_modes = torch._C._len_torch_function_stack


class Ambient:
    """A snapshot for a function of the given tensors; :meth:`restored` makes it current."""

    __slots__ = ("random", "autocast", "device")

    def __init__(self, tensors: Iterable[torch.Tensor], with_random: bool) -> None:
        #: Generators and their states.
        self.random: List[Tuple[Any, torch.Tensor]] = []
        if with_random:
            self.random.append((_cpu_generator, _cpu_generator.get_state()))
        gpus = {t.device.index for t in tensors if t.is_cuda}
        if with_random and gpus:
            self.random += [(g, g.get_state()) for g in map(_gpu_generator, sorted(gpus))]
        #: (device type, enabled, dtype) of each kind that the function can meet.
        self.autocast = [
            (kind, _is_autocast(kind), _autocast_dtype(kind))
            for kind in (("cpu", "cuda") if gpus else ("cpu",))
        ]
        #: Where tensors are made that name no device. Threads of backward have a default of their own.
        self.device = _default_device() if _modes() else None

    def restored(self) -> ContextManager[Any]:
        """A context in which the snapshot holds; what was before is put back after it."""
        return self._restored()

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            cache = torch.is_autocast_cache_enabled()
            for kind, enabled, dtype in self.autocast:
                if _is_autocast(kind) != enabled or (enabled and _autocast_dtype(kind) != dtype):
                    stack.enter_context(
                        torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cache)
                    )
            for generator, state in self.random:
                stack.callback(generator.set_state, generator.get_state())
                generator.set_state(state)
            if self.device is not None:
                stack.enter_context(self.device)
            yield


def _gpu_generator(index: int) -> Any:
    return torch.cuda.default_generators[index]


def _default_device() -> Optional[torch.device]:
    """That of the innermost ``with torch.device(…)`` or of torch.set_default_device."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    for mode in reversed(modes):
        if isinstance(mode, DeviceContext):
            return torch.device(mode.device)
    return None
