"""What processes publish of their allocators (memopt.tools.publish), as monitors read it.

Sockets lie in folders that belong to one user alone; everything else there, and answers that are
late, too long or malformed, are ignored. A socket whose process is gone is removed.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import selectors
import socket
import stat
import struct
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple


_MOST_BYTES = 1 << 18  # of an answer
_AT_ONCE = 64  # sockets: a process may open a thousand files, often
_PATIENCE = 5.0  # seconds until a socket that did not answer is asked again


class PublishedAllocator(NamedTuple):
    """An allocator of another process, in bytes; ``cached`` is what it holds but does not use."""

    device: str
    allocated: int
    allocated_peak: int
    reserved: int
    reserved_peak: int
    ooms: int
    retries: int

    @property
    def cached(self) -> int:
        """Bytes that it holds for later allocations."""
        return max(self.reserved - self.allocated, 0)


class Published(NamedTuple):
    """What a process publishes."""

    pid: int
    version: str
    allocators: Tuple[PublishedAllocator, ...]


class Reader:
    """Asks every publisher of this user; root asks those of all users."""

    def __init__(self) -> None:
        self._silent: Dict[str, float] = {}  # paths that did not answer, and when to ask again

    def read(self, timeout: float = 0.2) -> List[Published]:
        """The answers within so many seconds, by process."""
        now = time.monotonic()
        self._silent = {path: until for path, until in self._silent.items() if until > now}
        places = [place for place in _sockets() if place[0] not in self._silent]
        answers: List[Published] = []
        taken = 1
        # Sockets without a turn get one the next time, before those that did not answer.
        while taken > 0 and time.monotonic() < now + timeout:
            asked, taken = _ask_some(places)
            places = places[taken:]
            _collect(asked, now + timeout)
            for question in asked:
                if question.answer is not None:
                    answers.append(question.answer)
                elif not question.done:
                    self._silent[question.path] = now + _PATIENCE
        return _by_process(answers)


def read_published(timeout: float = 0.2) -> List[Published]:
    """What the processes of this user publish, as they answer within so many seconds; root sees
    those of all users."""
    return Reader().read(timeout)


# --- where ----------------------------------------------------------------------------------------


def _folders() -> List[str]:
    own = os.geteuid()
    places = [os.path.join(os.environ["XDG_RUNTIME_DIR"], "memopt")] if _runtime() else []
    places += ["/run/user/%d/memopt" % own, "/tmp/memopt-%d" % own]
    if own == 0:
        places += glob.glob("/run/user/*/memopt") + glob.glob("/tmp/memopt-*")
    return list(dict.fromkeys(places))


def _runtime() -> bool:
    return os.environ.get("XDG_RUNTIME_DIR", "").startswith("/")


def _sockets() -> List[Tuple[str, int]]:
    """The sockets with the users to whom their folders belong."""
    found = []
    for folder in _folders():
        owner = _owner(folder)
        if owner is None:
            continue
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        found += [(os.path.join(folder, name), owner) for name in names if name.endswith(".sock")]
    return found


def _owner(folder: str) -> Optional[int]:
    """The owner of a folder that no one else can write to."""
    try:
        info = os.lstat(folder)
    except OSError:
        return None
    if not stat.S_ISDIR(info.st_mode) or info.st_mode & 0o077:
        return None
    if info.st_uid != os.geteuid() and os.geteuid() != 0:
        return None
    return info.st_uid


# --- asking ---------------------------------------------------------------------------------------


class _Question:
    """One connection, and the data received."""

    def __init__(self, path: str, connection: socket.socket, pid: int) -> None:
        self.path, self.connection, self.pid = path, connection, pid
        self.text = b""
        self.done = False
        self.answer: Optional[Published] = None

    def receive(self) -> None:
        """Reads the available data; at its end, parses it."""
        try:
            part = self.connection.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            part = b""
        self.text += part
        if not part or len(self.text) > _MOST_BYTES:
            self.done = True
            self.answer = understand(self.text, self.pid)


def _ask_some(places: List[Tuple[str, int]]) -> Tuple[List[_Question], int]:
    """Connections to the first sockets, and how many places are done; fewer if this process cannot
    open more files."""
    asked: List[_Question] = []
    for number, (path, owner) in enumerate(places):
        if len(asked) == _AT_ONCE:
            return asked, number
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return asked, number
        question = _ask(connection, path, owner)
        if question is None:
            connection.close()
        else:
            asked.append(question)
    return asked, len(places)


def _ask(connection: socket.socket, path: str, owner: int) -> Optional[_Question]:
    """None if this user has no listening socket there. A link to one is ignored: its target has its
    own name."""
    try:
        before = os.lstat(path)
        if not stat.S_ISSOCK(before.st_mode):
            return None
        connection.setblocking(False)
        connection.connect(path)
        pid, uid = _peer(connection)
        if uid == owner:
            return _Question(path, connection, pid)
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            _remove(path, before)
    return None


def _peer(connection: socket.socket) -> Tuple[int, int]:
    """The listening process and its user, from the system."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _gid = struct.unpack("iII", raw)
    return pid, uid


def _remove(path: str, seen: os.stat_result) -> None:
    """A socket has its name only while its process listens: this process is gone."""
    try:
        now = os.lstat(path)
        if stat.S_ISSOCK(now.st_mode) and (now.st_dev, now.st_ino) == (seen.st_dev, seen.st_ino):
            os.unlink(path)
    except OSError:
        pass


def _collect(asked: List[_Question], deadline: float) -> None:
    with selectors.PollSelector() as selector:  # which is no open file itself
        for question in asked:
            selector.register(question.connection, selectors.EVENT_READ, question)
        while any(not question.done for question in asked):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for key, _events in selector.select(left):
                key.data.receive()
                if key.data.done:
                    selector.unregister(key.fileobj)
    for question in asked:
        question.connection.close()


def understand(text: bytes, pid: int) -> Optional[Published]:
    """An answer; None if it is invalid. The process number comes from the system if the process has
    one here."""
    try:
        value = json.loads(text) if text.endswith(b"\n") else None
        if not isinstance(value, dict) or _number(value["memopt"]) < 1:
            return None
        return Published(
            pid or _number(value["pid"]),
            str(value["version"]),
            tuple(_allocator(one) for one in value["allocators"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _allocator(value: Any) -> PublishedAllocator:
    numbers = {name: _number(value[name]) for name in PublishedAllocator._fields[1:]}
    if not isinstance(value["device"], str):
        raise ValueError
    return PublishedAllocator(value["device"], **numbers)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise ValueError
    return value


def _by_process(answers: List[Published]) -> List[Published]:
    """One entry a process, which may have several publishers."""
    found: Dict[int, Published] = {}
    for one in answers:
        known = found.get(one.pid)
        if known is not None:
            one = known._replace(allocators=known.allocators + one.allocators)
        found[one.pid] = one
    return list(found.values())
