"""A log of records, one line each, that is valid at every moment, whatever ends the process."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import Any, Dict, Sequence, Union


class LogFile:
    """Appends records to a CSV file (where the name ends in .csv) or to one of JSON lines.

    A line goes to the system in one write, so a killed process leaves whole lines, and so do
    several that write to one file. A line that does not fit a full disk is removed; a line cut by a
    power failure is removed when the file is opened again.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], fields: Sequence[str]) -> None:
        self._path = os.fspath(path)
        self._fields = list(fields)
        self._csv = self._path.lower().endswith(".csv")
        new = not os.path.lexists(self._path)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._continue()
        except BaseException:
            self.close()
            if new:
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
            raise

    def _continue(self) -> None:
        end = 0
        if stat.S_ISREG(os.fstat(self._file).st_mode):  # a pipe has no lines of before
            self._check()
            end = self._cut()
        if self._csv and end == 0:
            self._append(self._start())

    @staticmethod
    def header(fields: Sequence[str]) -> bytes:
        """The first line of a CSV file."""
        return (",".join(fields) + "\n").encode()

    def _start(self) -> bytes:
        """How such a log begins."""
        if self._csv:
            return self.header(self._fields)
        return ('{"%s": ' % self._fields[0]).encode()

    def _check(self) -> None:
        """ValueError for a file that is not such a log. The file is not changed."""
        start = self._start()
        there = os.pread(self._file, len(start), 0)
        if not start.startswith(there):
            raise ValueError(
                "%s: the file exists and %s; give another name. Expected %s"
                % (
                    self._path,
                    "has other columns" if self._csv else "is not a log of JSON lines",
                    start.decode().strip(),
                )
            )

    def _cut(self) -> int:
        """Drops an unfinished last line; the position behind what is left."""
        end = os.lseek(self._file, 0, os.SEEK_END)
        start = end
        while start > 0:
            step = min(start, 65536)
            block = os.pread(self._file, step, start - step)
            found = block.rfind(b"\n")
            if found >= 0:
                start = start - step + found + 1
                break
            start -= step
        if start != end:
            os.ftruncate(self._file, start)
        return os.lseek(self._file, start, os.SEEK_SET)

    def write(self, record: Dict[str, Any]) -> None:
        """Appends one record. OSError if the system cannot write it."""
        if self._csv:
            values = [record.get(field) for field in self._fields]
            line = ",".join(_cell(value) for value in values)
        else:
            line = json.dumps({field: record.get(field) for field in self._fields})
        self._append((line + "\n").encode("utf-8", "backslashreplace"))

    def _append(self, data: bytes) -> None:
        """All of it, or nothing and OSError."""
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError as error:
            if done:
                with contextlib.suppress(OSError):  # a pipe
                    os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_CUR) - done)
            raise OSError(error.errno, error.strerror, self._path) from error

    def close(self) -> None:
        """Ends it; a second call is allowed."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _cell(value: Any) -> str:
    """A value as CSV has it; a text with a separator in it stands in quotes, on one line."""
    if value is None:
        return ""
    text = str(value).replace("\r", " ").replace("\n", " ")
    return '"%s"' % text.replace('"', '""') if '"' in text or "," in text else text
