"""libmemopt's own savers in a program that is checked: its device is the library's "cpu".

Their copies run at once, in the order of the current stream, and are told to the finder as such. The
streams on which the library copies on a GPU are its own; the "cpu" device's race mode checks those.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Tuple

from .. import _native, _store
from ..streaming import _arena
from ._finder import DEVICE, READ, WRITE
from ._session import active
from ._streams import followed


_memory_at = _arena.memory_at


def _told(raw: Callable[..., None], mode: int) -> Callable[..., None]:
    """A copy of a store: of a slot or ticket, from or to an address; the next argument or the slot has the size."""

    def copy(self: Any, which: Any, address: int, *rest: Any) -> None:
        session, thread = active(), followed()
        raw(self, which, address, *rest)
        number = session.places.number("memopt.save_on_cpu", sys._getframe(), thread.backward)
        words = [address, getattr(which, "nbytes", rest[0]), 0, 0, mode]
        session.finder.run(thread.stream(thread.device), number, words)

    return copy


def _no_stream(self: Any) -> None:
    """What the library's other calls do is not told."""
    active().unseen["operations of libmemopt, as they run on the CPU"] += 1


def _lent(device: Any, address: int, nbytes: int, keeper: Any) -> Any:
    """Streamed weights: their copy runs in the order of the current stream."""
    session, thread = active(), followed()
    flat, owner = _memory_at(device, address, nbytes, keeper)
    number = session.places.number("memopt.stream_weights", sys._getframe(), thread.backward)
    index = thread.device if device.index is None else device.index
    session.tag(thread, flat.untyped_storage(), DEVICE, index, number)
    session.finder.run(thread.stream(index), number, [address, nbytes, 0, 0, WRITE])
    return flat, owner


def replacements() -> List[Tuple[Any, Dict[str, Any]]]:
    """What replaces names of memopt.torch. Devices and stores of the block are its own."""
    store = _store.Store
    copies = {
        "pack": _told(store.pack, READ),
        "pack_inline": _told(store.pack_inline, READ),
        "unpack_inline": _told(store.unpack_inline, WRITE),
    }
    return [
        (_native, {"_name": lambda device: "cpu", "_natives": {}}),
        (_native.Native, {"stream": _no_stream}),
        (_store, {"copies_inline": lambda device: True, "_idle": {}}),
        (store, copies),
        (_arena, {"memory_at": _lent}),
    ]
