"""The arguments of a call with the tensors taken out, so that autograd can keep those."""

from __future__ import annotations

import collections
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch


class Arguments:
    """``(args, kwargs)``, and the tensors in them, also inside tuples, lists and dicts.

    Containers of other classes are kept as they are, with the tensors in them.
    """

    __slots__ = ("tensors", "loose", "_args", "_kwargs")

    def __init__(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        #: The tensors, in order.
        self.tensors: List[torch.Tensor] = []
        #: The numbers of those that are not positional arguments themselves.
        self.loose: List[int] = []
        self._args: Any = None  # None: nothing but the tensors, the common case
        self._kwargs: Any = None
        if not kwargs and all(isinstance(value, torch.Tensor) for value in args):
            self.tensors.extend(args)
        else:
            items = []
            for value in (*args, kwargs):
                before = len(self.tensors)
                items.append(self._take(value))
                if not isinstance(value, torch.Tensor):
                    self.loose.extend(range(before, len(self.tensors)))
            self._kwargs = items.pop()
            self._args = _Container(tuple, items)

    def _take(self, value: Any) -> Any:
        """`value` with each tensor replaced by a mark, and each container that has one rebuilt."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return _TENSOR
        build = _builder(value)
        if build is None:
            return value
        before = len(self.tensors)
        if isinstance(value, dict):
            items = [self._take(item) for item in value.values()]
        else:
            items = [self._take(item) for item in value]
        return value if len(self.tensors) == before else _Container(build, items)

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
        """The call's arguments again, with these tensors in place of its own."""
        if self._kwargs is None:
            return tuple(tensors), {}
        rest = iter(tensors)
        return _put(self._args, rest), _put(self._kwargs, rest)


class _Container(NamedTuple):
    """A container with tensors in it: how to make it from its items, and the items."""

    build: Callable[[List[Any]], Any]
    items: List[Any]


_TENSOR = object()


def _builder(value: Any) -> Any:
    """What makes a container like `value` from its items; None for everything else."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind
    if kind is dict or kind is collections.OrderedDict:
        keys = list(value)
        return lambda items: kind(zip(keys, items))
    if isinstance(value, tuple) and hasattr(kind, "_make"):  # a named tuple
        return kind._make
    return None


def _put(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if value is _TENSOR:
        return next(tensors)
    if type(value) is _Container:
        return value.build([_put(item, tensors) for item in value.items])
    return value
