"""Arguments that a constructor does not have: bitsandbytes', and misspelt ones.

bitsandbytes' are taken where they ask for what there is anyway, so that its calls work here with
another class name. Others raise, and the message says what does the same here.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any, Callable, List, Sequence

from ..._abi import StateFormat
from . import _options

#: The bits of states; 8 in all other formats.
_BITS = {StateFormat.F32: 32, StateFormat.BF16: 16, StateFormat.COMPANDED4: 4}
#: The ends of class names that say the bits.
_ENDS = {32: "", 16: "Bf16", 8: "8bit", 4: "4bit"}


def checked(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that looks at arguments which the given one does not have. One that hands
    unknown arguments on is left as it is."""
    parameters = list(inspect.signature(init).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return init
    known = [p.name for p in parameters]

    @functools.wraps(init)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in [name for name in kwargs if name not in known]:
            value = kwargs.pop(name)
            if name == "is_paged" and value:
                self.__class__ = _paged(type(self))  # as if that class had been called
            else:
                _check(type(self), name, value, known)
        init(self, *args, **kwargs)

    return construct


def _paged(cls: type) -> type:
    """The class with the same rule and paged states."""
    if getattr(cls, "_page_bytes", 0):
        return cls
    derived: List[type] = cls.__subclasses__()
    for one in derived:
        if "_page_bytes" in vars(one):
            return one
    raise ValueError(
        "is_paged=True: there is no Paged%s; CPUOffloadOptimizer keeps the states of any class on the"
        " host" % cls.__name__
    )


def _check(cls: Any, name: str, value: Any, known: Sequence[str]) -> None:
    """Raises unless it is an argument of bitsandbytes' that changes nothing."""
    rule = cls.__name__
    if name == "optim_bits":
        bits = _BITS.get(cls._states, 8)
        if value != bits:
            raise ValueError(
                "optim_bits=%r: the states of %s have %d bits%s"
                % (value, rule, bits, _other(rule, value))
            )
    elif name == "percentile_clipping":
        if value != 100:
            raise ValueError(
                "percentile_clipping=%r: %s does not clip; call clip_grad_norm_() before step()"
                % (value, rule)
            )
    elif name == "block_wise":
        if not value:
            raise ValueError(
                "block_wise=%r: %s has a scale for each block, which loses less; leave it out"
                % (value, rule)
            )
    elif name == "is_paged":
        if cls._page_bytes:
            raise ValueError("is_paged=%r: take %s" % (value, rule.replace("Paged", "", 1)))
    elif name == "args":
        if value is not None:
            raise ValueError("args: %s takes each value as an argument of its own" % rule)
    else:
        nearest = _options.nearest(name, known)
        if nearest is None:
            raise TypeError("%s has no argument %r" % (rule, name))
        raise ValueError("%s has no argument %r; did you mean %r?" % (rule, name, nearest))


def _other(rule: str, bits: Any) -> str:
    """Which class of the rule has states of so many bits."""
    name = re.sub("(8bitCompanded|8bit|4bit|Bf16|Fp8)$", "", rule) + _ENDS.get(bits, "?")
    return "; take %s" % name if hasattr(sys.modules[__package__], name) else ""
