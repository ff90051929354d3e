"""Sizes in bytes: numbers, or text as people write it."""

from __future__ import annotations

import operator
from typing import Union

from ._library import c_text, lib, output

#: A number of bytes, or text such as "1.5GiB", "512MiB", "2 GB" (= 2e9) or "4g" (= GiB).
Size = Union[int, str]


def parse_size(size: Size) -> int:
    """The bytes of a size. InvalidArgumentError (a ValueError) if it is invalid."""
    if isinstance(size, str):
        return int(output(lib.memopt_parse_size, c_text(size, "a size")))
    try:
        number = operator.index(size)
    except TypeError:
        raise TypeError("a size must be an int or text such as '1.5GiB', not %s" % type(size).__name__) from None
    if not 0 <= number < 1 << 64:
        raise ValueError("the size is %d; it must be from 0 to 2**64 - 1" % number)
    return number


def format_size(size: int) -> str:
    """A number of bytes for people: "1.50 GiB"."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1023.995 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return "%d B" % size if units[0] == "B" else "%.2f %s" % (value, units[0])
