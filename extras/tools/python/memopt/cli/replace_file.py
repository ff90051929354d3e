"""Files that a verb writes at the end, reports and pictures.

An old file stays unchanged until the new one is complete and on the disk, and takes its name. Pipes,
devices and streams of this process get the data after their earlier data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Optional

from . import temporary_files


def replace(path: str, data: bytes) -> None:
    """Gives a file this content. OSError with its name; then it is unchanged."""
    try:
        status = _status(path)
        if status is not None and (not stat.S_ISREG(status.st_mode) or _is_stream(path)):
            _append(path, data)
        else:
            _renamed(os.path.realpath(path), data, status)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def check_writable(path: str, size: int = 0) -> None:
    """OSError if a file could not be written, or not with so many bytes. The file does not
    change."""
    try:
        status = _status(path)
        if status is not None:
            _check_open(path, status)
        if status is None or stat.S_ISREG(status.st_mode):
            os.unlink(temporary_files.write(os.path.realpath(path), bytes(size)))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _check_open(path: str, status: os.stat_result) -> None:
    """A pipe is not opened: its reader would see its end."""
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _status(path: str) -> Optional[os.stat_result]:
    """None where there is no such file yet."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        if not os.path.basename(path):
            raise
        return None


def _is_stream(path: str) -> bool:
    """Whether a name such as /dev/stdout leads to a file that is open here: its writers would
    continue to write to the old one."""
    while os.path.islink(path):
        folder = os.path.realpath(os.path.dirname(path))
        if folder.startswith("/proc/"):
            return True
        path = os.path.join(folder, os.readlink(path))
    return False


def _renamed(path: str, data: bytes, old: Optional[os.stat_result]) -> None:
    name = temporary_files.write(path, data, old, attributes=None if old is None else path)
    try:
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    temporary_files.flush_folder(os.path.dirname(path))


def _append(path: str, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        temporary_files.fill(handle, data)
    finally:
        os.close(handle)
