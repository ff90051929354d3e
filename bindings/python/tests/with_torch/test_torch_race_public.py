"""race() and stream mistakes from public threads: each is found, its mended form is silent, and runs are equal."""

from __future__ import annotations

import pathlib
import re
from typing import Callable

import pytest

import race_cases as cases
from race_cases import find, kinds

PAGE = pathlib.Path(__file__).resolve().parents[4] / "docs" / "guide" / "race.md"


@pytest.mark.parametrize("case", [*cases.PUBLIC], ids=lambda case: case.__name__)
def test_public(case: Callable[..., None]) -> None:
    cases.check(case, cases.PUBLIC[case])


@pytest.mark.parametrize("form", [*cases.TORCHTUNE])
def test_torchtune(form: str) -> None:
    found = [cases.twice(case, form) for case in (cases.view_of_unpacked, cases.view_in_recompute)]
    assert found == [{cases.FREED} if wrong else set() for wrong in cases.TORCHTUNE[form]]


@pytest.mark.parametrize("program", [*cases.CLEAN], ids=lambda program: program.__name__)
def test_mutants(program: Callable[[], None]) -> None:
    """A clean offloader is silent; without any one of its waits, events and record_stream it is not."""
    whole = cases.Without(None)
    assert not find(whole.run, program)
    assert len(whole.places) == cases.CLEAN[program]
    for k, place in enumerate(whole.places):
        assert find(cases.Without(k).run, program), place


@pytest.mark.skipif(not PAGE.exists(), reason="the guide is not beside this package")
def test_the_page() -> None:
    """The guide's script, and the lines that mend it."""
    text = PAGE.read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (diff,) = re.findall(r"```diff\n(.*?)```", text, re.S)
    before = "".join(line[1:] for line in diff.splitlines(True) if line[0] == " ")
    after = "".join(line[1:] for line in diff.splitlines(True))
    assert script.count(before) == 1

    def run(program: str) -> None:
        exec(compile(program, "train.py", "exec"), {})

    found, *others = [find(run, script) for _ in range(5)]
    assert kinds(found) == {cases.READ, cases.FREED}
    assert others == [found] * 4  # the same reports, byte for byte
    assert not find(run, script.replace(before, after))
