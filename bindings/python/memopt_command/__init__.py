"""The installed program ``memopt``: the work before the package is imported, which takes a moment.
Meanwhile Ctrl-C ends it quietly, and a library that cannot be loaded gives a message."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the command; returns its exit code."""
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from memopt.cli import main as run
    except ImportError as error:
        print(error if str(error).startswith("memopt: ") else "memopt: %s" % error, file=sys.stderr)
        return 1
    try:
        signal.signal(signal.SIGINT, interrupted)
        return run()
    except KeyboardInterrupt:
        return 130
    finally:  # the interpreter's own end is no place for a traceback either
        if interrupted is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
