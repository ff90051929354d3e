"""TOML by tomlkit, which keeps the text; a mark put there finds the place of a value."""

from __future__ import annotations

import json
import os
import re
from typing import Any, List, Optional, Tuple

from .document import Document
from .errors import ApplyError
from .tree import LIST, MAP, SCALAR, Node, Path, Spot, Tree

_MARK = "memopt-mark-of-a-place"


def _tomlkit() -> Any:
    try:
        import tomlkit
        import tomlkit.exceptions
    except ImportError:
        raise ApplyError("changing TOML files needs tomlkit: pip install 'memopt[apply]'") from None
    return tomlkit


class TomlDocument(Document):
    """A TOML file."""

    format = "TOML"

    def parse(self, text: str) -> List[Tree]:
        tomlkit = _tomlkit()
        try:
            root = _node(tomlkit.parse(text))
        except tomlkit.exceptions.ParseError as error:
            what = str(error).rpartition(" at line ")[0] or str(error)
            raise ApplyError(
                "line %d column %d: it is not TOML: %s" % (error.line, error.col, what)
            ) from None
        except (tomlkit.exceptions.TOMLKitError, ValueError) as error:
            raise ApplyError("it is not TOML: %s" % error) from None
        return [Tree(root)]

    def find(self, path: Path) -> Optional[Tuple[Tree, Spot]]:
        found = super().find(path)
        if found is not None and found[1].node.kind == SCALAR:
            found[1].node.line = self.text.count("\n", 0, self.span(found[1])[0]) + 1
        return found

    def span(self, spot: Spot) -> Tuple[int, int]:
        tomlkit = _tomlkit()
        mark, text = _MARK, self.text
        while mark in text:
            mark += "-"
        document = tomlkit.parse(text)
        holder = _holder(document, spot.path)
        last = spot.path[-1]
        holder[int(last) if isinstance(holder, list) else last] = mark
        before, _, after = tomlkit.dumps(document).partition('"%s"' % mark)
        if not (text.startswith(before) and text.endswith(after)):
            raise ApplyError("the place of its value cannot be found; change it by hand")
        return len(before), len(text) - len(after)

    def literal(self, value: Any, old: Optional[Node]) -> str:
        if isinstance(value, str):
            if old is not None and old.style == "'" and not set(value) & set("'\r\n"):
                return "'" + value + "'"
            return json.dumps(value, ensure_ascii=False)
        if value is None:
            raise ApplyError("TOML has no null; change it by hand")
        return json.dumps(value)

    def inserted(self, tree: Tree, holder: Node, path: Path, missing: Path, value: Any) -> str:
        tomlkit = _tomlkit()
        document = tomlkit.parse(self.text)
        place = _holder(document, path[: len(path) - len(missing)] + ("",))
        inline = isinstance(place, tomlkit.items.InlineTable)
        for part in missing[:-1]:
            place[part] = tomlkit.inline_table() if inline else tomlkit.table()
            place = place[part]
        place[missing[-1]] = value
        return self._only_added(tomlkit.dumps(document))

    def _only_added(self, text: str) -> str:
        """The new text; new lines have the line ends of the file."""
        before = len(os.path.commonprefix([self.text, text]))
        rest = len(self.text) - before
        after = len(os.path.commonprefix([self.text[::-1][:rest], text[::-1]]))
        if before + after != len(self.text):
            raise ApplyError("a key cannot be added to it without changing more; add it by hand")
        added = text[before : len(text) - after]
        if re.match(r",\S", added):
            added = ", " + added[1:]
        if "\r\n" in self.text:
            added = added.replace("\r\n", "\n").replace("\n", "\r\n")
        return self.text[:before] + added + self.text[before:]


def _holder(document: Any, path: Path) -> Any:
    """What holds the last part of the path."""
    for part in path[:-1]:
        document = document[int(part) if isinstance(document, list) else part]
    return document


def _node(item: Any) -> Node:
    """A tree of tomlkit's items."""
    if isinstance(item, dict):
        entries = [(Node(SCALAR, value=str(key)), _node(item[key])) for key in item]
        return Node(MAP, entries=entries)
    if isinstance(item, list):
        entries = [(Node(SCALAR, value=i), _node(child)) for i, child in enumerate(item)]
        return Node(LIST, entries=entries)
    raw = item.as_string() if hasattr(item, "as_string") else str(item).lower()
    style = "plain"
    if raw[:3] in ('"""', "'''"):
        style = "|"
    elif raw[:1] in ('"', "'"):
        style = raw[0]
    value = item.unwrap() if hasattr(item, "unwrap") else item
    return Node(SCALAR, value=value, style=style)
