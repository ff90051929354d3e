"""Files of settings as values that know their place in the text: YAML, JSON, TOML, and the defaults
and arguments of a Python program. A change replaces the value's own characters, or adds a line.
"""

from __future__ import annotations

import ast
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .errors import ApplyError

Path = Tuple[str, ...]


class Node(NamedTuple):
    """A value: a dict or a list of nodes, or a scalar."""

    value: Any
    start: int = -1
    end: int = -1
    #: A quote, "" of a word, "flow" of what is in braces, "fixed" of what cannot be replaced.
    style: str = ""
    #: What is inside of braces takes new keys after a comma.
    flow: bool = False


@dataclass(frozen=True)
class Leaf:
    """A scalar, or a list of them, and where it is."""

    path: Path
    value: Any
    node: Node
    line: int

    @property
    def key(self) -> str:
        """As --key has it."""
        return ".".join('"%s"' % part if "." in part else part for part in self.path)


class New(NamedTuple):
    """A value for a leaf; with a name, a new key beside it, or a section with one."""

    leaf: Leaf
    value: Any
    name: Path = ()


class Text:
    """A file, parsed."""

    def __init__(self, name: str, data: bytes, before: Path = ()) -> None:
        self.name, self._before = name, before
        self.format = os.path.splitext(name)[1].lower().replace(".yml", ".yaml")
        if self.format not in _PARSERS:
            raise ApplyError("%s: its name ends in none of %s" % (name, ", ".join(_PARSERS)))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ApplyError("%s: line %d: it is not UTF-8" % (name, line)) from None
        self.bom, self.text = text[: text.startswith("\ufeff")], text.lstrip("\ufeff")
        self.leaves = self._parsed(self.text)

    def _parsed(self, text: str) -> List[Leaf]:
        try:
            nodes = list(_PARSERS[self.format](text))
            return [leaf for node in nodes for leaf in _leaves(node, text, self._before)]
        except RecursionError:
            raise ApplyError("%s: it is nested too deeply" % self.name) from None
        except ApplyError as error:
            raise ApplyError("%s: %s" % (self.name, error)) from None

    def changed(self, news: Sequence[New]) -> str:
        """The text with new values. ApplyError, if anything else would change."""
        pieces = sorted((self._piece(new) for new in reversed(news)), key=lambda piece: piece[:2])
        text = self.text
        for start, end, word in reversed(pieces):
            text = text[:start] + word + text[end:]
        wanted = {leaf.path: leaf.value for leaf in self.leaves}
        for new in news:
            wanted[new.leaf.path[:-1] + (new.name or new.leaf.path[-1:])] = new.value
        try:
            found = {leaf.path: leaf.value for leaf in self._parsed(text)}
        except ApplyError:
            found = {}
        if repr(sorted(wanted.items())) != repr(sorted(found.items())):
            keys = ", ".join(".".join(new.name) or new.leaf.key for new in news)
            raise ApplyError("%s: %s cannot be changed without changing more; do it by hand" % (self.name, keys))
        return self.bom + text

    def _piece(self, new: New) -> Tuple[int, int, str]:
        leaf, node = new.leaf, new.leaf.node
        if self.format == ".toml":
            start, end = _toml_span(self.text, leaf.path[len(self._before) :])
            node = node._replace(start=start, end=end)
        also = [o.key for o in self.leaves if o.node.start == node.start >= 0 and o.path != leaf.path]
        if also and self.format == ".yaml":
            raise ApplyError(
                "%s: line %d: %s is shared by an anchor with %s: write the value out in each place"
                % (self.name, leaf.line, leaf.key, ", ".join(also))
            )
        if node.start < 0 or node.style == "fixed":
            raise ApplyError(
                "%s: line %d: %s is not a single value; change it by hand" % (self.name, leaf.line, leaf.key)
            )
        if new.name:
            return self._added(new, node)
        word = self._word(new.value, node.style, self.text[node.start : node.end])
        return node.start, node.end, " " * (node.start == node.end) + word

    def _word(self, value: Any, quote: str, old: str) -> str:
        if isinstance(value, str):
            if quote == "'" and "'" not in value:
                return "'%s'" % value
            plain = self.format == ".yaml" and quote != '"' and isinstance(resolved(value), str)
            if plain and re.fullmatch(r"[A-Za-z_][\w./-]*|\d+-[a-z]+", value):
                return value
        if self.format == ".py":
            return repr(value) if not isinstance(value, str) else json.dumps(value)
        if isinstance(value, bool) and self.format == ".yaml":
            for words in (("true", "false"), ("yes", "no"), ("on", "off")):
                if old.lower() in words:
                    word = words[not value]
                    return word.title() if old.istitle() else word.upper() if old.isupper() else word
        return json.dumps(value, ensure_ascii=False)

    def _added(self, new: New, node: Node) -> Tuple[int, int, str]:
        """A line after the leaf's; in braces, an entry after it."""
        if self.format == ".py":
            raise ApplyError("%s: no key is added to a program" % self.name)
        name = '"%s": ' if self.format == ".json" else "%s = " if self.format == ".toml" else "%s: "
        word = self._word(new.value, "", "")
        for part in reversed(new.name[1:]):
            word = ("{%s = %s}" if self.format == ".toml" else '{"%s": %s}') % (part, word)
        entry = name % new.name[0] + word
        first = self.text.rfind("\n", 0, node.start) + 1
        indent = re.match(r"[ \t]*(- +)*", self.text[first:]).group()  # type: ignore[union-attr]
        own = self.text[first + len(indent) : node.start].count(":") < 2  # the key alone is before it
        newline = ("\r\n" if "\r\n" in self.text else "\n") + " " * len(indent.expandtabs(1))
        if "\t" in indent:
            newline = newline.replace(" " * len(indent), indent)
        if node.flow:
            own = own and self.text[first + len(indent)] == '"'
            return node.end, node.end, "," + (newline if own else " ") + entry
        end = self.text.find("\n", node.end)
        end = len(self.text) if end < 0 else end
        end -= self.text[end - 1] == "\r"
        return end, end, newline + entry


def _leaves(node: Node, text: str, path: Path) -> Iterator[Leaf]:
    value = node.value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, text, path + (str(key),))
        return
    if isinstance(value, list):
        if not any(isinstance(inner.value, (dict, list)) for inner in value):
            yield Leaf(path, [inner.value for inner in value], node._replace(style="fixed"), _line(text, node))
        for index, inner in enumerate(value):
            if isinstance(inner.value, (dict, list)):
                yield from _leaves(inner, text, path + (str(index),))
        return
    yield Leaf(path, value, node, _line(text, node))


def _line(text: str, node: Node) -> int:
    return text.count("\n", 0, max(node.start, 0)) + 1


# --- formats --------------------------------------------------------------------------------------


def _json(text: str) -> Iterator[Node]:
    try:
        json.loads(text)
    except ValueError as error:
        place = (getattr(error, "lineno", 1), getattr(error, "colno", 1), getattr(error, "msg", error))
        raise ApplyError("line %d column %d: it is not JSON: %s" % place) from None
    yield _json_value(text, _json_blank(text, 0))


def _json_blank(text: str, at: int) -> int:
    return re.compile(r"[ \t\r\n]*").match(text, at).end()  # type: ignore[union-attr]


def _json_value(text: str, at: int) -> Node:
    start = at
    if text[at] not in "{[":
        value, end = json.JSONDecoder().raw_decode(text, at)
        return Node(value, at, end, '"' if text[at] == '"' else "", True)
    entries: Any = {} if text[at] == "{" else []
    at = _json_blank(text, at + 1)
    while text[at] not in "]}":
        if isinstance(entries, dict):
            key, at = json.JSONDecoder().raw_decode(text, at)
            inner = _json_value(text, _json_blank(text, _json_blank(text, at) + 1))
            if key in entries:
                raise ApplyError("line %d: the key %s is there twice" % (_line(text, inner), key))
            entries[key] = inner
        else:
            inner = _json_value(text, at)
            entries.append(inner)
        at = _json_blank(text, inner.end)
        at = _json_blank(text, at + 1) if text[at] == "," else at
    return Node(entries, start, at + 1, "flow")


_INT = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


def resolved(text: str) -> Any:
    """What a word without quotes means in YAML, 1.1 or 1.2. Numbers that Python cannot hold stay text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    lower = text.lower()
    if text in (lower, text.title(), text.upper()) and lower in ("true", "yes", "on", "false", "no", "off"):
        return lower in ("true", "yes", "on")
    plain = text.replace("_", "")
    try:
        if _INT.fullmatch(text):
            return int(plain) if re.fullmatch(r"[-+]?0[0-9]+", plain) else int(plain, 0)
        if _FLOAT.fullmatch(text):
            return float(plain.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        pass
    return text


def _yaml(text: str) -> Iterator[Node]:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError
    except ImportError:
        raise ApplyError("YAML files need ruamel.yaml: pip install 'memopt[apply]'") from None
    try:
        for root in YAML(typ="safe", pure=True).compose_all(text):
            yield _yaml_node(root, text, None)
    except YAMLError as error:
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        where = "line %d column %d: " % (mark.line + 1, mark.column + 1) if mark else ""
        raise ApplyError("%sit is not YAML: %s" % (where, " ".join(str(what).split()))) from None


def _yaml_node(node: Any, text: str, key: Any, flow: bool = False) -> Node:
    start, end = node.start_mark.index, node.end_mark.index
    if node.id == "mapping":
        entries: Dict[str, Node] = {}
        for name, inner in node.value:
            if name.value == "<<":
                for one in inner.value if inner.id == "sequence" else [inner]:
                    merged = _yaml_node(one, text, None).value
                    entries.update((k, v) for k, v in merged.items() if k not in entries)
        own = [(name, inner) for name, inner in node.value if name.value != "<<"]
        for at, (name, inner) in enumerate(own):
            if name.id != "scalar":
                continue
            if name.value in [other.value for other, _ in own[:at]]:
                raise ApplyError("line %d: the key %s is there twice" % (name.start_mark.line + 1, name.value))
            entries[name.value] = _yaml_node(inner, text, name, flow or bool(node.flow_style))
        return Node(entries, start, end)
    if node.id == "sequence":
        inside = flow or bool(node.flow_style)
        return Node([_yaml_node(inner, text, None, inside) for inner in node.value], start, end)
    style = node.style or ""
    if style in ("|", ">") or "!" in text[start : start + 1]:
        return Node(node.value, start, end, "fixed")
    match = re.compile(r"&\S+\s+").match(text, start)
    start = match.end() if match else start
    if not style and not node.value:
        colon = re.compile(r"[ \t]*:").match(text, key.end_mark.index) if key is not None else None
        start = end = colon.end() if colon else -1
    return Node(node.value if style else resolved(node.value), start, end, style, flow)


def _tomlkit() -> Any:
    try:
        import tomlkit
    except ImportError:
        raise ApplyError("TOML files need tomlkit: pip install 'memopt[apply]'") from None
    return tomlkit


def _toml(text: str) -> Iterator[Node]:
    tomlkit = _tomlkit()
    try:
        yield _toml_node(tomlkit.parse(text).unwrap())
    except (tomlkit.exceptions.TOMLKitError, ValueError) as error:
        raise ApplyError("it is not TOML: %s" % error) from None


def _toml_node(value: Any) -> Node:
    if isinstance(value, dict):
        return Node({key: _toml_node(inner) for key, inner in value.items()})
    if isinstance(value, list):
        return Node([_toml_node(inner) for inner in value])
    return Node(value, style='"' if isinstance(value, str) else "")


def _toml_span(text: str, path: Path) -> Tuple[int, int]:
    """Where a value is: a mark put there comes out at its place."""
    tomlkit = _tomlkit()
    mark = "memopt-mark-%d" % text.count("memopt-mark")
    holder: Any = tomlkit.parse(text)
    document = holder
    for part in path[:-1]:
        holder = holder[int(part) if isinstance(holder, list) else part]
    holder[int(path[-1]) if isinstance(holder, list) else path[-1]] = mark
    before, _, after = tomlkit.dumps(document).partition('"%s"' % mark)
    if not (text.startswith(before) and text.endswith(after)):
        return -1, -1
    return len(before), len(text) - len(after)


def _python(text: str) -> Iterator[Node]:
    """Defaults of add_argument, constants of modules and classes, and named arguments of calls."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ApplyError("it is not Python: %s" % error) from None
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: Dict[str, Node] = {}
    for name, value in _constants(tree):
        spots = []
        for row, column in ((value.lineno, value.col_offset), (value.end_lineno, value.end_col_offset)):
            line = text[starts[row - 1] : starts[row]]
            spots.append(starts[row - 1] + len(line.encode()[:column].decode()))
        style = text[spots[0]] if isinstance(value.value, str) else ""
        while name in found:
            name = name + "'"  # the same key again: another path
        found[name] = Node(value.value, spots[0], spots[1], style)
    yield Node({name: node for name, node in found.items()})


def _constants(tree: ast.AST) -> Iterator[Tuple[str, Any]]:
    for node in ast.walk(tree):
        pairs: List[Tuple[Optional[str], Any]] = []
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            before = "compile_" if called == "compile" else ""
            pairs = [(before + word.arg, word.value) for word in node.keywords if word.arg]
            if called in ("CUDAGraph", "make_graphed_callables"):
                pairs.append(("cuda_graphs", ast.copy_location(ast.Constant(True), node)))
            if called == "add_argument":
                flags = [a.value for a in node.args if isinstance(a, ast.Constant) and str(a.value).startswith("--")]
                name = str(flags[0]).strip("-").replace("-", "_") if flags else None
                pairs = [(name, value) for word, value in pairs if word == "default"]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            pairs = [(node.targets[0].id, node.value)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs = [(node.target.id, node.value)]
        for name, value in pairs:
            if name and isinstance(value, ast.Constant):
                yield name, value


_PARSERS: Dict[str, Callable[[str], Iterator[Node]]] = {".yaml": _yaml, ".json": _json, ".toml": _toml, ".py": _python}
