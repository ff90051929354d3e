"""YAML files are changed in place: only the value's bytes differ, whatever stands around it."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("ruamel.yaml")

from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from ruamel.yaml import YAML  # noqa: E402
from ruamel.yaml.error import YAMLError  # noqa: E402

from apply_files import changed, keyed, set_batch  # noqa: E402
from memopt.cli import apply  # noqa: E402
from memopt.cli.apply.tree import spelled  # noqa: E402
from memopt.cli.apply.yaml_text import YamlDocument, resolved  # noqa: E402


def load(text):
    return YAML(typ="safe", pure=True).load(text)


def dump(documents):
    out = io.StringIO()
    YAML(typ="rt").dump_all(documents, out)
    return out.getvalue()


#: Each with one "8" that is to become a "4", at t.b.
IN_PLACE = {
    "comments": "# one\nt: # two\n  # three\n  b: 8   # four: 8\n  # five\n\n\n# six\n",
    "no final newline": "t:\n  b: 8",
    "crlf": "# x\r\nt:\r\n  a: 1\r\n  b: 8 # x\r\n\r\n\r\nz: [1,\r\n 2]\r\n",
    "byte order mark": "\ufeff# x\nt: {b: 8}\n",
    "flow": "t: {a: 'x, b: 8', b: 8,c: [8, 8]}\n",
    "flow over lines": "t: {\n  a: 1, # b: 8\n      b:    8,\n}\n",
    "json in yaml": '{"t": {"b":8, "c": "8"}}\n',
    "quoted keys": "\"t\":\n    'b': 8\n",
    "quotes": "t:\n  b: '8'\n",
    "double quotes": 't:\n  b: "8"  # x\n',
    "anchor of its own": "t:\n  b: &bs 8\n",
    "blocks of text": "a: |\n  t:\n    b: 8\n\n\nc: >-\n  folded\n\n  b: 8\nt:\n  b: 8\nd: |+\n  x\n\n",
    "strings over lines": 'a: "t:\n  b: 8"\nc: plain\n  goes on\nt:\n  b: 8\n',
    "odd indents": "t:\n         a:\n          - 1\n          -   2\n         b: 8\nz:\n - y\n",
    "lists": "l:\n- b: 8\n- {b: 8}\nt:\n  x:\n  - b: 8\n  b: 8\n",
    "documents": "--- # first\na: 1\n---\nt:\n  b: 8\n...\n---\nz: 1\n",
    "directive": "%YAML 1.2\n---\nt:\n  b: 8\n",
    "tags elsewhere": "a: !!python/name:torch.optim.AdamW\nb: !include x.yaml\nt: !Cfg\n  b: 8\n",
    "anchors elsewhere": "a: &a\n  x: 1\nc: *a\nt:\n  <<: *a\n  b: 8\n",
    "numbers elsewhere": "t:\n  lr: 1.0000000000000000001e-05\n"
    "  n: 123456789012345678901234567890\n"
    "  o: 0o17\n  b: 8\n  d: 1_000\n",
    "unicode": "é: 日本\nt:\n  😀: '8'\n  b: 8\n",
    "tabs": "t:\n  b: 8 # \tx\n  c: 'a\t'\n",
    "trailing spaces": "t:   \n  b: 8   \n   \n",
    "long line": "a: %s\nt:\n  b: 8\n" % ("word " * 100),
    "empty values": "a:\nt:\n  x:\n  b: 8\n  y:\nz:\n",
    "question mark key": "? a\n: 1\nt:\n  b: 8\n",
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_only_the_value_differs(tmp_path, name):
    before = IN_PLACE[name]
    places = [i for i, c in enumerate(before) if c == "8"]
    expected = [before[:i] + "4" + before[i + 1 :] for i in places]
    after = set_batch(tmp_path, "c.yaml", before, "t.b")
    assert after in expected
    documents = [list(YAML(typ="rt").load_all(text)) for text in (before, after)]
    there = [d for d in documents[1] if d is not None and "t" in d]
    assert len(there) == 1 and there[0]["t"]["b"] in (4, "4")
    for was in documents[0]:
        if was is not None and "t" in was:
            was["t"]["b"] = there[0]["t"]["b"]
    assert dump(documents[0]) == dump(documents[1])


def test_an_empty_value_gets_one(tmp_path):
    before = "t:\n  b:\n  c:   # x\nu: {b}\n"
    assert set_batch(tmp_path, "c.yaml", before, "t.b") == before.replace("b:\n", "b: 4\n")
    before = "t:\n  b:   # x\n  c: 1\n"
    assert set_batch(tmp_path, "c.yaml", before, "t.b") == "t:\n  b: 4   # x\n  c: 1\n"
    before = "t: {b: , c: 1}\n"
    assert load(set_batch(tmp_path, "c.yaml", before, "t.b")) == {"t": {"b": 4, "c": 1}}


@pytest.mark.parametrize("word", ["null", "~", "auto", '"auto"', "8.0", "0x8", "1_6", "'16'"])
def test_kinds_of_numbers(tmp_path, word):
    after = set_batch(tmp_path, "c.yaml", "b: %s # x\n" % word, "b")
    expected = {"8.0": "4.0", "'16'": "'4'"}.get(word, "4")
    assert after == "b: %s # x\n" % expected


@pytest.mark.parametrize("word", ["4", "4.0", "'4'", "0x4", "0b100", "+4"])
def test_what_means_the_same_stays(tmp_path, word):
    assert set_batch(tmp_path, "c.yaml", "b: %s\n" % word, "b") == "b: %s\n" % word


@pytest.mark.parametrize(
    "old, new",
    [
        ("false", "true"),
        ("False", "True"),
        ("FALSE", "TRUE"),
        ("no", "yes"),
        ("Off", "On"),
        ("'false'", "'true'"),
        ("0", "1"),
        ("null", "true"),
    ],
)
def test_kinds_of_truth(tmp_path, old, new):
    mapping = keyed("checkpointing=c")
    wanted = {"checkpointing": "full"}
    assert changed(tmp_path, "c.yaml", "c: %s\n" % old, wanted, mapping) == "c: %s\n" % new


@pytest.mark.parametrize("text", ["yes", "No", "on", "8", "1.5", "1e5", "null", "", "a: b", "# c", "y"])
def test_strings_stay_strings_for_every_reader(text):
    written = YamlDocument("a: x\n").set(("a",), text).text
    assert load(written) == {"a": text}
    assert isinstance(resolved(written[3:].strip()), str) or written[3:4] == '"'
    pyyaml = pytest.importorskip("yaml")
    assert pyyaml.safe_load(written) == {"a": text}


@pytest.mark.parametrize(
    "text, means",
    [("8", 8), ("-8", -8), ("0x1F", 31), ("1_000", 1000), ("010", 10), ("8.5", 8.5), ("1e3", 1e3),
     (".5", 0.5), ("yes", True), ("OFF", False), ("oFF", "oFF"), ("~", None), ("", None),
     ("16-mixed", "16-mixed"), ("1" * 5000, "1" * 5000), ("0o8", "0o8"), ("8k", "8k")],
)  # fmt: skip
def test_what_words_mean(text, means):
    assert resolved(text) == means and type(resolved(text)) is type(means)


# --- anchors and merge keys -----------------------------------------------------------------------


def test_an_alias_is_written_out(tmp_path):
    before = "base: &b 8\nt:\n  b: *b  # shared\n  e: *b\n"
    assert set_batch(tmp_path, "c.yaml", before, "t.b") == before.replace("b: *b  ", "b: 4  ")


def test_a_merged_value_is_overridden(tmp_path):
    before = "base: &b\n  b: 8\n  x: 1\nt:\n  <<: *b # merged\n# end\n"
    after = set_batch(tmp_path, "c.yaml", before, "t.b")
    assert after == "base: &b\n  b: 8\n  x: 1\nt:\n  <<: *b # merged\n  b: 4\n# end\n"
    assert load(after)["base"] == {"b": 8, "x": 1} and load(after)["t"] == {"b": 4, "x": 1}


def test_the_first_of_several_merged_values_counts(tmp_path):
    before = "a: &a {b: 4}\nc: &c {b: 8}\nt: {<<: [*a, *c], z: 1}\n"
    assert set_batch(tmp_path, "c.yaml", before, "t.b") == before
    before = before.replace("[*a, *c]", "[*c, *a]")
    assert load(set_batch(tmp_path, "c.yaml", before, "t.b"))["t"] == {"b": 4, "z": 1}


SHARED = {
    "value": ("t:\n  b: &b 8\nu: *b\n", "t.b", "u (line 3)"),
    "mapping by alias": ("d: &d\n  b: 8\nt: *d\n", "t.b", "d (line 1)"),
    "mapping at its anchor": ("t: &d\n  b: 8\nu: *d\n", "t.b", "u (line 3)"),
    "merged elsewhere": ("t: &d\n  b: 8\nu:\n  <<: *d\n", "t.b", "u.<< (line 4)"),
    "through a merge": ("d: &d\n  i: {b: 8}\nt:\n  <<: *d\n", "t.i.b", "d (line 1)"),
    "a list": ("l: &l\n- b: 8\nm: *l\n", "m.0.b", "l (line 1)"),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_values(tmp_path, name):
    before, key, other = SHARED[name]
    with pytest.raises(apply.ApplyError) as raised:
        set_batch(tmp_path, "c.yaml", before, key)
    assert other in str(raised.value) and "--shared" in str(raised.value)
    after = set_batch(tmp_path, "c.yaml", before, key, shared=True)
    assert after == before.replace("8", "4")


def test_an_anchor_nobody_uses_shares_nothing(tmp_path):
    assert set_batch(tmp_path, "c.yaml", "t: &d\n  b: &x 8\n", "t.b") == "t: &d\n  b: &x 4\n"


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, said",
    [
        ("a: [1\n", "line 2 column 1: it is not YAML"),
        ("a: 1\n b: 2\n", "not YAML"),
        ("a: \x07\n", "not YAML"),
        ("b: 8\t# as PyYAML says\n", "line 1 column 5: it is not YAML"),
        ("a: *x\nb: 1\n", "no anchor &x"),
        ("b: 1\nb: 2\n", "2 times (lines 1, 2)"),
        ("b: {x: 1}\n", "line 1: b is a mapping"),
        ("b: [1]\n", "b is a list"),
        ("b: true\n", "true, not a number"),
        ("b: !!int 8\n", "has the tag"),
        ("b: !x 8\n", "has the tag"),
        ("b: |\n  8\n", "block of text"),
        ("b: ${x.y}\n", "reference ${x.y}"),
        ("b: '${oc.env:B}'\n", "reference ${oc.env:B}"),
        ("b: 8\n---\nb: 8\n", "2 of its 2 documents have the key b (lines 1, 3)"),
        ("- b\n", "it has no key b"),
        ("", "it has no key b"),
        ("# nothing\n", "it has no key b"),
        ("B: 8\n", "it has no key b"),
        ("a: &a\n  <<: *a\n", "it has no key b"),
    ],
)
def test_refused(tmp_path, text, said):
    with pytest.raises(apply.ApplyError) as raised:
        set_batch(tmp_path, "c.yaml", text, "b")
    assert said in str(raised.value) and "c.yaml: " in str(raised.value)


def test_deep_nesting_is_no_crash(tmp_path):
    with pytest.raises(apply.ApplyError, match="deeply|no key b"):
        set_batch(tmp_path, "c.yaml", "[" * 1100 + "]" * 1100, "b")


def test_a_pair_in_a_list(tmp_path):
    before = "t: [b: 8, c: 1]\n"
    assert set_batch(tmp_path, "c.yaml", before, "t.0.b") == before.replace("8", "4")
    with pytest.raises(apply.ApplyError, match="line 1: a pair in a list takes no other key"):
        set_batch(tmp_path, "c.yaml", before, "t.0.d", create_keys=True)


def test_a_merge_of_itself_is_no_endless_search(tmp_path):
    with pytest.raises(apply.ApplyError, match="no key|deeply"):
        set_batch(tmp_path, "c.yaml", "t: &a\n  <<: *a\n", "t.b")


# --- keys that are not there ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "before, after",
    [
        ("t:\n  a: 1 # x\n\nz: 1\n", "t:\n  a: 1 # x\n  b: 4\n\nz: 1\n"),
        ("t:\n    a:\n        - 1\nz: 1", "t:\n    a:\n        - 1\n    b: 4\nz: 1"),
        ("z: 1", "z: 1\nt:\n  b: 4"),
        ("y:\n    x: 1\n", "y:\n    x: 1\nt:\n    b: 4\n"),
        ("z: 1\r\n", "z: 1\r\nt:\r\n  b: 4\r\n"),
        ("t: {a: 1}\n", "t: {a: 1, b: 4}\n"),
        ("t: {}\n", "t: {b: 4}\n"),
        ("{}\n", "{t: {b: 4}}\n"),
        ("", "t:\n  b: 4\n"),
        ("# only\n", "# only\nt:\n  b: 4\n"),
        ("t:\n  a: |\n    x\n", "t:\n  b: 4\n  a: |\n    x\n"),
        ("t:\n  c: 1\n  a: |\n    x\n", "t:\n  c: 1\n  b: 4\n  a: |\n    x\n"),
        ("---\nz: 1\n...\n", "---\nz: 1\nt:\n  b: 4\n...\n"),
    ],
)
def test_created(tmp_path, before, after):
    with pytest.raises(apply.KeyMissing, match="no key t.b.*--create-keys"):
        set_batch(tmp_path, "c.yaml", before, "t.b")
    assert set_batch(tmp_path, "c.yaml", before, "t.b", create_keys=True) == after
    assert load(after)["t"]["b"] == 4


@pytest.mark.parametrize("before", ["t: 1\n", "t: [1]\n", "- 1\n", "8\n", "t:\nz: 1\n---\na: 1\n"])
def test_not_created(tmp_path, before):
    with pytest.raises(apply.ApplyError):
        set_batch(tmp_path, "c.yaml", before, "t.b", create_keys=True)


def test_not_created_in_what_is_shared(tmp_path):
    before = "t: &d\n  a: 1\nu: *d\n"
    with pytest.raises(apply.ApplyError, match="u .line 3. would change too"):
        set_batch(tmp_path, "c.yaml", before, "t.b", create_keys=True)


# --- random documents -----------------------------------------------------------------------------

_KEYS = st.text("abcxyz_", min_size=1, max_size=4).filter(
    lambda k: isinstance(resolved(k), str) and k not in ("y", "n")
)
_TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=12)
_SCALARS = st.one_of(
    st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), _TEXTS,
    st.just("two\nlines\n"), st.just("folded " * 30),
)  # fmt: skip
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=12
)


@st.composite
def documents(draw):
    """A text as some program may have dumped it, with comments, and a path to a number in it."""
    data = draw(st.dictionaries(_KEYS, _VALUES, max_size=4))
    path = draw(st.lists(_KEYS, min_size=1, max_size=3))
    holder = data
    for part in path[:-1]:
        if not isinstance(holder.get(part), dict):
            holder[part] = {}
        holder = holder[part]
    holder[path[-1]] = draw(st.sampled_from([8, 9.0, "10", "auto", None]))
    yaml = YAML(typ="rt")
    yaml.default_flow_style = draw(st.sampled_from([False, True, None]))
    yaml.width = draw(st.sampled_from([20, 80, 4000]))
    if yaml.default_flow_style is False:
        yaml.indent(*draw(st.sampled_from([(2, 2, 0), (4, 4, 2), (2, 4, 2), (7, 5, 3)])))
    yaml.allow_unicode = True
    yaml.explicit_start = draw(st.booleans())
    out = io.StringIO()
    yaml.dump(data, out)
    text = out.getvalue()
    text = draw(st.sampled_from(["", "# first\n", "\n\n  # first\n"])) + text
    if draw(st.booleans()):
        text = text.rstrip("\n")
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    try:
        load(text)
    except YAMLError:  # "{a: ?0}": what ruamel.yaml writes it does not always read
        assume(False)
    return text, tuple(path)


@given(documents(), st.integers(1, 10**6))
@settings(max_examples=150)
def test_random_documents(document, batch):
    text, path = document
    before = load(text)
    parsed = YamlDocument(text)
    old = parsed.value(path)
    new = float(batch) if isinstance(old, float) else str(batch) if old == "10" else batch
    after = parsed.set(path, new).text
    _check(text, after, before, path, new)


@given(documents(), st.lists(_KEYS, min_size=1, max_size=2), st.booleans())
@settings(max_examples=150)
def test_random_additions(document, extra, word):
    text, path = document
    path = path[:-1] + tuple("new_" + part for part in extra)
    value = "16-mixed" if word else 12
    before = load(text)
    after = YamlDocument(text).add(path, value).text
    holder = before
    for part in path[:-1]:
        holder = holder.setdefault(part, {})
    holder[path[-1]] = value
    assert load(after) == before
    kept = iter(after.splitlines())
    flow = "{" in text
    assert flow or all(line in kept for line in text.splitlines()), "a line was lost"


def _check(text, after, before, path, new):
    holder = before
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = new
    assert load(after) == before
    assert len(after.split("\n")) == len(text.split("\n"))
    differ = [i for i, (a, b) in enumerate(zip(text.split("\n"), after.split("\n"))) if a != b]
    assert len(differ) <= 1, spelled(path)
