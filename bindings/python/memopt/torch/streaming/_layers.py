"""When a layer's weights come and go.

One layer is bound at a time, beside those whose forward is running: its parameters are views of the
arena. All others read as NaN, so a use that nothing here foresees is loud. What binds a layer:

  its forward                 also when a checkpoint runs it again
  a module in it with weights, for checkpoints that run the layer's class's forward (transformers does)
  the gradient of its result  before backward reads anything of it
  a ticket                    autograd's saved view of a weight, when backward asks for it

While a layer runs, hooks hold a ticket in place of each saved view of its memory, and give all else to the
hooks around it. A binding ends when the next layer is bound; the memory is free when nobody refers to it.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

import torch
from torch.utils._pytree import tree_leaves

from ... import errors
from ..._lock import Guard
from ...sizes import format_size
from .._hooks import hooked
from .._packer import keep
from .._slots import Kept
from . import _four_bits
from ._arena import Arena, Lent
from ._parts import Part, rounded

_outer_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_InferenceMode: Any = torch._C._InferenceMode
_set_grad: Callable[[bool], None] = torch._C._set_grad_enabled
_out_of_graphs: Callable[[Any], Any] = getattr(torch, "_disable_dynamo", lambda function: function)


class Layer:
    """A layer and where its weights are."""

    def __init__(self, name: str, module: torch.nn.Module, parts: List[Part]) -> None:
        self.name, self.module, self.parts = name, weakref.ref(module), parts
        #: What it takes in the arena.
        self.nbytes = sum(rounded(part.nbytes) for part in parts)
        #: Its number in the arena.
        self.number = 0
        #: Its memory, while it is bound; and whether all its parameters are there. A signal may end a
        #: binding, or its end, between two of them.
        self.flat: Optional[torch.Tensor] = None
        self.lent: Optional[Lent] = None
        self.is_whole = False
        #: Forwards that are running.
        self.depth = 0
        #: How often its store has changed; and whether the arena may have older weights.
        self.generation, self.is_old = 0, False


class Ticket:
    """What autograd holds in place of a view of a layer's memory."""

    __slots__ = ("layer", "generation", "dtype", "size", "stride", "offset")

    def __init__(self, layer: Layer, view: torch.Tensor) -> None:
        self.layer, self.generation, self.dtype = layer, layer.generation, view.dtype
        self.size, self.stride, self.offset = view.size(), view.stride(), view.storage_offset()


class Outer:
    """A tensor that the hooks around ours have packed."""

    __slots__ = ("unpack", "packed")

    def __init__(self, hooks: Tuple[Any, Any], tensor: torch.Tensor) -> None:
        self.unpack = hooks[1]
        self.packed = hooks[0](tensor)


class Layers:
    """All layers of one arena."""

    def __init__(self, arena: Arena, settle: Callable[[], None]) -> None:
        self.arena = arena
        self.all: List[Layer] = []
        self.bound: List[Layer] = []
        self.lock = Guard()
        self.warned = False
        #: Others stand for the parameters: nothing comes. And a trial runs: gradients of trained layers are dropped.
        self.resting = self.trial = False
        self._settle = settle  # looks which stores have changed
        self._calls: List["Call"] = []
        self._hooks: List[Any] = []
        self._layouts: List[Callable[[], None]] = []

    def attach(self, layer: Layer) -> None:
        """From now on the layer's weights come when they are needed."""
        module: Any = layer.module()
        for part in layer.parts:
            part.parameter.data = part.absent
        self.all.append(layer)
        self._calls.append(Call(self, layer, module))
        mine = {id(part.parameter) for part in layer.parts}
        for inner in module.modules():
            if any(id(p) in mine for p in inner.parameters(recurse=False)):
                touch = Touch(self, layer)
                self._hooks.append(inner.register_forward_pre_hook(touch))
                inner._memopt_streams = touch
            if any(_four_bits.is_four_bits(p) for p in inner.parameters(recurse=False)):
                self._layouts.append(_four_bits.keep_layout(inner))
                _four_bits.see(self)
        module._memopt_streams = Touch(self, layer)

    def detach(self) -> None:
        """No layer's weights come any more; those that are there go."""
        for call in self._calls:
            call.remove()
        for hook in self._hooks:
            hook.remove()
        for end in self._layouts:
            end()
        _four_bits.see_no_more(self)
        self._calls, self._hooks, self._layouts = [], [], []
        for layer in self.bound:
            layer.flat = layer.lent = None
        self.bound = []
        for layer in self.all:
            module: Any = layer.module()
            for inner in [] if module is None else module.modules():
                inner.__dict__.pop("_memopt_streams", None)

    # --- binding ---

    def acquire(self, layer: Layer) -> torch.Tensor:
        """The layer's memory, with its weights in the order of the current stream."""
        with self.lock:
            if not self._calls:
                raise RuntimeError("stream_weights: layer %s does not stream any more: remove() was called" % layer.name)
            if not layer.depth:
                self._settle()
                if layer.flat is not None and (layer.is_old or not layer.is_whole):
                    self.unbind(layer)
            if layer.flat is None:
                self._bind(layer)
            else:
                assert layer.lent is not None
                self.arena.follow(layer.lent)
            flat: torch.Tensor = layer.flat  # type: ignore[assignment]
        return flat

    def unbind_idle(self) -> None:
        """Ends bindings but those of running layers."""
        for layer in list(self.bound):
            if not layer.depth:
                self.unbind(layer)

    def _bind(self, layer: Layer) -> None:
        self.unbind_idle()
        self.arena.take_back()
        for other in self.all:
            if other.is_old:
                self._in_room(other, lambda: self.arena.evict(other.number))
                other.is_old = False
        if torch.is_grad_enabled():
            self.arena.expect()
        with _InferenceMode(False):  # of C, whose end no signal delays; it restores what follows
            _set_grad(False)
            flat, lent = self._in_room(layer, lambda: self.arena.lend(layer.number, layer.nbytes))
            for part in layer.parts:
                parameter = part.parameter
                if parameter.data_ptr() != part.absent.data_ptr():
                    raise RuntimeError(
                        "stream_weights: the memory of %s was replaced (by .to(), .data or an optimizer); its weights"
                        " are in the store: call remove() before, or load_state_dict()" % part.name
                    )
            layer.flat, layer.lent, layer.is_whole = flat, lent, False
            self.bound += [layer]
            for part in layer.parts:
                part.parameter.data = part.of(flat)
                part.version = part.parameter._version
            layer.is_whole = True

    def unbind(self, layer: Layer) -> None:
        """The parameters read as NaN. Raises where one was changed: it would be lost."""
        flat = layer.flat
        assert flat is not None
        changed = replaced = None
        layer.is_whole = False
        for part in layer.parts:
            parameter, place = part.parameter, part.parameter.data_ptr()
            if place == part.absent.data_ptr():
                continue
            if place != flat.data_ptr() + part.offset:
                replaced = part.name
                continue
            if parameter._version != part.version:
                changed = part.name
            parameter.data = part.absent
        self.bound = [other for other in self.bound if other is not layer]
        layer.flat = layer.lent = None
        if changed or replaced:
            raise RuntimeError(
                "stream_weights: %s was changed on the device, where it does not stay; change it by load_state_dict(),"
                ' or train it with train="host"' % (changed or replaced)
            )

    def _in_room(self, layer: Layer, call: Callable[[], Any]) -> Any:
        """What needs memory that others may hold; cycles of references may be all that does."""
        try:
            return call()
        except (errors.LimitReachedError, errors.BusyError):
            gc.collect()
            self.arena.take_back()
        try:
            return call()
        except (errors.LimitReachedError, errors.BusyError) as error:
            self._refuse(layer, error)

    def _refuse(self, layer: Layer, error: errors.MemoptError) -> NoReturn:
        held = self.arena.held()
        names = [
            "%s (%s, %s)" % (other.name, format_size(other.nbytes), "running" if other.depth else "held by tensors")
            for other in self.all
            if other.number in held
        ]
        raise errors.make(
            error.status,
            "stream_weights: layer %s needs %s of the budget of %s, and layers %s have theirs. Who keeps views of"
            " weights beyond a layer's own backward? (%s)"
            % (layer.name, format_size(layer.nbytes), format_size(self.arena.budget), ", ".join(names), error),
        ) from error

    # --- forward and backward ---

    def run(self, layer: Layer, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The layer's forward."""
        if self.resting:
            return forward(*args, **kwargs)
        pack = self._packing(layer, self.acquire(layer))  # a traceback of this frame holds no weights
        layer.depth += 1
        try:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            if not self.warned:
                self._look_at_autocast(layer)
            result = hooked(pack, self.unpack, forward, args, kwargs)
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                    leaf.register_hook(Touch(self, layer))  # type: ignore[no-untyped-call]
            return result
        finally:
            layer.depth -= 1

    def _packing(self, layer: Layer, flat: torch.Tensor) -> Callable[[torch.Tensor], Any]:
        where, outer = flat.untyped_storage().data_ptr(), _outer_hooks(True)
        del flat

        def pack(tensor: torch.Tensor) -> Any:
            if type(tensor) in _PLAIN and tensor.layout is torch.strided:
                if tensor.untyped_storage().data_ptr() == where:
                    return Ticket(layer, tensor)
            return keep(tensor) if outer is None else Outer(outer, tensor)

        return pack

    def unpack(self, saved: Any) -> torch.Tensor:
        """What backward asks for."""
        if type(saved) is Kept:
            return saved.tensor()
        if type(saved) is Outer:
            return saved.unpack(saved.packed)  # type: ignore[no-any-return]
        if torch.is_grad_enabled() and _graph_task() != -1:
            raise NotImplementedError(
                "stream_weights: backward with create_graph=True: its own graph would hold the weights of all layers"
            )
        layer: Layer = saved.layer
        flat = self.acquire(layer)
        if layer.generation != saved.generation:
            raise RuntimeError(
                "stream_weights: the weights of layer %s were changed after the forward whose backward needs them"
                % layer.name
            )
        view = torch.empty(0, dtype=saved.dtype, device=flat.device)
        return view.set_(flat.untyped_storage(), saved.offset, saved.size, saved.stride)

    def _look_at_autocast(self, layer: Layer) -> None:
        kind = self.arena.device.type
        if not torch.is_autocast_enabled(kind):
            return
        wanted = torch.get_autocast_dtype(kind)
        others = {part.dtype for part in layer.parts if part.dtype.is_floating_point} - {wanted}
        if others:
            self.warned = True
            warnings.warn(
                "stream_weights: under autocast to %s autograd keeps a cast of each weight of %s, so that their memory"
                " is not saved; convert the layers to %s before they stream"
                % (wanted, " and ".join(map(str, others)), wanted),
                stacklevel=4,
            )


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Touch:
    """A hook that binds a layer."""

    __slots__ = ("layers", "layer")

    def __init__(self, layers: Layers, layer: Layer) -> None:
        self.layers, self.layer = layers, layer

    def __call__(self, *_: Any) -> None:
        if not self.layer.depth and not self.layers.resting:
            self.layers.acquire(self.layer)

    def __reduce__(self) -> Any:
        raise uncopied()


@_out_of_graphs
def _run_eagerly(layers: Layers, layer: Layer, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """In a compiled program: a graph would keep addresses of weights."""
    return layers.run(layer, forward, args, kwargs)


class Call:
    """A layer's forward."""

    def __init__(self, layers: Layers, layer: Layer, module: Any) -> None:
        self.layers, self.layer = layers, layer
        self.own = module.__dict__.get("forward")
        self.__wrapped__ = module.forward
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return _run_eagerly(self.layers, self.layer, self.__wrapped__, args, kwargs)
        return self.layers.run(self.layer, self.__wrapped__, args, kwargs)

    def remove(self) -> None:
        """The module's forward is as before."""
        module: Any = self.layer.module()
        if module is None:
            return
        if self.own is None:
            module.__dict__.pop("forward", None)
        else:
            module.forward = self.own

    def __reduce__(self) -> Any:
        raise uncopied()


def uncopied() -> TypeError:
    """Why."""
    return TypeError(
        "stream_weights: a layer whose weights stream is not copied or pickled: they are in its store. Use its"
        " state_dict(), or remove() first"
    )
