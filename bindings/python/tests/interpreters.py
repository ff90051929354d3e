"""The Pythons of this machine, by version."""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess
import sys

import pytest

#: What the package says it runs on.
VERSIONS = ["3.%d" % minor for minor in range(9, 15)]


def _version(path):
    code = "import sys, ctypes; print('%d.%d' % sys.version_info[:2])"
    try:
        result = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


@functools.lru_cache(maxsize=None)
def path_of(version):
    """The path of a Python of this version, or None."""
    here = "%d.%d" % sys.version_info[:2]
    if version == here:
        return sys.executable
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    candidates = [shutil.which("python" + version), "/usr/bin/python3"]
    candidates += sorted(glob.glob(os.path.join(pyenv, "versions", version + ".*", "bin", "python3")))
    for path in candidates:
        # A name on PATH may be a launcher that refuses to start it.
        if path and _version(path) == version:
            return path
    return None


def find(version):
    """The path of a Python of this version; the test is skipped where there is none."""
    path = path_of(version)
    if path is None:
        pytest.skip("no Python %s on this machine" % version)
    return path
