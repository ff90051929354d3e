"""Where in a program an operation is: numbers, which the finder takes for tags, of operator and stack.

A stack is its innermost frames outside of PyTorch, so few that an operator of a loop is one place. They
are told apart by code and instruction; lines are looked up for a report.
"""

from __future__ import annotations

import dis
import importlib.util
import os
from types import CodeType
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

#: Code that is nobody's mistake: PyTorch's, this package's, and what starts a program or a thread.
_STARTERS = ("contextlib", "threading", "functools", "runpy", "concurrent.futures.thread")


def _files(module: str) -> str:
    """How the names of a module's files begin."""
    spec = importlib.util.find_spec(module)
    file = spec.origin if spec is not None and spec.origin else "<none>"
    return os.path.dirname(file) + os.sep if spec is not None and spec.submodule_search_locations else file


_HIDDEN = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    "<frozen ",
    *map(_files, _STARTERS),
)

#: What runs programs and tests: below its frames there is nothing of theirs.
_BELOW = (_files("memopt.cli.race"), _files("_pytest"))

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
        self._stacks: Dict[Tuple[int, ...], int] = {}  # their numbers by codes' ids and instructions
        self._places: Dict[Any, int] = {}
        self._shown: Dict[int, Tuple[CodeType, Optional[bool]]] = {}  # by the code's id, which the code keeps
        self._keys: List[Any] = []  # of _places; what, stack, backward
        self.number("", self.stack(None))

    def what(self, number: int) -> str:
        """The operation of a place."""
        return str(self._keys[number][0])

    def __getitem__(self, number: int) -> Place:
        what, stack, backward = self._keys[number]
        at = list(self._stacks)[stack]
        frames = [self._frame(*each) for each in zip(at[::2], at[1::2])]
        return Place(what, frames, *(backward or ("", 0)))

    def _frame(self, code_id: int, instruction: int) -> Frame:
        code = self._shown[code_id][0]
        lines = [line for start, line in dis.findlinestarts(code) if start <= instruction and line is not None]
        return code.co_filename, lines[-1], code.co_name

    def _is_shown(self, code: CodeType) -> Optional[bool]:
        """Whether this code is the program's; None: there is none of it from here on."""
        found = self._shown.get(id(code))
        if found is None:
            file = code.co_filename
            shown = None if file.startswith(_BELOW) else not file.startswith(_HIDDEN)
            found = self._shown[id(code)] = (code, shown)
        return found[1]

    def _frames(self, frame: Any) -> List[Any]:
        """The innermost frames of the program."""
        shown, frames = self._shown, []
        while frame is not None:
            code = frame.f_code
            known = shown.get(id(code))
            is_shown = known[1] if known is not None else self._is_shown(code)
            if is_shown:
                frames.append(frame)
                if len(frames) == self._depth:
                    break
            elif is_shown is None:
                break
            frame = frame.f_back
        return frames

    def stack(self, frame: Any) -> int:
        """The number of a frame's stack."""
        at = tuple([part for f in self._frames(frame) for part in (id(f.f_code), f.f_lasti)])
        return self._stacks.setdefault(at, len(self._stacks))

    def number(self, what: str, at: Any, backward: Optional[Tuple[str, int]] = None) -> int:
        """The number of an operation in a frame or a known stack, in the backward of a node and its forward's place."""
        key = (what, at if type(at) is int else self.stack(at), backward)
        number = self._places.get(key)
        if number is None:
            number = self._places[key] = len(self._keys)
            self._keys.append(key)
        return number


def is_torch(code: CodeType) -> bool:
    """Whether this code is PyTorch's or of this package."""
    return code.co_filename.startswith(_HIDDEN[:2])
