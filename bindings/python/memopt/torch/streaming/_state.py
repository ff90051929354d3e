"""The model's state: state_dict() reads the store, load_state_dict() writes it, layer by layer."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Union

import torch

from . import _four_bits
from ._layers import Layer, uncopied
from ._parts import Part


class State:
    """A layer's hooks."""

    def __init__(
        self,
        layer: Layer,
        read: Callable[[Part], torch.Tensor],
        write: Callable[[Layer, Part, Union[torch.Tensor, _four_bits.Packed]], None],
    ) -> None:
        self._layer, self._read, self._write = layer, read, write
        module: Any = layer.module()
        for part in layer.parts:  # load_safetensors() runs no hooks
            parameter: Any = part.parameter
            parameter._memopt_write = partial(write, layer, part)
        self.hooks: List[Any] = [
            module.register_state_dict_post_hook(partial(self._saved)),  # torch sets an attribute of it
            module.register_load_state_dict_pre_hook(self._loading),
        ]

    def remove(self) -> None:
        """The model's own state is all there is."""
        for hook in self.hooks:
            hook.remove()
        for part in self._layer.parts:
            del part.parameter._memopt_write  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        raise uncopied()

    def _names(self, module: torch.nn.Module, prefix: str) -> Dict[str, Part]:
        """Each name of a streamed parameter."""
        parts = {id(part.parameter): part for part in self._layer.parts}
        named = dict(module.named_parameters(remove_duplicate=False))
        for name, p in list(named.items()):
            if _four_bits.is_four_bits(p):
                named.update(("%s.%s" % (name, inner), t) for inner, t in _four_bits.tensors_of(p).items())  # type: ignore[misc]
        return {prefix + name: parts[id(p)] for name, p in named.items() if id(p) in parts}

    def _saved(self, module: torch.nn.Module, state: Dict[str, Any], prefix: str, _: Any) -> None:
        for name, part in self._names(module, prefix).items():
            if name in state:
                state[name] = self._read(part)

    def _loading(self, module: torch.nn.Module, state: Dict[str, Any], prefix: str, *_: Any) -> None:
        parts = {id(part.parameter): part for part in self._layer.parts}

        def put(target: torch.Tensor, value: torch.Tensor) -> None:
            part = parts.get(id(target))
            if part is None:
                target.copy_(value.view_as(target))
            else:
                self._write(self._layer, part, value.view(part.shape))

        for own_name, p in module.named_parameters(remove_duplicate=False):
            if _four_bits.is_four_bits(p):
                _four_bits.load_state(p, state, prefix + own_name, put)
        for name, part in self._names(module, prefix).items():
            value = state.get(name)
            packed = None if _four_bits.is_four_bits(part.parameter) else _four_bits.take_packed(state, name)
            if packed is not None and packed.shape == part.shape:
                self._write(self._layer, part, packed)
                state[name] = part.parameter
            elif isinstance(value, torch.Tensor) and value.shape == part.shape and value is not part.parameter:
                self._write(self._layer, part, value)
                state[name] = part.parameter  # there is nothing left to copy, or to assign
