"""Applies a plan: chosen modules are checkpointed, and one hook around the model's forward holds a
recipe, or a copy on the host, in place of chosen values.

Nothing here is guessed. A module runs again by its own code; a value is made again as the graph of
this very step tells, or by its own module. Where a step saves other tensors than the plan knows, they
are kept as they are, and a warning says so.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils._pytree import tree_leaves

from .._call_context import CallContext
from .._forward_call import ForwardCall
from .._hooks import hooked
from .._packer import Packer, keep
from .._store import Options
from ..checkpointing import checkpoint
from ._loss import Logits
from ._recipes import Part, Recipe, look, note, noted, of_graph
from ._streams import brought
from ._tape import is_whole

NOTHING: Dict[str, Any] = {"modules": {}, "within": {}, "again": [], "graph": [], "host": [], "loss": ""}


class Applied:
    """Plans at work on a model: `spec_of` gives the one for a call's arguments, or None.

    A spec is plain data: {"modules": {name: [begin, end, [buffers]]}, "within": {name of a module in one of those:
    [buffers]}, "again": [names], "graph": [[number, look]], "host": [[number, look]], "loss": name of the Linear
    whose logits are never whole, or ""}.
    """

    def __init__(self, model: torch.nn.Module, method: str, options: Options, spec_of: Callable[..., Any]) -> None:
        self.model, self.options, self.spec_of = model, options, spec_of
        self.spec: Dict[str, Any] = NOTHING
        self.table: Dict[int, Tuple[str, List[Any]]] = {}
        self.number = self.unplanned = 0
        self.lost = self.inside = self.running = self.is_again = self.has_notes = False
        #: One for all steps: each packs into the host memory of the last.
        self.packer: Any = None
        self.calls: Dict[str, ForwardCall] = {"": ForwardCall(model, method, self.forward)}

    def use(self, spec: Dict[str, Any]) -> None:
        """From now on this plan is at work."""
        if spec is self.spec:
            return
        modules = dict(self.model.named_modules())
        for name in [*spec["modules"], *spec["within"], *spec["again"], *filter(None, [spec["loss"]])]:
            if name not in modules:
                raise ValueError("fit: the model has no module %r, which the plan names" % name)
            if name not in self.calls:
                self.calls[name] = ForwardCall(modules[name], "forward", functools.partial(self.part, name))
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        changed = {**{name: facts[2] for name, facts in spec["modules"].items()}, **spec["within"]}
        self.buffers = {name: [buffers[n] for n in names] for name, names in changed.items()}
        self.table = {number: (kind, look) for kind in ("graph", "host") for number, look in spec[kind]}
        self.spec = spec

    def remove(self) -> None:
        """The model is as it was."""
        for name in list(self.calls):
            self.calls[name].remove()
            del self.calls[name]

    # --- hooks ---

    def pack(self, tensor: torch.Tensor) -> Any:
        """Of the whole forward; modules that run again have their own within."""
        if self.inside:  # an input of such a module
            return keep(tensor)
        number = self.number
        self.number = number + 1
        part = noted(tensor) if self.has_notes else None
        if part is None and not self.lost and number in self.table:
            kind, expected = self.table[number]
            found = look(tensor)
            if found != expected:
                self.lose("saved tensor %d is %s, not %s" % (number, _words(found), _words(expected)))
            else:
                recipe = of_graph(tensor) if kind == "graph" else self.on_host(tensor)
                if recipe is None:
                    self.lose("saved tensor %d, %s, cannot be made again" % (number, _words(found)))
                else:
                    self.note(tensor, recipe)
                    part = noted(tensor)
        return keep(tensor) if part is None else part

    def note(self, tensor: torch.Tensor, recipe: Recipe) -> None:
        """The tensor's packs hold the recipe."""
        self.has_notes = True
        note(tensor, recipe)

    def on_host(self, tensor: torch.Tensor) -> Optional[Recipe]:
        """Stores the tensor's whole storage on the host, or on the disk."""
        if tensor.is_complex():
            return None
        packer = self.packer
        if tensor.is_leaf or not is_whole(tensor):  # else the packer has a short way
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            tensor = tensor.detach().as_strided((size,), (1,), 0)
        stored = packer.pack(tensor)
        return Recipe(lambda: packer.unpack(stored), ())

    def unpack(self, packed: Any) -> torch.Tensor:
        """Where backward needs a saved tensor."""
        return packed.tensor()  # type: ignore[no-any-return]

    def lose(self, what: str) -> None:
        """From here on this forward keeps what it saves."""
        self.lost = True
        self.unplanned += 1
        if self.unplanned == 1:
            warnings.warn(
                "fit: this step is not the one that was planned: %s. What it saves from there on is kept, so it takes"
                " more memory than planned; call fit() for steps like this one" % what,
                stacklevel=2,
            )

    def whole(self, what: str) -> None:
        """Logits were not to be whole."""
        if what and not self.lost:
            self.lose("%s needs all of what %s gives" % (what, self.spec["loss"]))

    # --- forward ---

    def forward(self, call: ForwardCall, args: Any, kwargs: Any) -> Any:
        """The model's own."""
        function, spec = call.function, self.spec_of(args, kwargs)
        if spec is None:
            return function(*args, **kwargs)
        self.use(spec)
        if not any(spec.values()):
            return function(*args, **kwargs)
        device_type = _device_type(args, kwargs)
        if spec["host"] and (self.packer is None or self.packer.device_type != device_type):
            self.packer = Packer(self.options, device_type, 1, (0, 0), (None, None))
        self.number, self.running, self.lost, self.inside, self.has_notes = 0, True, False, False, False
        try:
            return hooked(self.pack, self.unpack, function, args, kwargs)
        finally:
            self.running = False
            if self.packer is not None and self.packer.open:
                self.packer.close_batch()

    def part(self, name: str, call: ForwardCall, args: Any, kwargs: Any) -> Any:
        """A module's within it."""
        function = brought(call.module(), call.function)
        if name in self.spec["within"] and (self.inside or self.is_again):
            return self._run_again(name, function, args, kwargs)
        if not self.running or self.inside:  # it runs again, or within another one
            return call.function(*args, **kwargs)
        if name == self.spec["loss"]:
            linear: Any = call.module()
            return Logits(linear, self.whole, *args, **kwargs)
        if name in self.spec["modules"]:
            result = self._checkpointed(name, function, args, kwargs)
        else:
            result = call.function(*args, **kwargs)
        if name in self.spec["again"] and is_whole(result) and result.requires_grad:
            if not kwargs and all(isinstance(value, torch.Tensor) for value in args):
                context = CallContext(args, False)
                self.note(result, Recipe(lambda *given: context.run(function, *given), args))
        return result

    def _checkpointed(self, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        begin, end, _ = self.spec["modules"][name]
        if self.number != begin and not self.lost:
            self.lose("%d tensors were saved before %s, not %d" % (self.number, name, begin))
        self.inside = True
        try:
            return self._run_again(name, function, args, kwargs)
        finally:
            self.inside = False
            self.number = end

    def _run_again(self, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        again = _Again(self, self.buffers[name])
        return checkpoint(function, *args, context_fn=lambda: (contextlib.nullcontext(), again), **kwargs)


class _Again:
    """Around a module's second run: buffers that it changes are what they were before its first run; afterwards what
    they are now. Else a BatchNorm would count a batch twice, and a spectral norm read what it has changed."""

    def __init__(self, applied: Applied, buffers: List[torch.Tensor]) -> None:
        self.applied, self.buffers = applied, buffers
        self.before = [buffer.clone() for buffer in buffers]

    def __enter__(self) -> None:
        self.outer, self.applied.is_again = self.applied.is_again, True
        self.now = [buffer.clone() for buffer in self.buffers]
        _copy(self.buffers, self.before)

    def __exit__(self, *unused: Any) -> None:
        _copy(self.buffers, self.now)
        self.now = []
        self.applied.is_again = self.outer


def _copy(to: List[torch.Tensor], values: List[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(to, values):
            tensor.copy_(value)


def _words(looks: List[Any]) -> str:
    return "%s of shape %s with strides %s by %s" % (looks[2], looks[0], looks[1], looks[3] or "no operation")


def _device_type(args: Any, kwargs: Any) -> str:
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            return leaf.device.type
    return "cpu"
