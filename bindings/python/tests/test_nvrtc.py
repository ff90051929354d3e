"""NVRTC in a folder of wheels, before anything else has loaded it: on the simulated driver, with the
simulated compilers in such a folder, and with what the system's loader would find hidden."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cli_support import BUILD, environment
from memopt import _nvrtc

DRIVERS = os.path.join(BUILD, "tests", "sim", "lib")
COMPILERS = os.path.join(BUILD, "tests", "sim", "rtc")

simulated = pytest.mark.skipif(
    not all(os.path.exists(os.path.join(COMPILERS, "nvrtc" + n)) for n in ("12", "13"))
    or not os.path.exists(os.path.join(DRIVERS, "libcuda.so.1")),
    reason="no simulated driver and compilers",
)


@pytest.fixture
def wheels(tmp_path):
    """Two wheels' folders, as pip makes them."""
    folder = tmp_path / "site-packages"
    for package, major in (("cuda_nvrtc", "12"), ("cu13", "13")):
        place = folder / "nvidia" / package / "lib"
        place.mkdir(parents=True)
        file = "libnvrtc.so." + major
        os.symlink(os.path.join(COMPILERS, "nvrtc" + major, file), place / file)
        (place / ("libnvrtc-builtins.so.%s.1" % major)).write_text("")
        (place / ("libnvrtc.alt.so." + major)).write_text("")
    return folder


def python(wheels, *words, **variables):
    """A program whose loader finds no NVRTC."""
    hidden = wheels.parent / "hidden"
    hidden.mkdir(exist_ok=True)
    for end in ("", ".13", ".12", ".11.2"):
        (hidden / ("libnvrtc.so" + end)).write_text("no library\n")
    values = environment(
        LD_LIBRARY_PATH=os.pathsep.join([str(hidden), DRIVERS]), MEMOPT_CACHE_DIR=str(wheels.parent), **variables
    )
    values["PYTHONPATH"] += os.pathsep + str(wheels)
    result = subprocess.run([sys.executable, *words], env=values, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@simulated
@pytest.mark.parametrize("driver, package", [("13000", "cu13"), ("12080", "cuda_nvrtc")])
def test_the_command_finds_what_fits_the_driver(wheels, driver, package):
    """A device that no image fits: its kernels are compiled, and the command says so."""
    variables = dict(MEMOPT_SIM_DRIVER=driver, MEMOPT_SIM_CAPABILITY="7.0")
    found = json.loads(python(wheels, "-m", "memopt", "info", "--json", **variables))
    cuda = found["backends"][1]
    assert cuda["kernels"]["compiler"].startswith(str(wheels / "nvidia" / package / "lib"))
    assert cuda["features"]["runtime_compiler"]
    assert cuda["devices"][0]["properties"]["kernels"]["form"] == "run_time_compiler"
    shown = python(wheels, "-m", "memopt", "info", **variables)
    assert "compiled at the first launch" in shown and "do not" not in shown


@simulated
def test_a_device_without_an_image_gets_the_compiler(wheels):
    program = """
import memopt
with memopt.Device("cuda:0") as device, memopt.Allocator(device) as allocator:
    assert device.properties.kernels == "source"
    one, half = allocator.alloc(1024), allocator.alloc(512)
    device.fill(one)
    memopt.cast(device, memopt.tensor(half, "bf16"), memopt.tensor(one, "f32"))
    device.sync()
    one.free(), half.free()
"""
    python(wheels, "-c", program, MEMOPT_SIM_DRIVER="12080", MEMOPT_SIM_CAPABILITY="7.0")


@simulated
def test_what_the_program_has_loaded_is_used(wheels):
    program = """
import ctypes, sys, memopt
ctypes.CDLL(sys.argv[1])
print(memopt.backend_info("cuda").compiler)
print(sum("libnvrtc.so" in line and " r-xp " in line for line in open("/proc/self/maps")))
"""
    loaded = str(wheels / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12")
    assert python(wheels, "-c", program, loaded).split() == [loaded, "1"]


def test_the_order_of_what_there_is(wheels, monkeypatch):
    more = wheels.parent / "user"
    for name in ("libnvrtc.so.12.9.86", "libnvrtc.so", "libnvrtc.so.14"):
        place = more / "nvidia" / "own [1]" / "lib"
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("")
    monkeypatch.setattr(sys, "path", ["", "nvidia", str(wheels), str(more)])

    def names(version):
        return [os.path.basename(file)[len("libnvrtc.so.") :] for file in _nvrtc.files(version)]

    assert names(0) == ["14", "13", "12.9.86", "12"]
    assert names(13000) == ["13", "12.9.86", "12", "14"]
    assert names(12040) == ["12.9.86", "12", "14", "13"]


@pytest.mark.parametrize("name", ["MEMOPT_NVRTC", "MEMOPT_DRIVER_PATH"])
def test_a_place_that_is_named_is_not_overruled(wheels, monkeypatch, name):
    monkeypatch.setattr(sys, "path", [str(wheels)])
    monkeypatch.setattr(_nvrtc.ctypes, "CDLL", lambda file: None)
    for other in ("MEMOPT_NVRTC", "MEMOPT_DRIVER_PATH"):
        monkeypatch.delenv(other, raising=False)
    assert _nvrtc.load(0)
    monkeypatch.setenv(name, "/nowhere")
    assert not _nvrtc.load(0)
