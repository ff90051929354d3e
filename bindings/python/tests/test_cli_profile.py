"""`memopt profile` through the command: peaks, phases, descendants, signals, crashes, files."""

from __future__ import annotations

import copy
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import memopt
from cli_support import MONITORS, Terminal, command, environment, simulated, start, wait_for
from json_schema import load, validate
from memopt._logfile import LogFile
from memopt.cli.profile import _Run, child, tree
from memopt.cli.profile.marks import Mark, Marks
from memopt.cli.profile.recorder import Recorder, _sum

SCHEMA = load("profile")
MIB = 1 << 20


def python(text):
    """The words of a command that runs a program in Python."""
    return [sys.executable, "-c", text]


def profiled(*words, options=(), code=0, folders=(), **variables):
    """The report, checked against the schema, and what the program wrote."""
    words = ("profile", "--json", "--interval", "0.02", *options, "--", *words)
    result = command(*words, folders=folders, **variables)
    assert result.returncode == code, result.stderr
    *before, last = result.stdout.splitlines()
    report = json.loads(last)
    validate(report, SCHEMA)
    assert report["exit_code"] == code
    return report, "\n".join(before), result.stderr


# --- figures --------------------------------------------------------------------------------------

#: Programs wait until they were seen: however busy the machine is, no test depends on time.
SEEN = """
import csv, os, sys, time

def rows():
    with open(os.environ["SAMPLES"]) as file:
        return list(csv.DictReader(file))

def seen(condition=lambda row: True):
    "Until two samples from now on are so."
    before = len(rows())
    while sum(map(bool, map(condition, rows()[before:]))) < 2:
        time.sleep(0.01)

"""


def seen(tmp_path, text, **variables):
    """The report and the samples of a program that waits with seen()."""
    path = tmp_path / "samples.csv"
    report, _, _ = profiled(
        *python(SEEN + text), options=["--output", str(path)], SAMPLES=str(path), **variables
    )
    with open(path, newline="") as file:
        return report, list(csv.DictReader(file))


GROW = """
seen()
data = bytearray(b"x" * (100 << 20))
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
data = bytearray(b"x" * (40 << 20))
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
    text = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
data = ctypes.create_string_buffer(4 << 20)
assert libc.mlock(data, len(data)) == 0, ctypes.get_errno()
seen()
"""
    report, _ = seen(tmp_path, text)
    assert 4 * MIB <= report["peaks"]["locked"]["bytes"] < 5 * MIB


def test_what_is_known_of_processes():
    use = tree.process_use(os.getpid())
    assert 1 * MIB < use.rss <= use.rss_peak and use.locked >= 0
    assert 0 < tree.proportional(os.getpid()) <= use.rss * 1.1
    sleeping = subprocess.Popen(["sleep", "60"])
    pid = sleeping.pid
    try:
        assert pid in tree.descendants(os.getpid())
        assert pid in tree._children_by_parent(os.getpid())
    finally:
        sleeping.kill()
    wait_for(lambda: tree.process_use(pid) is None, "its end")  # not reaped yet
    sleeping.wait()
    assert tree.process_use(pid) is None and tree.proportional(pid) is None
    assert tree.descendants(pid) == []


# --- devices --------------------------------------------------------------------------------------


@simulated
def test_gpus():
    """Another process uses one: that is not the program's."""
    pid = os.getpid()
    report, _, _ = profiled(
        "sleep", "0.3", folders=[MONITORS], MEMOPT_SIM_PROCESSES="%d:64M:c" % pid
    )
    names = [device["device"] for device in report["devices"]]
    assert names == ["cuda:0", "cuda:1", "hip:0", "hip:1"]
    first = report["devices"][0]
    assert first["name"] == "libmemopt simulated device" and first["memory_total"] == 1 << 30
    assert first["program"]["bytes"] == 0 and first["everybody"]["bytes"] == 256 * MIB
    report, _, _ = profiled("true", options=["--no-gpu"], folders=[MONITORS])
    assert report["devices"] == []


@simulated
def test_processes_that_the_driver_numbers_in_another_way():
    report, _, errors = profiled(
        "sleep", "0.2", folders=[MONITORS], MEMOPT_SIM_PROCESSES="4000001:64M:c"
    )
    first, second = report["devices"][:2]
    assert first["program"] is None and first["everybody"]["bytes"] == 256 * MIB
    assert second["program"]["bytes"] == 0  # nobody uses it, by whatever number
    result = command(
        *("profile", "--", "sleep", "0.2"),
        folders=[MONITORS],
        MEMOPT_SIM_PROCESSES="4000001:64M:c",
    )
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
        python(ON_A_GPU) + words,
        env=environment(MONITORS, MEMOPT_SIM_DEVICES="3"),
        capture_output=True,
        text=True,
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
        return memopt.Process(pid, name, used, ("compute",))

    assert _sum([process(1, 10), process(2, 20), process(3, 40)], {1, 3}) == 50
    assert _sum([process(1, None), process(3, 40)], {1, 3}) == 40
    assert _sum([process(1, None)], {1}) is None
    assert _sum([process(2, 20)], {1}) == 0
    assert _sum([process(2, 20, name="")], {1}) is None  # it could be any
    assert _sum([], {1}) == 0


PUBLISHING = """
import memopt
assert os.environ["MEMOPT_PUBLISH"] == "1"  # so memopt.torch.enable_allocator() publishes
with memopt.Device("cpu", capacity="64MiB") as device:
    with memopt.Allocator(device) as allocator:
        memopt.publish(allocator)
        block, other = allocator.alloc("10MiB"), allocator.alloc("20MiB")
        other.free()
        seen(lambda row: row["allocated"] == str(10 << 20))
        block.free()
"""


def test_what_our_allocators_hold(tmp_path, socket_folder):
    report, _ = seen(tmp_path, PUBLISHING, XDG_RUNTIME_DIR=str(socket_folder))
    assert report["peaks"]["allocated"]["bytes"] >= 10 * MIB
    assert report["peaks"]["cached"]["bytes"] >= 20 * MIB


# --- phases ---------------------------------------------------------------------------------------

PHASES = """
import memopt
memopt.phase("setup")
seen()
for step in range(2):
    with memopt.phase("forward"):
        data = bytearray(b"x" * (60 << 20))
        seen()
        with memopt.phase("loss"):
            seen()
    with memopt.phase("backward"):
        more = bytearray(b"x" * (60 << 20))
        seen()
        del data, more
    seen()
memopt.phase("")
seen()
"""
QUICK = SEEN.replace("before = len(rows())", "return") + PHASES


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
    text = "import memopt\nwith memopt.phase('x'): pass\nmemopt.phase('y')\n"
    file = tmp_path / "file"
    file.write_text("untouched")
    for value in ("", "/nowhere", str(file), str(tmp_path)):
        result = subprocess.run(
            python(text), env=environment(MEMOPT_PROFILE=value), capture_output=True, text=True
        )
        assert result.returncode == 0 and result.stderr == ""
    assert file.read_text() == "untouched"


def test_marks_are_never_in_the_way():
    """Far more than the pipe holds, with nobody reading: lost, and nothing waits."""
    marks = Marks()
    text = """
import memopt
for number in range(200000):
    memopt.phase("phase %d" % (number % 7))
"""
    subprocess.run(python(text), env=environment(MEMOPT_PROFILE=marks.path), check=True, timeout=60)
    found = marks.read()
    assert 10000 < len(found) < 200000
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


def test_a_long_run_keeps_a_short_course_with_its_peaks():
    recorder = Recorder(["rss"], 0.0)
    peak = 123456
    for number in range(50000):
        rss = peak if number == 31234 else number % 1000
        recorder.add({"time": number * 0.1, "rss": rss})
    recorder.finish(5000.0)
    assert len(recorder.records) <= 4001 and recorder.samples == 50000
    assert max(record["rss"] for record in recorder.records) == peak
    assert recorder.peaks["rss"] == (peak, 3123.4, "")
    times = [record["time"] for record in recorder.records]
    assert times == sorted(times) and times[-1] > 4990


# --- the program is left alone --------------------------------------------------------------------


def test_streams_and_exit_code():
    text = """
import sys
print(sys.stdin.read().upper(), end="")
print("to stderr", file=sys.stderr)
sys.exit(42)
"""
    result = subprocess.run(
        [sys.executable, "-m", "memopt", "profile", *python(text)],
        env=environment(),
        input="hello\n",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 42
    assert result.stdout == "HELLO\n"  # the report goes to standard error
    assert result.stderr.startswith("to stderr\nmemopt profile\n")
    assert "exit code 42" in result.stderr and "Peaks" in result.stderr


def test_its_environment_and_signals_are_its_own():
    text = """
import os, signal
print(sorted(set(os.environ) - {"LC_CTYPE"}))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    plain = subprocess.run(python(text), env=environment(), capture_output=True, text=True).stdout
    _, wrote, _ = profiled(*python(text))
    names, mask = wrote.splitlines()
    plain_names, plain_mask = plain.splitlines()
    assert mask == plain_mask == "set()"
    assert set(eval(names)) - set(eval(plain_names)) == {"MEMOPT_PROFILE", "MEMOPT_PUBLISH"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_program_that_is_killed(number):
    text = "import os, time; time.sleep(0.3); os.kill(os.getpid(), %d)" % number
    report, _, _ = profiled(*python(text), code=128 + number)
    assert report["signal"] == number and report["peaks"]["rss"]["bytes"] > MIB
    result = command("profile", "--", *python(text))
    assert result.returncode == 128 + number
    assert "killed by signal %d" % number in result.stderr


WAITING = """
import os, signal, sys, time
def told(number, frame):
    os.write(1, b"got %d\\n" % number)  # it may come while "ready" is being printed
    sys.exit(9)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, told)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_program(number):
    process = start("profile", "--", *python(WAITING))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    wrote, errors = process.communicate(timeout=60)
    assert process.returncode == 9 and wrote == "got %d\n" % number, wrote + errors
    assert "exit code 9" in errors and "Traceback" not in errors


def test_ctrl_c_on_a_terminal_reaches_it_once():
    """From the terminal (si_code 0x80), and not from memopt as well."""
    text = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("ready", flush=True)
codes = [signal.sigwaitinfo([signal.SIGINT]).si_code]
more = signal.sigtimedwait([signal.SIGINT], 1)
print("codes", codes + [more.si_code] if more else codes, flush=True)
sys.exit(5)
"""
    terminal = Terminal("profile", "--", *python(text), size=(40, 100))
    terminal.until(lambda lines: "ready" in lines, "the program")
    terminal.child.sendintr()
    code, _ = terminal.end()
    shown = terminal.text.decode()
    assert code == 5 and "codes [128]" in shown and "Peaks" in shown


def test_which_signals_are_handed_on(monkeypatch):
    """Two signals at once can become one, so that a program alone does not tell."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    one = child.Child.__new__(child.Child)
    one.pid, one.end, one._reap = 4711, None, lambda: None

    class Arrived:
        def __init__(self, number, code, pid):
            self.si_signo, self.si_code, self.si_pid = number, code, pid

    one._forward(Arrived(signal.SIGINT, 0x80, 0))  # of a terminal: the program has got it too
    one._forward(Arrived(signal.SIGCHLD, 1, 4711))
    one._forward(Arrived(signal.SIGTERM, 0, 4711))  # the program's own
    assert sent == []
    one._forward(Arrived(signal.SIGINT, 0, 1))
    one._forward(Arrived(signal.SIGTERM, -6, 1))
    assert sent == [(4711, signal.SIGINT), (4711, signal.SIGTERM)]
    one.end = child.End(0, None, 0, 0.0, 0.0)
    one._forward(Arrived(signal.SIGINT, 0, 1))
    assert len(sent) == 2


def test_where_ends_of_children_are_ignored():
    """It is so for the program as well, and yet its end is seen."""
    ignoring = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "memopt", "profile", "--", *sys.argv[1:]])
"""
    text = "import signal, sys; sys.exit(7 * (signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN))"
    result = subprocess.run(
        python(ignoring) + python(text), env=environment(), capture_output=True, timeout=300
    )
    assert result.returncode == 7


def test_a_program_that_ctrl_c_ends():
    process = start("profile", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "killed by signal 2" in errors


# --- files ----------------------------------------------------------------------------------------


def test_samples_as_csv(tmp_path):
    path = tmp_path / "samples.csv"
    path.write_text("of an earlier run\n")
    report, rows = seen(tmp_path, PHASES)
    assert path.exists() and len(rows) == report["samples"]
    assert max(int(row["rss"]) for row in rows) == report["peaks"]["rss"]["bytes"]
    assert {row["phase"] for row in rows} >= {"forward", "backward"}
    times = [float(row["seconds"]) for row in rows]
    assert times == sorted(times)


def test_samples_are_there_when_memopt_itself_is_killed(tmp_path):
    path = tmp_path / "samples.csv"
    process = start("profile", "--interval", "0.02", "--output", path, "--", "sleep", "2")
    wait_for(lambda: path.exists() and path.read_text().count("\n") > 5, "samples")
    process.kill()
    process.communicate()
    assert path.read_text().endswith("\n")


def test_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "course.png"
    profiled(*python(QUICK), options=["--plot", str(path)])
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10000
    svg = tmp_path / "course.svg"
    profiled(*python(QUICK), options=["--plot", str(svg)])
    text = svg.read_text()
    assert "forward" in text and "host, resident" in text


def test_a_plot_that_cannot_be_made(tmp_path):
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('not installed')\n")
    paths = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    result = command(
        "profile", "--plot", "x.png", "--", "touch", tmp_path / "ran", PYTHONPATH=paths
    )
    assert result.returncode == 1 and "pip install 'memopt[plot]'" in result.stderr
    assert not (tmp_path / "ran").exists()  # said before the program runs
    pytest.importorskip("matplotlib")
    result = command("profile", "--plot", "x.bmp", "--", "touch", tmp_path / "ran")
    assert result.returncode == 2 and ".png, .svg, .pdf" in result.stderr
    assert not (tmp_path / "ran").exists()
    result = command("profile", "--plot", "/nowhere/x.png", "--", "touch", tmp_path / "ran")
    assert result.returncode == 1 and "there is no folder /nowhere" in result.stderr
    assert not (tmp_path / "ran").exists()
    there = tmp_path / "there.png"
    there.write_text("a picture of yesterday")
    program = "chmod 000 {0}; rm {0}; mkdir {0}".format(there)
    result = command("profile", "--plot", there, "--", "sh", "-c", program)
    assert result.returncode == 0 and "there.png was not written: Is a directory" in result.stderr


def test_what_a_full_disk_took_of_a_line_is_taken_back(tmp_path):
    """A log of whole lines, also where the file may not grow any further."""
    path = tmp_path / "x.csv"
    text = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from memopt._logfile import LogFile
log = LogFile(sys.argv[1], ["a", "b"])
try:
    for number in range(1000): log.write({"a": number, "b": "x" * 20})
except OSError as error: print(error.strerror, error.filename == sys.argv[1])
"""
    result = subprocess.run(
        [sys.executable, "-c", text, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "File too large True\n"
    lines = path.read_text().splitlines()
    assert path.read_text().endswith("\n") and len(lines) > 30
    assert all(line.endswith(",x" + "x" * 19) for line in lines[1:])


def test_two_that_write_one_log(tmp_path):
    path = str(tmp_path / "x.csv")
    first, second = LogFile(path, ["a"]), LogFile(path, ["a"])
    for number in range(3):
        first.write({"a": "first %d" % number})
        second.write({"a": "second %d" % number})
    first.close()
    second.close()
    lines = open(path).read().splitlines()
    assert lines[0] == "a" and len(lines) == 7 and lines[1:3] == ["first 0", "second 0"]


def test_what_killed_commands_left_goes(tmp_path):
    held, left = Marks(), tmp_path / "memopt-profile-left"
    tempdir, tempfile.tempdir = tempfile.tempdir, str(tmp_path)
    try:
        left.mkdir()
        (left / "marks").write_text("")
        fresh = tmp_path / "memopt-profile-fresh"
        fresh.mkdir()
        other = Marks()  # in use, however old it is
        for folder in (left, other._folder):
            os.utime(folder, (1, 1))
        Marks().close()
        assert not left.exists() and fresh.exists() and os.path.exists(other.path)
        other.close()
        assert sorted(os.listdir(tmp_path)) == ["memopt-profile-fresh"]
    finally:
        tempfile.tempdir = tempdir
        held.close()


def test_a_signal_before_the_program_leaves_nothing(tmp_path):
    """It comes while the pipe is made, and counts when the pipe is gone again."""
    text = """
import os, signal
from memopt.cli.profile import marks
make = os.mkfifo
def mkfifo(*arguments):
    make(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
os.mkfifo = mkfifo
from memopt.cli import main
main(["profile", "--no-gpu", "--", "/nowhere/program"])
"""
    result = subprocess.run(
        [sys.executable, "-c", text],
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == -signal.SIGTERM and list(tmp_path.iterdir()) == []


def test_the_command_on_one_line():
    result = command("profile", "--", "sh", "-c", "true\n\x1b[31m", "it's")
    line = next(line for line in result.stderr.splitlines() if " command " in line)
    assert line == "  command  sh -c 'true  [31m' 'it'\"'\"'s'"


def test_a_program_that_has_just_ended_has_no_memory_to_tell(tmp_path):
    report, rows = seen(tmp_path, "pass")
    assert all(int(row["rss"]) > 0 and int(row["processes"]) > 0 for row in rows)
    figures = {"processes": 0, "rss": 0, "time": 0.0}
    added = []

    class Ended:
        pid, turns = 1, iter([False, True])

        def wait(self, _until):
            return next(self.turns)

    run = _Run.__new__(_Run)
    run._figures = type("F", (), {"take": staticmethod(lambda pid: figures)})()
    run._arguments = type("A", (), {"interval": 0.1})()
    run._add = lambda record, recorder, marks: added.append(record)
    recorder, marks = (
        type("R", (), {"mark": lambda self, m: None})(),
        type("M", (), {"read": lambda self: []})(),
    )
    run._sample(Ended(), recorder, marks)
    assert added == []


def test_names_that_matplotlib_would_read_as_formulas(tmp_path):
    pytest.importorskip("matplotlib")
    for ending in (".png", ".pdf"):
        picture = tmp_path / ("picture" + ending)
        words = ("--plot", picture, "--", "true", "$\\x$", "a$_$b{", os.fsdecode(b"\xe9"), "日本")
        result = command("profile", *words)
        assert result.returncode == 0 and picture.stat().st_size > 1000
        assert "Warning" not in result.stderr and "not written" not in result.stderr


def test_an_output_that_cannot_be_written(tmp_path):
    for name in ("x.csv", "x.json"):
        result = command("profile", "--output", "/nowhere/" + name, "--", "touch", tmp_path / "ran")
        assert result.returncode == 1 and "/nowhere/" + name in result.stderr
        assert not (tmp_path / "ran").exists()


# --- what cannot be run ---------------------------------------------------------------------------


def test_commands_that_are_not_there(tmp_path):
    result = command("profile", "--", "no-such-program-here", "x")
    assert result.returncode == 127 and result.stdout == ""
    assert result.stderr == (
        "memopt: no-such-program-here: there is no such program in any folder of PATH\n"
    )
    result = command("profile", "/nowhere/program")
    assert result.returncode == 127 and "/nowhere/program: there is no such" in result.stderr
    file = tmp_path / "file"
    file.write_text("#!/nowhere/interpreter\n")
    result = command("profile", file)
    assert result.returncode == 126 and "Permission denied" in result.stderr
    file.chmod(0o755)
    result = command("profile", file)
    assert result.returncode == 127 and "interpreter" in result.stderr


@pytest.mark.parametrize(
    "words", [(), ("--",), ("--interval", "0", "--", "true"), ("--nonsense", "--", "true")]
)
def test_usage(words):
    """Nothing is run."""
    result = command("profile", *words)
    assert result.returncode == 2 and "usage: memopt " in result.stderr and result.stdout == ""


def test_a_quick_program():
    result = command("profile", "--", "true")
    assert result.returncode == 0 and "too quick" in result.stderr


def test_options_of_the_program_are_its_own():
    result = command("profile", "--", "echo", "--json", "--", "-h")
    assert result.returncode == 0 and result.stdout == "--json -- -h\n"


def test_the_schema_refuses_what_is_wrong():
    good, _, _ = profiled(*python(QUICK))
    for spoil in (
        lambda value: value.pop("signal"),
        lambda value: value.update(extra=1),
        lambda value: value.update(samples=-1),
        lambda value: value["peaks"]["rss"].pop("phase"),
        lambda value: value["peaks"].update(ram=None),
        lambda value: value["phases"][0].update(samples=None),
    ):
        bad = copy.deepcopy(good)
        spoil(bad)
        with pytest.raises(AssertionError):
            validate(bad, SCHEMA)
