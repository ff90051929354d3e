"""Finding and loading the library, and what an ImportError says."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
from ctypes.util import find_library

import pytest

import memopt

PACKAGE = os.path.dirname(memopt.__file__)
BUNDLED = os.path.join(PACKAGE, "lib", "libmemopt.so.1")


def run(code, tmp_path, **environment):
    values = {key: value for key, value in os.environ.items() if key != "MEMOPT_LIBRARY"}
    values.update(environment)
    values["PYTHONPATH"] = os.path.dirname(PACKAGE)
    return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=values, capture_output=True, text=True)


def test_version_and_path():
    assert memopt.__version__.startswith("0.9.")
    assert os.path.basename(memopt.library_path)


@pytest.fixture
def old(tmp_path):
    """A library with another number of its version."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

    def make(version):
        if not compiler:
            pytest.skip("no C compiler")
        (tmp_path / "old.c").write_text("unsigned memopt_version(void) { return %s; }" % version)
        words = [compiler, "-shared", "-fPIC", str(tmp_path / "old.c"), "-o", str(tmp_path / "old.so")]
        subprocess.run(words, check=True)
        return str(tmp_path / "old.so")

    return make


@pytest.mark.parametrize(
    "kind, text",
    [
        ("none.so", "none.so (MEMOPT_LIBRARY): no such file"),
        ("text.so", "text.so (MEMOPT_LIBRARY)"),
        ("libm", "it is not libmemopt"),
        ("10000", "it is version 1.0; this package needs 0.9"),
        ("900", "lacks the function"),
    ],
)
def test_a_named_library_that_cannot_be_used(tmp_path, old, kind, text):
    (tmp_path / "text.so").write_text("not an ELF file")
    named = str(tmp_path / kind) if kind.endswith(".so") else old(kind) if kind.isdigit() else find_library("m")
    if not named:
        pytest.skip("no libm to load")
    result = run("import memopt", tmp_path, MEMOPT_LIBRARY=named)
    assert "ImportError: memopt: the library libmemopt cannot be loaded" in result.stderr
    assert result.returncode != 0 and text in result.stderr
    assert "bundled" not in result.stderr, "whoever names a library wants that one"


@pytest.mark.skipif(os.path.exists(BUNDLED), reason="a library is bundled with this package")
def test_every_path_is_told(tmp_path):
    result = run("import memopt", tmp_path)
    if result.returncode == 0:
        pytest.skip("the system has a libmemopt")
    assert BUNDLED + " (bundled with this package): no such file" in result.stderr
    assert "libmemopt.so.1 (the system's library path)" in result.stderr


@pytest.mark.parametrize("name", ["memopt", "memopt.torch"])
def test_no_public_name_hides_a_module(name):
    if name == "memopt.torch":
        pytest.importorskip("torch")
    package = importlib.import_module(name)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__)


def test_only_the_standard_library_is_imported(tmp_path):
    code = (
        "import sys, memopt\n"
        "names = {n.partition('.')[0] for n in sys.modules} - {'memopt', '__main__'}\n"
        "bad = [n for n in names if n not in sys.stdlib_module_names and not n.startswith('_')]\n"
        "assert not bad, bad\n"
    )
    if sys.version_info < (3, 10):
        pytest.skip("sys.stdlib_module_names needs Python 3.10")
    result = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={"MEMOPT_LIBRARY": memopt.library_path, "PYTHONPATH": os.path.dirname(PACKAGE)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def test_a_library_named_with_a_relative_path_from_another_directory(tmp_path):
    if not os.path.isabs(memopt.library_path):
        pytest.skip("the library was found by the loader")
    relative = os.path.relpath(memopt.library_path, tmp_path)
    result = run("import memopt; print(memopt.__version__)", tmp_path, MEMOPT_LIBRARY=relative)
    assert result.stdout.strip() == memopt.__version__, result.stderr
