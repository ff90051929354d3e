"""Arguments as people write them, for fields of C."""

from __future__ import annotations

from typing import Any


def choice(kind: Any, value: Any, what: str) -> Any:
    """An enumerator by itself, its number or its name in any case."""
    if isinstance(value, str):
        try:
            return kind[value.upper().replace("-", "_")]
        except KeyError:
            names = ", ".join(repr(member.name.lower()) for member in kind)
            raise ValueError("%s is %r; it must be one of %s" % (what, value, names)) from None
    return kind(value)


def unsigned(value: int, bits: int, what: str) -> int:
    """An int that fits an unsigned field of C, which would wrap it silently."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("%s must be an int, not %s" % (what, type(value).__name__))
    if not 0 <= value < 1 << bits:
        raise ValueError("%s is %d; it must be from 0 to 2**%d - 1" % (what, value, bits))
    return value
