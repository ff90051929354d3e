"""CUDA graphs: a capture runs its operations in order and keeps them, and a replay is one operation."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from ._session import active
from ._streams import Stream, followed, synchronize


class CUDAGraph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets what was captured."""
        self._operations: List[Tuple[Any, Any, Any, Any]] = []
        self._words: List[int] = []

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """What comes is kept."""
        active().capture = self

    def capture_end(self) -> None:
        """It is complete."""
        active().capture = None

    def add(self, run: Any, args: Any, kwargs: Any, made: Any, words: List[int]) -> None:
        """An operation that runs in the capture; `made` is what it made, if anything."""
        self._operations.append((run, args, kwargs, made))
        self._words += words

    def replay(self) -> None:
        """Runs what was captured, on the current stream."""
        session, thread = active(), followed()
        if session.confirm is not None:
            session.wait_all()
        number = session.places.number("CUDAGraph.replay", sys._getframe(1))
        session.finder.run(thread.stream(thread.device), number, self._words)
        for block in session.blocks.values():
            block.lent = True
        with _disable_current_modes(), torch._C._AutoDispatchBelowAutograd():
            for run, args, kwargs, made in self._operations:
                values = run(*args, **kwargs)
                if made is not None:
                    for out, value in zip(_pytree.tree_leaves(made), _pytree.tree_leaves(values)):
                        if isinstance(out, torch.Tensor) and out is not value:
                            out.copy_(value)

    def pool(self) -> Tuple[int, int]:
        """Its memory pool; memory of a capture is never shared here."""
        return (0, 0)

    def debug_dump(self, *_: Any, **__: Any) -> None:
        """Nothing is written."""

    instantiate = enable_debug_mode = debug_dump


class graph:
    """torch.cuda.graph()."""

    def __init__(self, cuda_graph: CUDAGraph, pool: Any = None, stream: Optional[Stream] = None, **_: Any) -> None:
        self._graph = cuda_graph
        self._stream = stream or Stream()

    def __enter__(self) -> None:
        synchronize()
        self._stream.__enter__()
        self._graph.capture_begin()

    def __exit__(self, *error: object) -> None:
        self._graph.capture_end()
        self._stream.__exit__(*error)


def replacements() -> Dict[str, Any]:
    """What replaces names of torch.cuda and torch.cuda.graphs."""
    return {"CUDAGraph": CUDAGraph, "graph": graph, "graph_pool_handle": lambda: (0, 0)}
