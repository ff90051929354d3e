"""What the package promises about Pythons: syntax and names of 3.9, types, a quick import, and the
tests themselves under every version that this machine has."""

from __future__ import annotations

import ast
import glob
import json
import os
import subprocess
import sys

import interpreters
import pytest

import memopt

PACKAGE = os.path.dirname(os.path.abspath(memopt.__file__))
PROJECT = os.path.dirname(PACKAGE)
MODULES = sorted(glob.glob(os.path.join(PACKAGE, "**", "*.py"), recursive=True))

# Modules that cost milliseconds, or that import much: none is needed to begin with.
SLOW = set(
    "argparse array ast asyncio concurrent csv dataclasses decimal difflib dis email fractions"
    " ftplib getpass gettext glob gzip hashlib html http importlib.metadata importlib.resources"
    " inspect ipaddress json linecache locale logging multiprocessing optparse pathlib pickle"
    " pkgutil platform pprint queue random selectors shutil signal smtplib socket sqlite3 ssl"
    " statistics string subprocess tarfile tempfile textwrap tokenize traceback unittest urllib"
    " uuid xml zipfile".split()
)

IMPORT = """
import json, sys
before = set(sys.modules)
import memopt
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def run(python, *arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment.update(PYTHONPATH=PROJECT, MEMOPT_LIBRARY=memopt.library_path, **variables)
    return subprocess.run([python, *arguments], cwd=PROJECT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: os.path.relpath(path, PACKAGE))
def test_syntax_of_python_3_9(path):
    with open(path, encoding="utf-8") as file:
        ast.parse(file.read(), path, feature_version=(3, 9))


def vermin(path):
    """What vermin, which knows the version that each name of the library is of, has against it."""
    code = "import vermin; vermin.main()"
    result = run(sys.executable, "-c", code, "-t=3.9-", "--violations", "--no-tips", str(path))
    return result.returncode, result.stdout + result.stderr


def test_no_name_newer_than_python_3_9(tmp_path):
    pytest.importorskip("vermin")
    status, text = vermin(PACKAGE)
    assert status == 0, text
    newer = tmp_path / "newer.py"
    newer.write_text("import itertools\nprint(itertools.pairwise([1, 2]))\n")
    status, text = vermin(newer)
    assert status != 0 and "itertools.pairwise" in text, "it would see a name of 3.10"


@pytest.mark.parametrize("torch", [False, pytest.param(True, marks=pytest.mark.long)])
def test_types_strict(torch, tmp_path):
    pytest.importorskip("mypy")
    settings = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "pyproject.toml")
    arguments = ["--cache-dir", str(tmp_path), "--config-file", settings]
    if torch:
        pytest.importorskip("torch")  # without it its types are unknown
    else:
        # torch's and numpy's own sources take most of a minute
        arguments += ["--no-site-packages", "--ignore-missing-imports"]
        arguments += ["--exclude", "memopt/torch/", "memopt"]
    result = run(sys.executable, "-m", "mypy", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no issues found" in result.stdout


def test_importing_is_quick():
    modules = set(json.loads(run(sys.executable, "-I", "-S", "-c", isolated(IMPORT)).stdout))
    assert "memopt" in modules
    foreign = {name for name in modules if not name.startswith("memopt")}
    assert not foreign & SLOW, "slow modules are imported when they are needed"
    assert not {name for name in modules if name.startswith(("memopt.cli", "memopt.torch"))}
    if sys.version_info >= (3, 10):
        assert {name.partition(".")[0] for name in foreign} <= set(sys.stdlib_module_names)
    assert len(foreign) < 64, sorted(foreign)


def isolated(code):
    """A program for -I, which hears of no environment variables but MEMOPT_LIBRARY."""
    return "import sys; sys.path.insert(0, %r)\n%s" % (PROJECT, code)


def test_no_module_needs_torch_but_those_of_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import importlib, pkgutil, memopt\n"
        "for module in pkgutil.walk_packages(memopt.__path__, 'memopt.', lambda name: None):\n"
        "    if not module.name.startswith('memopt.torch') and module.name != 'memopt.__main__':\n"
        "        importlib.import_module(module.name)\n"
    )
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr


@pytest.mark.long
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_the_tests_themselves(which, tmp_path):
    """The tests of the binding under the oldest and the newest Python of this machine."""
    here = "%d.%d" % sys.version_info[:2]
    others = [version for version in interpreters.VERSIONS if interpreters.path_of(version)]
    version = others[0 if which == "oldest" else -1]
    if version == here:
        pytest.skip("the %s Python here is this one, %s" % (which, here))
    made = run(interpreters.find(version), "-m", "venv", str(tmp_path / "venv"))
    if made.returncode:
        pytest.skip("no venv module: " + made.stderr[-200:])
    python = str(tmp_path / "venv" / "bin" / "python")
    if run(python, "-m", "pip", "install", "-q", "pytest", "hypothesis").returncode:
        pytest.skip("pytest for Python %s cannot be downloaded" % version)
    tests = os.path.join(PROJECT, "tests")
    options = ["-q", "-p", "no:cacheprovider", "-m", "not long"]
    result = run(
        python, "-m", "pytest", *options, "--ignore", os.path.join(tests, "with_torch"), tests,
        PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-5000:]
    assert " passed" in result.stdout
