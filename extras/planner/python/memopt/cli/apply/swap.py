"""Replaces the contents of several files, all or none: new contents and backups are on the disk before
the first rename, and a rename that fails is taken back. A killed process leaves whole files and backups.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
from typing import Iterator, List, NamedTuple, Sequence

from .. import temporary_files
from .errors import ApplyError


class Source(NamedTuple):
    """A file as it was read: its name, where links lead, its content and state."""

    name: str
    path: str
    data: bytes
    status: os.stat_result


def read(name: str) -> Source:
    """Reads a regular file; symbolic links are followed."""
    path = os.path.realpath(name)
    try:
        with open(path, "rb") as file:
            return Source(name, path, file.read(), os.fstat(file.fileno()))
    except OSError as error:
        raise ApplyError("%s cannot be read: %s" % (name, error.strerror)) from None


def check_writable(source: Source) -> None:
    """Refuses what a rename would break or bypass: other names of the file, a read-only mode."""
    if source.status.st_nlink > 1:
        raise ApplyError(
            "%s has %d hard links; changing it would separate it from them" % (source.name, source.status.st_nlink)
        )
    if not source.status.st_mode & 0o222 or not os.access(source.path, os.W_OK):
        mode = stat.S_IMODE(source.status.st_mode)
        raise ApplyError("%s is read-only: its mode is %03o" % (source.name, mode))


def backups(path: str) -> List[str]:
    """FILE.backup, then FILE.backup.1, .2 …: the newest is the last."""
    found = [name for name in glob.glob(glob.escape(path) + ".backup*") if re.fullmatch(r".*\.backup(\.\d+)?", name)]
    return sorted(found, key=lambda name: int(name.rpartition(".backup")[2].strip(".") or 0))


def swap(sources: Sequence[Source], contents: Sequence[bytes]) -> List[str]:
    """Gives every file its content, or none; the names of the backups."""
    new: List[str] = []
    old: List[str] = []
    done = 0
    try:
        with _locked(sources):
            for source in sources:
                check_writable(source)
                temporary_files.sweep(source.path)
            try:
                for source, data in zip(sources, contents):
                    new.append(temporary_files.write(source.path, data, source.status, False, source.path))
                for source in sources:
                    old.append(_backed_up(source))
                for source in sources:
                    temporary_files.flush_folder(os.path.dirname(source.path))
                for source, name in zip(sources, new):
                    if read(source.path).data != source.data:
                        raise ApplyError("%s has changed since it was read; run it again" % source.name)
                    os.replace(name, source.path)
                    done += 1
                for source in sources:
                    temporary_files.flush_folder(os.path.dirname(source.path))
            except BaseException:
                for source, saved in zip(sources[:done], old):
                    os.replace(saved, source.path)
                for left in [*new[done:], *old]:
                    with contextlib.suppress(OSError):
                        os.unlink(left)
                raise
    except OSError as error:
        told = "%s: %s" % (error.filename2 or error.filename, error.strerror)
        raise ApplyError("%s. Every file is as it was" % told) from error
    return old


@contextlib.contextmanager
def _locked(sources: Sequence[Source]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for folder in sorted({os.path.dirname(source.path) for source in sources}):
            stack.enter_context(temporary_files.locked(folder))
        yield


def _copy(source: Source) -> str:
    return temporary_files.write(source.path, source.data, source.status, True, source.path)


def _backed_up(source: Source) -> str:
    """A copy under the next free name; no file is ever replaced."""
    copy = _copy(source)
    last = (backups(source.path) or [source.path + ".backup.-1"])[-1]
    number = int(last.rpartition(".backup")[2].strip(".") or 0) + 1
    name = source.path + ".backup" + (".%d" % number if number else "")
    try:
        os.link(copy, name)
        os.unlink(copy)
    except FileExistsError:
        os.unlink(copy)
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(copy, name)
    return name
