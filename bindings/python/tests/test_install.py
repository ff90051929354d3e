"""pip install into a fresh environment, used from another directory, with its own library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

import pytest

import memopt

PROJECT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))

# Says where everything came from, and works a little.
PROGRAM = """
import array, os, memopt
here = os.path.dirname(memopt.__file__)
assert memopt.library_path == os.path.join(here, "lib", "libmemopt.so.1"), memopt.library_path
with memopt.Device("cpu", capacity="64MiB") as device, memopt.Allocator(device) as allocator:
    parameter = array.array("f", [1.0] * 10000)
    with memopt.AdamW8bit(allocator, [parameter], lr=0.5, weight_decay=0.0) as optimizer:
        optimizer.step([array.array("f", [1.0] * 10000)])
    assert abs(parameter[0] - 0.5) < 1e-3
maps = open("/proc/self/maps").read()
names = {line.split()[-1] for line in maps.splitlines() if "libpthreadpool" in line}
print(memopt.__version__, *sorted(names))
"""


def run(*command, cwd):
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("MEMOPT_LIBRARY", "PYTHONPATH", "LD_LIBRARY_PATH")
    }
    environment.update(CMAKE_BUILD_PARALLEL_LEVEL="2", PIP_DISABLE_PIP_VERSION_CHECK="1")
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_pip_install_in_a_fresh_environment(tmp_path):
    if not os.path.exists(os.path.join(PROJECT, "..", "..", "CMakeLists.txt")):
        pytest.skip("the C sources are not beside this package")
    environment, wheels = tmp_path / "venv", tmp_path / "wheels"
    made = run(sys.executable, "-m", "venv", environment, cwd=tmp_path)
    if made.returncode != 0:
        pytest.skip("no venv module: " + made.stderr[-200:])
    python = environment / "bin" / "python"
    built = run(python, "-m", "pip", "wheel", "--no-deps", "-w", wheels, PROJECT, cwd=tmp_path)
    if "No matching distribution" in built.stderr or "Temporary failure" in built.stderr:
        pytest.skip("the build back end cannot be downloaded")
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]

    (wheel,) = wheels.iterdir()
    assert wheel.name.startswith("memopt-" + memopt.__version__ + "-py3-none-linux_")
    names = zipfile.ZipFile(wheel).namelist()
    libraries = {name for name in names if ".so" in name}
    assert "memopt/lib/libmemopt.so.1" in libraries and "memopt/py.typed" in names
    assert "memopt/cli/schemas/info.json" in names
    assert libraries <= {"memopt/lib/libmemopt.so.1", "memopt/lib/libpthreadpool.so.0"}
    assert not [name for name in names if name.startswith(("tests", "include", "lib/"))]

    installed = run(python, "-m", "pip", "install", "--no-index", wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    result = run(python, "-c", PROGRAM, cwd="/")
    assert result.returncode == 0, result.stderr
    command = run(environment / "bin" / "memopt", "info", "--json", cwd="/")
    assert command.returncode == 0, command.stderr
    library = json.loads(command.stdout)["library"]
    assert library.startswith(str(environment)) and library.endswith("memopt/lib/libmemopt.so.1")
    if "memopt/lib/libpthreadpool.so.0" in libraries:
        assert str(environment) in result.stdout, "the bundled library is the one that is used"
