"""Where in a program an operation is: numbers, which the finder takes for tags, of operator and stack.

A stack is its innermost frames outside of PyTorch, so few that an operator of a loop is one place. They
are told apart by code and instruction; lines are looked up once for each place.
"""

from __future__ import annotations

import importlib.util
import os
from types import CodeType
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

#: Code that is nobody's mistake: PyTorch's, this package's, and what starts a program or a thread.
_STARTERS = (
    "contextlib",
    "threading",
    "functools",
    "runpy",
    "concurrent.futures.thread",
    "_pytest",
    "pluggy",
    "memopt_command",
)


def _files(module: str) -> str:
    """How the names of a module's files begin."""
    spec = importlib.util.find_spec(module)
    file = spec.origin if spec is not None and spec.origin else "<none>"
    return os.path.dirname(file) + os.sep if spec is not None and spec.submodule_search_locations else file


_HIDDEN = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "cli") + os.sep,
    "<frozen ",
    *map(_files, _STARTERS),
)

Frame = Tuple[str, int, str]  # file, line, function


class Place(NamedTuple):
    """An operation in a program."""

    what: str
    stack: List[Frame]
    node: str  # of autograd, whose backward it is
    forward: int  # the place of that node's forward; 0: not known


class Places:
    """All places of a program so far."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._numbers: Dict[Any, int] = {}
        self._shown: Dict[int, Tuple[CodeType, bool]] = {}  # by the code's id, which the code keeps
        self._known: List[Place] = [Place("", [], "", 0)]

    def __getitem__(self, number: int) -> Place:
        return self._known[number]

    def is_shown(self, code: CodeType) -> bool:
        """Whether this code is the program's."""
        found = self._shown.get(id(code))
        if found is None:
            found = self._shown[id(code)] = (code, not code.co_filename.startswith(_HIDDEN))
        return found[1]

    def number(self, what: str, frame: Any, backward: Optional[Tuple[str, int]] = None) -> int:
        """The number of an operation that is done in a frame, in the backward of a node and its forward's place."""
        shown, left = self._shown, self._depth
        key: List[Any] = [what, backward]
        start = frame
        while frame is not None:
            code = frame.f_code
            known = shown.get(id(code))
            if known[1] if known is not None else self.is_shown(code):
                key.append(id(code))
                key.append(frame.f_lasti)
                left -= 1
                if not left:
                    break
            frame = frame.f_back
        at = tuple(key)
        number = self._numbers.get(at)
        if number is None:
            node, forward = backward or ("", 0)
            self._known.append(Place(what, self._stack(start), node, forward))
            number = self._numbers[at] = len(self._known) - 1
        return number

    def _stack(self, frame: Any) -> List[Frame]:
        stack: List[Frame] = []
        while frame is not None and len(stack) < self._depth:
            if self.is_shown(frame.f_code):
                stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return stack


def is_torch(code: CodeType) -> bool:
    """Whether this code is PyTorch's or of this package."""
    return code.co_filename.startswith(_HIDDEN[:2])
