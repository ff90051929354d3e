"""Asks `memopt plan`, in this process: what a person would type, without the wait for a new one."""

import contextlib
import io
import json
import pathlib
from typing import Any, Dict, List

import memopt.cli

from .measuring import Bytes
from .settings import Settings, options


class PlanFailed(RuntimeError):
    """The command failed; what it said."""


def plan(arguments: List[str]) -> Dict[str, Any]:
    """The object that `memopt plan … --json` prints."""
    return dict(json.loads(call([*arguments, "--json"])))


def call(arguments: List[str]) -> str:
    """What `memopt plan …` prints when it is piped."""
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        try:
            code = memopt.cli.main(["plan", *arguments])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
    if code != 0:
        raise PlanFailed("memopt plan %s: exit code %d: %s" % (" ".join(arguments), code, complained.getvalue()))
    return said.getvalue()


def planned(model: pathlib.Path, settings: Settings) -> Bytes:
    """What the planner says of the step that `measuring.measure` records: on the CPU, with a
    recorder's eyes, hence without overhead."""
    result = plan(["--model", str(model), "--device", "cpu", *options(settings)])
    phases = result["phases"]
    return Bytes(
        int(phases["load"]["parameters"]),
        int(phases["step"]["gradients"]),
        int(phases["load"]["optimizer"]),
        int(result["activation_peak_bytes"]),
        max(int(phase["logits"]) for phase in phases.values()),
        int(result["peak_bytes"]),
        str(result["peak_phase"]),
        int(result["host_bytes"]),
    )
