"""What the tests of `memopt profile` share: reports, checked against the schema, and programs."""

from __future__ import annotations

import csv
import json
import sys

from cli_support import command
from json_schema import load, validate

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

def resident(count):
    "Bytes that are there, without others that were there for a moment."
    data = bytearray(count)
    data[::4096] = b"x" * len(data[::4096])
    return data

"""


def seen(tmp_path, text, **variables):
    """The report and the samples of a program that waits with seen()."""
    path = tmp_path / "samples.csv"
    report, _, _ = profiled(*python(SEEN + text), options=["--output", str(path)], SAMPLES=str(path), **variables)
    with open(path, newline="") as file:
        return report, list(csv.DictReader(file))


PHASES = """
import memopt.tools
memopt.tools.phase("setup")
seen()
for step in range(2):
    with memopt.tools.phase("forward"):
        data = resident(60 << 20)
        seen()
        with memopt.tools.phase("loss"):
            seen()
    with memopt.tools.phase("backward"):
        more = resident(60 << 20)
        seen()
        del data, more
    seen()
memopt.tools.phase("")
seen()
"""
QUICK = SEEN.replace("before = len(rows())", "return") + PHASES
