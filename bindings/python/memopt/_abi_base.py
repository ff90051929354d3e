"""What every table of the C interface is written with."""

from __future__ import annotations

import ctypes
from typing import Any


class Struct(ctypes.Structure):
    """A C struct; where it begins with struct_size, that is set on construction."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self._fields_[0][0] == "struct_size":
            self.struct_size = ctypes.sizeof(self)


class _CheckedStatus(ctypes.c_int32):
    """Marks a function whose status becomes an exception unless it is OK."""


#: Result marker: a failing status is raised.
CHECKED: Any = _CheckedStatus
