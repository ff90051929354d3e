"""What the tests of `memopt replay` share: running it, and a trace."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import traces
from cli_support import environment
from json_schema import load, validate

SCHEMA = load("replay")
EVENTS = traces.training()


def command(*words, text=True, **options):
    variables = options.pop("variables", {})
    return subprocess.run(
        [sys.executable, "-m", "memopt", "replay", *map(str, words)],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=text,
        timeout=120,
        **options,
    )


def answer(*words, code=0, **options):
    """What --json says, checked against the schema."""
    result = command(*words, "--json", **options)
    assert result.returncode == code, result.stderr
    assert not result.stderr
    value = json.loads(result.stdout)
    validate(value, SCHEMA)
    return value


def shown(*words, code=0, **options):
    result = command(*words, **options)
    assert result.returncode == code, result.stderr
    assert result.stderr == "" and "\x1b" not in result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "training.csv"
    path.write_text(traces.csv(EVENTS))
    return path
