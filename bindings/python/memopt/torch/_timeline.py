"""The lifetime and category of every storage of a training step, exactly, on any device."""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ._storages import plain_tensors

CATEGORIES = ("weights", "gradients", "optimizer", "activations", "other")
_LIFT = torch.ops.aten.lift_fresh.default


class _Life:
    """A storage from its first sight to its end."""

    __slots__ = ("bytes", "device", "category", "__weakref__")

    def __init__(self, size: int, device: str, category: str) -> None:
        self.bytes = size
        self.device = device
        self.category = category


class Peak(NamedTuple):
    """The moment when most was alive on a device."""

    bytes: int
    categories: Dict[str, int]


class Timeline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, notes when each storage appears and ends.

    What a storage is may be known only later: a gradient becomes one when it is accumulated, an
    activation when it is saved for backward. So the peak is searched at the end.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lives: Dict[int, _Life] = {}  # by the storage's address, while it lives
        self._before: List[_Life] = []  # alive when the step began
        self._events: List[Tuple[_Life, int]] = []  # in order, +1 and -1
        self._hooks: List[Any] = []
        self._finalizers: Dict[int, Any] = {}

    # --- what there is ---

    def know(self, tensors: Iterable[torch.Tensor], category: str) -> None:
        """These are of a category; those not seen before were there from the beginning."""
        for tensor in tensors:
            for part in plain_tensors(tensor):
                self._enter(part, category, from_the_start=True)

    def watch_gradients(self, parameters: Iterable[Any]) -> None:
        """What is accumulated into these is a gradient, even if it is gone at the end."""
        for parameter in parameters:
            if parameter.requires_grad and parameter.is_leaf:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._note_gradient))

    def _note_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.know([parameter.grad], "gradients")

    def _enter(self, tensor: torch.Tensor, category: str, from_the_start: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        life = self._lives.get(key)
        if life is not None:
            if category != "other" and life.category in ("other", "activations"):
                life.category = category
            return
        life = self._lives[key] = _Life(storage.nbytes(), str(tensor.device), category)
        if from_the_start:
            self._before.append(life)
        else:
            self._events.append((life, 1))
        self._finalizers[key] = weakref.finalize(storage, self._leave, key, life)

    def _leave(self, key: int, life: _Life) -> None:
        if self._lives.get(key) is life:
            del self._lives[key], self._finalizers[key]
        self._events.append((life, -1))

    # --- while the step runs ---

    def __enter__(self) -> "Timeline":
        self._saved: Any = saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._saved.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._saved.__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        for part in plain_tensors(tensor):
            self._enter(part, "activations", from_the_start=True)
        return tensor

    def __torch_dispatch__(self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # torch.tensor() makes its result unseen, and then lifts it.
        self._see((args, kwargs), from_the_start=function is not _LIFT)
        result = function(*args, **kwargs)
        self._see(result, from_the_start=False)
        return result

    def _see(self, values: Any, from_the_start: bool) -> None:
        for value in tree_iter(values):
            if isinstance(value, torch.Tensor):
                for part in plain_tensors(value):
                    self._enter(part, "other", from_the_start)

    # --- afterwards ---

    def end(self) -> None:
        """Stops watching; otherwise living storages would keep this alive."""
        for finalizer in list(self._finalizers.values()):
            finalizer.detach()

    def peaks(self) -> Dict[str, Peak]:
        """For each device the first moment when most was alive, by category."""
        alive: Dict[str, Dict[str, int]] = {}
        best: Dict[str, Peak] = {}

        def add(life: _Life, sign: int) -> None:
            at = alive.setdefault(life.device, dict.fromkeys(CATEGORIES, 0))
            at[life.category] += sign * life.bytes

        def look(device: str) -> None:
            total = sum(alive[device].values())
            if device not in best or total > best[device].bytes:
                best[device] = Peak(total, dict(alive[device]))

        for life in self._before:
            add(life, 1)
        for device in alive:
            look(device)
        for life, sign in self._events:
            add(life, sign)
            look(life.device)
        return best
