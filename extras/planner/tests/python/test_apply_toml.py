"""TOML files are changed in place: no other byte differs."""

from __future__ import annotations

import pytest

tomlkit = pytest.importorskip("tomlkit")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from apply_files import keyed, set_batch, write  # noqa: E402
from memopt.cli import apply  # noqa: E402
from memopt.cli.apply.toml_text import TomlDocument  # noqa: E402

IN_PLACE = {
    "table": "# x\n[t] # y\na = 1\nb = 8 # z\n\n[u]\nb = 5\n",
    "dotted keys": "t.a = 1\nt.b   =   8\nu.b = 5",
    "inline table": 't = { a = [1, 2,], b = 8, c = "x" }\n',
    "inline tables in tables": "[t]\na = {x = {y = 5}}\nb=8\n",
    "crlf": "[t]\r\na = '''x\r\ny'''\r\nb = 8\r\n\r\n\r\n[z]\r\n",
    "byte order mark": "\ufeff[t]\nb = 8",
    "text": "[t]\nb = '8'\n",
    "quoted keys": "['t']\n\"b\" = 8\n",
    "out of order": "[t.x]\na = 1\n[z]\na = 1\n[t]\nb = 8\n[z.y]\n",
    "split": "[t.x]\na = 1\n[z]\na = 1\n[t.y]\na = 1\n[t]\nb = 8\n",
    "arrays of tables": "[[s]]\nb = 5\n[[s]]\nb = 6\n[[s.i]]\nb = 7\n[t]\nb = 8\n[[t.s]]\nb = 5\n",
    "numbers": "[t]\na = 1_000\nc = 0xFF\nd = 1e5\nb = 8\ne = inf\nf = nan\ng = 1979-05-27T07:32:00Z\n",
    "strings": "t.a = \"\"\"\nb = 8\n\"\"\"\nt.b = 8\nz = '''\n[t]\nb = 8'''\n",
    "long arrays": "a = [\n  1, # b = 8\n  2,\n]\n[t]\n  b = 8\n",
    "unicode": '"é" = "日本"\n[t]\nb = 8 # 😀\n',
    "the mark itself": '[t]\na = "memopt-mark-of-a-place"\nb = 8\n',
    "nothing at the end": "[t]\nb = 8",
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_only_the_value_differs(tmp_path, name):
    before = IN_PLACE[name]
    after = set_batch(tmp_path, "c.toml", before, "t.b")
    places = [i for i, c in enumerate(before) if c == "8"]
    assert after in [before[:i] + "4" + before[i + 1 :] for i in places]
    was, now = (tomlkit.parse(text.lstrip("\ufeff")).unwrap() for text in (before, after))
    assert now["t"]["b"] in (4, "4")
    was["t"]["b"] = now["t"]["b"]
    assert repr(was) == repr(now)


def test_arrays_of_tables(tmp_path):
    before = "[[s]]\nb = 1\n[[s]]\nb = 8 # x\n"
    assert set_batch(tmp_path, "c.toml", before, "s.1.b") == "[[s]]\nb = 1\n[[s]]\nb = 4 # x\n"
    assert set_batch(tmp_path, "c.toml", "a = [1, 8]\n", "a.1") == "a = [1, 4]\n"


@pytest.mark.parametrize(
    "before, after",
    [
        ("[t]\na = 1\n\n[z]\nb = 1\n", "[t]\na = 1\nb = 4\n\n[z]\nb = 1\n"),
        ("t = {a = 1}\n", "t = {a = 1, b = 4}\n"),
        ("[t]\r\na = 1\r\n", "[t]\r\na = 1\r\nb = 4\r\n"),
    ],
)
def test_created(tmp_path, before, after):
    with pytest.raises(apply.KeyMissing, match="t.b"):
        set_batch(tmp_path, "c.toml", before, "t.b")
    assert set_batch(tmp_path, "c.toml", before, "t.b", create_keys=True) == after


@pytest.mark.parametrize("before", ["", "# x\n", "z = 1", "[z]\ny = 1\n", "t.a = 1\n", "[t.u]\nx=1\n"])
def test_created_with_its_table(tmp_path, before):
    after = set_batch(tmp_path, "c.toml", before, "t.b", create_keys=True)
    expected = tomlkit.parse(before).unwrap()
    expected.setdefault("t", {})["b"] = 4
    assert tomlkit.parse(after).unwrap() == expected
    kept = iter(after.splitlines())
    assert all(line in kept for line in before.splitlines())


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "it has no key b"),
        ("b = \n", "line 1 column 4: it is not TOML"),
        ("b = 1\nb = 2\n", "it is not TOML"),
        ("b = {x = 1}\n", "b is a mapping"),
        ("b = [1]\n", "b is a list"),
        ("[b]\n", "b is a mapping"),
        ("x = 1\nb = true\n", "line 2: b: its value is true, not a number"),
        ('b = """8"""\n', "block of text"),
        ("x = 1\nb = 1979-05-27\n", "line 2: b is 1979-05-27"),
    ],
)
def test_refused(tmp_path, text, said):
    with pytest.raises(apply.ApplyError) as raised:
        set_batch(tmp_path, "c.toml", text, "b")
    assert said in str(raised.value) and "c.toml: " in str(raised.value)


_KEYS = st.text("abc_-", min_size=1, max_size=3)
_PLAIN = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=8),
    st.dates(), st.just("two\nlines"),
)  # fmt: skip
_VALUES = st.recursive(
    _PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=10
)


@given(st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=4), st.data(), st.booleans())
@settings(max_examples=150)
def test_random_documents(content, data, crlf):
    text = tomlkit.dumps(content)
    text = text.replace("\n", "\r\n") if crlf else text
    parsed = TomlDocument(text)
    places = [path for path, node in parsed.trees[0].walk() if node.kind == "scalar" and node.style != "|"]
    if not places:
        return
    path = data.draw(st.sampled_from(places))
    value = data.draw(st.sampled_from([12, "bf16-mixed", True]))
    after = parsed.set(path, value).text
    expected = tomlkit.parse(text).unwrap()
    holder = expected
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    assert repr(tomlkit.parse(after).unwrap()) == repr(expected)
    was, now = text.split("\n"), after.split("\n")
    assert len(was) == len(now)
    assert sum(a != b for a, b in zip(was, now)) <= 1


def test_what_is_no_number_is_told_in_json(tmp_path):
    path = write(tmp_path, "c.toml", "b = nan\n")
    edits = apply.prepare([path], {"micro_batch": 4}, keyed("micro_batch=b"))
    assert edits.files[0].data == b"b = 4.0\n"
    assert edits.to_json()["files"][0]["changes"][0]["old"] == "nan"
