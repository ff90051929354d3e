"""`memopt profile`: peaks, descendants, devices, phases."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import resource
import subprocess
import time

import pytest

import memopt.tools
from cli_support import command, environment, wait_for
from monitor_support import MONITORS, simulated
from json_schema import validate
from memopt.cli.profile import process_tree
from memopt.cli.profile.phase_pipe import Mark, Marks
from memopt.cli.profile.recorder import Recorder, _sum
from profile_support import MIB, PHASES, QUICK, SCHEMA, SEEN, profiled, python, seen

F_GETPIPE_SZ = 1032

# --- figures --------------------------------------------------------------------------------------


GROW = """
seen()
data = resident(100 << 20)
seen()
del data
seen()
"""


def test_host_memory_and_where_its_peak_was(tmp_path):
    report, rows = seen(tmp_path, GROW)
    peak = report["peaks"]["rss"]
    assert 100 * MIB < peak["bytes"] < 250 * MIB
    assert 0 < peak["seconds"] < report["seconds"] and peak["phase"] is None
    first = [row["seconds"] for row in rows if int(row["rss"]) == peak["bytes"]][0]
    assert float(first) == peak["seconds"]
    assert report["largest_process_bytes"] >= peak["bytes"]
    assert report["samples"] == len(rows) > 5
    assert report["processes"] == 1 and report["phases"] == []
    assert report["command"] == python(SEEN + GROW) and report["signal"] is None
    assert report["host_memory_total"] > peak["bytes"]
    # Nothing of it is shared with anyone but the interpreter's own pages.
    assert report["peaks"]["pss"]["bytes"] <= peak["bytes"]


HOLD = """
data = resident(40 << 20)
while not any(int(row["pss"] or 0) > 120 << 20 for row in rows()):
    time.sleep(0.01)
"""


def test_descendants_count_and_orphans_too(tmp_path):
    """A child, a fork, and one whose parent is gone, each with memory of its own."""
    hold = SEEN + HOLD
    text = """
import subprocess
hold = %r
start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', %%r])" %% hold
subprocess.Popen([sys.executable, "-c", start]).wait()
child = subprocess.Popen([sys.executable, "-c", hold])
if os.fork() == 0:
    exec(hold)
    os._exit(0)
child.wait()
os.wait()
""" % (hold,)
    report, rows = seen(tmp_path, text)
    assert report["peaks"]["rss"]["bytes"] > 3 * 40 * MIB
    assert report["peaks"]["pss"]["bytes"] > 3 * 40 * MIB
    assert 40 * MIB < report["largest_process_bytes"] < 3 * 40 * MIB
    assert max(int(row["processes"]) for row in rows) >= 4 and report["processes"] >= 4


def test_page_locked_memory(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if os.geteuid() != 0 and 0 <= limit < 1 << 20:
        pytest.skip("this user may lock %d bytes" % limit)
    text = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
data = ctypes.create_string_buffer(512 << 10)
assert libc.mlock(data, len(data)) == 0, ctypes.get_errno()
seen()
"""
    report, _ = seen(tmp_path, text)
    assert 512 << 10 <= report["peaks"]["locked"]["bytes"] < 2 * MIB


FIRST_THREAD_ENDS = """
import ctypes, threading

def other():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    data = resident(60 << 20)
    seen()
    os._exit(0)

threading.Thread(target=other).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_a_program_whose_first_thread_ends(tmp_path):
    """Its memory is there until the last one does."""
    report, _ = seen(tmp_path, FIRST_THREAD_ENDS)
    assert report["peaks"]["rss"]["bytes"] > 60 * MIB


def test_what_is_known_of_processes():
    use = process_tree.process_use(os.getpid())
    assert 1 * MIB < use.rss <= use.rss_peak and use.locked >= 0
    assert 0 < process_tree.proportional(os.getpid()) <= use.rss * 1.1
    sleeping = subprocess.Popen(["sleep", "60"])
    pid = sleeping.pid
    try:
        assert pid in process_tree.descendants(os.getpid())
        assert pid in process_tree._children_by_parent(os.getpid())
    finally:
        sleeping.kill()
    wait_for(lambda: process_tree.process_use(pid) is None, "its end")  # not reaped yet
    sleeping.wait()
    assert process_tree.process_use(pid) is None and process_tree.proportional(pid) is None
    assert process_tree.descendants(pid) == []


# --- devices --------------------------------------------------------------------------------------


@simulated
def test_gpus():
    """Another process uses one: that is not the program's."""
    pid = os.getpid()
    report, _, _ = profiled("sleep", "0.3", folders=[MONITORS], MEMOPT_SIM_PROCESSES="%d:64M:c" % pid)
    names = [device["device"] for device in report["devices"]]
    assert names == ["cuda:0", "cuda:1", "hip:0", "hip:1"]
    first = report["devices"][0]
    assert first["name"] == "libmemopt simulated device" and first["memory_total"] == 1 << 30
    assert first["program"]["bytes"] == 0 and first["everybody"]["bytes"] == 256 * MIB
    report, _, _ = profiled("true", options=["--no-gpu"], folders=[MONITORS])
    assert report["devices"] == []


@simulated
def test_processes_that_the_driver_numbers_in_another_way():
    report, _, errors = profiled("sleep", "0.2", folders=[MONITORS], MEMOPT_SIM_PROCESSES="4000001:64M:c")
    first, second = report["devices"][:2]
    assert first["program"] is None and first["everybody"]["bytes"] == 256 * MIB
    assert second["program"]["bytes"] == 0  # nobody uses it, by whatever number
    result = command(*("profile", "--", "sleep", "0.2"), folders=[MONITORS], MEMOPT_SIM_PROCESSES="4000001:64M:c")
    assert "look at everybody's" in result.stderr


#: The simulated library reads its processes from the environment at every call: they become those
#: of the program as soon as it has a number. Three devices, and a child of the program on the last.
ON_A_GPU = """
import os, subprocess, sys
import memopt.cli
popen = subprocess.Popen

class Started(popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        os.environ["MEMOPT_SIM_PROCESSES"] = "%d:64M:c@0,%d:16M:c@1,4000001:100M:c@1" % (
            self.pid, self.pid)

subprocess.Popen = Started
sys.exit(memopt.cli.main(sys.argv[1:]))
"""


@simulated
def test_the_bytes_of_the_program_on_gpus(tmp_path):
    path = tmp_path / "samples.csv"
    words = ["profile", "--json", "--interval", "0.02", "--output", str(path), "--", "sleep", "0.4"]
    result = subprocess.run(
        python(ON_A_GPU) + words, env=environment(MONITORS, MEMOPT_SIM_DEVICES="3"), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    validate(report, SCHEMA)
    found = {d["device"]: d["program"]["bytes"] for d in report["devices"] if d["program"]}
    assert found["cuda:0"] == 64 * MIB and found["cuda:1"] == 16 * MIB and found["cuda:2"] == 0
    assert found["hip:0"] == 64 * MIB
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["cuda:0"] == str(64 * MIB) and rows[-1]["cuda:1"] == str(16 * MIB)
    assert rows[-1]["cuda:1 device"] == str(272 * MIB)


def test_whose_bytes_are_the_programs():
    def process(pid, used, name="x"):
        return memopt.tools.Process(pid, name, used, ("compute",))

    assert _sum([process(1, 10), process(2, 20), process(3, 40)], {1, 3}) == 50
    assert _sum([process(1, None), process(3, 40)], {1, 3}) == 40
    assert _sum([process(1, None)], {1}) is None
    assert _sum([process(2, 20)], {1}) == 0
    assert _sum([process(2, 20, name="")], {1}) is None  # it could be any
    assert _sum([], {1}) == 0


# --- phases ---------------------------------------------------------------------------------------


def test_phases(tmp_path):
    report, rows = seen(tmp_path, PHASES)
    names = [phase["phase"] for phase in report["phases"]]
    assert names == [None, "setup", "forward", "loss", "backward"]
    by = {phase["phase"]: phase for phase in report["phases"]}
    assert all(phase["samples"] > 0 for phase in report["phases"])
    assert by["backward"]["rss"] > by["forward"]["rss"] + 50 * MIB
    assert by["forward"]["rss"] > by["setup"]["rss"] + 50 * MIB
    assert report["peaks"]["rss"]["phase"] == "backward"
    assert abs(sum(phase["seconds"] for phase in report["phases"]) - report["seconds"]) < 0.05
    phases = [row["phase"] for row in rows]
    runs = [one for one, before in zip(phases, [None] + phases) if one and one != before]
    # the rest of "forward" behind the loss may be too short for a sample
    step = "forward loss( forward)? backward setup"
    assert re.fullmatch("setup %s %s" % (step, step), " ".join(runs)), runs


def test_the_report_as_json(tmp_path):
    path = tmp_path / "report.json"
    report, _, _ = profiled(*python(QUICK), options=["--output", str(path)])
    whole = json.loads(path.read_text())
    validate(whole, SCHEMA)
    assert {"course"} == set(whole) - set(report)
    assert len(whole["course"]) == report["samples"]
    names = [phase["phase"] for phase in whole["phases"]]
    assert names == [None, "setup", "forward", "loss", "backward"]


def test_phase_without_profile_does_nothing(tmp_path):
    text = "import memopt.tools\nwith memopt.tools.phase('x'): pass\nmemopt.tools.phase('y')\n"
    file = tmp_path / "file"
    file.write_text("untouched")
    for value in ("", "/nowhere", str(file), str(tmp_path)):
        result = subprocess.run(python(text), env=environment(MEMOPT_PROFILE=value), capture_output=True, text=True)
        assert result.returncode == 0 and result.stderr == ""
    assert file.read_text() == "untouched"


def test_marks_are_never_in_the_way():
    """Far more than the pipe holds, with nobody reading: lost, and nothing waits."""
    marks = Marks()
    holds = fcntl.fcntl(marks._pipe, F_GETPIPE_SZ)  # the system may give less than was asked for
    text = """
import memopt.tools
for number in range(200000):
    memopt.tools.phase("phase %d" % (number % 7))
"""
    subprocess.run(python(text), env=environment(MEMOPT_PROFILE=marks.path), check=True, timeout=60)
    found = marks.read()
    assert holds // 40 < len(found) < 200000
    assert {mark.phase for mark in found} == {"phase %d" % number for number in range(7)}
    times = [mark.seconds for mark in found]
    assert times == sorted(times) and 0 <= time.monotonic() - times[-1] < 60
    folder = os.path.dirname(marks.path)
    marks.close()
    assert not os.path.exists(folder)


def test_what_is_no_mark_is_dropped():
    marks = Marks()
    with open(marks.path, "wb", buffering=0) as pipe:
        pipe.write(b"nonsense\n-5 7 a\n5 x a\n\xff\xfe\n1000000000 7 one\n2000000000 8 two\n")
        pipe.write(b"3000000000 7 three and a half\n4000000000 7 \n50000")
        assert marks.read() == [Mark(1.0, "one"), Mark(3.0, "three and a half"), Mark(4.0, "")]
        pipe.write(b"00000 7 late\n")
        assert marks.read() == [Mark(5.0, "late")]
        for number in range(300):
            pipe.write(b"6000000000 7 name%d\n" % number)
        assert len({mark.phase for mark in marks.read()}) <= 100
    marks.close()


def test_marks_of_a_program_that_means_ill(monkeypatch):
    """Numbers of any length, times to come, names that steer a terminal, writing without end."""
    marks = Marks()
    with open(marks.path, "wb", buffering=0) as pipe:
        for digits in (21, 400, 5000):
            pipe.write(b"%s 7 a\n1 %s b\n" % (b"9" * digits, b"9" * digits))
        assert marks.read() == []
        pipe.write(b"9999999999999999999 7 later\n1 7 \x1b[2Jx\r\n")
        later, steering = marks.read()
        assert later.phase == "later" and later.seconds <= time.monotonic()
        assert steering == Mark(1e-9, "?[2Jx?")
    turns = []

    def endless(_pipe, count):
        turns.append(count)
        assert len(turns) < 1000
        return b"x" * count

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", endless)
        assert marks.read() == []
    assert sum(turns) >= 1 << 20 and len(marks._rest) <= 4096
    marks.close()


def test_a_long_run_keeps_a_short_course_with_its_peaks():
    recorder = Recorder(["rss"], 0.0)
    peak = 123456
    for number in range(50000):
        rss = peak if number in (31234, 40000) else number % 1000
        recorder.add({"time": number * 0.1, "rss": rss})
    recorder.finish(5000.0)
    assert len(recorder.records) <= 4001 and recorder.samples == 50000
    assert max(record["rss"] for record in recorder.records) == peak
    assert recorder.peaks["rss"] == (peak, 3123.4, "")
    times = [record["time"] for record in recorder.records]
    assert times == sorted(times) and times[-1] > 4990
    steps = [after - before for before, after in zip(times, times[1:])]
    assert max(steps[:-1]) < 1.01 * min(steps[:-1])  # evenly, early and late


def test_a_quick_program():
    result = command("profile", "--", "true")
    assert result.returncode == 0 and "too quick" in result.stderr


def test_a_floor_that_rises_and_a_device_hardly_used_are_notes():
    from memopt.cli.profile import report

    def notes(values, total):
        course = [{"rss": 1, "devices": {"cuda:0": {"program": value}}} for value in values]
        device = {"device": "cuda:0", "program": {"bytes": max(values)}, "memory_total": total}
        return dict(report._trends({"course": course, "devices": [device]}))

    rising = notes([(100 + n) << 20 for n in range(300)], 1 << 29)["cuda:0"]
    assert "floor creeps up, to 399.00 MiB at the end" in rising.text
    assert "at most 20 % were used: memopt plan --fill" in notes([200 << 20] * 150, 1000 << 20)["cuda:0"]
    assert notes([800 << 20] * 150, 1000 << 20) == {}
