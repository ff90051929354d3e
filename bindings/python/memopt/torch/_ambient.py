"""What a function's result depends on beside its arguments: random states and autocast settings."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Iterable, Iterator, List, Tuple

import torch

_is_autocast = torch.is_autocast_enabled
_autocast_dtype = torch.get_autocast_dtype
_cpu_generator = torch.default_generator


class Ambient:
    """A snapshot for a function of the given tensors; :meth:`restored` makes it current."""

    __slots__ = ("random", "autocast")

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
            yield


def _gpu_generator(index: int) -> Any:
    return torch.cuda.default_generators[index]
