"""Runs a program and records its memory over time: host memory of it and of its descendants,
page-locked memory, and its bytes on each GPU, as the driver tells them. In the end, however the
program ended, it tells the peaks and where they were.

    memopt profile --plot memory.png -- python train.py --epochs 1

The program's input and output are left alone; the report goes to standard error, and with --json
one line to standard output after all that the program wrote. Signals are handed on, and the exit
code is the program's: 128 + N where signal N killed it, 127 where there is no such program. A
program that calls memopt.tools.phase("forward") and the like gets its peaks by phase.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from typing import Any, Dict, List, Optional

from ...tools._log_file import LogFile
from ...tools.phases import ENVIRONMENT
from ..option_types import seconds
from ..output import Output, json_text
from ..pictures import check_picture
from ..replace_file import check_writable, replace
from ..standard_streams import give_up, said
from . import plot, report
from .program import CannotStart, Child, End, Signals
from .phase_pipe import Mark, Marks
from .recorder import Figures, Recorder

JSON_HELP = "print the report as one line of JSON, behind all that the program wrote"
EXIT_STATUS = (
    "That of the program; 128 + N where signal N killed it; 127: there is no such program; 126: it "
    "cannot be executed; 1: an output cannot be written, told before the program is run, or, of a "
    "program that ended with 0, the report cannot; 2: wrong usage."
)

_ROOM = 4096  # bytes that the disk has to take before the program is run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.usage = "memopt profile [options] -- COMMAND [ARGUMENT ...]"
    parser.add_argument(
        "--interval",
        type=seconds(0.001, 3600),
        default=0.1,
        metavar="SECONDS",
        help="time between two samples (default: 0.1)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write every sample as it is taken (FILE.csv), or the report with its course in the end (FILE.json)",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw the course (needs matplotlib)")
    parser.add_argument("--no-gpu", action="store_true", help="look at host memory only")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs the program, samples, reports; the program's exit code."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        from .. import UsageError

        raise UsageError("no program was given; write it after --: memopt profile -- python train.py")
    if arguments.plot is not None:
        check_picture(arguments.plot)
    figures = Figures(gpus=not arguments.no_gpu)
    try:
        return _Run(arguments, output, command, figures).run()
    finally:
        figures.close()


class _Run:
    """One run of a program."""

    def __init__(self, arguments: argparse.Namespace, output: Output, command: List[str], figures: Figures) -> None:
        self._arguments, self._output = arguments, output
        self._command, self._figures = command, figures
        self._columns = report.columns_of(figures)
        self._csv: Optional[LogFile] = None
        self._problems: List[str] = []
        if arguments.output is not None:
            # Before the program runs: what cannot be written is not found out afterwards.
            check_writable(arguments.output, _ROOM)

    def _open_csv(self) -> None:
        """The samples take the place of an earlier run's."""
        path = self._arguments.output
        if path is None or not path.lower().endswith(".csv"):
            return
        fields = ["seconds", "phase", "processes"] + self._columns
        if os.path.isfile(path):
            replace(path, LogFile.header(fields))
        self._csv = LogFile(path, fields)

    def _start(self, environment: Dict[str, str], signals: Signals) -> Child:
        """If the program does not exist, the samples of an earlier run stay."""
        found = shutil.which(self._command[0]) is not None
        if found:
            self._open_csv()
        child = Child(self._command, environment, signals)
        if not found:  # it was, after all
            try:
                self._open_csv()
            except OSError as error:
                self._once("the samples are not written: %s" % said(error))
        return child

    def run(self) -> int:
        """The program's exit code."""
        recorder = Recorder(self._columns, time.monotonic())
        try:
            with Signals() as signals, contextlib.closing(Marks()) as marks:
                end = self._watched(signals, marks, recorder)
        except CannotStart as problem:
            self._output.error(str(problem))
            return problem.code
        finally:
            if self._csv is not None:
                self._csv.close()
        seconds = time.monotonic() - recorder.start
        recorder.finish(recorder.start + seconds)
        value = report.build(self._command, end, self._arguments.interval, self._figures, recorder, seconds)
        try:
            self._tell(value, recorder)
            sys.stdout.flush()
        except OSError:  # no reader of the report
            if end.code == 0:
                raise
            give_up()
        return end.code

    def _watched(self, signals: Signals, marks: Marks, recorder: Recorder) -> End:
        environment = dict(os.environ)
        environment[ENVIRONMENT] = marks.path
        recorder.begin(time.monotonic())
        child = self._start(environment, signals)
        try:
            self._sample(child, recorder, marks)
        finally:
            signals.forget()
        assert child.end is not None
        return child.end

    def _sample(self, child: Child, recorder: Recorder, marks: Marks) -> None:
        due = time.monotonic()
        while not child.wait(due):
            try:
                record = self._figures.take(child.pid)
            except (OSError, ValueError) as error:  # for instance no file descriptors
                self._once("some samples are missing: %s" % error)
            else:
                hidden = self._figures.hidden
                if hidden is not None:
                    self._once(hidden)
                if hidden or record["processes"]:  # else it has just ended, its memory is gone
                    self._add(record, recorder, marks)
            due = max(due + self._arguments.interval, time.monotonic())
        recorder.mark(marks.read())

    def _add(self, record: Dict[str, Any], recorder: Recorder, marks: Marks) -> None:
        found = marks.read()
        before = [mark for mark in found if mark.seconds <= record["time"]]
        recorder.mark(before)
        record = recorder.add(record)
        recorder.mark(found[len(before) :])
        if self._csv is not None:
            try:
                self._csv.write({**record, "seconds": record["time"]})
            except OSError as error:
                self._csv.close()
                self._csv = None
                self._once("the samples end early: %s" % said(error))

    def _once(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.append(problem)

    # --- in the end ---

    def _tell(self, value: Dict[str, Any], recorder: Recorder) -> None:
        """The program has ended and its exit code counts: errors here are only reported."""
        if self._arguments.plot is not None:
            spans = [_span(mark, recorder.start) for mark in recorder.spans]
            self._try(plot.draw, {**value, "spans": spans}, self._arguments.plot)
        path = self._arguments.output
        if path is not None and not path.lower().endswith(".csv"):
            self._try(_write_json, value, path)
        if self._output.wants_json:
            shown = {key: value[key] for key in value if key != "course"}
            self._output.json_line(shown)
        else:
            sys.stdout.flush()
            report.show(value, Output(stream=sys.stderr))
        for problem in self._problems:
            self._output.error(problem)

    def _try(self, write: Any, value: Dict[str, Any], path: str) -> None:
        try:
            write(value, path)
        except (OSError, ValueError) as error:
            why = error.strerror or error if isinstance(error, OSError) else error
            self._problems.append("%s was not written: %s" % (path, why))


def _span(mark: Mark, start: float) -> Dict[str, Any]:
    return {"seconds": max(mark.seconds - start, 0.0), "phase": mark.phase or None}


def _write_json(value: Dict[str, Any], path: str) -> None:
    replace(path, (json_text(value) + "\n").encode("utf-8"))
