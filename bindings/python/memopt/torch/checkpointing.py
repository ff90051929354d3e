"""checkpoint(): run a function without keeping what its backward needs, and again in backward.

The semantics of torch's non-reentrant form, at a fraction of its overhead. While the function runs,
a hook replaces every tensor that autograd saves by a :class:`Holder`. The first holder that
backward asks for runs the function again, with the random state and autocast settings of the first
run, and fills all holders; the run stops as soon as the last one is filled.

Nothing is kept per thread: backward may run on any thread, and more than once (``retain_graph``). A
holder keeps the value of one backward pass, returns it once and drops it; a second request
recomputes.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterable, List, Optional, Tuple

import torch

from . import _recompute_check
from ._call_context import CallContext
from ._arguments import Arguments
from ._forward_call import ForwardCall
from ._hooks import hooked

Contexts = Callable[[], Tuple[ContextManager[Any], ContextManager[Any]]]
CheckpointError = torch.utils.checkpoint.CheckpointError

_graph_task = torch._C._current_graph_task_id
#: Whether a transform of torch.func (grad, vmap, …) is at work.
_transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
#: The torch.utils.checkpoint.GraphExecGroup around a backward; torch before 2.9 has none.
_group = getattr(torch._C, "_get_graph_exec_group", lambda: None)


class Holder:
    """Stands for a saved tensor: the `index`-th of its frame."""

    __slots__ = ("frame", "index", "task", "value", "__weakref__")

    def __init__(self, frame: "Frame", index: int) -> None:
        self.frame = frame
        self.index = index
        self.task: Any = None  # the backward pass, or group of them, that `value` is for
        self.value: Optional[torch.Tensor] = None


class _Stop(Exception):
    """All holders of a frame are filled."""


#: Autograd's own form of a saved tensor: outer hooks see it, and changes in place are found. If
#: torch has none, a node that nobody uses keeps the inputs.
_saved_tensor = getattr(torch._C._autograd, "_make_saved_tensor", None)


class SaveInputs(torch.autograd.Function):
    """A node that keeps the inputs; it knows nothing of forward derivatives."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise AssertionError("checkpoint: this output is not used")


anchor = torch.empty(0, requires_grad=True)


def _saver(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Lets autograd save a tensor; calling the result returns it."""
    if _saved_tensor is None:
        node: Any = SaveInputs.apply(anchor, tensor).grad_fn
        return lambda: node.saved_tensors[0]
    return _saved_tensor(tensor, False).unpack  # type: ignore[no-any-return]


def _passer(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The same for a tensor that is passed as the function left it."""
    return lambda: tensor


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class Frame:
    """One call of checkpoint()."""

    __slots__ = (
        "function",
        "arguments",
        "saved",
        "versions",
        "call_context",
        "context",
        "early_stop",
        "check",
        "complete",
        "holders",
        "facts",
        "__weakref__",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        call_context: CallContext,
        context: ContextManager[Any],
        check: str,
        early_stop: bool,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.call_context = call_context
        self.context = context  # of the recomputation
        self.check = check
        self.early_stop = early_stop
        self.complete = False  # the first run: a function may take gradients within it
        self.holders: List["weakref.ref[Holder]"] = []
        self.facts: List[Any] = []  # by holder: what the recomputed value must agree with
        #: Give the tensors among the arguments; a tensor that is there twice has one.
        loose, tensors = arguments.loose, arguments.tensors
        known: Dict[int, Callable[[], torch.Tensor]] = {}
        for i, tensor in enumerate(tensors):
            if id(tensor) not in known:
                known[id(tensor)] = _passer(tensor) if i in loose and tensor.is_inference() else _saver(tensor)
        self.saved = [known[id(tensor)] for tensor in tensors]
        #: Of the loose ones, at first.
        self.versions = [_version(arguments.tensors[i]) for i in loose]

    @property
    def name(self) -> str:
        """What messages call the function."""
        function = self.function
        return getattr(function, "__qualname__", None) or type(function).__qualname__

    # --- first run ---

    def pack(self, tensor: torch.Tensor) -> Holder:
        holder = Holder(self, len(self.holders))
        self.holders.append(weakref.ref(holder))
        if self.check != "none":
            self.facts.append(_recompute_check.facts(tensor, self.check))
        return holder

    def finish(self) -> None:
        """The first run is over."""
        self.complete = True
        tensors, self.arguments.tensors = self.arguments.tensors, []
        for i, version in zip(self.arguments.loose, self.versions):
            if _version(tensors[i]) != version:  # the function itself did that
                self.saved[i] = _passer(tensors[i])
        if self.check == "hash":
            self.facts = [_recompute_check.settled(fact) for fact in self.facts]

    # --- backward ---

    def recompute(self, task: Any) -> Dict[int, torch.Tensor]:
        """Runs the function again; the values of all holders that live, by number."""
        values = {saved: saved() for saved in self.saved}  # what was one object is one
        arguments, keywords = self.arguments.with_tensors([values[saved] for saved in self.saved])
        return self.run_again(task, arguments, keywords, self.early_stop)[0]

    def run_again(
        self, task: Any, arguments: Tuple[Any, ...], keywords: Dict[str, Any], early_stop: bool
    ) -> Tuple[Dict[int, torch.Tensor], Any]:
        """The values and the result, which is None where the run stopped early."""
        values: Dict[int, torch.Tensor] = {}
        wanted = [reference() is not None for reference in self.holders]
        last = len(wanted) - 1
        while last >= 0 and not wanted[last]:
            last -= 1
        count = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            index, count = count, count + 1
            if tensor.requires_grad:  # an input without comes back as the object that it was
                tensor = tensor.detach()
            if index >= len(wanted):
                if not self.complete:
                    return tensor
                raise self._miscounted("at least %d" % count)
            if self.check != "none":
                self._compare(index, tensor)
            if wanted[index]:
                values[index] = tensor
            if index == last and early_stop:
                raise _Stop
            return tensor

        result = self.call_context.run(self._run, pack, arguments, keywords)
        if count <= last:
            raise self._miscounted("only %d" % count)
        if task != -1:  # otherwise nothing would use them
            for reference in self.holders:
                holder = reference()
                if holder is not None and holder.index in values:
                    holder.task, holder.value = task, values[holder.index]
        return values, result

    def _run(self, pack: Callable[[torch.Tensor], Any], args: Any, kwargs: Any) -> Any:
        with self.context:
            try:
                with torch.enable_grad():
                    return hooked(pack, _identity, self.function, args, kwargs)
            except _Stop:
                pass
        return None

    def forget(self) -> None:
        """Drops the unused values."""
        for reference in self.holders:
            holder = reference()
            if holder is not None:
                holder.value = None

    def _compare(self, index: int, tensor: torch.Tensor) -> None:
        difference = _recompute_check.difference(self.facts[index], tensor, self.check)
        if difference is not None:
            raise CheckpointError(
                "checkpoint of %s: saved tensor %d of %d %s. Is a random state not restored, an"
                " input or a global changed since the first run, or an operation not deterministic,"
                " or does it leave memory unwritten?" % (self.name, index, len(self.holders), difference)
            )

    def _miscounted(self, count: str) -> CheckpointError:
        return CheckpointError(
            "checkpoint of %s: the first run saved %d tensors for backward, the recomputation"
            " %s; the function must do the same work each time" % (self.name, len(self.holders), count)
        )


def _identity(tensor: Any) -> Any:
    return tensor


def _within(context: ContextManager[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with context:
        return function(*args, **kwargs)
    return _UNFINISHED


def unpack(holder: Holder) -> torch.Tensor:
    task = _group()
    if task is None:
        task = _graph_task()
    value = holder.value
    if value is not None and holder.task == task:
        holder.value = None  # backward needs it once; a second request recomputes
        return value
    value = holder.frame.recompute(task)[holder.index]
    holder.value = None
    return value


def without_contexts() -> Tuple[ContextManager[Any], ContextManager[Any]]:
    return _NOTHING, _NOTHING


_NOTHING = contextlib.nullcontext()
_UNFINISHED: Any = object()


def checkpoint(
    function: Optional[Callable[..., Any]] = None,
    *args: Any,
    use_reentrant: Optional[bool] = None,
    preserve_rng_state: bool = True,
    context_fn: Contexts = without_contexts,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: Optional[bool] = None,
    **kwargs: Any,
) -> Any:
    """Calls ``function(*args, **kwargs)`` without keeping what its backward needs.

    As ``torch.utils.checkpoint.checkpoint(…, use_reentrant=False)``, with these differences:

    - Tensors inside lists, tuples, dicts and keyword arguments are kept as inputs as well, so that
      later changes in place are found and outer hooks (save_on_cpu) take them. Those that the
      function changes itself are passed again as it left them, as torch does.
    - `determinism_check` "default" compares number, shapes, dtypes and devices; "hash" compares
      the contents too, and names the tensor, the line that saved it and the first 4 KiB that
      differ; "none" nothing. Contents that the function changes after they were saved (the running
      statistics of a norm in training) are not compared, nor what ctc_loss saves, which has gaps.
    - There is no reentrant checkpointing: `use_reentrant` is accepted without effect.

    `preserve_rng_state`: the random numbers of both runs are the same, on the CPU and on the GPUs
    of the inputs. `context_fn` gives two context managers, for the first run and the recomputation.
    Tensors that torch's selective contexts keep do not go through hooks such as save_on_cpu
    (`respect_saved_tensors_hooks` may only be None or False).
    `early_stop`: the recomputation ends once it has the last needed tensor;
    ``torch.utils.checkpoint.set_checkpoint_early_stop`` around the call overrides it. Under a
    ``GraphExecGroup`` several backward calls share one recomputation. `debug` has no effect beyond
    what messages always say. Without `function` the call is a decorator.

    Inside torch.compile and the transforms of torch.func this is torch's own function, with the
    same options; "hash" is "default" there.

    CheckpointError if the recomputation differs from the first run. The function's exceptions
    propagate unchanged, from the first run or from backward.
    """
    if determinism_check not in _recompute_check.MODES:
        raise ValueError(
            "checkpoint: determinism_check must be one of %s, not %r"
            % (", ".join(map(repr, _recompute_check.MODES)), determinism_check)
        )
    if respect_saved_tensors_hooks:
        raise NotImplementedError(
            "checkpoint: respect_saved_tensors_hooks=True is not supported; tensors of selective"
            " contexts stay on the device"
        )
    if function is None:
        return functools.partial(
            functools.partial,
            checkpoint,
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve_rng_state,
            context_fn=context_fn,
            determinism_check=determinism_check,
            debug=debug,
            early_stop=early_stop,
        )
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    if torch.compiler.is_compiling() or _transforms():
        options: Dict[str, Any] = {}  # only what is set: an older torch may not know all of them
        if context_fn is not without_contexts:
            options["context_fn"] = context_fn
        if determinism_check == "none":  # torch has no "hash"
            options["determinism_check"] = "none"
        if not early_stop:
            options["early_stop"] = False
        return torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **options, **kwargs
        )
    forced = getattr(torch.utils.checkpoint, "_enable_checkpoint_early_stop", None)
    first, again = context_fn()
    if hasattr(first, "respect_saved_tensors_hooks"):
        first.respect_saved_tensors_hooks = False  # the hooks around it are ours
    arguments = Arguments(args, kwargs)
    call_context = CallContext(arguments.tensors, preserve_rng_state)
    stop = early_stop if forced is None else forced
    frame = Frame(function, arguments, call_context, again, determinism_check, stop)
    if first is _NOTHING:
        result = hooked(frame.pack, unpack, function, args, kwargs)
    else:
        result = hooked(frame.pack, unpack, _within, (first, function, args, kwargs), {})
    if result is _UNFINISHED:
        raise RuntimeError(
            "checkpoint of %s: a context that context_fn gave swallowed an exception of the first"
            " run, so there is no result" % frame.name
        )
    frame.finish()
    return result


def attach_checkpoint(layers: Iterable[torch.nn.Module], **options: Any) -> Callable[[], None]:
    """From now on each layer's forward is a :func:`checkpoint`, with its options; the returned function ends that.

        detach = mt.attach_checkpoint(model.model.layers)

    Whatever a layer takes, it takes as before. A copy of the model, and a pickled one, is without it.
    """

    def run(call: ForwardCall, args: Any, kwargs: Any) -> Any:
        return checkpoint(call.function, *args, **options, **kwargs)

    calls = [ForwardCall(layer, "forward", run) for layer in layers]

    def detach() -> None:
        for call in reversed(calls):
            call.remove()

    return detach
