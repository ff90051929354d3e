"""What was found, for a person and as JSON. No address or number of an object is in it, so that a
second run of the program gives the same text."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Dict, List, Optional

import torch

from ._finder import HOST, PINNED
from ._places import Frame
from ._session import Session

#: By memopt_race_kind; the host's accesses have a page of their own.
_KINDS = ("", "read after write", "write after read", "write after write", "freed in use")
_FREED = 4
_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
#: The guide's page: in an installed package, or in the source tree.
_PAGES = [os.path.normpath(os.path.join(_PACKAGE, place, "guide/race.md")) for place in (".", "../../../docs")]
_PAGE = next(filter(os.path.exists, _PAGES), "docs/guide/race.md")
_COLORS = {"race": "\x1b[1;31m", "missing": "\x1b[32m", "dim": "\x1b[2m", "": ""}


def _shown(file: str) -> str:
    """A path from here where it is below here."""
    here = os.getcwd() + os.sep
    return file[len(here) :] if file.startswith(here) else file


class Race:
    """A race, in words. ``str()`` gives the whole report."""

    def __init__(self, session: Session, raw: Any) -> None:
        names = session.names
        self.kind = _KINDS[raw.kind]
        if raw.kind != _FREED and HOST in (raw.first.actor, raw.second.actor):
            self.kind = "host " + self.kind
        self.memory = "page-locked" if raw.memory == PINNED else "device"
        self.first_byte = raw.address - raw.block_address
        self.bytes, self.block_bytes = raw.bytes, raw.block_bytes
        self.first = self._side(session, raw.first)
        self.second = self._side(session, raw.second)
        self.freed = session.places[raw.freed_tag].stack if raw.kind == _FREED else None
        waiter, waited = names[raw.waiter], names[raw.waited]
        if raw.kind == _FREED:
            self.text = "a block of %d bytes of %s was freed while %s uses it, and %s may get it" % (
                raw.block_bytes, waiter, waited, self.second["operator"],
            )  # fmt: skip
            self.missing = "tensor.record_stream(%s), or %s.wait_stream(%s) before the free" % (waited, waiter, waited)
        else:
            verbs = [("reads", "writes")[side.write] for side in (raw.second, raw.first)]
            self.text = "%s on %s %s bytes %d to %d of %s memory of %d bytes that %s on %s %s; nothing orders the two" % (
                self.second["operator"], names[raw.second.actor], verbs[0], self.first_byte,
                self.first_byte + raw.bytes - 1, self.memory, raw.block_bytes, self.first["operator"],
                names[raw.first.actor], verbs[1],
            )  # fmt: skip
            self.missing = "between the two, %s.wait_stream(%s)" % (waiter, waited)
            if raw.waiter == HOST:
                self.missing = "between the two, event.synchronize() or %s.synchronize()" % waited
        self.page = _shown(_PAGE) + "#" + ("host" if self.kind.startswith("host") else self.kind.replace(" ", "-"))

    @staticmethod
    def _side(session: Session, side: Any) -> Dict[str, Any]:
        place = session.places[side.tag]
        return {
            "operator": place.what,
            "stream": session.names[side.actor],
            "writes": bool(side.write),
            "stack": place.stack,
            "backward_of": place.node or None,
            "forward_stack": session.places[place.forward].stack,
        }

    def lines(self, color: bool = False) -> List[str]:
        """The report."""

        def painted(text: str, what: str) -> str:
            return _COLORS[what] + text + "\x1b[0m" if color else text

        lines = [painted("RACE", "race") + " (%s): %s" % (self.kind, self.text)]
        lines += [painted("  missing: " + self.missing, "missing")]
        lines += ["  first:   " + self._head(self.first), *self._frames(self.first)]
        if self.freed is not None:
            lines += ["  freed at:", *self._stack(self.freed)]
        lines += ["  second:  " + self._head(self.second), *self._frames(self.second)]
        return lines + [painted("  see %s" % self.page, "dim")]

    @staticmethod
    def _head(side: Dict[str, Any]) -> str:
        text = "%s on %s" % (side["operator"], side["stream"])
        return text + (", in the backward of %s" % side["backward_of"] if side["backward_of"] else "")

    @staticmethod
    def _stack(stack: List[Frame]) -> List[str]:
        return ["      %s:%d in %s" % (_shown(file), line, name) for file, line, name in stack]

    def _frames(self, side: Dict[str, Any]) -> List[str]:
        lines = self._stack(side["stack"])
        if side["forward_stack"]:
            lines += ["    whose forward is at", *self._stack(side["forward_stack"][:2])]
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def as_json(self) -> Dict[str, Any]:
        """The report for a program."""

        def frames(stack: Optional[List[Frame]]) -> Any:
            return [{"file": _shown(f), "line": n, "function": name} for f, n, name in stack or ()]

        def side(values: Dict[str, Any]) -> Dict[str, Any]:
            return dict(values, stack=frames(values["stack"]), forward_stack=frames(values["forward_stack"]))

        values = {
            name: getattr(self, name) for name in "kind text missing memory first_byte bytes block_bytes page".split()
        }
        return dict(values, first=side(self.first), second=side(self.second), freed_stack=frames(self.freed))


@functools.lru_cache(None)
def _uses_torch(file: str) -> bool:
    with open(file, "rb") as library:
        return b"libtorch" in library.read()


def extensions() -> List[str]:
    """Modules of C++ or CUDA that were loaded beside torch and use it: their own kernels are not seen."""
    found = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.endswith(".so") and not file.startswith(os.path.dirname(torch.__file__) + os.sep):
            if os.path.exists(file) and _uses_torch(file):
                found.append(name)
    return found


class Result:
    """What a block or a program had. ``races`` is a list of them, in the order in which they were found;
    ``unseen`` says what could not be seen, and how often it was there; ``stats`` is the finder's count."""

    def __init__(self) -> None:
        self.races: List[Race] = []
        self.unseen: Dict[str, int] = {}
        self.stats: Dict[str, int] = {}

    def read(self, session: Session) -> None:
        """Takes it from the session, which ends."""
        self.races = [Race(session, raw) for raw in session.finder.reports()]
        self.stats = session.finder.stats()
        self.unseen = dict(sorted(session.unseen.items()))
        self.unseen.update({"kernels of the extension " + name: 1 for name in extensions()})

    def summary(self) -> List[str]:
        """The last lines of a report: how much was looked at, and what was not seen."""
        lines = ["race: %d found in %d operations" % (len(self.races), self.stats.get("operations", 0))]
        if self.stats.get("forgotten"):
            lines.append(
                "race: %d accesses were forgotten, since the finder's memory is bounded" % self.stats["forgotten"]
            )
        if not self.unseen:
            return lines + ["race: all of it was seen: no kernel outside of PyTorch's operators was noticed"]
        lines.append("race: not seen, and so not checked:")
        return lines + ["  %d x %s" % (count, what) for what, count in self.unseen.items()]

    def text(self, color: bool = False) -> str:
        """All reports and the summary."""
        lines = [line for race in self.races for line in race.lines(color)]
        return "\n".join(lines + self.summary())

    def as_json(self) -> Dict[str, Any]:
        """The same for a program."""
        return {"races": [race.as_json() for race in self.races], "unseen": self.unseen, "stats": self.stats}
