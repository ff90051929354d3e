"""The words that the C interface is written down with, and the tables that they fill.

A header's module says each thing once: an enumeration or a struct with its C name above it, and a
function in one line, its result first and then its parameters.
"""

from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER
from typing import Any, Callable, Dict, List, Tuple, Type, TypeVar

I32, I64 = ctypes.c_int32, ctypes.c_int64
U32, U64 = ctypes.c_uint32, ctypes.c_uint64
F32, F64 = ctypes.c_float, ctypes.c_double
SIZE = ctypes.c_size_t
CHAR = ctypes.c_char
TEXT = ctypes.c_char_p
#: Memory of any type; a handle is the library's own, and a stream the driver's.
ADDRESS = HANDLE = STREAM = ctypes.c_void_p
OUT_I32, OUT_U32, OUT_U64, OUT_TEXT = POINTER(I32), POINTER(U32), POINTER(U64), POINTER(TEXT)
OUT_F32, OUT_F64 = POINTER(F32), POINTER(F64)
OUT_ADDRESS = OUT_HANDLE = POINTER(ctypes.c_void_p)


class _CheckedStatus(ctypes.c_int32):
    """Marks a function whose status becomes an exception unless it is OK."""


#: Result marker: a failing status is raised. I32 as a result is one that the caller looks at.
CHECKED: Any = _CheckedStatus


class Struct(ctypes.Structure):
    """A C struct; where it begins with struct_size, that is set on construction."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self._fields_[0][0] == "struct_size":
            self.struct_size = ctypes.sizeof(self)


def each(kind: Any, names: str) -> List[Tuple[str, Any]]:
    """Fields of one type, whose names have spaces between them."""
    return [(name, kind) for name in names.split()]


#: Prefix of the C enumerators of each enumeration; names that differ are in ENUM_SPELLINGS.
ENUM_PREFIXES: Dict[Type[enum.IntEnum], str] = {}
ENUM_SPELLINGS: Dict[Tuple[Type[enum.IntEnum], str], str] = {}
#: C name of every struct.
STRUCTS: Dict[str, Type[Struct]] = {}
#: Of each library, name: (result, parameters).
PROTOTYPES: Dict[str, Dict[str, Tuple[Any, List[Any]]]] = {}
LIBRARY = "libmemopt"

_E = TypeVar("_E", bound=enum.IntEnum)
_S = TypeVar("_S", bound=Struct)


def enumeration(prefix: str, **spellings: str) -> Callable[[Type[_E]], Type[_E]]:
    """The class is the C enumeration with this prefix; `spellings` are names that differ."""

    def register(kind: Type[_E]) -> Type[_E]:
        ENUM_PREFIXES[kind] = prefix
        ENUM_SPELLINGS.update({(kind, name): c_name for name, c_name in spellings.items()})
        return kind

    return register


def struct(name: str) -> Callable[[Type[_S]], Type[_S]]:
    """The class is the C struct of this name."""

    def register(kind: Type[_S]) -> Type[_S]:
        STRUCTS[name] = kind
        return kind

    return register


def functions(library: str = LIBRARY, **prototypes: Tuple[Any, ...]) -> None:
    """Functions as name=(result, parameter, …); a struct is always passed by its address."""
    for name, (result, *parameters) in prototypes.items():
        kinds = [_parameter(kind) for kind in parameters]
        PROTOTYPES.setdefault(library, {})[name] = (result, kinds)


def _parameter(kind: Any) -> Any:
    return POINTER(kind) if issubclass(kind, Struct) else kind
