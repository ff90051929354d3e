"""Replaces the contents of several files: all of them, or none.

Order: every new content is written beside its file and flushed; every old content is saved, as a
backup or (when a backup is put back) in a hidden file; the folders are flushed; only then the new
files are renamed over the old ones. Whatever fails before leaves the files untouched, a rename that
fails is followed by renaming the saved ones back, and a process that is killed leaves complete
files and their backups. Folders are locked, so two commands take turns.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import List, Optional, Sequence

from .. import temporary_files
from . import backups
from .errors import ApplyError


@dataclass
class Source:
    """A file as it was read."""

    #: As the user named it, and with links followed.
    name: str
    path: str
    data: bytes
    #: None: there is no such file.
    status: Optional[os.stat_result]


@dataclass
class Swap:
    """A new content for a file."""

    source: Source
    data: bytes
    #: What mode, owner and times the new file gets (times with ``keep_times`` only).
    like: os.stat_result
    #: The old content is kept as a backup; else it is kept until all is done.
    backup: bool = True
    keep_times: bool = False
    #: Where xattrs come from.
    attributes: Optional[str] = None

    temporary: Optional[str] = None
    saved: Optional[str] = None
    done: bool = False


def read(name: str, missing: bool = False) -> Source:
    """Reads a regular file; symbolic links are followed. ``missing``: it need not be there."""
    path = os.path.realpath(name)
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise ApplyError("%s is a folder; name the files in it" % name)
        if not stat.S_ISREG(status.st_mode):
            raise ApplyError("%s is not a regular file" % name)
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            return Source(name, path, file.read(), status)
    except FileNotFoundError:
        if missing and os.path.isdir(os.path.dirname(path)):
            return Source(name, path, b"", None)
        raise ApplyError("%s: there is no such file" % name) from None
    except OSError as error:
        raise ApplyError("%s cannot be read: %s" % (name, error.strerror)) from None


def check_writable(source: Source) -> None:
    """Refuses what a rename would break or bypass: other names of the file, a read-only mode."""
    status = source.status
    if status is None:
        return
    if status.st_nlink > 1:
        raise ApplyError(
            "%s has %d hard links; changing it would separate it from them. Make it a file of its "
            "own first: cp -p %s copy && mv copy %s"
            % (source.name, status.st_nlink, source.name, source.name)
        )
    if not status.st_mode & 0o222:
        raise ApplyError("%s is read-only; chmod u+w %s first" % (source.name, source.name))
    if os.path.exists(source.path) and not os.access(source.path, os.W_OK):
        why = "its mode is %03o" % stat.S_IMODE(status.st_mode)
        if os.statvfs(source.path).f_flag & os.ST_RDONLY:
            why = "its file system is read-only"
        raise ApplyError("%s may not be written by you: %s" % (source.name, why))


def swap(swaps: Sequence[Swap]) -> List[Optional[str]]:
    """Gives every file its new content, or none of them; returns the names of the backups."""
    try:
        return _swap(swaps)
    except OSError as error:  # before anything was done
        raise ApplyError(_told(error, [])) from error


def _swap(swaps: Sequence[Swap]) -> List[Optional[str]]:
    folders = sorted({os.path.dirname(one.source.path) for one in swaps})
    with contextlib.ExitStack() as stack:
        for folder in folders:
            if stack.enter_context(temporary_files.locked(folder)):
                for one in swaps:
                    if os.path.dirname(one.source.path) == folder:
                        temporary_files.sweep(one.source.path)
        try:
            _stage(swaps, folders)
            for one in swaps:
                _check_unchanged(one.source)
                os.replace(str(one.temporary), one.source.path)
                one.temporary, one.done = None, True
            for folder in folders:
                temporary_files.flush_folder(folder)
        except BaseException as error:
            trouble = _roll_back(swaps)
            if not isinstance(error, (OSError, ApplyError)):
                raise
            raise ApplyError(_told(error, trouble)) from error
        finally:
            _tidy(swaps)
    return [one.saved if one.backup else None for one in swaps]


def _stage(swaps: Sequence[Swap], folders: Sequence[str]) -> None:
    """Everything that can fail for lack of room or rights, before any file changes."""
    for one in swaps:
        _check_unchanged(one.source)
        source = one.source.path
        one.temporary = temporary_files.write(
            source, one.data, one.like, one.keep_times, one.attributes
        )
    for one in swaps:
        path, status = one.source.path, one.source.status
        if status is not None:
            one.saved = temporary_files.write(path, one.source.data, status, True, path)
            if one.backup:
                one.saved = backups.publish(one.saved, path)
    for folder in folders:
        temporary_files.flush_folder(folder)


def _roll_back(swaps: Sequence[Swap]) -> List[str]:
    """Restores replaced files and removes the new backups; returns the errors."""
    trouble = []
    for one in reversed(swaps):
        path = one.source.path
        try:
            if one.done and one.saved is not None:
                os.replace(one.saved, path)
            elif one.done:
                os.unlink(path)
            elif one.saved is not None:
                os.unlink(one.saved)
            one.saved = None
        except OSError as error:
            trouble.append(
                "%s could not be put back (%s); its former content is in %s"
                % (path, error.strerror, one.saved)
                if one.done
                else "%s is left over (%s)" % (one.saved, error.strerror)
            )
            one.backup = True  # so that it is not removed
    return trouble


def _tidy(swaps: Sequence[Swap]) -> None:
    for one in swaps:
        hidden = [one.temporary, None if one.backup else one.saved]
        for name in hidden:
            if name is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name)


def _told(error: BaseException, trouble: List[str]) -> str:
    if isinstance(error, OSError):
        name = error.filename2 or error.filename
        what = "%s%s" % ("%s: " % name if name else "", error.strerror or error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what += "; make room"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and str(name)[-4:] == ".tmp":
            what = _closed(os.path.dirname(str(name)), error)
    else:
        what = str(error)
    return "%s. %s" % (what, "; ".join(trouble) or "Every file is as it was")


def _closed(folder: str, error: OSError) -> str:
    """New files and backups are made beside the old ones."""
    text = "the folder %s takes no new file (%s), and the backup belongs there"
    return text % (folder or ".", error.strerror)


def _check_unchanged(source: Source) -> None:
    """Refuses if the file has changed since it was read."""
    try:
        now = os.stat(source.path)
    except FileNotFoundError:
        if source.status is None:
            return
        raise ApplyError("%s has gone since it was read; run it again" % source.name) from None
    was = source.status
    same = was is not None and (now.st_dev, now.st_ino) == (was.st_dev, was.st_ino)
    if same and stat.S_ISREG(now.st_mode):
        with open(source.path, "rb") as file:
            if file.read() == source.data:
                return
    raise ApplyError("%s has changed since it was read; run it again" % source.name)
