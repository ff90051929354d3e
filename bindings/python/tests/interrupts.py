"""Has Ctrl-C come at every call and jump in some code, one after the other.

A function of C is the trace function of one instruction: it only marks SIGINT as having come, as
the system's handler of signals does, and the interpreter hears of it where it would in earnest. It
hears signals as calls end and begin, and as loops jump back, so they come before those.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import functools
import itertools
import os
import signal
import sys

_interrupt = ctypes.PyDLL(None).PyErr_SetInterrupt
_interrupt.argtypes, _interrupt.restype = [ctypes.py_object] * 3, None


@functools.lru_cache(maxsize=None)
def _points(code):
    """Where the next instruction is one at which signals may be heard."""
    found = list(dis.get_instructions(code))
    return {
        one.offset
        for one, then in zip(found, found[1:])
        if any(word in then.opname for word in ("CALL", "JUMP", "WITH", "RESUME"))
    }


class _At:
    """Traces the code of some folders up to the n-th point."""

    def __init__(self, n, folders):
        self.left, self.folders, self.heard = n, tuple(folders), 0

    def hear(self, number, frame):
        self.heard += 1
        if self.heard == 1:  # _interrupt is called again at the frame's next instructions
            raise KeyboardInterrupt

    def call(self, frame, event, arg):
        if self.left >= 0 and frame.f_code.co_filename.startswith(self.folders):
            frame.f_trace = self.local  # Python 3.13 looks at this as the next is set
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            return self.local
        return None

    def local(self, frame, event, arg):
        if event != "opcode" or frame.f_lasti not in _points(frame.f_code):
            return self.local
        self.left -= 1
        return self.local if self.left >= 0 else _interrupt if self.left == -1 else None


def at_every_point(call, *folders, every=1):
    """Runs call() again and again, with SIGINT at the 1st, 2nd, … point of Python code in
    `folders`, until one is heard no more. Yields after each run: what a signal left is there.
    Of many points, one in `every`; which ones depends on MEMOPT_TEST_SEED."""
    for n in itertools.count(int(os.environ.get("MEMOPT_TEST_SEED", "0")) % every, every):
        at = _At(n, folders)
        before = signal.signal(signal.SIGINT, at.hear)
        raised = False
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at this as tracing begins
        try:
            sys.settrace(at.call)
            call()
        except KeyboardInterrupt:
            raised = True
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, before)
        assert raised == (at.heard > 0), "the signal at point %d was swallowed" % n
        if not raised:
            assert n >= every and at.left >= 0, "point %d heard no signal" % n
            return
        yield n


@contextlib.contextmanager
def nothing_unraisable():
    """What was raised where nothing can be is an error."""
    seen, before = [], sys.unraisablehook
    sys.unraisablehook = seen.append
    try:
        yield
    finally:
        sys.unraisablehook = before
    assert not seen, seen
