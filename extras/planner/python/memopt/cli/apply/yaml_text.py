"""YAML: ruamel.yaml's parser finds each value; the changes are made in the text.

Writing the document anew would lose what no library keeps (CRLF, odd indents, folded lines).
Frameworks read YAML 1.1 (PyYAML) or 1.2: what is written means the same in both.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional, Tuple

from .document import Document
from .errors import ApplyError
from .tree import ALIAS, LIST, MAP, SCALAR, Node, Path, Tree

_NULL = re.compile(r"~|null|Null|NULL|")
_INT = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_YES = ("true", "yes", "on")
_NO = ("false", "no", "off")
#: Words that every reader takes for a string without quotes.
_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*|[0-9]+-[A-Za-z]+")
_BLOCK = ("|", ">")


def resolved(text: str) -> Any:
    """What a word without quotes means. Numbers that Python cannot hold stay text."""
    if _NULL.fullmatch(text):
        return None
    if text.lower() in _YES + _NO and text in (text.lower(), text.title(), text.upper()):
        return text.lower() in _YES
    plain = text.replace("_", "")
    try:
        if _INT.fullmatch(text):
            decimal = re.fullmatch(r"[-+]?0[0-9]+", plain)
            return int(plain) if decimal else int(plain, 0)
        if _FLOAT.fullmatch(text):
            return float(plain.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        pass
    return text


def _word(text: str) -> str:
    """A string that is to stay one: without quotes where that is safe."""
    safe = _SAFE.fullmatch(text) and isinstance(resolved(text), str)
    if safe and text.lower() not in ("y", "n"):
        return text
    return json.dumps(text, ensure_ascii=False)


def _yaml() -> Any:
    try:
        from ruamel.yaml import YAML
    except ImportError:
        raise ApplyError(
            "changing YAML files needs ruamel.yaml: pip install 'memopt[apply]'"
        ) from None
    return YAML(typ="safe", pure=True)


class YamlDocument(Document):
    """A YAML file, of one document or several."""

    format = "YAML"

    def parse(self, text: str) -> List[Tree]:
        yaml = _yaml()
        from ruamel.yaml.error import YAMLError

        try:
            return _Builder(text).trees(yaml.parse(text))
        except YAMLError as error:
            raise ApplyError(_trouble(error)) from None

    def literal(self, value: Any, old: Optional[Node]) -> str:
        empty = old is not None and old.start == old.end
        return (" " if empty else "") + self._literal(value, old)

    def _literal(self, value: Any, old: Optional[Node]) -> str:
        if isinstance(value, str):
            if old is not None and old.style == "'":
                return "'" + value.replace("'", "''") + "'"
            if old is not None and old.style == '"':
                return json.dumps(value, ensure_ascii=False)
            return _word(value)
        if isinstance(value, bool):
            word = self.text[old.start : old.end] if old is not None else "true"
            for yes, no in zip(_YES, _NO):
                if word.lower() in (yes, no):
                    new = yes if value else no
                    return new.title() if word.istitle() else new.upper() if word.isupper() else new
            return "true" if value else "false"
        return "null" if value is None else repr(value)

    def inserted(self, tree: Tree, holder: Node, path: Path, missing: Path, value: Any) -> str:
        if holder.style == "pair":
            raise ApplyError("line %d: a pair in a list takes no other key" % holder.line)
        if holder.style == "flow":
            return self._in_flow(holder, missing, value)
        newline = "\r\n" if "\r\n" in self.text else "\n"
        if not holder.entries:
            break_first = newline if self.text and self.text[-1] not in "\r\n" else ""
            return self.text + break_first + _lines(missing, value, newline, 0, 2) + newline
        first = holder.entries[0][0]
        indent = first.start - self._line_start(first.start)
        lines = _lines(missing, value, newline, indent, self._unit(tree))
        tails = (_tail(key, value) for key, value in reversed(holder.entries))
        tail = next((at for at in tails if at >= 0), -1)
        if tail < 0:
            before = self.text[: first.start] + lines + newline + " " * indent
            return before + self.text[first.start :]
        end = self.text.find("\n", tail)
        end = len(self.text) if end < 0 else end
        end -= self.text[end - 1] == "\r"
        return self.text[:end] + newline + " " * indent + lines + self.text[end:]

    def _in_flow(self, holder: Node, missing: Path, value: Any) -> str:
        entry = _word(str(missing[-1])) + ": " + self._literal(value, None)
        for part in reversed(missing[:-1]):
            entry = "%s: {%s}" % (_word(str(part)), entry)
        if not holder.entries:
            at = holder.start + 1
            return self.text[:at] + entry + self.text[at:]
        key, last = holder.entries[-1]
        at = max(last.end, key.end)
        return self.text[:at] + ", " + entry + self.text[at:]

    def _line_start(self, at: int) -> int:
        return max(self.text.rfind("\n", 0, at), self.text.rfind("\r", 0, at)) + 1

    def _unit(self, tree: Tree) -> int:
        """By how much this file indents mappings in mappings."""
        for _, node in tree.walk():
            if node.kind != MAP or node.style != "block":
                continue
            for key, value in node.entries:
                if value.kind == MAP and value.style == "block" and value.entries:
                    inner = value.entries[0][0].start
                    depth = inner - self._line_start(inner)
                    return max(depth - (key.start - self._line_start(key.start)), 1)
        return 2


def _lines(missing: Path, value: Any, newline: str, indent: int, unit: int) -> str:
    """A new entry in block style; its first line is not indented."""
    key = _word(str(missing[0])) + ":"
    if len(missing) > 1:
        inner = indent + unit
        return key + newline + " " * inner + _lines(missing[1:], value, newline, inner, unit)
    word = _word(value) if isinstance(value, str) else json.dumps(value)
    return key + " " + word


def _tail(key: Node, value: Node) -> int:
    """Where an entry's text ends; -1 if the parser does not know: a block of text, or a missing
    value, extends to the next token."""
    while value.kind in (MAP, LIST) and value.style == "block" and value.entries:
        key, value = value.entries[-1]
    return -1 if value.style in _BLOCK else value.end


def _trouble(error: Any) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if mark is None:
        return "it is not YAML: %s" % " ".join(str(what).split())
    return "line %d column %d: it is not YAML: %s" % (mark.line + 1, mark.column + 1, what)


class _Builder:
    """Makes trees of the parser's events."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts: Optional[Dict[int, int]] = None
        self.anchors: Dict[str, Node] = {}
        self.open: List[Tuple[Node, List[Node]]] = []

    def trees(self, events: Any) -> List[Tree]:
        """One tree a document; a file without any is one empty document."""
        found: List[Tree] = []
        for event in events:
            name = type(event).__name__
            if name == "DocumentStartEvent":
                self.anchors = {}
                self.open = [(Node(LIST), [])]
            elif name == "DocumentEndEvent":
                root: Optional[Node] = self.open.pop()[1][0]
                if root is not None and root.kind == SCALAR and root.style == "empty":
                    root = None
                found.append(Tree(root))
            elif name in ("MappingEndEvent", "SequenceEndEvent"):
                self._close(event)
            elif name not in ("StreamStartEvent", "StreamEndEvent", "CommentEvent"):
                self._start(name, event)
        return found or [Tree(None)]

    def _start(self, name: str, event: Any) -> None:
        kinds = {"MappingStartEvent": MAP, "SequenceStartEvent": LIST, "ScalarEvent": SCALAR}
        node = Node(kinds.get(name, ALIAS), event.start_mark.index, event.end_mark.index)
        node.line = event.start_mark.line + 1
        if node.kind == ALIAS:
            node.value, node.style = event.anchor, "plain"
            if event.anchor not in self.anchors:
                raise ApplyError("line %d: there is no anchor &%s" % (node.line, event.anchor))
            node.target = self.anchors[event.anchor]
        else:
            node.anchor = event.anchor
            node.tag = None if event.tag is None else str(event.tag)
        self.open[-1][1].append(node)
        if node.anchor:
            self.anchors[node.anchor] = node
        if node.kind == SCALAR:
            self._scalar(node, event)
        elif node.kind != ALIAS:
            node.style = "flow" if event.flow_style else "block"
            self.open.append((node, []))

    def _scalar(self, node: Node, event: Any) -> None:
        node.style = event.style or "plain"
        node.value = resolved(event.value) if node.style == "plain" else event.value
        if node.style == "plain" and not event.value:
            node.style, node.start, node.end = "empty", -1, -1
        elif node.anchor or node.tag:
            node.start = self._start_of_word(node.end)
        if self._is_key():
            node.value = event.value

    def _start_of_word(self, end: int) -> int:
        """Where the word itself starts, after its anchor and tag, whose places events lack."""
        if self.starts is None:
            words = [token for token in _yaml().scan(self.text) if hasattr(token, "plain")]
            self.starts = {word.end_mark.index: word.start_mark.index for word in words}
        return self.starts.get(end, -1)

    def _is_key(self) -> bool:
        holder, children = self.open[-1]
        return holder.kind == MAP and len(children) % 2 == 1

    def _close(self, event: Any) -> None:
        node, children = self.open.pop()
        if node.style == "flow":
            node.end = event.end_mark.index
            if node.anchor or node.tag:
                node.start = self.text.index("{["[node.kind == LIST], node.start)
            elif self.text[node.start] not in "{[":
                node.style = "pair"  # [a: 1] holds a mapping that has no braces
        if node.kind == LIST:
            node.entries = [(Node(SCALAR, value=i), child) for i, child in enumerate(children)]
            return
        node.entries = list(zip(children[::2], children[1::2]))
        for key, value in node.entries:
            if key.kind != SCALAR:
                key.value = None
            if value.kind == SCALAR and value.style == "empty" and not (value.anchor or value.tag):
                self._place(key, value)

    def _place(self, key: Node, value: Node) -> None:
        """Where a missing value would be: the parser points to what follows."""
        match = re.compile(r"[ \t]*:").match(self.text, max(key.end, 0))
        if match and key.end >= 0:
            value.start = value.end = match.end()
            value.line = key.line
