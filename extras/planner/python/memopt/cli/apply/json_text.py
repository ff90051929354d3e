"""JSON: the standard decoder checks it, and a scanner finds the place of each value."""

from __future__ import annotations

import json
import re
from typing import Any, List, Optional, Tuple

from .document import Document
from .errors import ApplyError
from .tree import LIST, MAP, SCALAR, Node, Path, Tree

_SPACE = re.compile(r"[ \t\n\r]*")
_WORD = re.compile(r"-?Infinity|NaN|true|false|null|-?\d+(\.\d+)?([eE][-+]?\d+)?")
_DECODER = json.JSONDecoder()
_CONSTANTS = {"true": True, "false": False, "null": None}


class JsonDocument(Document):
    """A JSON file."""

    format = "JSON"

    def parse(self, text: str) -> List[Tree]:
        if not text.strip():
            return [Tree(None)]
        try:
            json.loads(text, parse_int=str, parse_float=str)
        except json.JSONDecodeError as error:
            raise ApplyError(
                "line %d column %d: it is not JSON: %s" % (error.lineno, error.colno, error.msg)
            ) from None
        return [Tree(_Scanner(text).value(_skip(text, 0)))]

    def literal(self, value: Any, old: Optional[Node]) -> str:
        return json.dumps(value)

    def inserted(self, tree: Tree, holder: Node, path: Path, missing: Path, value: Any) -> str:
        if tree.root is None:
            raise ApplyError("it is empty: a JSON file holds at least {}")
        text = self.text
        colon, unit = self._colon(tree), self._unit(tree)
        if not holder.entries:
            lead, tail = self._around_nothing(tree, holder, unit)
            entry = _entry(missing, value, colon, lead, unit)
            return text[: holder.start + 1] + lead + entry + tail + text[holder.end - 1 :]
        (key, last) = holder.entries[-1]
        if len(holder.entries) > 1:
            comma = text[holder.entries[-2][1].end : key.start]
        else:
            lead = text[holder.start + 1 : key.start]
            comma = "," + (lead if lead or colon == ":" else " ")
        entry = _entry(missing, value, colon, comma.partition(",")[2], unit)
        return text[: last.end] + comma + entry + text[last.end :]

    def _colon(self, tree: Tree) -> str:
        """What stands between keys and values in this file."""
        for _, node in tree.walk():
            if node.kind == MAP and node.entries:
                key, value = node.entries[0]
                between = self.text[key.end : value.start]
                return between if "\n" not in between else ": "
        return ": "

    def _unit(self, tree: Tree) -> str:
        """By how much this file indents."""
        match = re.match(r"\s*\{[ \t]*\r?\n([ \t]+)\"", self.text)
        return match.group(1) if match else "  "

    def _around_nothing(self, tree: Tree, holder: Node, unit: str) -> Tuple[str, str]:
        """White space before and after the first entry of an empty object."""
        root = tree.root
        if root is None or (holder is not root and "\n" not in self.text[root.start : root.end]):
            return "", ""
        if holder is root and "\n" not in self.text.rstrip():
            return "", ""
        start = self.text.rfind("\n", 0, holder.start) + 1
        newline = "\r\n" if "\r\n" in self.text else "\n"
        indent = re.match(r"[ \t]*", self.text[start:])
        before = newline + (indent.group() if indent else "")
        return before + unit, before


def _entry(missing: Path, value: Any, colon: str, lead: str, unit: str) -> str:
    key = json.dumps(str(missing[0])) + colon
    if len(missing) == 1:
        return key + json.dumps(value)
    many = "\n" in lead
    inner = lead + unit if many else ""
    nested = _entry(missing[1:], value, colon, inner, unit)
    return key + "{" + inner + nested + (lead if many else "") + "}"


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


class _Scanner:
    """Walks a text that is known to be JSON."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._counted = 0
        self._lines = 1

    def _node(self, kind: str, at: int) -> Node:
        self._lines += self.text.count("\n", self._counted, at)
        self._counted = at
        return Node(kind, at, line=self._lines, style="flow")

    def value(self, at: int) -> Node:
        """The value that starts at ``at``."""
        first = self.text[at]
        if first in "{[":
            return self._container(at, MAP if first == "{" else LIST)
        if first == '"':
            return self._string(at)
        node = self._node(SCALAR, at)
        match = _WORD.match(self.text, at)
        word = match.group() if match else ""
        node.end, node.style = at + len(word), "plain"
        node.value = _CONSTANTS[word] if word in _CONSTANTS else _number(word)
        return node

    def _string(self, at: int) -> Node:
        node = self._node(SCALAR, at)
        node.value, node.end = _DECODER.raw_decode(self.text, at)
        node.style = '"'
        return node

    def _container(self, at: int, kind: str) -> Node:
        node = self._node(kind, at)
        close = "}" if kind == MAP else "]"
        at = _skip(self.text, at + 1)
        while self.text[at] != close:
            if kind == MAP:
                key = self._string(at)
                at = _skip(self.text, _skip(self.text, key.end) + 1)
            else:
                key = Node(SCALAR, value=len(node.entries))
            value = self.value(at)
            node.entries.append((key, value))
            at = _skip(self.text, value.end)
            if self.text[at] == ",":
                at = _skip(self.text, at + 1)
        node.end = at + 1
        return node


def _number(word: str) -> Any:
    """The number, or its text if Python cannot hold it."""
    try:
        return int(word)
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        return word
    return value if value == value and abs(value) != float("inf") else word
