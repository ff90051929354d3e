"""Replaces what a program sees of a GPU in torch, and puts it back."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Dict, List, Optional, Tuple

import torch

from ..._interrupt import Interruptible
from . import _engine, _graphs, _groups, _own, _session, _streams, _tensors
from ._operators import RaceMode
from ._reports import Result

_MISSING: Any = object()


class Patches:
    """Attributes that were replaced."""

    def __init__(self) -> None:
        self._before: List[Tuple[Any, Dict[str, Any]]] = []

    def set(self, owner: Any, values: Dict[str, Any]) -> None:
        """Replaces attributes of a class or module."""
        self._before.append((owner, {name: vars(owner).get(name, _MISSING) for name in values}))
        for name, value in values.items():
            setattr(owner, name, value)

    def undo(self) -> None:
        """Puts all back."""
        while self._before:
            owner, values = self._before.pop()
            for name, value in values.items():
                if value is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)


def _start(raw: Any) -> Any:
    """Thread.start() whose thread is seen, too."""

    def start(self: threading.Thread) -> None:
        run, session = self.run, _session.active()

        def followed() -> None:
            if session.finder.closed:
                return run()
            with RaceMode(session):
                run()

        self.run = followed  # type: ignore[method-assign]
        raw(self)

    return start


def _compile(model: Any = None, **_: Any) -> Any:
    """torch.compile(), which leaves a program's operators as they are."""
    _session.active().unseen["fused kernels of torch.compile(): its operators run as written"] += 1
    return model if model is not None else lambda function: function


def _triton(raw: Any) -> Any:
    """The launch of a Triton kernel."""

    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        function = getattr(self, "fn", self)
        _session.active().unseen["launches of the Triton kernel " + getattr(function, "__name__", "")] += 1
        return raw(self, *arguments, **options)

    return run


def _autocast(raw: Any) -> Any:
    def start(self: Any, device_type: str = "cuda", *arguments: Any, **options: Any) -> None:
        raw(self, "cpu" if device_type == "cuda" else device_type, *arguments, **options)

    return start


def install() -> Patches:
    """Replaces all of it. torch._dynamo comes first: it keeps what it finds in torch.cuda."""
    import torch._dynamo  # noqa: F401
    import torch.autograd.graph as graph

    patches = Patches()
    patches.set(torch.Tensor, _tensors.tensor_attributes())
    patches.set(torch.UntypedStorage, _tensors.storage_attributes())
    patches.set(torch.cuda, _streams.cuda_functions())
    patches.set(torch._C, {"_get_accelerator": lambda *_: torch.device("cuda")})
    patches.set(torch.accelerator, _streams.accelerator_functions())
    patches.set(torch, dict(_tensors.constructors(), Generator=_tensors.Generator, compile=_compile))
    patches.set(torch, {"Stream": _streams.Stream, "Event": _streams.Event})
    patches.set(torch.autocast, {"__init__": _autocast(torch.autocast.__init__)})
    run = _engine.engine(graph._engine_run_backward)
    for module in (graph, torch.autograd):
        patches.set(module, {"_engine_run_backward": run})
    patches.set(torch.backends.cudnn, {"is_acceptable": lambda tensor: False})
    for module in (torch.cuda, torch.cuda.graphs):
        patches.set(module, _graphs.replacements())
    for owner, values in _groups.replacements() + _own.replacements():
        patches.set(owner, values)
    for words in ("triton.runtime.jit JITFunction", "triton.runtime.interpreter InterpretedFunction"):
        where, name = words.split()
        kernel = getattr(sys.modules.get(where), name, None)
        if kernel is not None:
            patches.set(kernel, {"run": _triton(kernel.run)})
    patches.set(threading.Thread, {"start": _start(threading.Thread.start)})
    return patches


class Running:
    """torch as it is on a GPU, from begin() to end()."""

    def __init__(self, confirm: bool = False, stacks: int = 3) -> None:
        if stacks < 1:
            raise ValueError("memopt.torch.race: stacks must be at least 1, not %d" % stacks)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        count = len(visible.split(",")) if visible else int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        self._options = stacks, count, confirm
        self._has_begun = False
        self._session: _session.Session

    def begin(self) -> None:
        """Replaces torch's side of a GPU. RuntimeError where that has been done."""
        with Interruptible():
            if _session.is_active():
                raise RuntimeError("memopt.torch.race: a block runs already; blocks cannot be nested")
            self._session = _session.Session(*self._options)
            _session.activate(self._session)
            self._patches = install()
            self._stance = torch.compiler.set_stance("force_eager")  # what was compiled earlier
            self._mode = RaceMode(self._session)
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._has_begun = True

    def take(self, result: Result) -> None:
        """Gives what was found so far, and begins anew."""
        self._session.finish()
        result.read(self._session)
        self._session.restart()

    def end(self, result: Optional[Result] = None) -> None:
        """Gives what was found; torch is as before. Does nothing where it has not begun, or has ended."""
        if result is not None and self._has_begun:
            self._session.finish()
        with Interruptible():
            if not self._has_begun:
                return
            self._has_begun = False
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._stance.__exit__(None, None, None)
            self._patches.undo()
            _session.activate(None)
            if result is not None:
                result.read(self._session)
            self._session.close()
