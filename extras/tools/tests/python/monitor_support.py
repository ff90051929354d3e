"""What the tests of `memopt monitor` share: samples, checked against the schema, and made up."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess

import pytest

import memopt
from cli_support import BUILD, command
from json_schema import load, validate

MONITORS = os.path.join(BUILD, "tests", "sim", "monitor")

simulated = pytest.mark.skipif(
    not os.path.exists(os.path.join(MONITORS, "libnvidia-ml.so.1")),
    reason="no simulated libraries beside " + memopt.library_path,
)

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


def fake(number, used, pids=()):
    processes = [{"pid": pid, "name": "train", "used": use} for pid, use in zip(pids, used)]
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


def text_of(lines):
    return ["".join(cell.text for cell in line) for line in lines]


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
