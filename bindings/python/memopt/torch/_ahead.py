"""How far save_on_cpu runs ahead of the device, in bytes: copies back that begin before backward asks,
and copies to the host that are not waited for.

A packer has one :class:`Ahead` for each store. It knows the stored slots in the order of their copies,
and for each slot how many bytes were stored before it; so what lies between two slots is a difference.

Neither limit asks what a layer is, since any function may run under the context: by default both are a
sixteenth of the most that one forward pass has stored so far.
"""

from __future__ import annotations

from typing import Any, List, Optional

from .._lock import Guard
from ._slots import Slot, _live

#: The default is this part of a forward pass: a layer, where there are so many.
PARTS = 16
#: And at least this: below, a link of 20 GB/s takes 1.6 ms.
LEAST_BYTES = 32 << 20


class Ahead:
    """The stored slots of a packer on one device."""

    def __init__(self, prefetch: Optional[int], in_flight: Optional[int]) -> None:
        self._prefetch, self._in_flight = prefetch, in_flight
        self._lock = Guard()  # taken before those of the store
        self._order: List[int] = []  # numbers of slots, those that ended included
        self._room = 1000  # the length at which those are taken out
        self._stored = 0  # bytes, ever
        self._begun = 0  # what _stored was when this forward pass began
        self._most = 0  # bytes of a forward pass
        self._backward = False
        self._next = 0  # slots of the order that were not looked at in this backward pass
        self._asked = 0  # where backward is, in bytes stored before

    def in_flight(self) -> int:
        """The bytes whose copies to the host may be under way."""
        return self._share() if self._in_flight is None else self._in_flight

    def _share(self) -> int:
        return max(LEAST_BYTES, self._most // PARTS)

    def add(self, slot: Slot) -> None:
        """A slot was stored, or kept on its device where the host is full."""
        with self._lock:
            if self._backward:
                self._begun, self._backward = self._stored, False
            slot.stored_before = self._stored
            if slot.ticket:
                if len(self._order) >= self._room:
                    self._order = [number for number in self._order if number in _live]
                    self._room = 2 * len(self._order) + 1000
                self._order.append(slot.number)
                self._stored += slot.nbytes
                self._most = max(self._most, self._stored - self._begun)
            self._next, self._asked = len(self._order), self._stored

    def fetch(self, slot: Slot, stream: Any) -> None:
        """Backward has asked for a slot: brings back what was stored before it, the nearest first,
        as far as the limit goes, but at least one."""
        limit = self._share() if self._prefetch is None else self._prefetch
        with self._lock:
            self._backward = True
            start = slot.stored_before
            if start is None:  # one of the newest, which waits on its device
                start = self._stored
            order = self._order
            while order and order[-1] not in _live:
                del order[-1]
            if start > self._asked or self._next > len(order):
                self._next = len(order)
            self._asked = start
            while limit and self._next:
                one = _live.get(order[self._next - 1])
                hold = None if one is None else one()  # it must not end meanwhile
                if one is not None and hold is not None and one.stored_before < start:
                    distance = start - one.stored_before
                    if distance > limit and distance != one.nbytes:
                        break
                    if not one.prefetch(stream):
                        break
                self._next -= 1
            del order
