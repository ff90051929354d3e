"""What ./check adds up, from files as CTest and pytest write them."""
import pathlib
import subprocess
import sys

import pytest

TOOL = pathlib.Path(__file__).with_name("results.py")

CTEST = """<testsuite name="x" tests="4" failures="1" disabled="1" skipped="1">
<testcase name="good" status="run"/>
<testcase name="bad" status="fail"><failure message=""/><system-out>line one
assertion 7 &lt; 3</system-out></testcase>
<testcase name="no_gpu" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>no GPU here</system-out></testcase>
<testcase name="missing" status="fail"><failure message="Unable to find executable"/></testcase>
</testsuite>"""
PYTEST = """<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
<testcase name="a"/><testcase name="b"><failure message="m">text of b</failure></testcase>
<testcase name="c"><error message="m">text of c</error></testcase>
<testcase name="d"><skipped message="needs torch">reason</skipped></testcase>
</testsuite></testsuites>"""
GOOD = '<testsuite><testcase name="good" status="run"/></testsuite>'


def results(*arguments):
    done = subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip().splitlines()


@pytest.mark.parametrize(
    "files, code, last",
    [
        ({"a.xml": GOOD}, 0, "1 passed, 0 failed, 0 skipped"),
        ({"a.xml": CTEST}, 1, "1 passed, 2 failed, 1 skipped"),
        ({"a.xml": PYTEST}, 1, "1 passed, 2 failed, 1 skipped"),
        ({"a.xml": CTEST, "b.xml": PYTEST, "c.xml": GOOD}, 1, "3 passed, 4 failed, 2 skipped"),
        ({"a.xml": GOOD, "asan.broken": ""}, 1, "1 passed, 1 failed, 0 skipped"),
        ({"a.xml": GOOD, "b.xml": "<testsui"}, 1, "1 passed, 1 failed, 0 skipped"),
        ({}, 1, "0 passed, 0 failed, 0 skipped"),  # nothing ran: that is no success
    ],
)
def test_total(tmp_path, files, code, last):
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    got, lines = results("--total", tmp_path)
    assert (got, lines[-1]) == (code, last)


def test_skips_are_named_with_their_reason(tmp_path):
    (tmp_path / "test.xml").write_text(CTEST, encoding="utf-8")
    (tmp_path / "python.xml").write_text(PYTEST, encoding="utf-8")
    _, lines = results("--total", tmp_path)
    assert any("no_gpu" in line and "no GPU here" in line for line in lines)
    assert any("python: d needs torch" in line for line in lines)


def test_failures_are_shown(tmp_path):
    path = tmp_path / "test.xml"
    path.write_text(CTEST, encoding="utf-8")
    code, lines = results("--failed", path)
    assert code == 0
    assert [line for line in lines if "bad" in line] and "assertion 7 < 3" in "\n".join(lines)
    path.write_text(GOOD, encoding="utf-8")
    assert results("--failed", path)[0] == 1
    assert results("--failed", tmp_path / "none.xml")[0] == 1


def test_failures_come_last_with_their_ends(tmp_path):
    """Of a long log the tail is kept: the failures stand just above the total."""
    (tmp_path / "a.xml").write_text(CTEST, encoding="utf-8")
    (tmp_path / "b.xml").write_text(PYTEST, encoding="utf-8")
    (tmp_path / "c.broken").touch()
    _, lines = results("--total", tmp_path)
    failed = next(i for i, line in enumerate(lines) if line.startswith("failed"))
    assert not any(line.startswith("skipped") for line in lines[failed:])
    shown = "\n".join(lines[failed:])
    for said in ("a: bad", "assertion 7 < 3", "b: b", "text of c", "c.log"):
        assert said in shown


def test_many_skips_of_one_reason_are_one_line(tmp_path):
    case = '<testcase name="t{}"><skipped message="no GPU"/></testcase>'
    text = f"<testsuite>{''.join(case.format(i) for i in range(40))}</testsuite>"
    (tmp_path / "torch.xml").write_text(text, encoding="utf-8")
    _, lines = results("--total", tmp_path)
    assert lines == ["skipped    torch: 40 tests: no GPU", "0 passed, 0 failed, 40 skipped"]
