"""The trace files of `memopt replay`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..errors import MemoptError
from ..tools import Trace
from .progress import Progress


def name_of(trace: str) -> str:
    """A trace in messages."""
    return "standard input" if trace == "-" else os.path.basename(trace)


def read(arguments: argparse.Namespace, reader: Any) -> Any:
    """Reads the trace of the arguments; an error says which file it is."""
    file: Any = sys.stdin.buffer if arguments.trace == "-" else arguments.trace
    options = {"with_failed": arguments.with_failed} if reader == Trace.read else {}
    try:
        with Progress("reading") as bar:
            return reader(
                file,
                device=arguments.device,
                partial=arguments.partial,
                recorded_only=arguments.recorded_only,
                progress=bar,
                max_unpacked=arguments.max_unpacked,
                **options,
            )
    except MemoptError as error:
        error.args = ("%s: %s" % (name_of(arguments.trace), error.message),)
        error.message = error.args[0]
        raise
