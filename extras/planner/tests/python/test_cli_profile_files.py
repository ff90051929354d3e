"""`memopt profile`: the files that it writes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

import pytest

from cli_support import command, environment, start, wait_for
from memopt.tools._log_file import LogFile
from profile_support import PHASES, QUICK, profiled, python, seen


def test_samples_as_csv(tmp_path):
    path = tmp_path / "samples.csv"
    path.write_text("of an earlier run\n")
    report, rows = seen(tmp_path, PHASES)
    assert path.exists() and len(rows) == report["samples"]
    assert max(int(row["rss"]) for row in rows) == report["peaks"]["rss"]["bytes"]
    assert {row["phase"] for row in rows} >= {"forward", "backward"}
    times = [float(row["seconds"]) for row in rows]
    assert times == sorted(times)


def test_samples_go_where_a_link_leads(tmp_path):
    (tmp_path / "run.csv").write_text("of an earlier run\n")
    (tmp_path / "latest.csv").symlink_to("run.csv")
    assert command("profile", "--output", tmp_path / "latest.csv", "--", "true").returncode == 0
    assert (tmp_path / "latest.csv").is_symlink()
    assert (tmp_path / "run.csv").read_text().startswith("seconds,phase,")


def test_samples_are_there_when_memopt_itself_is_killed(tmp_path):
    path = tmp_path / "samples.csv"
    ends_with_it = "import os, time; p = os.getppid(); print(flush=True)\nwhile os.getppid() == p: time.sleep(0.02)"
    process = start("profile", "--interval", "0.02", "--output", path, "--", *python(ends_with_it))
    process.stdout.readline()  # it knows its parent
    wait_for(lambda: path.exists() and path.read_text().count("\n") > 5, "samples")
    process.kill()
    process.communicate()
    assert path.read_text().endswith("\n")


def test_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    svg = tmp_path / "course.svg"
    profiled(*python(QUICK), options=["--plot", str(svg)])
    text = svg.read_text()
    assert "forward" in text and "host, resident" in text


def test_a_plot_that_cannot_be_made(tmp_path):
    """Said before the program runs."""
    pytest.importorskip("matplotlib")
    result = command("profile", "--plot", "x.bmp", "--", "touch", tmp_path / "ran")
    assert result.returncode == 2 and ".png, .svg, .pdf" in result.stderr
    assert not (tmp_path / "ran").exists()
    result = command("profile", "--plot", "", "--", "touch", tmp_path / "ran")
    assert result.returncode == 2 and "--plot '': the name must end" in result.stderr
    result = command("profile", "--plot", "/nowhere/x.png", "--", "touch", tmp_path / "ran")
    assert result.returncode == 1 and "the folder /nowhere does not exist" in result.stderr
    assert not (tmp_path / "ran").exists()
    there = tmp_path / "there.png"
    there.write_text("a picture of yesterday")
    program = "chmod 000 {0}; rm {0}; mkdir {0}".format(shlex.quote(str(there)))
    result = command("profile", "--plot", there, "--", "sh", "-c", program)
    assert result.returncode == 0 and "there.png was not written: Is a directory" in result.stderr


def test_what_a_full_disk_took_of_a_line_is_taken_back(tmp_path):
    """A log of whole lines, also where the file may not grow any further."""
    path = tmp_path / "x.csv"
    text = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from memopt.tools._log_file import LogFile
log = LogFile(sys.argv[1], ["a", "b"])
try:
    for number in range(1000): log.write({"a": number, "b": "x" * 20})
except OSError as error: print(error.strerror, error.filename == sys.argv[1])
"""
    result = subprocess.run(
        [sys.executable, "-c", text, str(path)], env=environment(), capture_output=True, text=True, check=True
    )
    assert result.stdout == "File too large True\n"
    lines = path.read_text().splitlines()
    assert path.read_text().endswith("\n") and len(lines) > 30
    assert all(line.endswith(",x" + "x" * 19) for line in lines[1:])


def test_files_that_a_full_disk_does_not_take(tmp_path):
    """What was not there before is not there afterwards, and what was is as it was."""
    text = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), 1000))
from memopt.tools._log_file import LogFile
from memopt.cli.replace_file import replace
for call in (lambda: LogFile("new.csv", ["a" * 50, "b"]), lambda: replace("new", b"x" * 900),
             lambda: replace("there", b"x" * 900)):
    try: call()
    except OSError as error: print(error.strerror, error.filename)
"""
    for limit in ("0", "10", "40"):
        (tmp_path / "there").write_text("a file of yesterday")
        result = subprocess.run(
            [sys.executable, "-c", text, limit], cwd=tmp_path, env=environment(), capture_output=True, text=True
        )
        assert result.stderr == ""
        assert result.stdout == "".join("File too large %s\n" % name for name in ("new.csv", "new", "there"))
        assert os.listdir(tmp_path) == ["there"] and "yesterday" in (tmp_path / "there").read_text()


def test_a_log_that_is_a_pipe(tmp_path):
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = LogFile(path, ["a", "b"])
    log.write({"a": 1, "b": 2})
    assert os.read(reading, 100) == b"a,b\n1,2\n"
    os.set_blocking(log._file, False)
    with pytest.raises(BlockingIOError):  # nobody reads
        while True:
            log.write({"a": "x" * 3000})
    log.close()
    os.close(reading)
    result = command("profile", "--output", path, "--", "true")
    assert result.returncode == 0 and path.is_fifo()


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


def test_a_signal_before_the_program_leaves_nothing(tmp_path):
    """It comes while the pipe is made, and counts when the pipe is gone again."""
    text = """
import os, signal
from memopt.cli.profile import phase_pipe
make = os.mkfifo
def mkfifo(*arguments):
    make(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
os.mkfifo = mkfifo
from memopt.cli import main
main(["profile", "--no-gpu", "--", "/nowhere/program"])
"""
    result = subprocess.run(
        [sys.executable, "-c", text], env=environment(TMPDIR=str(tmp_path)), capture_output=True, text=True
    )
    assert result.returncode == -signal.SIGTERM and list(tmp_path.iterdir()) == []


def test_names_that_matplotlib_would_read_as_formulas(tmp_path):
    pytest.importorskip("matplotlib")
    for ending, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF")):
        picture = tmp_path / ("picture" + ending)
        words = ("--plot", picture, "--", "true", "$\\x$", "a$_$b{", os.fsdecode(b"\xe9"), "日本")
        result = command("profile", *words)
        assert result.returncode == 0 and picture.stat().st_size > 1000
        assert picture.read_bytes().startswith(start)
        assert "Warning" not in result.stderr and "not written" not in result.stderr


def test_an_output_that_cannot_be_written(tmp_path):
    for name in ("x.csv", "x.json"):
        result = command("profile", "--output", "/nowhere/" + name, "--", "touch", tmp_path / "ran")
        assert result.returncode == 1 and "/nowhere/" + name in result.stderr
        assert not (tmp_path / "ran").exists()
