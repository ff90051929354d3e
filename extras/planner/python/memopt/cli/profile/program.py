"""Running the program: its streams are unchanged, signals reach it, and its end is reported.

The program stays in memopt's process group, so a terminal's Ctrl-C reaches both; a signal sent to
memopt alone is forwarded. Signals are blocked here and waited for together with the time of the
next sample, so there is no handler and no thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from typing import Any, List, Mapping, NamedTuple, Optional, Set

#: Handed on to the program.
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WAITED = {*FORWARDED, signal.SIGCHLD}
_SI_KERNEL = 0x80  # signals of a terminal: the whole process group has got them
_PR_SET_CHILD_SUBREAPER = 36

NOT_FOUND, NOT_EXECUTABLE = 127, 126


class CannotStart(Exception):
    """The program could not be started; ``code`` is what a shell would exit with."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class End(NamedTuple):
    """How the program ended."""

    code: int  # as a shell tells it: 128 + signal where it was killed
    signal: Optional[int]
    rss_peak: int  # bytes of the process in it that had most at once, as the kernel counted
    user_seconds: float
    system_seconds: float


class Signals:
    """While it is entered, signals wait until they are read, and orphans are adopted. At the end,
    unread signals take effect, unless a program has run: then it has received them."""

    def __init__(self) -> None:
        self._mask: Set[Any] = set()
        self._on_end: Any = None

    def __enter__(self) -> "Signals":
        _adopt_orphans()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        # With SIGCHLD ignored, children could not be waited for.
        self._on_end = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *unused: Any) -> None:
        self.restore()

    def forget(self) -> None:
        """Those that were waited for and came late."""
        while signal.sigtimedwait(_WAITED, 0) is not None:
            pass

    def restore(self) -> None:
        """As it was before, here and in the program."""
        signal.signal(signal.SIGCHLD, self._on_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


class Child:
    """The program while it runs."""

    def __init__(self, command: List[str], environment: Mapping[str, str], signals: Signals) -> None:
        try:
            self._process = subprocess.Popen(
                command, env=dict(environment), close_fds=False, preexec_fn=signals.restore
            )
        except OSError as error:
            raise _cannot_start(command[0], error) from None
        self.pid = self._process.pid
        self.end: Optional[End] = None

    def wait(self, until: float) -> bool:
        """Waits until a time of the monotonic clock; True as soon as the program has ended."""
        while self.end is None:
            self._reap()
            left = until - time.monotonic()
            if self.end is not None or left <= 0:
                break
            arrived = signal.sigtimedwait(_WAITED, left)
            if arrived is not None:
                self._forward(arrived)
        return self.end is not None

    def _forward(self, arrived: Any) -> None:
        number = arrived.si_signo
        if number not in FORWARDED or arrived.si_code == _SI_KERNEL or arrived.si_pid == self.pid:
            return
        if self.end is None:  # keeps its number: it is reused only after the process is reaped
            os.kill(self.pid, number)

    def _reap(self) -> None:
        """Takes the ends of the program and of orphans."""
        while self.end is None:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
                code = 128 + killed if killed is not None else os.WEXITSTATUS(status)
                self._process.returncode = code
                self.end = End(code, killed, usage.ru_maxrss * 1024, usage.ru_utime, usage.ru_stime)


def _adopt_orphans() -> None:
    """A descendant whose parent ends becomes a child of this process, so it is still found."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def _cannot_start(program: str, error: OSError) -> CannotStart:
    if isinstance(error, FileNotFoundError) or not _is_there(program):
        if os.path.sep in program and os.path.exists(program):
            return CannotStart("%s: the interpreter in its first line does not exist" % program, NOT_FOUND)
        where = "" if os.path.sep in program else " in any folder of PATH"
        name = program or "''"
        return CannotStart("%s: the program was not found%s" % (name, where), NOT_FOUND)
    return CannotStart("%s: %s" % (program, error.strerror), NOT_EXECUTABLE)


def _is_there(program: str) -> bool:
    """Whether the file exists. If one folder of PATH cannot be searched, the system reports that
    permission is denied, even if no other folder has the file."""
    if os.path.sep in program:
        return True
    places = [os.path.join(folder, program) for folder in os.get_exec_path()]
    return program != "" and any(map(os.path.lexists, places))
