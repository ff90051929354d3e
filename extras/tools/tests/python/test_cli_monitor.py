"""`memopt monitor` as a process: the CPU device, simulated GPUs, pipes, the log."""

from __future__ import annotations

import csv
import json
import os
import time

import pytest

import memopt.cli
import memopt.tools
from cli_support import command
from memopt.cli.monitor import _deadlines, lines_of, records_of
from memopt.cli.monitor.trends import Watch
from monitor_support import GIB, MONITORS, fake, idle_processes, sampled_once, simulated

# --- the machine itself ---------------------------------------------------------------------------


def test_the_cpu_where_there_is_no_gpu():
    for backend in ("cuda", "hip"):
        if memopt.tools.Monitor.info(backend).available:
            pytest.skip("this machine has a GPU")
    value = sampled_once()
    assert "no GPU was found" in value["note"]
    (device,) = value["devices"]
    assert device["device"] == "cpu:0" and device["error"] is None
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert device["memory_total"] == value["host"]["memory_total"] == pages
    assert 0 < device["memory_used"] <= device["memory_peak"] <= pages
    assert len(list(records_of(value))) == 1 + len(device["processes"])
    own = [one for one in device["processes"] if one["pid"] == os.getpid()]
    assert own[0]["used"] > 1 << 20 and own[0]["kinds"] == ["host"]
    with idle_processes(3):
        text = command("monitor", "--once", "--processes", "2").stdout
    assert "no GPU was found" in text and "further processes" in text
    assert "Devices" in text and "cpu:0" in text and "host" in text
    assert len([line for line in text.splitlines() if line.startswith("  cpu:0 ")]) == 4


def test_asked_for_the_cpu_it_says_nothing_of_gpus():
    value = sampled_once("--device", "cpu")
    assert value["note"] is None and [d["device"] for d in value["devices"]] == ["cpu:0"]


def test_when_samples_are_due(monkeypatch):
    """Evenly, however long each takes; what is late, the system asleep say, is not made up for."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    due = _deadlines(2.0, 5)
    found = [next(due)]
    now[0] = 102.25
    found.append(next(due))
    now[0] = 1000.0
    found += [next(due), next(due), next(due)]
    assert found == [102.0, 104.0, 1000.0, 1002.0, None]
    assert list(_deadlines(2.0, 1)) == [None]


# --- simulated GPUs -------------------------------------------------------------------------------


@simulated
def test_gpus():
    value = sampled_once(folders=[MONITORS], MEMOPT_SIM_PROCESSES="%d:64M:cg@1,4000001:?:c" % os.getpid())
    assert value["note"] is None
    names = [device["device"] for device in value["devices"]]
    assert names == ["cuda:0", "cuda:1", "hip:0", "hip:1"]
    cuda = value["devices"][1]
    assert cuda["name"] == "libmemopt simulated device" and cuda["memory_total"] == GIB
    assert cuda["memory_used"] == cuda["memory_peak"] == 272 << 20
    assert cuda["utilization"] == 38 and cuda["temperature"] == 55 and cuda["power"] == 123.5
    (own,) = cuda["processes"]
    assert own["pid"] == os.getpid() and own["used"] == own["peak"] == 64 << 20
    (other,) = value["devices"][0]["processes"]
    assert other["used"] is None and other["peak"] is None and other["name"] == ""


@simulated
def test_devices_that_were_asked_for():
    def names(*words):
        value = sampled_once(*words, folders=[MONITORS])
        return [device["device"] for device in value["devices"]]

    assert names("--device", "hip") == ["hip:0", "hip:1"]
    assert names("--device", "cuda:1") == ["cuda:1"]
    assert names("--device", "cpu", "--device", "hip:1") == ["cpu:0", "hip:1"]
    assert names("--device", "cuda:1", "--device", "cuda") == ["cuda:1", "cuda:0"]


@simulated
def test_a_broken_device_hides_no_other():
    broken = {"MEMOPT_SIM_FAIL": "nvmlDeviceGetMemoryInfo_v2:*=15"}
    value = sampled_once(folders=[MONITORS], **broken)
    cuda, hip = value["devices"][0], value["devices"][2]
    assert cuda["error"]["status"] == "DEVICE_LOST" and cuda["memory_used"] is None
    assert hip["error"] is None and hip["memory_used"] == 256 << 20
    text = command("monitor", "--once", folders=[MONITORS], **broken).stdout
    assert "DEVICE_LOST: " + cuda["error"]["message"] in text
    lines = command("monitor", "--count", "2", "--interval", "0.01", folders=[MONITORS], **broken)
    assert lines.returncode == 0 and "cuda:0 DEVICE_LOST: " in lines.stdout


@simulated
def test_what_may_not_be_read_is_left_out():
    value = sampled_once(
        "--device",
        "cuda:0",
        folders=[MONITORS],
        MEMOPT_SIM_FAIL="nvmlDeviceGetPowerUsage:*=4,nvmlDeviceGetTemperature:*=3,"
        "nvmlDeviceGetComputeRunningProcesses:*=4,nvmlDeviceGetGraphicsRunningProcesses:*=4",
    )
    (device,) = value["devices"]
    assert device["power"] is None and device["temperature"] is None
    assert device["memory_used"] == 256 << 20
    assert device["processes"] == [] and device["processes_error"]


# --- pipes and the log ----------------------------------------------------------------------------


@simulated
def test_lines_for_a_pipe():
    result = command("monitor", "--count", "2", "--interval", "0.01", folders=[MONITORS], MEMOPT_SIM_DEVICES="1")
    lines = result.stdout.splitlines()
    assert result.returncode == 0 and "\x1b" not in result.stdout
    assert lines[0][9:] == ("cuda:0 256.00 MiB of 1.00 GiB used (25 %), peak 256.00 MiB, 37 % busy, 54 °C, 124 W")
    assert lines[1][9:] == "cuda:0   process (4000001): 64.00 MiB, peak 64.00 MiB"
    assert "2 samples in" in result.stdout and "Processes by peak" in result.stdout


def test_what_was_said_is_not_said_again():
    """Notes, problems and warnings once; a warning of another process is another one."""
    sample = Watch(1.0).add(fake(1, [GIB], pids=[7]))
    warning = {"cause": "leak", "device": "cuda:0", "pid": 7, "message": "it leaks"}
    sample.update(note="a note", warnings=[warning])
    sample["devices"][0]["processes_error"] = "a problem"
    told = []
    first = [line[9:] for line in lines_of(sample, 10, told)]
    again = [line[9:] for line in lines_of(sample, 10, told)]
    assert [line for line in first if line not in again] == (
        ["note: a note", "cuda:0 note: a problem", "warning: it leaks"]
    )
    assert len(again) == 2 and again == [line for line in first if line in again]
    sample["warnings"].append({**warning, "pid": 8})
    assert [line[9:] for line in lines_of(sample, 10, told)] == again + ["warning: it leaks"]


@simulated
def test_the_log(tmp_path):
    path = tmp_path / "log.csv"
    words = ("monitor", "--device", "cuda:0", "--interval", "0.01", "--log", path, "--json")
    for _ in range(2):  # the second run goes on with the file of the first
        assert command(*words, "--count", "3", folders=[MONITORS]).returncode == 0
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3 * 3
    device, process = rows[0], rows[1]
    assert device["device"] == "cuda:0" and device["pid"] == ""
    assert device["used"] == str(256 << 20) and device["temperature"] == "54.0"
    assert process["pid"] == "4000001" and process["used"] == str(64 << 20)
    lines = tmp_path / "log.jsonl"
    assert command("monitor", "--once", "--device", "cpu", "--log", lines).returncode == 0
    assert json.loads(lines.read_text().splitlines()[0])["device"] == "cpu:0"


def test_a_log_that_cannot_be_written(tmp_path):
    words = ("monitor", "--device", "cpu", "--interval", "0.01")
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    result = command(*words, "--once", "--log", other)
    assert result.returncode == 1 and "has other columns" in result.stderr
    assert other.read_text() == "a,b\n1,2\n" and result.stdout == ""
    for name in ("notes.csv", "notes.txt"):  # no line of them is taken for half a line of a log
        (tmp_path / name).write_text("Notes.\nThe last line has no end")
        result = command(*words, "--once", "--log", tmp_path / name)
        assert result.returncode == 1 and "give another name" in result.stderr
        assert (tmp_path / name).read_text() == "Notes.\nThe last line has no end"
    result = command(*words, "--once", "--log", "/nowhere/x.csv")
    assert result.returncode == 1 and "/nowhere/x.csv" in result.stderr
    full = command(*words, "--count", "3", "--log", "/dev/full")
    assert full.returncode == 1 and full.stderr == (
        "memopt: the log ends here, because it cannot be written: /dev/full: No space left on device\n"
    )
    assert "3 samples" in full.stdout  # watching went on


def test_names_with_commas_in_the_log(tmp_path):
    from memopt.tools._log_file import LogFile

    log = LogFile(tmp_path / "x.csv", ["pid", "name"])
    for name in ('a,b "c"', "two\nlines", "plain"):
        log.write({"pid": 1, "name": name})
    log.close()
    with open(tmp_path / "x.csv", newline="") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    assert names == ['a,b "c"', "two lines", "plain"]


@pytest.mark.parametrize(
    "words",
    [
        ("--device", "gpu0"),
        ("--device", "cuda:-1"),
        ("--interval", "0"),
        ("--interval", "nan"),
        ("--interval", "soon"),
        ("--count", "0"),
        ("--once", "--count", "3"),
        ("--processes", "x"),
        ("extra",),
    ],
)
def test_usage(words, capsys):
    with pytest.raises(SystemExit) as left:
        memopt.cli.main(["monitor", *words])
    said = capsys.readouterr()
    assert left.value.code == 2 and said.out == "" and "usage: memopt" in said.err


@simulated
def test_devices_that_are_not_there():
    result = command("monitor", "--device", "cuda:5", folders=[MONITORS])
    assert result.returncode == 1 and "there are 2 devices" in result.stderr
    if memopt.tools.Monitor.info("hip").available:
        pytest.skip("this machine has a GPU")
    result = command("monitor", "--device", "hip")
    assert result.returncode == 1 and "DRIVER_MISSING" in result.stderr
