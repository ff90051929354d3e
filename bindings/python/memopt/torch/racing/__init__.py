"""race(): stream mistakes of a PyTorch program, found without a GPU.

    with memopt.torch.race() as found:
        train()                        # as on a GPU: device="cuda", streams, events
    print(found.text())

Every operator runs on the CPU, and the finder in C (memopt/race.h) is told which memory it would use on
which stream of a GPU. It judges all orders that the streams permit. ``memopt race SCRIPT`` does so for a
whole program, and ``pytest --race`` for each test.

The modules: _finder (C), _places (stacks), _session (memory, threads), _streams, _tensors and _graphs
(torch.cuda, torch.Tensor), _groups (torch.distributed), _operators (the mode), _engine (autograd), _own
(libmemopt's savers), _confirm, _install, _reports.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Iterator

if TYPE_CHECKING:
    from ._reports import Result


@contextlib.contextmanager
def race(*, confirm: bool = False, stacks: int = 3) -> "Iterator[Result]":
    """Runs a block as on a GPU, and finds its races.

    After the block torch is as before, and the result has ``races``, ``unseen``, ``stats`` and
    ``text()``. Tensors that were made "on cuda" in the block are the CPU's then.

    Args:
        confirm: run each operation at the latest moment that the streams permit, so that a program
            with a race computes with NaN.
        stacks: how many of the program's frames make a place and are shown.

    There are as many devices as CUDA_VISIBLE_DEVICES names, else one for each process of this machine
    (LOCAL_WORLD_SIZE). RuntimeError where a block runs already. What a part of the program has that PyTorch's operators do
    not show (``unseen``) is not checked.
    """
    from ._install import Running
    from ._reports import Result

    running, result = Running(confirm, stacks), Result()
    try:
        running.begin()
        yield result
    finally:
        try:
            running.end(result)
        except BaseException:  # of a signal, say, that came before torch was as before
            running.end()
            raise


__all__ = ["race"]
