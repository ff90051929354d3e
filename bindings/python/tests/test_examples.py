"""The README's snippets run; the training programs are tested in with_torch/test_torch_examples.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import memopt

PACKAGE = os.path.dirname(os.path.dirname(memopt.__file__))
EXAMPLES = os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "python")
)


def run(name, *arguments):
    script = os.path.join(EXAMPLES, name)
    if not os.path.exists(script):
        pytest.skip("the examples are not beside this package")
    return subprocess.run(
        [sys.executable, script, *arguments],
        env=dict(os.environ, PYTHONPATH=PACKAGE, MEMOPT_LIBRARY=memopt.library_path),
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_readme_snippet():
    pytest.importorskip("torch")
    result = run("readme_snippet.py")
    assert result.returncode == 0, result.stderr
    size = float(re.search(r"([\d.]+) bytes of state a parameter", result.stdout).group(1))
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
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=PACKAGE, MEMOPT_LIBRARY=memopt.library_path),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
