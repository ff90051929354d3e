"""examples/adapters/jax_training.py with the real JAX, which ./setup --torch brings."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

import memopt

PROGRAM = pathlib.Path(__file__).resolve().parents[4] / "examples" / "adapters" / "jax_training.py"


def test_it_trains_and_ends(tmp_path):
    pytest.importorskip("jax")
    package = os.path.dirname(os.path.dirname(memopt.__file__))
    environment = dict(os.environ, PYTHONPATH=package, MEMOPT_LIBRARY=memopt.library_path)
    ran = subprocess.run([sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    first, last = re.findall(r"loss ([\d.]+)", ran.stdout)
    assert float(last) < 0.1 * float(first)
