"""New files are written in the folder of the old ones.

They are hidden, complete, and on the disk before anything is renamed. So a full disk or a killed
process leaves the old files. Their names say which file they are for. The holder of the folder's
lock removes those that killed commands have left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from typing import Iterator, List, Optional

#: How long a command waits for another one that changes files of the same folder.
LOCK_SECONDS = 10.0


def write(
    path: str,
    data: bytes,
    like: Optional[os.stat_result] = None,
    keep_times: bool = False,
    attributes: Optional[str] = None,
) -> str:
    """A hidden file beside ``path`` with the data, on disk, and the mode and owner of another.
    Without another it has the defaults. On OSError nothing is left of it."""
    folder, base = os.path.split(path)
    name = os.path.join(folder, "%s%s.tmp" % (_prefix(base), secrets.token_hex(6)))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(name, flags, 0o666 if like is None else 0o600)
    try:
        try:
            fill(handle, data)
            if like is not None:
                _dress(handle, like, attributes)
                if keep_times:
                    os.utime(handle, ns=(like.st_atime_ns, like.st_mtime_ns))
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError) and not error.filename:
            raise OSError(error.errno, error.strerror, path) from error
        raise
    return name


def fill(handle: int, data: bytes) -> None:
    """Writes all of the data, in as many pieces as needed."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def _dress(handle: int, like: os.stat_result, attributes: Optional[str]) -> None:
    """Mode, owner and extended attributes (access lists are among them)."""
    now = os.fstat(handle)
    if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.fchown(handle, like.st_uid, like.st_gid)
        except PermissionError:
            raise PermissionError(
                errno.EPERM,
                "a file of user %d and group %d would become one of user %d and group %d; change "
                "it as its owner" % (like.st_uid, like.st_gid, now.st_uid, now.st_gid),
            ) from None
    if attributes is not None and hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):  # the file system may have none
            for key in os.listxattr(attributes):
                with contextlib.suppress(OSError):  # security labels are given by the system
                    os.setxattr(handle, key, os.getxattr(attributes, key))
    os.fchmod(handle, stat.S_IMODE(like.st_mode))


def flush_folder(folder: str) -> None:
    """Puts the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(handle)


# --- what killed commands have left ---------------------------------------------------------------


def _prefix(base: str) -> str:
    """What the names of temporary files of a file start with."""
    if len(os.fsencode(base)) > 180:
        base = hashlib.sha256(os.fsencode(base)).hexdigest()
    return ".%s.memopt-" % base


def _strays(path: str) -> List[str]:
    folder, base = os.path.split(path)
    names = [n for n in os.listdir(folder) if n.startswith(_prefix(base)) and n.endswith(".tmp")]
    return [os.path.join(folder, name) for name in names]


def sweep(path: str) -> None:
    """Removes what a killed command has left. We hold its lock, so it is not in use."""
    for name in _strays(path):
        with contextlib.suppress(OSError):
            os.unlink(name)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Holds the folder's lock, where the file system has locks. BlockingIOError if another command
    holds it for longer."""
    handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        _lock(handle, folder, LOCK_SECONDS)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise BlockingIOError(
                    error.errno,
                    "another command has held the lock of %s for %g s; try again when it is done"
                    % (folder, seconds),
                ) from None
            time.sleep(0.02)
        except OSError:
            return
