"""Element types by any name that people and frameworks use."""

from __future__ import annotations

from typing import Any, Dict, Optional, Union

from . import errors
from ._abi import DType
from ._library import c_text, lib, output

__all__ = ["DType", "DTypeLike", "dtype_of"]

#: A DType, its name ("bf16", "bfloat16", "float32", "uint8" …), or a dtype of torch or NumPy.
DTypeLike = Union[DType, str, Any]

_seen: Dict[Any, DType] = {}  # a framework has few dtype objects, and a step looks up many tensors


def dtype_of(value: DTypeLike) -> DType:
    """The element type that a value names; UnsupportedError if the library lacks it."""
    if isinstance(value, DType):
        return value
    try:
        return _seen[value]
    except (KeyError, TypeError):
        pass
    found = _look_up(value)
    if found is None:
        raise errors.make(2, "dtype: %s is not an element type of this library" % (value,))
    _seen[value] = found
    return found


def _look_up(value: DTypeLike) -> Optional[DType]:
    if isinstance(value, int):
        try:
            return DType(value)
        except ValueError:
            return None
    name = value if isinstance(value, str) else _framework_name(value)
    try:
        return DType(output(lib.memopt_dtype_parse, c_text(name, "a dtype")))
    except errors.NotFoundError:
        return None


def _framework_name(value: Any) -> str:
    """torch.bfloat16 prints as "torch.bfloat16"; NumPy's dtypes and scalar types have a name."""
    name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
    return str(name).rpartition(".")[2]
