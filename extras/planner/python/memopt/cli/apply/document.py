"""What the three formats have in common: a text, its trees, and changes of one value at a time.

A change only replaces the value's bytes or adds lines. Then the new text is parsed again; if it
differs in more than that value, the change is refused.
"""

from __future__ import annotations

from typing import Any, ClassVar, List, Optional, Tuple

from .errors import ApplyError, KeyMissing
from .tree import LIST, MAP, SCALAR, Node, Part, Path, Spot, Tree, canonical, spelled


class Document:
    """A file's text, parsed. Subclasses say how a format is read and written."""

    format: ClassVar[str] = ""

    def __init__(self, text: str) -> None:
        self.text = text
        self.trees = self.parse(text)

    # --- what a format has to say -----------------------------------------------------------------

    def parse(self, text: str) -> List[Tree]:
        """The documents of the text; ApplyError says where it is malformed."""
        raise NotImplementedError

    def literal(self, value: Any, old: Optional[Node]) -> str:
        """A scalar as this format writes it, in the style of the old one."""
        raise NotImplementedError

    def span(self, spot: Spot) -> Tuple[int, int]:
        """Where the value's text is."""
        return spot.node.start, spot.node.end

    def inserted(self, tree: Tree, holder: Node, path: Path, missing: Path, value: Any) -> str:
        """Text with a new entry in the mapping ``holder``: ``missing``, the end of ``path``."""
        raise NotImplementedError

    # --- what all do ------------------------------------------------------------------------------

    def find(self, path: Path) -> Optional[Tuple[Tree, Spot]]:
        """Where the path leads; in a file of several documents only one may have it."""
        found = [(tree, tree.find(path)) for tree in self.trees]
        there = [(tree, spot) for tree, spot in found if spot is not None]
        if len(there) > 1:
            lines = ", ".join(str(spot.node.line) for _, spot in there)
            raise ApplyError(
                "%d of its %d documents have the key %s (lines %s); split the file, or leave the "
                "key in one of them" % (len(there), len(found), spelled(path), lines)
            )
        return there[0] if there else None

    def value(self, path: Path) -> Any:
        """A scalar's value; KeyMissing where there is none, ApplyError for a mapping or a list."""
        found = self.find(path)
        if found is None:
            raise KeyMissing("it has no key %s" % spelled(path))
        node = found[1].node.real
        if node.kind != SCALAR:
            kind = {MAP: "a mapping", LIST: "a list"}[node.kind]
            raise ApplyError(
                "line %d: %s is %s, not a single value; change it by hand"
                % (node.line, spelled(path), kind)
            )
        if node.tag is not None:
            raise ApplyError(
                "line %d: %s has the tag %s; change it by hand"
                % (node.line, spelled(path), node.tag)
            )
        if not isinstance(node.value, (str, int, float, type(None))):
            raise ApplyError("line %d: %s is %s" % (node.line, spelled(path), node.value))
        return node.value

    def expand(self, path: Path) -> List[Path]:
        """The paths that match a path with ``*``."""
        paths: List[Path] = [()]
        for part in path:
            if part == "*":
                paths = [one + (key,) for one in paths for key in self._keys(one)]
            else:
                paths = [one + (part,) for one in paths]
        return paths

    def _keys(self, path: Path) -> List[Part]:
        found = self.find(path)
        entries = found[1].node.real.entries if found is not None else []
        return [key.value for key, _ in entries if key.value != "<<"]

    def line(self, path: Path) -> int:
        """The line where the value starts."""
        found = self.find(path)
        return found[1].node.line if found is not None else 0

    def set(self, path: Path, value: Any, shared: bool = False) -> "Document":
        """The document with the scalar at ``path`` replaced, or its entry added in a mapping that
        merges it from another one."""
        found = self.find(path)
        if found is None:
            raise KeyMissing("it has no key %s" % spelled(path))
        tree, spot = found
        if not shared:
            _refuse_shared(tree, spot)
        if spot.inherited:
            return self._add(tree, spot.holder, tree.locate(spot.holder) + path[-1:], 1, value)
        if spot.node.style in ("|", ">"):
            raise ApplyError(
                "line %d: %s is a block of text; change it by hand"
                % (spot.node.line, spelled(path))
            )
        old = spot.node if spot.node.kind == SCALAR else None
        start, end = self.span(spot)
        text = self.text[:start] + self.literal(value, old) + self.text[end:]
        return self._checked(text, tree, tree.locate(spot.node), value, None)

    def add(self, path: Path, value: Any, shared: bool = False) -> "Document":
        """The document with a new entry at ``path``, and the mappings on the way to it."""
        if len(self.trees) > 1:
            raise ApplyError(
                "it has %d documents: say by hand where %s belongs"
                % (len(self.trees), spelled(path))
            )
        tree = self.trees[0]
        depth, holder = 0, tree.root
        for depth in range(len(path) - 1, -1, -1):
            spot = tree.find(path[:depth])
            if spot is None:
                continue
            holder = spot.node.real
            if not shared:
                _refuse_shared(tree, Spot(path, holder, holder, spot.anchored))
            break
        if holder is not None and holder.kind != MAP:
            kind = {LIST: "a list", SCALAR: "a single value"}[holder.kind]
            where = spelled(path[:depth]) or "the file"
            raise ApplyError(
                "line %d: %s is %s, so %s cannot be added"
                % (holder.line, where, kind, spelled(path))
            )
        if holder is None:
            holder = Node(MAP, len(self.text), len(self.text), style="block")
            return self._add(tree, holder, path, len(path), value)
        return self._add(tree, holder, tree.locate(holder) + path[depth:], len(path) - depth, value)

    def _add(self, tree: Tree, holder: Node, path: Path, new: int, value: Any) -> "Document":
        text = self.inserted(tree, holder, path, path[len(path) - new :], value)
        return self._checked(text, tree, path, value, path[: len(path) - new + 1])

    def _checked(
        self, text: str, tree: Tree, path: Path, value: Any, added: Optional[Path]
    ) -> "Document":
        """The text parsed again, after checking that only the value at ``path`` differs."""
        place = spelled(path)
        trouble = ApplyError(
            "%s could not be changed without changing more than its value; change it by hand"
            % place
        )
        try:
            after = type(self)(text)
            spot = after.trees[self.trees.index(tree)].find(path)
        except ApplyError:
            raise trouble from None
        if spot is None or len(after.trees) != len(self.trees):
            raise trouble
        got = spot.node.value
        if spot.node.kind != SCALAR or type(got) is not type(value) or got != value:
            raise trouble
        for was, now in zip(self.trees, after.trees):
            here = was is tree
            skip = (added or path) if here else None
            before = canonical(was.root, None if added else skip, False)
            if added and before is None:
                before = (MAP, None, None, [])
            if before != canonical(now.root, skip, added is not None):
                raise trouble
        return after


def _refuse_shared(tree: Tree, spot: Spot) -> None:
    places = tree.also(spot)
    if not places:
        return
    anchor = ", ".join("&" + str(node.anchor) for node in spot.anchored)
    raise ApplyError(
        "line %d: %s is shared through the anchor %s: %s would change too. Pass --shared to "
        "change all of them, or write the value out in each place"
        % (
            spot.node.line,
            spelled(spot.path),
            anchor,
            ", ".join("%s (line %d)" % (spelled(path), line) for path, line in places[:5]),
        )
    )
