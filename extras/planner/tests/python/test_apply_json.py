"""JSON files are changed in place: no other byte differs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apply_files import set_batch
from memopt.cli import apply
from memopt.cli.apply.json_text import JsonDocument

IN_PLACE = {
    "compact": '{"t":{"b":8,"c":[1,2]},"x":null}',
    "two": '{\n  "t": {\n    "b": 8\n  }\n}\n',
    "four": '{\n    "t": {\n        "b": 8,\n        "c": 1\n    }\n}',
    "tabs": '{\n\t"t":\t{\n\t\t"b"\t:\t8\t,\n\t\t"c": 1}}\n\n',
    "crlf": '{\r\n  "t": {"b": 8\r\n}\r\n}\r\n',
    "byte order mark": '\ufeff{"t": {"b": 8}}',
    "text": '{"t": {"b": "8"}}',
    "escapes": '{"a\\"b: 8": "\\u00e9\\ud800 \\\\", "\\u0074": {"b": 8}}',
    "numbers": '{"a": 1.00, "c": 1e400, "d": 123456789012345678901234567890123, "t": {"b": 8},'
    ' "e": -0, "f": 1E+2, "g": %s}' % ("9" * 5000),
    "not quite numbers": '{"a": NaN, "c": -Infinity, "t": {"b": 8}}',
    "the same key elsewhere": '{"b": 5, "b": 6, "t": {"c": {"b": 5}, "b": 8}}',
    "lists": '[0, {"t": 1}]',
}


@pytest.mark.parametrize("name", [name for name in IN_PLACE if name != "lists"])
def test_only_the_value_differs(tmp_path, name):
    before = IN_PLACE[name]
    at = before.rindex("8") if name != "the same key elsewhere" else before.index("8")
    at = before.index('"b": 8') + 5 if '"b": 8' in before else at
    after = set_batch(tmp_path, "c.json", before, "t.b")
    assert after == before[:at] + "4" + before[at + 1 :]


@pytest.mark.parametrize(
    "before, after",
    [
        ("{}", '{"t": {"b": 4}}'),
        ("{ }\n", '{"t": {"b": 4}}\n'),
        ("{\n}\n", '{\n  "t": {\n    "b": 4\n  }\n}\n'),
        ('{"a":1}', '{"a":1,"t":{"b":4}}'),
        ('{"a": 1}', '{"a": 1, "t": {"b": 4}}'),
        ('{"t": {"a": [1, 2]}, "z": 1}', '{"t": {"a": [1, 2], "b": 4}, "z": 1}'),
        ('{\n    "a": 1\n}\n', '{\n    "a": 1,\n    "t": {\n        "b": 4\n    }\n}\n'),
        ('{\n\t"t": {}\n}\n', '{\n\t"t": {\n\t\t"b": 4\n\t}\n}\n'),
        ('{\r\n  "t": {\r\n    "a": 1\r\n  }\r\n}', '{\r\n  "t": {\r\n    "a": 1,\r\n    "b": 4\r\n  }\r\n}'),
        ('{"t": {"x": 1\n , "a": 1}}', '{"t": {"x": 1\n , "a": 1\n , "b": 4}}'),
    ],
)
def test_created(tmp_path, before, after):
    with pytest.raises(apply.KeyMissing, match="t.b"):
        set_batch(tmp_path, "c.json", before, "t.b")
    assert set_batch(tmp_path, "c.json", before, "t.b", create_keys=True) == after


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "it has no key b"),
        ("  \n", "it has no key b"),
        ("{", "line 1 column 2: it is not JSON"),
        ('{\n"a" 1}', "line 2 column 5: it is not JSON"),  # the same for every Python
        ('{"a": 1,}', "not JSON"),
        ('{"a": 1} // x', "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": 01}', "not JSON"),
        ('{"b": 1, "b": 2}', "2 times (lines 1, 1)"),
        ('{"b": {"x": 1}}', "b is a mapping"),
        ('{"b": [1]}', "b is a list"),
        ('{"b": true}', "true, not a number"),
        ('"b"', "it has no key b"),
    ],
)
def test_refused(tmp_path, text, said):
    with pytest.raises(apply.ApplyError) as raised:
        set_batch(tmp_path, "c.json", text, "b")
    assert said in str(raised.value) and "c.json: " in str(raised.value)


@pytest.mark.parametrize("depth", [3000, 200000])
def test_deep_nesting_is_no_crash(tmp_path, depth):
    with pytest.raises(apply.ApplyError, match="deeply"):
        set_batch(tmp_path, "c.json", "[" * depth + "]" * depth, "b")


@pytest.mark.parametrize("text", ["", "8", "[]", '{"t": 1}', '{"t": null}'])
def test_not_created(tmp_path, text):
    with pytest.raises(apply.ApplyError):
        set_batch(tmp_path, "c.json", text, "t.b", create_keys=True)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=15,
)  # fmt: skip


@st.composite
def documents(draw):
    """A JSON text and the paths of the plain values in it."""
    data = draw(st.dictionaries(st.text(max_size=4), _VALUES, min_size=1, max_size=5))
    separators = draw(st.sampled_from([None, (",", ":"), (" ,  ", "\t: \n")]))
    indent = draw(st.sampled_from([None, 0, 2, 4, "\t"]))
    text = json.dumps(data, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


def plain_places(tree):
    return [(path, node) for path, node in tree.walk() if node.kind == "scalar"]


@given(documents(), st.data(), st.sampled_from([12, "bf16-mixed", True, 0.5]))
@settings(max_examples=200)
def test_random_documents(text, data, value):
    parsed = JsonDocument(text)
    places = plain_places(parsed.trees[0])
    before = json.loads(text)
    if not places:
        return
    path, node = data.draw(st.sampled_from(places))
    after = parsed.set(path, value).text
    assert after == text[: node.start] + json.dumps(value) + text[node.end :]
    holder = before
    for part in path[:-1]:
        holder = holder[part]
    assert repr(holder[path[-1]]) == repr(json.loads(text[node.start : node.end]))
    holder[path[-1]] = value
    assert repr(json.loads(after)) == repr(before)


@given(documents(), st.lists(st.text(max_size=4), min_size=1, max_size=3))
@settings(max_examples=200)
def test_random_additions(text, names):
    before = json.loads(text)
    path = tuple("new" + name for name in names)
    after = JsonDocument(text).add(path, 12).text
    holder = before
    for part in path[:-1]:
        holder = holder.setdefault(part, {})
    holder[path[-1]] = 12
    assert repr(json.loads(after)) == repr(before)
    kept = text.rstrip().rstrip("}").rstrip()
    assert after.startswith(kept)
