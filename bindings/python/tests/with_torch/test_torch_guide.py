"""The program of docs/guide/pytorch.md runs, and its table names what there is."""

from __future__ import annotations

import pathlib
import re

import pytest

torch = pytest.importorskip("torch")
import memopt.torch as mt  # noqa: E402

PAGE = pathlib.Path(__file__).resolve().parents[4] / "docs" / "guide" / "pytorch.md"


@pytest.fixture
def page():
    if not PAGE.exists():
        pytest.skip("the guide is not beside this package")
    return PAGE.read_text(encoding="utf-8")


def test_the_program_learns(page, capsys):
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(program, "pytorch.md", "exec"), {})
    first, last = map(float, re.findall(r"loss ([\d.]+)", capsys.readouterr().out))
    assert last < 0.9 * first


def test_the_table_names_what_there_is(page):
    rows = re.findall(r"^\| .*? \| (`.*?) \| .* \| \[", page, re.M)
    names = set(re.findall(r"`(\w+)[(`]", " ".join(rows)))
    assert {"AdamW8bit", "checkpoint_sequential", "enable_allocator"} <= names and len(names) > 14
    assert not sorted(name for name in names if not hasattr(mt, name))
