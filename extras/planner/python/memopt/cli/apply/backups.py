"""Names of backups: ``FILE.backup``, then ``FILE.backup.1``, ``.2`` …; none is overwritten."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import List, Optional, Tuple

SUFFIX = ".backup"


def existing(path: str) -> List[Tuple[int, str]]:
    """The backups of a file with their numbers (0: without one), oldest first."""
    folder, base = os.path.split(path)
    pattern = re.compile(re.escape(base + SUFFIX) + r"(?:\.([1-9][0-9]*))?")
    found = []
    for name in os.listdir(folder or "."):
        match = pattern.fullmatch(name)
        whole = os.path.join(folder, name)
        if match and stat.S_ISREG(os.lstat(whole).st_mode):
            found.append((int(match.group(1) or 0), whole))
    return sorted(found)


def newest(path: str) -> Optional[str]:
    """The backup that was made last."""
    found = existing(path)
    return found[-1][1] if found else None


def publish(temporary: str, path: str) -> str:
    """Gives a finished file the next free backup name; no other file is ever replaced."""
    found = existing(path)
    number = found[-1][0] + 1 if found else 0
    while True:
        name = path + SUFFIX + (".%d" % number if number else "")
        try:
            _rename_to_new(temporary, name)
            return name
        except FileExistsError:
            number += 1


def _rename_to_new(temporary: str, name: str) -> None:
    try:
        os.link(temporary, name)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # A file system without hard links: hold the name, then move over the empty file.
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(temporary, name)
        return
    try:
        os.unlink(temporary)
    except OSError:
        os.unlink(name)
        raise
