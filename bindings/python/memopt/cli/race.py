"""Runs a PyTorch program without a GPU and reports its stream races: missing waits, memory that is freed or
rewritten while a stream uses it, values that the host reads too early. The program sees a GPU; its operators
run on the CPU. Exit codes: 3 races were found, else the program's own."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import runpy
import sys
import traceback
from typing import Any, List

from .output import Output

JSON_HELP = "print one JSON object; what the program prints goes to standard error"
RACES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="also run each operation as late as the streams permit, so that a race gives NaN",
    )
    parser.add_argument(
        "--stacks",
        type=int,
        default=3,
        metavar="N",
        help="show N frames of the program for each operation (default: 3)",
    )
    parser.add_argument("script", metavar="SCRIPT", help="the program")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")


def _run(script: str, arguments: List[str]) -> int:
    """The program, to its end; its exit code."""
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except Exception as error:
        mine = (__file__, runpy.__file__)
        shown = error.__traceback__
        while shown is not None and (
            shown.tb_frame.f_code.co_filename in mine or "runpy" in shown.tb_frame.f_code.co_filename
        ):
            shown = shown.tb_next
        traceback.print_exception(type(error), error, shown)
        return 1
    return 0


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs the program and prints what was found."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(
            "memopt: race needs PyTorch, which cannot be imported (%s): pip install torch" % error
        ) from None
    race: Any = importlib.import_module("memopt.torch").race

    if not os.path.exists(arguments.script):
        output.error("there is no file %s" % arguments.script)
        return 2
    aside: Any = contextlib.redirect_stdout(sys.stderr) if output.wants_json else contextlib.nullcontext()
    with aside, race(confirm=arguments.confirm, stacks=arguments.stacks) as found:
        code = _run(arguments.script, arguments.arguments)
    if output.wants_json:
        output.json(found.as_json())
    else:
        sys.stdout.flush()
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
        print(found.text(color=terminal), file=sys.stderr)
    return RACES if found.races else code
