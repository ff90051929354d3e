"""Running the command as a user does: as a process, on simulated libraries, on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

import memopt

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(memopt.__file__)))
BUILD = os.path.dirname(os.path.abspath(memopt.library_path))


def environment(*folders, **variables):
    """Without what the caller's own environment could change: PYTHONUNBUFFERED, say. Vendors'
    libraries are in the folders and nowhere else; without folders they are this machine's."""
    values = {k: v for k, v in os.environ.items() if not k.startswith(("MEMOPT_", "PYTHON"))}
    for name in ("LD_LIBRARY_PATH", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        values.pop(name, None)
    values.update(PYTHONPATH=PACKAGE, MEMOPT_LIBRARY=memopt.library_path, TERM="xterm-256color")
    values.update(variables)
    if folders:
        values["MEMOPT_DRIVER_PATH"] = os.pathsep.join(map(str, folders))
    return values


def without(folder, package):
    """The PYTHONPATH of programs for which a package is not there."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("raise ImportError('not installed')\n")
    return os.pathsep.join([str(folder), PACKAGE])


def command(*words, folders=(), **variables):
    """`memopt WORDS`, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "memopt", *map(str, words)],
        env=environment(*folders, **variables),
        capture_output=True,
        text=True,
        timeout=300,
    )


def start(*words, folders=(), **variables):
    """`memopt WORDS` with its streams as pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "memopt", *map(str, words)],
        env=environment(*folders, **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, what, seconds=60):
    """What the condition gives as soon as it gives something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("%s did not come within %d s" % (what, seconds))


class Terminal:
    """The command on a terminal, whose screen can be looked at as a person does."""

    def __init__(self, *words, size=(24, 80), folders=(), **variables):
        pexpect, pyte = pytest.importorskip("pexpect"), pytest.importorskip("pyte")
        pytest.importorskip("rich")
        self._pexpect = pexpect
        self.screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self.screen)
        self.text = b""
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "memopt", *map(str, words)],
            env=environment(*folders, **variables),
            dimensions=size,
            timeout=60,
        )

    def feed(self):
        """Takes what was written since; not for ever where more is written than can be read."""
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            try:
                part = self.child.read_nonblocking(65536, 0.02)
            except (self._pexpect.TIMEOUT, self._pexpect.EOF):
                return
            self.text += part
            self._stream.feed(part)

    def lines(self):
        """The lines of the screen, without the blanks at their ends."""
        self.feed()
        return [line.rstrip() for line in self.screen.display]

    def until(self, condition, what):
        """Waits until the screen's lines are so."""

        def look():
            lines = self.lines()
            return lines if condition(lines) else None

        try:
            return wait_for(look, what)
        except AssertionError as error:
            raise AssertionError("%s; the screen:\n%s" % (error, "\n".join(self.lines()))) from None

    def resize(self, rows, columns):
        """Changes the window's size."""
        self.screen.resize(rows, columns)
        self.screen.reset()
        self.child.setwinsize(rows, columns)

    def end(self):
        """Waits for its end: the exit code, and what it wrote after the live view."""
        try:
            wait_for(lambda: self.feed() or not self.child.isalive(), "the end")
        except AssertionError as error:
            self.child.close(force=True)
            raise AssertionError("%s; the screen:\n%s" % (error, "\n".join(self.lines()))) from None
        self.feed()
        self.child.close()
        code = self.child.exitstatus
        after = self.text.rpartition(b"\x1b[?1049l")[2].decode()
        return (code if code is not None else -self.child.signalstatus), after
