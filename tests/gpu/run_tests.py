"""Runs the tests of memopt.torch that take a GPU.

    run_tests.py SECONDS [FILE...]

No test begins after SECONDS. Every result is a line as soon as it is known. Status 77 where pytest or torch is
missing, or no test could run.
"""

import collections
import os
import pathlib
import sys
import time

try:
    import pytest
    import torch  # noqa: F401
except ImportError as problem:
    print("run_tests: %s" % problem)
    sys.exit(77)

BINDING = pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python"
FIRST = ("amp_steps", "checkpoint", "optim", "save_on_cpu", "amp", "cast", "allocator")


class Results:
    """Counts, and the reason that most skipped tests give."""

    def __init__(self, seconds):
        self.deadline = time.monotonic() + seconds
        self.count, self.reasons = collections.Counter(), collections.Counter()
        self.late = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.passed:
            return
        self.add(report)

    def pytest_collectreport(self, report):
        if report.failed:
            self.add(report)

    def add(self, report):
        self.count[report.outcome] += 1
        print("%s %s" % (report.outcome, report.nodeid), flush=True)
        if report.failed:
            print(report.longreprtext[-3000:], flush=True)
        elif report.skipped:
            self.reasons[str(report.longrepr[2] if report.longrepr else "")] += 1

    def pytest_runtest_teardown(self, item):
        if time.monotonic() > self.deadline and not self.late:
            item.session.shouldstop = self.late = "; the others had no time"


def files():
    """All of them, those of what everybody uses first."""
    names = {path.stem[len("test_torch_") :]: path for path in (BINDING / "tests/with_torch").glob("test_*.py")}
    first = [name for name in FIRST if name in names]
    return [names[name] for name in first + sorted(set(names) - set(first))]


def main():
    results = Results(float(sys.argv[1]))
    options = ["-c", os.devnull, "-m", "not long", "-k", "cuda or two_gpus or on_a_gpu"]
    options += ["-p", "no:cacheprovider", "-p", "no:terminal"]
    code = pytest.main([*options, *map(str, sys.argv[2:] or files())], plugins=[results])
    tally = tuple(results.count[state] for state in ("passed", "failed", "skipped"))
    reason = "".join(": " + text for text, _ in results.reasons.most_common(1))
    print("%d passed, %d failed, %d skipped%s%s" % (*tally, results.late, reason))
    if results.count["failed"] or code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        return 1
    return 0 if results.count["passed"] else 77


if __name__ == "__main__":
    sys.exit(main())
