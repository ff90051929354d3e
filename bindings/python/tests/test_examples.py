"""The README's snippets run; the training programs are tested in with_torch/test_torch_examples.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import memopt

PACKAGE = os.path.dirname(os.path.dirname(memopt.__file__))
EXAMPLES = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "python"))


def run(script, folder):
    """What a program prints."""
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=dict(os.environ, PYTHONPATH=PACKAGE, MEMOPT_LIBRARY=memopt.library_path),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_readme_snippet(tmp_path):
    pytest.importorskip("torch")
    script = os.path.join(EXAMPLES, "readme_snippet.py")
    if not os.path.exists(script):
        pytest.skip("the examples are not beside this package")
    size = float(re.search(r"([\d.]+) bytes of state a parameter", run(script, tmp_path)).group(1))
    assert 2.0 < size < 2.1


def readme_snippets():
    root = os.path.dirname(os.path.dirname(EXAMPLES))
    for name in ("README.md", os.path.join("docs", "guide", "python.md")):
        path = os.path.join(root, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                for code in re.findall(r"```python\n(.*?)```", file.read(), re.S):
                    yield pytest.param(code, id=name + ":" + code[:20].replace("\n", " "))


@pytest.mark.parametrize("code", list(readme_snippets()))
def test_snippets_of_documents_run(code, tmp_path):
    """Every Python snippet of the documents is a program; those with torch need it."""
    if "torch" in code:
        pytest.importorskip("torch")
    if "numpy" in code:
        pytest.importorskip("numpy")
    script = tmp_path / "snippet.py"
    script.write_text(code)
    run(script, tmp_path)
