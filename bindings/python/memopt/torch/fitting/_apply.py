"""Applies a plan: chosen modules are checkpointed, and one hook around the model's forward holds a
recipe, or a copy on the host, in place of chosen values.

Nothing here is guessed. A module runs again by its own code; a value is made again as the graph of
this very step tells, or by its own module. Where a step saves other tensors than the plan knows, they
are kept as they are, and a warning says so.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils._pytree import tree_leaves

from .._call_context import CallContext
from .._hooks import hooked
from .._packer import Packer, keep
from .._store import Options
from ..checkpointing import checkpoint, without_contexts
from ._recipes import Part, Recipe, look, note, noted, of_graph
from ._tape import is_whole

GRAPH, HOST = 0, 1


class Applied:
    """A plan at work on a model.

    `spec`: {"modules": {name: [begin, end, [buffers]]}, "again": [names], "graph": [[number, look]],
    "host": [[number, look]], "count": n}.
    """

    def __init__(self, model: torch.nn.Module, spec: Dict[str, Any], host_limit: int = 0) -> None:
        self.spec = spec
        self.host_limit = host_limit
        self.table: Dict[int, Tuple[int, List[Any]]] = {}
        for kind, name in ((GRAPH, "graph"), (HOST, "host")):
            for number, looks in spec[name]:
                self.table[number] = kind, looks
        self.number = 0
        self.lost = self.warned = False
        self.inside = False
        self.packer: Any = None
        modules = dict(model.named_modules())
        missing = [name for name in [*spec["modules"], *spec["again"]] if name not in modules]
        if missing:
            raise ValueError("fit: the model has no module %r, which the plan names" % missing[0])
        self.calls: List[Call] = [Call(self, model, _root, None)]
        buffers = dict(model.named_buffers(remove_duplicate=False))
        for name, facts in spec["modules"].items():
            self.calls.append(Call(self, modules[name], _again, facts, [buffers[n] for n in facts[2]]))
        for name in spec["again"]:
            self.calls.append(Call(self, modules[name], _remember, name))

    def remove(self) -> None:
        """The model is as it was."""
        while self.calls:
            self.calls.pop().remove()

    # --- hooks ---

    def pack(self, tensor: torch.Tensor) -> Any:
        """Of the whole forward; modules that run again have their own within."""
        if self.inside:  # an input of such a module
            return keep(tensor)
        number = self.number
        self.number = number + 1
        part = noted(tensor)
        if part is None and not self.lost and number in self.table:
            kind, expected = self.table[number]
            found = look(tensor)
            if found != expected:
                self.lose("saved tensor %d is %s, not %s" % (number, _words(found), _words(expected)))
            else:
                recipe = of_graph(tensor) if kind == GRAPH else self.on_host(tensor)
                if recipe is None:
                    self.lose("saved tensor %d, %s, cannot be made again" % (number, _words(found)))
                else:
                    note(tensor, recipe)
                    part = noted(tensor)
        return keep(tensor) if part is None else part

    def on_host(self, tensor: torch.Tensor) -> Optional[Recipe]:
        """Stores the tensor's whole storage on the host."""
        if tensor.is_complex():
            return None
        packer, size = self.packer, tensor.untyped_storage().nbytes() // tensor.element_size()
        stored = packer.pack(tensor.detach().as_strided((size,), (1,), 0))
        return Recipe(lambda: packer.unpack(stored), ())

    def unpack(self, packed: Any) -> torch.Tensor:
        """Where backward needs a saved tensor."""
        return packed.tensor()  # type: ignore[no-any-return]

    def lose(self, what: str) -> None:
        """From here on this forward keeps what it saves."""
        self.lost = True
        if not self.warned:
            self.warned = True
            warnings.warn(
                "fit: this step is not the one that was planned: %s. What it saves from there on is kept, so it takes"
                " more memory than planned; call fit() for steps like this one" % what,
                stacklevel=2,
            )

    # --- forward ---

    def forward(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """The model's own."""
        if self.spec["host"]:
            self.packer = Packer(Options(self.host_limit), _device_type(args, kwargs), 1, (0, 0), (None, None))
        self.number, self.lost, self.inside = 0, False, False
        try:
            return hooked(self.pack, self.unpack, forward, args, kwargs)
        finally:
            if self.packer is not None and self.packer.open:
                self.packer.close_batch()


class Call:
    """A module's forward with a plan. A copy of the module has its plain forward."""

    def __init__(self, applied: Applied, module: torch.nn.Module, run: Any, facts: Any, buffers: Any = ()) -> None:
        self.applied, self.run, self.facts = applied, run, facts
        self.own = module.__dict__.get("forward")
        self.function = module.forward
        self.module = weakref.ref(module)
        self.buffers = buffers
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.function(*args, **kwargs)
        return self.run(self, args, kwargs)

    def remove(self) -> None:
        module = self.module()
        if module is None:
            return
        if self.own is None:
            module.__dict__.pop("forward", None)
        else:
            module.forward = self.own

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        return _plain(memo[id(self.module())])

    def __reduce__(self) -> Any:
        return _plain, (self.module(),)


def _plain(module: torch.nn.Module) -> Any:
    return type(module).forward.__get__(module)


def _root(call: Call, args: Any, kwargs: Any) -> Any:
    return call.applied.forward(call.function, args, kwargs)


def _again(call: Call, args: Any, kwargs: Any) -> Any:
    applied = call.applied
    if applied.inside:  # within another one
        return call.function(*args, **kwargs)
    begin, end, _ = call.facts
    if applied.number != begin and not applied.lost:
        name = type(call.module()).__qualname__
        applied.lose("%d tensors were saved before a %s, not %d" % (applied.number, name, begin))
    contexts = without_contexts
    if call.buffers:
        contexts = lambda: (contextlib.nullcontext(), _as_then(call.buffers))  # noqa: E731
    applied.inside = True
    try:
        return checkpoint(call.function, *args, context_fn=contexts, **kwargs)
    finally:
        applied.inside = False
        applied.number = end


def _as_then(buffers: List[torch.Tensor]) -> ContextManager[None]:
    """While the module runs again, buffers that it changes are what they were before its first run; afterwards
    what they are now. Else a BatchNorm would count a batch twice, and a spectral norm read what it has changed."""
    before = [buffer.clone() for buffer in buffers]

    @contextlib.contextmanager
    def put() -> Iterator[None]:
        now = [buffer.clone() for buffer in buffers]
        _copy(buffers, before)
        try:
            yield
        finally:
            _copy(buffers, now)

    return put()


def _copy(to: List[torch.Tensor], values: List[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(to, values):
            tensor.copy_(value)


def _remember(call: Call, args: Any, kwargs: Any) -> Any:
    """Runs a cheap module, and notes how to make what it gives again."""
    result = call.function(*args, **kwargs)
    simple = not kwargs and all(isinstance(value, torch.Tensor) for value in args)
    if simple and not call.applied.inside and is_whole(result) and result.requires_grad:
        context, function = CallContext(args, False), call.function
        note(result, Recipe(lambda *given: context.run(function, *given), args))
    return result


def _words(looks: List[Any]) -> str:
    return "%s of shape %s with strides %s by %s" % (looks[2], looks[0], looks[1], looks[3] or "no operation")


def _device_type(args: Any, kwargs: Any) -> str:
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            return leaf.device.type
    return "cpu"
