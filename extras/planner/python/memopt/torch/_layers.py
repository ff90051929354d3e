"""Equal layers of a model of Transformers: a few are run, and what the middle one does is repeated.

Layers are equal if their parts, tensors and settings are, but for their own number. That the middle
layers also do the same, forward and backward, is checked in what was recorded of them.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from ._recorder import Recorder

#: Layers that run: a first, two that must do the same, and a last.
RUN = 4


class Repeat(NamedTuple):
    """What other layers do: that of the events `which`, before the event `place`."""

    place: int
    which: List[int]
    times: int


class NotRepeated(Exception):
    """The middle layers do not do the same."""


class Layers:
    """The most equal layers of a module; run only four of them, or all."""

    def __init__(self, module: torch.nn.Module) -> None:
        lists = [part for part in module.modules() if isinstance(part, torch.nn.ModuleList)]
        self._module = module
        self._list = max((part for part in lists if _equal(module, part)), key=len, default=None)
        #: Where each layer was entered forward, and where its backward had a certain gradient.
        self._forward: List[int] = []
        self._backward: List[int] = []
        #: Whether four layers tell of more.
        self.few = self._list is not None and len(self._list) > RUN

    @contextlib.contextmanager
    def run(self, recorder: Recorder, progress: Callable[[float], None]) -> Iterator[None]:
        """While active, the module runs four layers, which are noted; `progress` is told how many
        of their passes began, forward and backward: 1 for all of a micro-batch."""
        kept = self._list
        assert kept is not None
        layers: Dict[str, Any] = dict(kept._modules)
        learns = [p.requires_grad for p in kept[0].parameters()]
        self._forward, self._backward = [], []

        def note(places: List[int]) -> None:
            places.append(len(recorder.events))
            progress((len(self._forward) + len(self._backward)) / (2 * RUN))

        def forward(*unused: Any) -> None:
            if recorder.marks[-1][1] == "forward":  # not as a checkpoint runs it again
                note(self._forward)

        def cut(*unused: Any) -> None:
            kept._modules = dict(list(layers.items())[:RUN])

        def whole(*unused: Any) -> None:
            kept._modules = layers

        hooks: List[Any] = [
            self._module.register_forward_pre_hook(cut),
            self._module.register_forward_hook(whole, always_call=True),
        ]
        for layer in list(kept)[:RUN]:
            hooks.append(layer.register_forward_pre_hook(forward))
            learning: Any = list(layer.parameters())[learns.index(True)]
            hooks.append(learning.register_post_accumulate_grad_hook(lambda p: note(self._backward)))
        try:
            yield
        finally:
            whole()
            for hook in hooks:
                hook.remove()

    def repeats(self, numbers: List[int], events: List[Any]) -> List[Repeat]:
        """What the layers that were left out do, in order. An account's events, and what is to be the
        same of them."""
        assert self._list is not None
        pieces: List[Tuple[int, int, int]] = []
        spans: List[Tuple[int, int]] = []
        for places in (self._forward, self._backward):
            if not places or len(places) % RUN:
                raise NotRepeated()
            for i in range(0, len(places), RUN):
                pieces.append(_piece(events, places[i : i + RUN]))
                spans.append((places[i], places[i + RUN - 1]))
        found = [(middle, list(range(start, middle))) for start, middle, _ in pieces]
        for piece in pieces[: len(pieces) // 2]:
            found += _late(numbers, events, piece, spans)
        times = len(self._list) - RUN
        return [Repeat(at, which, times) for at, which in sorted(found)]


def _piece(events: List[Any], places: List[int]) -> Tuple[int, int, int]:
    """Start, middle and end of two pieces that are the same, each from one layer's place to the
    next's."""
    for a, b, c in (places[-3:], places[:3]):
        if places == sorted(places) and events[a:b] == events[b:c]:
            return a, b, c
    raise NotRepeated()


def _late(
    numbers: List[int], events: List[Any], piece: Tuple[int, int, int], spans: List[Tuple[int, int]]
) -> List[Tuple[int, List[int]]]:
    """What dies outside all layers of what two pieces made, in any order, as weights that autocast
    has cast do."""
    start, middle, end = piece
    died: List[List[int]] = []
    for made in (set(numbers[start:middle]), set(numbers[middle:end])):
        late = [at for at, number in enumerate(numbers) if number < 0 and -number in made]
        died.append([at for at in late if not any(low <= at < high for low, high in spans)])
    first, second = (sorted(events[at] for at in late) for late in died)
    both = [*died[0], *died[1]]
    if first != second or both and max(numbers[min(both) : max(both)], default=-1) > 0:
        raise NotRepeated()
    return [(max(both) + 1, died[0])] if both else []


def _equal(module: torch.nn.Module, layers: torch.nn.ModuleList) -> bool:
    """Whether layers differ in nothing but their number, and learn; and no list of the
    configuration that has one value a layer tells them apart."""
    config = getattr(module, "config", None)
    count = len(layers)
    if getattr(config, "model_type", None) is None or not count:
        return False
    for value in vars(config).values():
        if isinstance(value, (list, tuple)) and len(value) == count and len(set(map(str, value))) > 1:
            return False
    tensors = [id(p) for layer in layers for p in layer.parameters()]
    first = _settings(layers[0])
    return (
        len(set(tensors)) == len(tensors)
        and any(p.requires_grad for p in layers[0].parameters())
        and all(_same(_settings(layer), first, number) for number, layer in enumerate(layers))
    )


def _same(settings: List[Any], first: List[Any], number: int) -> bool:
    """Whether a layer's settings are the first's, but where both are the layer's number."""
    return len(settings) == len(first) and all(
        (name == of) and (a is b or (type(a) is int and (a, b) == (number, 0)) or bool(a == b))
        for (name, a), (of, b) in zip(settings, first)
    )


def _settings(layer: torch.nn.Module) -> List[Tuple[str, Any]]:
    """All that says what a layer does."""
    found: List[Tuple[str, Any]] = []
    for path, part in layer.named_modules():
        found.append((path, type(part)))
        found += [(name, _kind(t)) for name, t in [*part._parameters.items(), *part._buffers.items()]]
        for name, value in vars(part).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                found.append((name, value))
    return found


def _kind(tensor: Optional[torch.Tensor]) -> Tuple[Any, ...]:
    if tensor is None:
        return ()
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad
