"""What a function's result depends on in addition to its arguments: random states, autocast
settings, and the device that ``with torch.device(…)`` makes the default."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional, Tuple

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

_is_autocast = torch.is_autocast_enabled
_autocast_dtype = torch.get_autocast_dtype
_cpu_generator = torch.default_generator
_modes = torch._C._len_torch_function_stack


class CallContext:
    """A snapshot for a function of the given tensors; :meth:`run` makes it current."""

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
            (kind, _is_autocast(kind), _autocast_dtype(kind)) for kind in (("cpu", "cuda") if gpus else ("cpu",))
        ]
        #: The default device of new tensors. Threads of backward have their own.
        self.device = _default_device() if _modes() else None

    def put(self) -> None:
        """Makes the random states and the settings of autocast what they were."""
        _put(self.random, self.autocast)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function with the snapshot's settings and restores the previous ones.

        Not a ``with``: a signal in Python's ``__exit__`` would leave the thread in autocast.
        """
        random = [(generator, generator.get_state()) for generator, _ in self.random]
        kinds = [kind for kind, _, _ in self.autocast]
        autocast = [(kind, _is_autocast(kind), _autocast_dtype(kind)) for kind in kinds]
        try:
            self.put()
            if self.device is None:
                return function(*args)
            with self.device:
                return function(*args)
        finally:
            try:
                _put(random, autocast)
            except BaseException:  # of a signal
                _put(random, autocast)
                raise


def _put(random: List[Tuple[Any, torch.Tensor]], autocast: List[Tuple[str, bool, Any]]) -> None:
    for generator, state in random:
        generator.set_state(state)
    for kind, enabled, dtype in autocast:
        if _is_autocast(kind) != enabled or (enabled and _autocast_dtype(kind) != dtype):
            torch.clear_autocast_cache()  # of weights in the other type, which may change
            torch.set_autocast_dtype(kind, dtype)
            torch.set_autocast_enabled(kind, enabled)


def _gpu_generator(index: int) -> Any:
    return torch.cuda.default_generators[index]


def _default_device() -> Optional[torch.device]:
    """That of the innermost ``with torch.device(…)`` or of torch.set_default_device."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    for mode in reversed(modes):
        if isinstance(mode, DeviceContext):
            return torch.device(mode.device)
    return None
