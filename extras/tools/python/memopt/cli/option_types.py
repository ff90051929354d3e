"""Values of options, as argparse takes them: the text becomes a number, or is refused in words."""

from __future__ import annotations

import argparse
from typing import Callable, Optional

from ..sizes import parse_size


def seconds(least: float, most: float) -> Callable[[str], float]:
    """A time within a range."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                "%r is not a number of seconds from %g to %g" % (text, least, most)
            )
        return value

    return read


def integer(least: int, most: Optional[int] = None) -> Callable[[str], int]:
    """A number within a range; without `most`, of any size."""

    def read(text: str) -> int:
        value = int(text) if text.isdecimal() and len(text) < 20 else -1
        if value < least or (most is not None and value > most):
            room = "of at least %d" % least if most is None else "from %d to %d" % (least, most)
            raise argparse.ArgumentTypeError("%r is not an integer %s" % (text, room))
        return value

    return read


def size(text: str) -> int:
    """Bytes: "24GiB"."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive_size(text: str) -> int:
    """Bytes, more than none."""
    value = size(text)
    if value == 0:
        raise argparse.ArgumentTypeError("a size above 0 is needed, not %r" % text)
    return value
