"""That references.py finds each kind of name that is not there, and nothing in documents that are right."""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import references

GOOD = """# Title

See [the header](include/x.h), [the rest](docs/page.md#a-section-of-it), [this](#title),
`include/x.h`, `tests/bench/bench_x`, `lib/<primitive>` and
`memopt_x_open()`, set `MEMOPT_LOG=info`. It is `memopt_x_*` and `-DMEMOPT_X=ON`.

    not code for us: tests/none.c

```sh
$ memopt run --fast -- train.py --epochs 3
```
"""
BAD = {
    "[gone](include/y.h)": "leads nowhere",
    "[gone](docs/page.md#no-section)": "names no heading there",
    "[gone](#nothing)": "names no heading there",
    "`tests/none.c`": "there is no tests/none.c",
    "`lib/<primitive>/none.c`": "there is no lib/<primitive>/none.c",
    "`memopt_y_open()`": "no source has memopt_y_open",
    "`MEMOPT_Y`": "no source has MEMOPT_Y",
    "```\nmemopt run --slow\n```": "memopt has no --slow",
}


def tree(folder, text, more):
    """A small repository with a README of this text, and more files."""
    for name, content in {
        "include/x.h": "int memopt_x_open(void); // MEMOPT_LOG MEMOPT_X",
        "lib/x/x.c": "",
        "tests/bench/bench_x.cc": "",
        "bindings/python/memopt/cli/run.py": 'add("--fast")',
        "README.md": text,
        "docs/page.md": "# Page\n\n## A `section` of it\n[on](next.md)\n[log](../CHANGELOG.md)\n",
        "docs/next.md": "# Next\n",
        "CHANGELOG.md": "`memopt_old_name`\n",
        **more,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def found(text, **more):
    """What the check says of a README, and of other pages."""
    with tempfile.TemporaryDirectory() as folder:
        return list(references.check(tree(pathlib.Path(folder).resolve(), text, more)))


assert found(GOOD) == [], found(GOOD)
for text, said in BAD.items():
    wrong = found(GOOD + "\n" + text + "\n")
    assert len(wrong) == 1 and said in wrong[0], (text, wrong)
WALK = """# Walks

[next](next.md)

## One

1. [x.h](../include/x.h): `memopt_x_open()`
   opens.
2. [x.c](../lib/x/x.c): `table[]` and `step(a, b)`; `memcpy` is not ours.

Then `step()` of `memopt_x_open()`.
"""
walk = {
    "docs/reading.md": WALK,
    "docs/page.md": "## A section of it\n[on](reading.md) [next](next.md) [log](../CHANGELOG.md)\n",
    "lib/x/x.c": "static int table[2]; static void step(void) {}",
}
assert found(GOOD, **walk) == [], found(GOOD, **walk)
for old, new, said in (
    ("`table[]`", "`memopt_x_open()`", "no file linked there has memopt_x_open"),
    ("Then `step()`", "Then `stop()`", "no file linked there has stop"),
):
    wrong = found(GOOD, **{**walk, "docs/reading.md": WALK.replace(old, new)})
    assert wrong == ["docs/reading.md: " + said], wrong
wrong = found(GOOD, **{"docs/far.md": "# Far\n"})
assert wrong == ["docs/far.md: is more than 2 clicks from README.md"], wrong
wrong = found(GOOD, **{"docs/next.md": "[far](far.md)\n", "docs/far.md": "# Far\n"})
assert wrong == ["docs/far.md: is more than 2 clicks from README.md"], wrong
wrong = found(GOOD, **{"CHANGELOG.md": "[gone](gone.md) `memopt_old_name`\n"})
assert len(wrong) == 1 and "leads nowhere" in wrong[0], wrong
settings = {
    "lib/x/x.c": 'getenv("MEMOPT_LOG");',
    "CMakeLists.txt": 'option(MEMOPT_X "x" OFF)\nset(MEMOPT_Y "" CACHE INTERNAL "for tests")',
}
wrong = found(GOOD, **settings)
assert wrong == ["docs/guide: no page has the setting MEMOPT_" + name for name in ("LOG", "X")]
attempts = {"lib/allocator/front/pressure.c": "attempts[] = {\n    one, /* 1 */\n    two,\n};\n",
            "docs/guide/allocator.md": "It makes these attempts:\n1. one;\n2. two.\n\nThen the call fails"}
linked = GOOD + "[list](docs/guide/allocator.md)\n"
assert found(linked, **attempts) == [], found(linked, **attempts)
attempts["docs/guide/allocator.md"] = attempts["docs/guide/allocator.md"].replace("2. two.\n", "")
wrong = found(linked, **attempts)
assert wrong == ["docs/guide/allocator.md: 2 attempts are made, 1 are listed"], wrong
print("every kind of mistake is found")
