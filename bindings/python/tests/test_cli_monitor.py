"""`memopt monitor` as a process: the CPU device, simulated GPUs, pipes, terminals, the log."""

from __future__ import annotations

import contextlib
import copy
import csv
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import memopt
from cli_support import (
    MONITORS,
    PACKAGE,
    Terminal,
    command,
    environment,
    simulated,
    start,
    wait_for,
)
from json_schema import load, validate
from memopt import _published
from memopt.cli.monitor import records_of, sampling, screen
from memopt.cli.monitor.ends import Ended, Ends
from memopt.cli.monitor.live import LiveView
from memopt.cli.monitor.watching import Watch, duration

SCHEMA = load("monitor")
GIB = 1 << 30


def sampled(*words, folders=(), **variables):
    """What --json says, line by line, each checked against the schema."""
    result = command("monitor", "--json", *words, folders=folders, **variables)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    values = [json.loads(line) for line in result.stdout.splitlines()]
    for number, value in enumerate(values, 1):
        validate(value, SCHEMA)
        assert value["sample"] == number
    return values


def sampled_once(*words, folders=(), **variables):
    result = command("monitor", "--json", "--once", *words, folders=folders, **variables)
    assert result.returncode == 0, result.stderr
    value = json.loads(result.stdout)
    validate(value, SCHEMA)
    return value


# --- the machine itself ---------------------------------------------------------------------------


def test_the_cpu_where_there_is_no_gpu():
    for backend in ("cuda", "hip"):
        if memopt.Monitor.info(backend).available:
            pytest.skip("this machine has a GPU")
    value = sampled_once()
    assert "no GPU was found" in value["note"]
    (device,) = value["devices"]
    assert device["device"] == "cpu:0" and device["error"] is None
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert device["memory_total"] == value["host"]["memory_total"] == pages
    assert 0 < device["memory_used"] <= device["memory_peak"] <= pages
    own = [one for one in device["processes"] if one["pid"] == os.getpid()]
    assert own[0]["used"] > 1 << 20 and own[0]["kinds"] == ["host"]
    text = command("monitor", "--once", "--processes", "2").stdout
    assert "no GPU was found" in text and "further processes" in text
    assert "Devices" in text and "cpu:0" in text and "host" in text
    assert len([line for line in text.splitlines() if line.startswith("  cpu:0 ")]) == 4


def test_asked_for_the_cpu_it_says_nothing_of_gpus():
    value = sampled_once("--device", "cpu")
    assert value["note"] is None and [d["device"] for d in value["devices"]] == ["cpu:0"]


def test_a_series():
    first, second, third = sampled("--count", "3", "--interval", "0.2", "--device", "cpu")
    assert second["time"] - first["time"] > 0.15
    assert third["devices"][0]["memory_peak"] == max(
        value["devices"][0]["memory_used"] for value in (first, second, third)
    )


# --- simulated GPUs -------------------------------------------------------------------------------


@simulated
def test_gpus():
    value = sampled_once(
        folders=[MONITORS], MEMOPT_SIM_PROCESSES="%d:64M:cg@1,4000001:?:c" % os.getpid()
    )
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


@simulated
def test_under_use_is_told():
    *_, early, late = sampled(
        "--count", "100", "--interval", "0.01", "--device", "cuda:0", folders=[MONITORS]
    )
    assert early["warnings"] == []
    (warning,) = late["warnings"]
    assert warning["cause"] == "under-use" and warning["device"] == "cuda:0"
    assert "at most 25 % of its 1.00 GiB were used in 100 samples" in warning["message"]
    full = sampled(
        *("--count", "101", "--interval", "0.01", "--device", "cuda:0"),
        folders=[MONITORS],
        MEMOPT_SIM_USED="600M",
    )
    assert full[-1]["warnings"] == []
    idle = sampled(
        *("--count", "101", "--interval", "0.01", "--device", "cuda:0"),
        folders=[MONITORS],
        MEMOPT_SIM_PROCESSES="",
        MEMOPT_SIM_UTILIZATION="0",
    )
    assert idle[-1]["warnings"] == []  # nobody uses it: that is no waste


# --- our allocators in other processes ------------------------------------------------------------

PUBLISHING = """
import sys, memopt
device = memopt.Device("cpu", capacity="64MiB")
allocator = memopt.Allocator(device)
kept, dropped = allocator.alloc("6MiB"), allocator.alloc("20MiB")
dropped.free()
memopt.publish(allocator)
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_our_allocator_caches(socket_folder):
    place = {"XDG_RUNTIME_DIR": str(socket_folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISHING],
        env=environment(**place),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    try:
        (device,) = sampled_once("--device", "cpu", **place)["devices"]
        text = command("monitor", "--once", "--device", "cpu", "--processes", "999", **place).stdout
        stream = command(
            *("monitor", "--count", "2", "--interval", "0.01", "--device", "cpu"),
            *("--processes", "999"),
            **place,
        ).stdout
    finally:
        process.communicate("")
    (ours,) = [one for one in device["processes"] if one["pid"] == process.pid]
    assert ours["allocated"] == 6 << 20 and ours["reserved_peak"] >= 26 << 20
    assert ours["cached"] == ours["reserved"] - (6 << 20) >= 20 << 20
    others = [one for one in device["processes"] if one["pid"] == os.getpid()]
    assert others[0]["cached"] is None
    cached = memopt.format_size(ours["cached"])
    (row,) = [line for line in text.splitlines() if " %d " % process.pid in line]
    assert row.split()[-4:] == ["6.00", "MiB", *cached.split()]
    assert "6.00 MiB allocated and %s cached" % cached in stream


NAMED = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\\x1b[2Jx\\ny", 0, 0, 0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_names_cannot_steer_a_terminal():
    process = subprocess.Popen(
        [sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    try:
        (device,) = sampled_once("--device", "cpu")["devices"]
    finally:
        process.communicate("")
    (one,) = [one for one in device["processes"] if one["pid"] == process.pid]
    assert one["name"] in ("?[2Jx?y", "?[2Jx")


def published(pid, *devices):
    allocators = [
        _published.PublishedAllocator(name, size, size, size * 2, size * 2, 0, 0)
        for name, size in devices
    ]
    return _published.Published(pid, "1.0.0", tuple(allocators))


def cached_on(places, one):
    """Bytes that are said to be cached on each device, for a process seen on `places`."""
    lists = {
        sampling.Target("cuda", number): sampling._Processes(
            [memopt.Process(one.pid, "x", 1, ("compute",))] if number in places else [], None
        )
        for number in range(4)
    }
    found = {target: sampling._caches(target, lists, [one]) for target in lists}
    return {
        target.number: sum(allocator.cached for allocator in caches[one.pid])
        for target, caches in found.items()
        if caches
    }


def test_whose_allocator_is_whose():
    """A process numbers devices in its own way."""
    assert cached_on([2], published(7, ("cuda:0", 5))) == {2: 5}
    assert cached_on([2], published(7, ("cuda:0", 5), ("cuda:0", 6))) == {2: 11}
    assert cached_on([1, 3], published(7, ("cuda:0", 5), ("cuda:1", 6))) == {1: 5, 3: 6}
    assert cached_on([1, 3], published(7, ("cuda:0", 5))) == {}  # one of them: which?
    assert cached_on([1], published(7, ("cuda:0", 5), ("cuda:1", 6))) == {}
    assert cached_on([1], published(7, ("hip:0", 5), ("cpu:0", 6))) == {}
    assert cached_on([], published(7, ("cuda:0", 5))) == {}


# --- leaks ----------------------------------------------------------------------------------------


def fake(number, used, pids=()):
    processes = [
        {"pid": pid, "name": "train", "used": use, "cached": None, "allocated": None}
        for pid, use in zip(pids, used)
    ]
    return {
        "sample": number,
        "time": 1000.0 + number,
        "note": None,
        "devices": [
            {
                "device": "cuda:0",
                "backend": "cuda",
                "name": "fake",
                "error": None,
                "memory_used": sum(used),
                "memory_total": 10 * GIB,
                "memory_free": 10 * GIB - sum(used),
                "memory_peak": sum(used),
                "utilization": 0.0,
                "temperature": None,
                "power": None,
                "processes": processes,
                "processes_error": None,
            }
        ],
        "host": {"memory_total": 1, "memory_available": 1, "memory_used": 0},
    }


def test_a_creeping_floor_is_told():
    """Over sawteeth that are far greater than the leak."""
    watch = Watch(interval=2.0)
    for number in range(1, 200):
        saw = (number * 37 % 10) * (300 << 20)
        sample = watch.add(fake(number, [6 * GIB + saw + number * (1 << 20), saw], pids=[7, 8]))
    (warning,) = sample["warnings"]
    assert (warning["cause"], warning["device"], warning["pid"]) == ("leak", "cuda:0", 7)
    assert "train (7) on cuda:0: its floor creeps up by 30.00 MiB a minute" in warning["message"]
    assert "last for" in warning["message"]
    sample = watch.add(fake(200, [5], pids=[8]))
    assert sample["warnings"] == []  # its process has ended


def test_noise_is_no_leak_and_devices_without_bytes_are_watched_as_a_whole():
    watch = Watch(interval=1.0)
    for number in range(1, 1000):
        sample = watch.add(fake(number, [6 * GIB + number * 7919 % 1000 * (1 << 20)], pids=[7]))
    assert sample["warnings"] == []
    watch = Watch(interval=1.0)
    for number in range(1, 200):
        sample = watch.add(_untold(number))
    (warning,) = sample["warnings"]
    assert warning["cause"] == "leak" and warning["pid"] is None


def _untold(number):
    sample = fake(number, [6 * GIB + number * (1 << 20)], pids=[7])
    sample["devices"][0]["processes"][0]["used"] = None
    return sample


def test_ended_processes_do_not_pile_up():
    watch = Watch(interval=1.0)
    for number in range(1, 500):
        watch.add(fake(number, [GIB], pids=[number]))
    assert len(watch.courses) < 70


#: Keeps more whenever it is told to, so that it leaks as fast as it is watched.
LEAKING = """
import sys
kept = []
for line in sys.stdin:
    kept.append(b"x" * (1 << 18))
"""


def test_a_leak_of_a_real_process():
    leaking = subprocess.Popen([sys.executable, "-c", LEAKING], stdin=subprocess.PIPE, text=True)
    watching = start(
        "monitor", "--json", "--interval", "0.01", "--device", "cpu", "--count", "1000"
    )
    found = []
    try:
        for line in watching.stdout:
            leaking.stdin.write("more\n")
            leaking.stdin.flush()
            found = [w for w in json.loads(line)["warnings"] if w["pid"] == leaking.pid]
            if found:
                break
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate()
        leaking.communicate()
    assert watching.returncode == 0
    assert found[0]["cause"] == "leak" and "creeps up" in found[0]["message"]


# --- pipes, signals, the log ----------------------------------------------------------------------


@simulated
def test_lines_for_a_pipe():
    result = command(
        "monitor", "--count", "2", "--interval", "0.01", folders=[MONITORS], MEMOPT_SIM_DEVICES="1"
    )
    lines = result.stdout.splitlines()
    assert result.returncode == 0 and "\x1b" not in result.stdout
    assert lines[0][9:] == (
        "cuda:0 256.00 MiB of 1.00 GiB used (25 %), peak 256.00 MiB, 37 % busy, 54 °C, 124 W"
    )
    assert lines[1][9:] == "cuda:0   process (4000001): 64.00 MiB, peak 64.00 MiB"
    assert "2 samples in" in result.stdout and "Processes by peak" in result.stdout


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_signals_end_it_with_a_summary(number, code):
    process = start("monitor", "--interval", "0.05", "--device", "cpu", "--processes", "1")
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == code and errors == ""
    assert "samples in" in rest


def test_json_lines_end_with_a_whole_line():
    process = start("monitor", "--json", "--interval", "0.01", "--device", "cpu")
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == ""
    for line in [first] + rest.splitlines():
        validate(json.loads(line), SCHEMA)


def test_a_reader_that_goes_away():
    process = start("monitor", "--interval", "0.01", "--device", "cpu")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 1 and process.stderr.read() == ""
    process.stderr.close()


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
    result = command(*words, "--once", "--log", "/nowhere/x.csv")
    assert result.returncode == 1 and "/nowhere/x.csv" in result.stderr
    full = command(*words, "--count", "3", "--log", "/dev/full")
    assert full.returncode == 1 and "the log ends here" in full.stderr
    assert "3 samples" in full.stdout  # watching went on


def test_names_with_commas_in_the_log(tmp_path):
    from memopt._logfile import LogFile

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
def test_usage(words):
    result = command("monitor", *words)
    assert result.returncode == 2 and result.stdout == "" and "usage: memopt" in result.stderr


@simulated
def test_devices_that_are_not_there():
    result = command("monitor", "--device", "cuda:5", folders=[MONITORS])
    assert result.returncode == 1 and "there are 2 devices" in result.stderr
    if memopt.Monitor.info("hip").available:
        pytest.skip("this machine has a GPU")
    result = command("monitor", "--device", "hip")
    assert result.returncode == 1 and "DRIVER_MISSING" in result.stderr


# --- the screen -----------------------------------------------------------------------------------


@simulated
def test_the_live_view():
    terminal = Terminal(
        *("monitor", "--interval", "0.05", "--device", "cuda"),
        folders=[MONITORS],
        MEMOPT_SIM_PROCESSES="%d:64M:c,4000002:16M:c@1" % os.getpid(),
        size=(16, 120),
    )
    lines = terminal.until(lambda lines: any("▃▃▃" in line for line in lines), "the course")
    assert lines[0].startswith("memopt monitor  every 0.05 s  q quits  ")
    assert lines[2].split() == (
        ["device", "name", "used", "of", "%", "peak", "util", "temp", "power", "over", "time"]
    )
    assert lines[3].startswith(
        "  cuda:0  libmemopt simulated device  256.00 MiB  1.00 GiB  25  256.00 MiB  37 %  54 °C"
    )
    assert lines[4].startswith("  cuda:1  libmemopt simulated device  272.00 MiB")
    # columns stand below their titles
    assert lines[2].index("used") + len("used") == lines[3].index("256.00 MiB") + 10
    row = lines[7].split()
    assert row[:2] == ["cuda:0", str(os.getpid())] and row[3:7] == ["64.00", "MiB", "64.00", "MiB"]
    assert "█" in row[7] and lines[8].split()[:3] == ["cuda:1", "4000002", "?"]
    assert lines[10].startswith("  host memory: ")
    terminal.child.send("q")
    code, after = terminal.end()
    assert code == 0 and "samples in" in after and "Processes by peak" in after
    assert "\x1b[?25h" in terminal.text.decode()  # the cursor is back


def test_keys_signals_and_the_terminal_afterwards():
    for how in ("x then q", "Ctrl-C", "SIGTERM"):
        terminal = Terminal("monitor", "--interval", "0.05", "--device", "cpu")
        terminal.until(lambda lines: "cpu:0" in lines[3], "the device")
        if how == "x then q":
            terminal.child.send("x")
            terminal.until(lambda lines: "cpu:0" in lines[3], "the device, whatever key that was")
            terminal.child.send("q")
        elif how == "Ctrl-C":
            terminal.child.sendintr()
        else:
            terminal.child.kill(signal.SIGTERM)
        code, after = terminal.end()
        assert code == (143 if how == "SIGTERM" else 0), how
        assert "samples in" in after and "Traceback" not in after
        assert terminal.text.count(b"\x1b[?1049h") == terminal.text.count(b"\x1b[?1049l") == 1


@pytest.mark.parametrize("number, code", [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_the_terminal_is_given_back(number, code):
    terminal = Terminal("monitor", "--interval", "0.05", "--device", "cpu")
    terminal.until(lambda lines: "cpu:0" in lines[3], "the device")
    terminal.child.kill(number)
    assert terminal.end()[0] == code
    assert terminal.text.count(b"\x1b[?1049l") == 1 and b"\x1b[?25h" in terminal.text


def test_the_terminal_goes_away():
    terminal = Terminal("monitor", "--interval", "0.05", "--device", "cpu")
    terminal.until(lambda lines: "cpu:0" in lines[3], "the device")
    os.close(terminal.child.child_fd)
    status = wait_for(lambda: os.waitpid(terminal.child.pid, os.WNOHANG)[1], "its end")
    assert os.waitstatus_to_exitcode(status) == 129


@simulated
def test_ctrl_z_and_back():
    """In a shell: the terminal is the shell's while it is stopped, and the view goes on."""
    pexpect = pytest.importorskip("pexpect")
    pytest.importorskip("rich")
    shell = pexpect.spawn(
        "bash",
        ["--norc", "-i"],
        env=environment(MONITORS, MEMOPT_SIM_DEVICES="1", PS1="READY% "),
        dimensions=(24, 80),
        timeout=60,
    )
    shell.expect_exact("READY% ")
    shell.sendline("stty -echo; '%s' -m memopt monitor --interval 0.05" % sys.executable)
    shell.expect_exact("\x1b[?1049h")
    shell.expect_exact("cuda:0")
    for _ in range(2):
        shell.send("\x1a")
        shell.expect_exact("\x1b[?1049l")
        shell.expect_exact("Stopped")
        shell.expect_exact("READY% ")
        shell.sendline("stty -a | grep -o '[-]*icanon'")
        shell.expect(r"(-?)icanon")
        assert shell.match.group(1) == b""
        shell.sendline("fg")
        shell.expect_exact("\x1b[?1049h")
        shell.expect_exact("cuda:0")
    shell.send("q")  # a key without a return
    shell.expect_exact("samples in")
    shell.expect_exact("READY% ")
    shell.sendline("echo code $?")
    shell.expect_exact("code 0")
    shell.close(force=True)


def test_signals_are_not_lost_in_a_sample():
    """The library calls back while it lists processes, and what is raised there goes nowhere."""
    with Ends() as ends:
        done = []
        with pytest.raises(Ended):
            with ends.held():
                called = ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGTERM))
                called()
                done.append(True)  # the sample goes on to its end
        assert done and ends.code == 143
        os.kill(os.getpid(), signal.SIGTERM)  # another one while it tidies up
        assert ends.signal == signal.SIGTERM
    with Ends() as ends:
        with pytest.raises(Ended):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        assert ends.code == 0
    with Ends() as ends:  # a pipe that nobody reads
        with pytest.raises(Ended):
            with ends.held():
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGHUP)
                pytest.fail("the second did not end it")
        assert ends.code == 129
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with Ends() as ends:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.01)
        assert ends.signal is None and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_many_signals_end_many_commands():
    processes = [start("monitor", "--interval", "0.01", "--device", "cpu") for _ in range(4)]
    for number, process in enumerate(processes):
        process.stdout.readline()
        time.sleep(0.003 * number)
        process.send_signal(signal.SIGTERM)
    for process in processes:
        rest, errors = process.communicate(timeout=60)
        assert process.returncode == 143 and errors == "" and "samples in" in rest


def test_a_narrow_view_says_which_device():
    watch = Watch(1.0)
    two = fake(1, [6 * GIB, GIB], pids=[7])
    two["devices"].append({**fake(1, [GIB], pids=[7])["devices"][0], "device": "cuda:1"})
    for sample, device in ((two, True), (fake(2, [6 * GIB, GIB], pids=[7]), False)):
        lines = text_of(screen.screen(watch.add(sample), watch, "memopt  a  q quits", 36, 20, 10))
        head = next(line for line in lines if " pid" in line)
        assert ("device" in head) == device and ("peak" in head) == (not device), head
        clock = time.strftime("%H:%M:%S", time.localtime(sample["time"]))
        assert lines[0].endswith(clock) and "…" not in lines[0]
    assert screen._heading(["memopt monitor", "every 1 s", "q quits", "12:00:00"], 40) == (
        "memopt monitor  q quits  12:00:00"
    )
    assert screen._heading(["memopt monitor", "every 1 s", "q quits", "12:00:00"], 24) == (
        "memopt monitor  12:00:00"
    )
    assert screen._heading(["memopt monitor", "every 1 s", "q quits", "12:00:00"], 8) == "12:00:00"
    assert screen._aligned("日本語の名前", 7, False) == "日本語…" and (
        screen._aligned("日本", 6, True) == "  日本"
    )


def test_keys_count_on_a_machine_too_busy_for_the_interval():
    terminal = Terminal("monitor", "--interval", "0.01", "--device", "cpu")
    terminal.until(lambda lines: lines[3].startswith("  cpu:0"), "the device")
    terminal.child.send("q")
    assert terminal.end()[0] == 0
    view = LiveView(None, None, "", 1)
    view._keyboard.key = lambda seconds: "q" if seconds == 0 else ""
    assert not view.wait(time.monotonic() - 1)


@contextlib.contextmanager
def idle_processes(count):
    """So many processes more than the machine has."""
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
        for one in started:
            one.wait()


@idle_processes(40)  # more than there are lines
def test_the_window_changes():
    """At each size every line fits, and what matters most is there, before the next sample."""
    terminal = Terminal("monitor", "--interval", "3600", "--device", "cpu", size=(24, 80))
    terminal.until(lambda lines: lines[3].startswith("  cpu:0"), "the device")
    for rows, columns in ((40, 160), (12, 60), (8, 40), (24, 80)):
        terminal.resize(rows, columns)

        def fits(lines, rows=rows, columns=columns):
            shown = [line for line in lines[6:] if line.split()[1:2] and "iB" in line]
            return (
                len(lines) == rows
                and max(map(len, lines)) <= columns
                and lines[3].startswith("  cpu:0")
                and "GiB" in lines[3]
                and "pid" in lines[5]
                and "used" in lines[5]
                and ("over time" in lines[2] or columns < 80)
                and len(shown) >= (1 if rows < 12 else 3)
                and any("and " in line and "more" in line for line in lines)
            )

        terminal.until(fits, "the view in %d lines of %d" % (rows, columns))
    terminal.child.send("q")
    assert terminal.end()[0] == 0


def test_no_colour():
    terminal = Terminal(
        "monitor", "--interval", "0.05", "--count", "3", "--device", "cpu", NO_COLOR="1"
    )
    code, after = terminal.end()
    assert code == 0 and "3 samples in" in after
    assert b"\x1b[36m" not in terminal.text and b"\x1b[31m" not in terminal.text


def test_a_terminal_without_rich(tmp_path):
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ImportError('not installed')\n")
    terminal = Terminal(
        *("monitor", "--interval", "0.05", "--count", "2", "--device", "cpu", "--processes", "1"),
        PYTHONPATH=os.pathsep.join([str(tmp_path), PACKAGE]),
    )
    code, _ = terminal.end()
    assert code == 0 and b"\x1b" not in terminal.text and b"2 samples in" in terminal.text


def text_of(lines):
    return ["".join(cell.text for cell in line) for line in lines]


def test_tables_fit_every_width():
    watch = Watch(1.0)
    for number in range(1, 50):
        sample = watch.add(fake(number, [6 * GIB, GIB], pids=[7, 4194304]))
    sample["devices"][0].update(temperature=54.0, power=120.0, name="A device with a long name")
    for width in range(20, 200):
        lines = text_of(screen.screen(sample, watch, "title", width, 30, 10))
        assert max(map(len, lines)) <= width, width
        assert "cuda:0" in lines[3]
    for height in range(1, 30):
        assert len(screen.screen(sample, watch, "title", 80, height, 10)) <= height


def test_sparks():
    assert screen.Spark([0, 50, 100], 100).text(8) == "▁▅█"
    assert screen.Spark(range(101), 100).text(3) == "███"
    assert screen.Spark([5], 0).text(3) == ""
    assert screen.Spark([500, -5], 100).text(3) == "█▁"


def test_durations():
    shown = [duration(s) for s in (0.44, 45, 720, 12600, 345600)]
    assert shown == ["0.4 s", "45 s", "12 min", "3.5 h", "4 days"]


# --- the schema itself ----------------------------------------------------------------------------


def test_the_schema_refuses_what_is_wrong():
    good = sampled_once("--device", "cpu")
    for spoil in (
        lambda value: value.pop("host"),
        lambda value: value.update(extra=1),
        lambda value: value.update(sample=0),
        lambda value: value["devices"][0].update(memory_used=-1),
        lambda value: value["devices"][0].update(utilization="much"),
        lambda value: value["devices"][0]["processes"][0].pop("cached"),
        lambda value: value["devices"][0]["processes"][0].update(kinds=["guest"]),
        lambda value: value["warnings"].append({"cause": "boredom"}),
    ):
        bad = copy.deepcopy(good)
        spoil(bad)
        with pytest.raises(AssertionError):
            validate(bad, SCHEMA)
    assert len(list(records_of(good))) == 1 + len(good["devices"][0]["processes"])
