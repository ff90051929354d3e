"""What `memopt info` tells of monitoring."""

from __future__ import annotations

import json
import os
import re

from cli_support import BUILD, command
from json_schema import load, validate
from monitor_support import MONITORS, simulated

DRIVERS = os.path.join(BUILD, "tests", "sim", "lib")
FILES = ("libnvidia-ml.so.1", "librocm_smi64.so")


def info(*folders, **variables):
    result = command("info", "--json", folders=folders, **variables)
    assert (result.returncode, result.stderr) == (0, "")
    value = json.loads(result.stdout)
    validate(value, load("info"))
    return {backend["name"]: backend for backend in value["backends"]}


def test_of_this_machine():
    assert info()["cpu"]["monitoring"]["source"] == "proc"


@simulated
def test_of_simulated_libraries():
    found = info(DRIVERS, MONITORS, MEMOPT_SIM_MEMORY="64M")
    cuda, hip = found["cuda"]["monitoring"], found["hip"]["monitoring"]
    assert cuda["source"] == "nvml" and cuda["version"] == "580.65.06"
    assert cuda["library"] == os.path.join(MONITORS, "libnvidia-ml.so.1")
    assert hip["source"] == "rocm_smi" and hip["version"] == "7.3.0"
    shown = command("info", folders=(DRIVERS, MONITORS), MEMOPT_SIM_MEMORY="64M").stdout
    assert re.search(r"cuda +ok +13\.0 libcuda\.so\.1 +2 .*nvml 580\.65\.06", shown)


@simulated
def test_what_is_broken_hides_no_driver(tmp_path):
    for file in FILES:
        (tmp_path / file).write_text("This is not a library, whatever it is called.\n")
    found = info(tmp_path, DRIVERS)
    for name, file in zip(("cuda", "hip"), FILES):
        backend = found[name]
        assert backend["available"] and not backend["monitoring"]["available"]
        assert "%s/%s: " % (tmp_path, file) in backend["monitoring"]["problem"]
    cuda = info(DRIVERS, MONITORS, MEMOPT_SIM_FAIL="nvmlInit:*=18")["cuda"]
    assert cuda["available"] and cuda["monitoring"]["code"] == 18
    assert "version mismatch (18)" in cuda["monitoring"]["problem"]
