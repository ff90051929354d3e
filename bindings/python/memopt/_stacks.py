"""Who allocates: Python call stacks by number, for the histories of allocators."""

from __future__ import annotations

import ctypes
import os
import sys
from types import CodeType
from typing import Any, Dict, List, Tuple

from . import _abi, errors
from ._lock import Guard

Frame = Dict[str, Any]
_Stack = Tuple[Tuple[CodeType, int], ...]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Stacks:
    """Stacks that were seen, each once. Number 0 is the empty one."""

    #: Frames of a stack, and different stacks: further ones count as empty.
    DEPTH, MOST = 48, 100_000

    def __init__(self) -> None:
        self._numbers: Dict[_Stack, int] = {}
        self._stacks: List[_Stack] = [()]
        self._own: Dict[CodeType, bool] = {}
        self._lock = Guard()
        #: For memopt_history_options; it lives as long as the allocators that know it.
        self.callback = _abi.HistoryContext(self._ask)

    def _ask(self, _user: object) -> int:
        return errors.run_callback(self._number, lambda error: 0)

    def _number(self) -> int:
        frame: Any = sys._getframe(1)
        found: List[Tuple[CodeType, int]] = []
        while frame is not None and len(found) < self.DEPTH:
            code = frame.f_code
            if found or not self._is_own(code):
                found.append((code, frame.f_lineno or 0))
            frame = frame.f_back
        stack = tuple(found)
        number = self._numbers.get(stack)
        return self._add(stack) if number is None else number

    def _is_own(self, code: CodeType) -> bool:
        """Frames of this package above the caller's tell nothing."""
        own = self._own.get(code)
        if own is None:
            own = os.path.abspath(code.co_filename).startswith(_PACKAGE)
            own = own or code.co_filename == ctypes.__file__
            self._own[code] = own
        return own

    def _add(self, stack: _Stack) -> int:
        with self._lock:
            if not stack or len(self._stacks) > self.MOST:
                return 0
            number = self._numbers.setdefault(stack, len(self._stacks))
            if number == len(self._stacks):
                self._stacks.append(stack)
            return number

    def frames(self, number: int) -> List[Frame]:
        """The frames of a number, innermost first, as torch writes them."""
        stack = self._stacks[number] if number < len(self._stacks) else ()
        return [{"name": code.co_name, "filename": code.co_filename, "line": line} for code, line in stack]


def no_frames(number: int) -> List[Frame]:
    """Without stacks."""
    return []
