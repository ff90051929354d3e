"""Streamed weights as fit() sees them: of layers that stream already, or of those that would.

Their bytes are the arena's. What autograd saves of them goes to the stream's own hooks, within fit()'s.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Set

import torch

from .._native import shares_memory
from ..streaming._arena import ARENA_UNIT
from ..streaming._layers import Layers
from ._choices import Choice
from ._tape import Tape


class Streamed:
    """What of a model's weights streams now; and what would, if there is a Candidate."""

    def __init__(self, model: torch.nn.Module, would: Any = None) -> None:
        touches = (vars(module).get("_memopt_streams") for module in model.modules())
        self.layers: List[Layers] = list({id(touch.layers): touch.layers for touch in touches if touch}.values())
        parts = [part for layers in self.layers for layer in layers.all for part in layer.parts]
        #: By the parameter's id.
        self.there, self.would = {id(part.parameter): part for part in parts}, would.parts if would else {}
        #: Storages of what stands for them.
        self.standing: Set[int] = set()
        #: The arenas' bytes, and those of what the parameters have while their weights are not there.
        self.arenas = sum(map(_device_bytes, self.layers))
        self.absent = sum(part.absent.untyped_storage().nbytes() for part in parts)
        modules = [layer.module() for layers in self.layers for layer in layers.all]
        self._modules = {id(module) for module in [*modules, *(would.modules if would else ())]}
        #: Fake tensors can stand for them; layers of 4 bits have more than parameters.
        self.has_fakes = all(type(part.parameter) is torch.nn.Parameter for part in parts)

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is of their memory."""
        if tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage()
        if storage._cdata in self.standing:
            return True
        return bool(self.layers) and not _is_fake(tensor) and self._lends(storage.data_ptr())

    def crosses(self, tape: Tape, choice: Choice) -> bool:
        """Whether a layer's weights would be needed for a value in the backward of another one."""
        if choice.what[0] != "again":
            return False
        unit = tape.units[choice.module]
        if not any(id(p) in self.there or id(p) in self.would for p in unit.module.parameters()):
            return False
        layer = next((outer for outer in (unit, *unit.outer()) if id(outer.module) in self._modules), unit)
        packs = [number for number, pack in enumerate(tape.packs) if pack.storage == choice.storage]
        return not layer.first_pack <= min(packs) <= max(packs) < layer.last_pack

    def _lends(self, address: int) -> bool:
        return any(layers.arena.lends(address) for layers in self.layers)

    @contextlib.contextmanager
    def trial(self, rests: bool) -> Iterator[None]:
        """Meanwhile gradients of layers that are trained on the host are dropped. `rests`: nothing streams."""
        for layers in self.layers:
            layers.unbind_idle()
            layers.resting, layers.trial = rests, True
        try:
            yield
        finally:
            for layers in self.layers:
                layers.resting = layers.trial = False


def _device_bytes(layers: Layers) -> int:
    """Of an arena; where the device's memory is the host's, of the store as well."""
    arena = layers.arena
    store = arena.offloader.stats()["host_bytes"] if shares_memory(arena.device) else 0
    return int(arena.budget // ARENA_UNIT * ARENA_UNIT + store)


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch._subclasses.FakeTensor)


def bring(module: torch.nn.Module) -> None:
    """The weights of a streamed layer, or of a module in one, are there."""
    touch: Any = vars(module).get("_memopt_streams")
    if touch is not None:
        touch()


def brought(module: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A module's function, for which its weights come also where it runs without its hooks."""
    if module is None or "_memopt_streams" not in vars(module):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        bring(module)
        return function(*args, **kwargs)

    return call
