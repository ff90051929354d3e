"""The installed program ``memopt``: what has to be so before the package itself is imported, which
takes a moment. Ctrl-C ends it quietly meanwhile, and a library that cannot be loaded is told in
words."""

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
