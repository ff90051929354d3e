"""Packages: pip install of the source tree and of an sdist in fresh environments, used elsewhere,
with the library that they bring; one wheel for every Python."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import interpreters
import pytest

import memopt

PROJECT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))

BACK_END = ["scikit-build-core>=1.0", "shtab", "argparse-manpage"]  # pyproject.toml's

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
assert "libpthreadpool" not in maps
print(memopt.__version__, here)
"""

TORCH = """
import sys, types
sys.modules["torch"] = None  # as where it is not installed
try:
    import memopt.torch
except ImportError as error:
    print(error)
"""


def run(*command, cwd, **variables):
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("MEMOPT_LIBRARY", "PYTHONPATH", "LD_LIBRARY_PATH")
    }
    environment.update(CMAKE_BUILD_PARALLEL_LEVEL="2", PIP_DISABLE_PIP_VERSION_CHECK="1")
    environment.update(variables)
    return subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)


def run_builder(*command, cwd):
    """A command that may have to fetch the build back end; skips where it cannot."""
    built = run(*command, cwd=cwd)
    text = built.stdout + built.stderr
    if built.returncode and re.search("No matching distribution|Temporary failure", text):
        pytest.skip("the build back end cannot be downloaded")
    assert built.returncode == 0, text[-5000:]


def fresh_environment(folder):
    """The Python of a new virtual environment that has pip and nothing else."""
    made = run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    if made.returncode != 0:
        pytest.skip("no venv module: " + made.stderr[-200:])
    return folder / "bin" / "python"


@pytest.fixture(scope="module", autouse=True)
def sources():
    if not os.path.exists(os.path.join(PROJECT, "..", "..", "CMakeLists.txt")):
        pytest.skip("the C sources are not beside this package")


def wheel_of(source, folder):
    python = fresh_environment(folder / "venv")
    run_builder(python, "-m", "pip", "wheel", "--no-deps", "-w", "wheels", source, cwd=folder)
    (path,) = (folder / "wheels").iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the source tree."""
    return wheel_of(PROJECT, tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("sdist")
    run_builder(sys.executable, "-m", "build", "--sdist", "-o", folder, PROJECT, cwd=folder)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel_of_sdist(sdist, tmp_path_factory):
    """The wheel that an sdist makes where no repository is near and, where that can be had, no network."""
    folder = tmp_path_factory.mktemp("unpacked")
    python = fresh_environment(folder / "venv")
    run_builder(python, "-m", "pip", "install", "-q", *BACK_END, cwd=folder)
    alone = ["unshare", "-rn"]
    if shutil.which("unshare") is None or run(*alone, "true", cwd="/").returncode != 0:
        alone = []
    build = ["-m", "pip", "wheel", "--no-index", "--no-build-isolation", "--no-deps", "-w", "wheels", sdist]
    built = run(*alone, python, *build, cwd=folder)
    assert built.returncode == 0, (built.stdout + built.stderr)[-5000:]
    (path,) = (folder / "wheels").iterdir()
    return path


def install(wheel, folder):
    python = fresh_environment(folder / "venv")
    installed = run(python, "-m", "pip", "install", "--no-index", wheel, cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return python


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def check_installed(python):
    """An installed package works by itself: library, command, and what it says without torch."""
    result = run(python, "-c", PROGRAM, cwd="/")
    assert result.returncode == 0, result.stderr
    version, folder = result.stdout.split(None, 1)
    assert version == memopt.__version__ and folder.startswith(str(python.parent.parent))

    info = run(python.parent / "memopt", "info", "--json", cwd="/")
    assert info.returncode == 0, info.stderr
    library = json.loads(info.stdout)["library"]
    assert library == os.path.join(folder.strip(), "lib", "libmemopt.so.1")

    command = python.parent / "memopt"
    verbs = glob.glob("[a-z]*.py", root_dir=os.path.join(folder.strip(), "cli", "verbs"))
    assert len(verbs) == 5
    for verb in (name[:-3] for name in verbs):  # with what is in the wheel alone
        asked = run(command, verb, "--help", cwd="/")
        assert asked.returncode == 0 and "--json" in asked.stdout, asked.stderr
    plan = run(command, "plan", "--params", "1B", "--gpu-memory", "24", "--json", cwd="/")
    assert plan.returncode == 0 and json.loads(plan.stdout)["fits"], plan.stderr
    watched = run(command, "monitor", "--device", "cpu", "--once", "--json", cwd="/")
    assert watched.returncode == 0 and json.loads(watched.stdout), watched.stderr
    profiled = run(command, "profile", "--json", "--", python, "-c", "raise SystemExit(3)", cwd="/")
    assert profiled.returncode == 3, profiled.stderr

    result = run(python, "-c", TORCH, cwd="/")
    assert result.stdout.startswith("memopt.torch needs PyTorch"), result.stdout + result.stderr
    assert "pip install torch" in result.stdout


@pytest.mark.long
def test_pip_install_in_a_fresh_environment(wheel, tmp_path):
    assert re.fullmatch(r"memopt-[\d.a]+-py3-none-linux_\w+\.whl", wheel.name)
    names = names_in(wheel)
    assert [name for name in names if ".so" in name] == [
        "memopt/lib/libmemopt-plan.so.1",
        "memopt/lib/libmemopt-tools.so.1",
        "memopt/lib/libmemopt.so.1",
    ]
    verbs = {m[1] for m in (re.fullmatch(r"memopt/cli/verbs/([a-z]+)\.py", name) for name in names) if m}
    assert verbs == {"info", "monitor", "plan", "profile", "race", "replay"}
    schemas = {"memopt/cli/schemas/%s.json" % verb for verb in verbs}
    assert {"memopt/py.typed", "memopt/guide/race.md", *schemas} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"memopt", "memopt_command"}
    check_installed(install(wheel, tmp_path))


@pytest.mark.long
def test_the_wheel_needs_nothing_but_glibc(wheel):
    pytest.importorskip("auditwheel")
    result = run(sys.executable, "-m", "auditwheel", "show", wheel, cwd="/")
    assert result.returncode == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert re.search(r'consistent with the following platform tag: "manylinux_2_\d+_\w+"', text)
    needed = set(re.findall(r"(\S+\.so[.\d]*) with versions", text))
    needed -= {os.path.basename(name) for name in zipfile.ZipFile(wheel).namelist()}
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}


@pytest.mark.long
def test_an_sdist_has_all_that_it_builds_from(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"PKG-INFO", "LICENSE", "native/lib/memopt.map", "native/include/memopt/memopt.h"} <= names
    assert not [name for name in names if name.startswith("native/tests") or "__pycache__" in name]


@pytest.mark.long
def test_pip_install_of_an_sdist(wheel_of_sdist, wheel, tmp_path):
    assert names_in(wheel_of_sdist) == names_in(wheel)
    check_installed(install(wheel_of_sdist, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("version", interpreters.VERSIONS)
def test_one_wheel_for_every_python(wheel, version, tmp_path):
    python = interpreters.find(version)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    for arguments in (["-c", PROGRAM], ["-m", "memopt", "info", "--json"]):
        result = run(python, "-W", "error", *arguments, cwd="/", PYTHONPATH=str(tmp_path))
        assert result.returncode == 0, result.stderr


FOREIGN = ["aarch64-linux-gnu-gcc", "qemu-aarch64-static"]
FOREIGN_PYTHON = """python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libffi8 libc6
                    libexpat1 zlib1g""".split()


@pytest.fixture(scope="module")
def foreign_python(tmp_path_factory):
    """The command of a Python for AArch64, from Debian's packages."""
    folder = tmp_path_factory.mktemp("foreign") / "debian"
    packages = os.path.join(PROJECT, "..", "..", "tests", "machines", "packages")
    unpacked = run(packages, "arm64", folder, *FOREIGN_PYTHON, cwd="/")
    if unpacked.returncode == 77:
        pytest.skip(unpacked.stdout)
    assert unpacked.returncode == 0, unpacked.stderr
    return ["qemu-aarch64-static", "-L", folder, folder / "usr" / "bin" / "python3.11"]


def wheel_for(machine, folder):
    """The wheel that build_wheel makes, unpacked."""
    python = fresh_environment(folder / "venv")
    run_builder(python, "-m", "pip", "install", "-q", "ziglang", cwd=folder)
    build = ["env", "PYTHON=%s" % python, os.path.join(PROJECT, "build_wheel"), machine]
    run_builder(*build, folder, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    assert re.fullmatch(r"memopt-[\d.a]+-py3-none-manylinux_2_28_%s\.whl" % machine, wheel.name)
    if importlib.util.find_spec("auditwheel"):
        result = run(sys.executable, "-m", "auditwheel", "show", wheel, cwd="/")
        tag = re.search(r'"manylinux_2_(\d+)_%s"' % machine, result.stdout)
        assert tag and int(tag[1]) <= 28, result.stdout + result.stderr
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return str(folder / "site")


KERNELS = PROGRAM + 'assert memopt.Device("cpu").properties.kernels == "%s"'


@pytest.mark.long
def test_a_wheel_for_aarch64_works_there(foreign_python, tmp_path):
    for program in FOREIGN:
        if shutil.which(program) is None:
            pytest.skip(program + " is not installed (./setup installs it)")
    site = wheel_for("aarch64", tmp_path)
    result = run(*foreign_python, "-c", KERNELS % "neon", cwd="/", PYTHONPATH=site)
    assert result.returncode == 0, result.stderr


@pytest.mark.long
def test_a_wheel_for_x86_has_the_kernels_of_the_processor(tmp_path):
    """Another linker's library of its compiler once hid what the processor has."""
    if platform.machine() != "x86_64":
        pytest.skip("another processor")
    site = wheel_for("x86_64", tmp_path)
    with memopt.Device("cpu") as device:
        result = run(sys.executable, "-c", KERNELS % device.properties.kernels, cwd="/", PYTHONPATH=site)
    assert result.returncode == 0, result.stderr
