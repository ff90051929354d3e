"""torch.distributed: gloo in the place of NCCL, with NCCL's rules. A collective runs on a stream of its own,
behind the current stream, and Work.wait() makes the current stream wait for it, not the host."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Tuple

import torch

from ._engine import follow
from ._finder import DEVICE, WRITE, words_of
from ._session import active, storage_of, tensors

_PYTHON = "distributed_c10d.py"


def collective(mode: Any, operator: Any, args: Any, kwargs: Any) -> Any:
    """Runs a collective."""
    session, thread = mode.session, mode.thread
    uses, device, _ = mode._uses(operator, args, kwargs)
    if operator.base == "barrier":
        session.wait_all()
    if device < 0:
        return operator.run(*args, **kwargs)
    follow(thread)
    current, stream = thread.stream(device), session.group_stream(device)
    if operator.base == "wait_tensor":
        session.wait(current, stream)
        return operator.run(*args, **kwargs)
    session.wait(stream, current)
    number = session.places.number(operator.name, sys._getframe(2), thread.backward)
    result = operator.run(*args, **kwargs)
    words: List[int] = []
    for tensor in tensors(result) if operator.makes else ():
        storage = storage_of(tensor)
        if storage is not None and storage._cdata not in session.blocks:
            block = session.tag(thread, storage, DEVICE, device, number)
            uses.append((tensor, WRITE, block, block.key))
    for tensor, mode, block, _ in uses:
        if block is not None:
            words += words_of(tensor, mode)
            session.record_stream(block, stream)
    session.finder.run(stream, number, words)
    if operator.name.startswith("c10d.") and not sys._getframe(2).f_code.co_filename.endswith(_PYTHON):
        # DDP's, which waits for it in C++, unseen
        session.wait(current, stream)
    return result


def _wait(raw: Callable[..., bool]) -> Callable[..., bool]:
    def wait(self: Any, *arguments: Any, **options: Any) -> bool:
        session = active()
        thread = session.thread()
        follow(thread)
        for device, stream in session.group_streams.items():
            session.wait(thread.stream(device), stream)
        return raw(self, *arguments, **options)  # gloo copies some results here

    return wait


def _with_gloo(raw: Callable[..., Any], position: int) -> Callable[..., Any]:
    """A function that takes the name of a backend."""

    def make(*arguments: Any, **options: Any) -> Any:
        words: List[Any] = list(arguments)
        if len(words) > position:
            words[position] = "gloo"
        else:
            options["backend"] = "gloo"
        for name in ("device_id", "pg_options"):
            options.pop(name, None)
        return raw(*words, **options)

    return make


def replacements() -> List[Tuple[Any, Dict[str, Any]]]:
    """What replaces functions of torch.distributed."""
    if not torch.distributed.is_available():
        return []
    from torch.distributed import distributed_c10d

    functions = {
        "init_process_group": _with_gloo(distributed_c10d.init_process_group, 0),
        "new_group": _with_gloo(distributed_c10d.new_group, 2),
        "is_nccl_available": lambda: True,
    }
    work = distributed_c10d.Work
    return [(torch.distributed, functions), (distributed_c10d, functions), (work, {"wait": _wait(work.wait)})]
