"""Where /proc is not there, or does not tell of the program, that is said, and not that it was too
quick."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from cli_support import environment
from json_schema import validate
from profile_support import SCHEMA

#: Processes are told where the first word says, after what is done there.
PROGRAM = """
import os, sys
from memopt.cli.profile import process_tree
process_tree.PROC = sys.argv[1]
%s
from memopt.cli import main
sys.exit(main(["profile", "--no-gpu", "--interval", "0.01", *sys.argv[2:]]))
"""
#: memopt itself is there, and no other process.
OTHERS_HIDDEN = PROGRAM % 'os.mkdir("%s/%d" % (process_tree.PROC, os.getpid()))'
NONE_TOLD = PROGRAM % ""
WORK = ["--", sys.executable, "-c", "import time; time.sleep(0.1)"]


def profile(code, place, *words):
    """What was printed and said."""
    result = subprocess.run(
        [sys.executable, "-c", code, str(place), *words, *WORK],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result


def test_processes_that_are_hidden(tmp_path):
    said = profile(OTHERS_HIDDEN, tmp_path).stderr
    assert "memopt: host memory is not seen, since %s" % tmp_path in said
    assert "hides this program's (mounted with hidepid" in said and said.count("not seen") == 1
    assert "host memory, resident" not in said and "too quick" not in said


def test_no_processes_at_all(tmp_path):
    said = profile(NONE_TOLD, tmp_path).stderr
    assert "no processes are in it: it is not mounted here" in said and "hidepid" not in said


def test_what_may_not_be_read(tmp_path):
    """Another error of the system, for whoever runs the tests."""
    (tmp_path / "file").write_text("")
    said = profile(NONE_TOLD, tmp_path / "file").stderr
    assert "since %s/file does not tell it: Not a directory" % tmp_path in said


def test_a_report_without_host_memory(tmp_path):
    samples = tmp_path / "samples.csv"
    result = profile(OTHERS_HIDDEN, tmp_path, "--json", "--output", str(samples))
    report = json.loads(result.stdout)
    validate(report, SCHEMA)
    assert report["peaks"] == {} and report["samples"] >= 1 and report["exit_code"] == 0
    lines = samples.read_text().splitlines()
    assert len(lines) == 1 + report["samples"] and lines[1].split(",")[2:4] == ["0", ""]


@pytest.fixture
def no_proc():
    """Words that run a command where nothing is mounted at /proc."""
    unshare = shutil.which("unshare")
    words = [str(unshare), "-m", "sh", "-c", 'umount -l /proc && exec "$@"', "sh"]
    if unshare is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("only root may take /proc away")
    return words


def test_without_proc(no_proc):
    def memopt(*words):
        command = [*no_proc, sys.executable, "-m", "memopt", *words]
        return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)

    result = memopt("profile", "--no-gpu", *WORK)
    assert result.returncode == 0, result.stderr
    assert "since /proc does not tell it: no processes are in it" in result.stderr
    assert "too quick" not in result.stderr
    result = memopt("monitor", "--once", "--device", "cpu")
    assert result.returncode == 1 and "mount -t proc proc /proc" in result.stderr
    assert "install" not in result.stderr and 'use "cpu"' not in result.stderr
