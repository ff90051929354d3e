"""A parsed file as a tree whose scalars know their place in the text.

The three formats make the same tree, so looking up a dotted key, detecting a preset and comparing
what a change did are written once. Aliases and merge keys of YAML stay what they are: the lookup
follows them and tells through which anchor it went, because a change there is a change elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, List, Optional, Tuple, Union

from .errors import ApplyError

Part = Union[str, int]
Path = Tuple[Part, ...]

MAP, LIST, SCALAR, ALIAS = "map", "list", "scalar", "alias"


@dataclass
class Node:
    """A value. ``start`` and ``end`` are its text's span (-1 if the format does not have it)."""

    kind: str
    start: int = -1
    end: int = -1
    #: A scalar's value (of a key: its text), or the name that an alias refers to.
    value: Any = None
    #: How it is written: a quote character, "plain", "flow", "block", "|" …
    style: str = ""
    tag: Optional[str] = None
    anchor: Optional[str] = None
    line: int = 0
    #: Keys (the index in a list) and values, in the order of the file.
    entries: List[Tuple["Node", "Node"]] = field(default_factory=list)
    #: What an alias refers to.
    target: Optional["Node"] = None

    @property
    def real(self) -> "Node":
        """The node itself, or what the alias refers to."""
        return self.target if self.target is not None else self


@dataclass
class Spot:
    """Where a path leads."""

    path: Path
    node: Node
    holder: Node
    #: Nodes with anchors through which the path went.
    anchored: List[Node]
    #: The value comes from a merge key: the mapping itself does not have it.
    inherited: bool = False


class Tree:
    """A document."""

    def __init__(self, root: Optional[Node]) -> None:
        self.root = root

    def find(self, path: Path) -> Optional[Spot]:
        """Where the path leads, or None."""
        if self.root is None:
            return None
        node, holder, inherited = self.root, self.root, False
        anchored: List[Node] = []
        for depth, part in enumerate(path):
            node = node.real
            if node.anchor:
                anchored.append(node)
            holder = node
            found = _entry(node, part, path[: depth + 1])
            if found is None:
                return None
            node, source = found
            inherited = source is not None
            if source is not None and depth + 1 < len(path) and source.anchor:
                anchored.append(source)
        if node.anchor and not inherited:
            anchored.append(node)
        return Spot(path, node, holder, anchored, inherited)

    def walk(self) -> Iterator[Tuple[Path, Node]]:
        """Every value with its path, in the order of the file; aliases are not followed."""
        stack: List[Tuple[Path, Node]] = [((), self.root)] if self.root is not None else []
        while stack:
            path, node = stack.pop()
            yield path, node
            stack += [(path + (key.value,), value) for key, value in reversed(node.entries)]

    def locate(self, wanted: Node) -> Path:
        """Where a node stands in the file, whichever way it was reached."""
        return next(path for path, node in self.walk() if node is wanted)

    def also(self, spot: Spot) -> List[Tuple[Path, int]]:
        """The other places, with their lines, that a change of the spot's value would change."""
        places = []
        for path, node in self.walk():
            shared = any(node is one or node.target is one for one in spot.anchored)
            if shared and path != spot.path[: len(path)]:
                places.append((path, node.line))
        used = any(node.target is one for _, node in self.walk() for one in spot.anchored)
        return places if used else []


def _entry(node: Node, part: Part, path: Path) -> Optional[Tuple[Node, Optional[Node]]]:
    """A mapping's or list's value, and the mapping that it was merged from."""
    if node.kind == LIST:
        index = _index(part)
        if index is None or index >= len(node.entries):
            return None
        return node.entries[index][1], None
    if node.kind != MAP:
        return None
    same = [(key, value) for key, value in node.entries if key.value == str(part)]
    if len(same) > 1:
        lines = ", ".join(str(key.line) for key, _ in same)
        raise ApplyError(
            "the key %s is there %d times (lines %s); leave one of them"
            % (spelled(path), len(same), lines)
        )
    if same:
        return same[0][1], None
    for source in merges(node):
        found = _entry(source, part, path)
        if found is not None:
            return found[0], found[1] or source
    return None


def merges(node: Node) -> Iterator[Node]:
    """What a mapping's merge keys refer to, the strongest first."""
    for key, value in node.entries:
        if key.value == "<<" and key.style == "plain":
            for source in [item for _, item in value.entries] if value.kind == LIST else [value]:
                if source.real.kind == MAP:
                    yield source.real


def _index(part: Part) -> Optional[int]:
    if isinstance(part, int):
        return part
    return int(part) if part.isascii() and part.isdigit() else None


def parse_path(text: str) -> Path:
    """``a.b.0."dotted.name"`` as a path; ValueError says what is wrong."""
    parts: List[str] = []
    at = 0
    while True:
        if text[at : at + 1] in ('"', "'"):
            close = text.find(text[at], at + 1)
            if close < 0:
                raise ValueError("the quote in %r is not closed" % text)
            parts.append(text[at + 1 : close])
            at = close + 1
        else:
            dot = text.find(".", at)
            stop = len(text) if dot < 0 else dot
            parts.append(text[at:stop])
            at = stop
            if not parts[-1]:
                raise ValueError("%r has an empty part" % text)
        if at == len(text):
            return tuple(parts)
        if text[at] != ".":
            raise ValueError("a dot is missing after the quoted part in %r" % text)
        at += 1


def plain(node: Node) -> Any:
    """A value as Python has it; what a merge key brings too."""
    node = node.real
    if node.kind == LIST:
        return [plain(value) for _, value in node.entries]
    if node.kind != MAP:
        return node.value
    found = {key: value for source in merges(node) for key, value in plain(source).items()}
    found.update((key.value, plain(value)) for key, value in node.entries if key.value != "<<")
    return found


def spelled(path: Path) -> str:
    """The path as an option has it."""
    quoted = []
    for part in map(str, path):
        plain = part and not set(part) & set(".\"'")
        quoted.append(part if plain else ("'%s'" if '"' in part else '"%s"') % part)
    return ".".join(quoted)


def canonical(node: Optional[Node], path: Optional[Path], drop: bool) -> Any:
    """What is compared: all of the tree but the value at ``path`` (with ``drop``: the entry too).

    Aliases are compared by name, so that a small file cannot grow exponentially.
    """
    if node is None:
        return None
    if path == ():
        return "value"
    if node.kind in (SCALAR, ALIAS):
        return (node.kind, node.tag, node.anchor, node.style, repr(node.value))
    entries = []
    for key, value in node.entries:
        here = path is not None and str(path[0]) == str(key.value)
        inner = path[1:] if path is not None and here else None
        if not (drop and inner == ()):
            entries.append((str(key.value), canonical(value, inner, drop)))
    return (node.kind, node.tag, node.anchor, entries)
