"""Files that a verb writes at the end, reports and pictures.

An old file stays unchanged until the new one is complete and on the disk. If no file can be renamed
over it (it has other names, or its folder is read-only), it is written in place: first the part
beyond its end, since only that needs room, then the rest. Pipes, devices and streams of this
process get the data after their earlier data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Optional

from . import temporary_files

#: Errors which mean that the old file cannot be replaced, but may be writable.
_NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.EAGAIN)


def replace(path: str, data: bytes) -> None:
    """Gives a file this content. OSError with its name; then it is unchanged."""
    try:
        status = _status(path)
        if status is not None and (not stat.S_ISREG(status.st_mode) or _is_stream(path)):
            _append(path, data)
        elif status is not None and (status.st_nlink != 1 or not _is_at(path, status)):
            _in_place(path, data)
        else:
            try:
                _renamed(os.path.realpath(path), data, status)
            except OSError as error:
                if error.errno not in _NO_PLACE:
                    raise
                _in_place(path, data)
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
            try:
                os.unlink(temporary_files.write(os.path.realpath(path), bytes(size)))
            except OSError as error:
                if status is None or error.errno not in _NO_PLACE:
                    raise
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


def _is_at(path: str, status: os.stat_result) -> bool:
    """Whether the name, with links followed, is that file; a removed file has no name."""
    there = _status(os.path.realpath(path))
    return there is not None and os.path.samestat(there, status)


def _renamed(path: str, data: bytes, old: Optional[os.stat_result]) -> None:
    folder = os.path.dirname(path)
    with temporary_files.locked(folder) as held:
        if held:
            temporary_files.sweep(path)
        name = temporary_files.write(path, data, old, attributes=None if old is None else path)
        try:
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        temporary_files.flush_folder(folder)


def _append(path: str, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        temporary_files.fill(handle, data)
    finally:
        os.close(handle)


def _in_place(path: str, data: bytes) -> None:
    new = _status(path) is None
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(handle).st_size
        try:
            os.lseek(handle, size, os.SEEK_SET)
            temporary_files.fill(handle, data[size:])
        except OSError:
            os.ftruncate(handle, size)
            if new:
                os.unlink(path)
            raise
        os.lseek(handle, 0, os.SEEK_SET)
        temporary_files.fill(handle, data[:size])
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)
