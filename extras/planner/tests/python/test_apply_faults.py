"""Files change all together or not at all: others that change them, faults, full disks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys

import pytest

from apply_files import NAMES, after, before, change, content, everything, prepare, three_files, write
from cli_support import environment
from memopt.cli import apply, temporary_files
from memopt.cli.apply import transaction


@pytest.fixture
def three(tmp_path):
    return three_files(tmp_path)


# --- others change the files too ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["content", "replaced", "gone", "folder"])
def test_a_file_changed_meanwhile_is_refused(tmp_path, three, how):
    edits = prepare(three)
    if how == "content":
        write(tmp_path, "two.json", before("TWO.json"))
    elif how == "replaced":
        os.replace(write(tmp_path, "x", before("two.json")), three[1])
    else:
        os.unlink(three[1])
        if how == "folder":
            os.mkdir(three[1])
    there = everything(tmp_path)
    with pytest.raises(apply.ApplyError, match="two.json has (changed|gone) since"):
        edits.commit()
    assert everything(tmp_path) == there


def test_a_file_changed_between_the_renames_is_kept(tmp_path, three, monkeypatch):
    edits = prepare(three)
    real = os.replace

    def replace(source, target):
        real(source, target)
        if target == three[0]:
            write(tmp_path / "sub", "three.json", b"mine")

    monkeypatch.setattr(transaction.os, "replace", replace)
    with pytest.raises(apply.ApplyError, match="three.json has changed"):
        edits.commit()
    monkeypatch.undo()
    assert [content(path) for path in three] == [before("one.json"), before("two.json"), b"mine"]
    assert len(everything(tmp_path)) == 3


def test_a_lock_that_somebody_holds(tmp_path, three, monkeypatch):
    monkeypatch.setattr(temporary_files, "LOCK_SECONDS", 0.1)
    there = everything(tmp_path)
    handle = os.open(str(tmp_path / "sub"), os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(apply.ApplyError, match="another command .*/sub for 0.1 s"):
            change(*three)
        assert everything(tmp_path) == there
    finally:
        os.close(handle)
    change(*three)


CHILD = """\
import sys
from memopt.cli import apply
from memopt.cli.apply import KeyMapping
mapping = KeyMapping(keys={"micro_batch": [("b",)]})
edits = apply.prepare(sys.argv[2:], {"micro_batch": int(sys.argv[1])}, mapping)
sys.stdin.readline()
try:
    edits.commit()
except apply.ApplyError as error:
    assert "since it was read" in str(error), error
    sys.exit(3)
"""


def child(batch, paths):
    return subprocess.Popen([sys.executable, "-c", CHILD, str(batch), *paths], env=environment(), stdin=subprocess.PIPE)


def test_commands_at_the_same_time(tmp_path, three):
    children = [child(batch, three) for batch in (1, 2, 3, 4)]
    for one in children:
        one.stdin.write(b"go\n")
        one.stdin.flush()
    codes = [one.wait(120) for one in children]
    for one in children:
        one.stdin.close()
    assert set(codes) <= {0, 3} and codes.count(0) >= 1
    final = {json.loads(content(path))["b"] for path in three}
    assert len(final) == 1 and codes[final.pop() - 1] == 0
    assert len(everything(tmp_path)) == 3 + 3 * codes.count(0)
    assert content(three[0] + ".backup") == before("one.json")


# --- faults ---------------------------------------------------------------------------------------

FAULTS = {
    "write": errno.ENOSPC,
    "fsync": errno.EIO,
    "link": errno.EDQUOT,
    "replace": errno.EPERM,
    "open": errno.EROFS,
    "utime": errno.EPERM,
    "fchmod": errno.EPERM,
    "fstat": errno.EIO,
}


def failing(monkeypatch, name, number, code):
    """The n-th call of a function of os by the transaction fails; returns how many there were."""
    real, calls = getattr(os, name), [0]

    def call(*arguments, **names):
        calls[0] += 1
        if calls[0] == number:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **names)

    monkeypatch.setattr(os, name, call)
    return calls


@pytest.mark.parametrize("restoring", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_leaves_every_file(tmp_path, three, monkeypatch, name, restoring):
    if restoring:
        change(*three)
    there = everything(tmp_path)
    number = 0
    while True:
        number += 1
        edits = apply.restore(three) if restoring else prepare(three)
        calls = failing(monkeypatch, name, number, FAULTS[name])
        try:
            edits.commit()
        except apply.ApplyError as error:
            monkeypatch.undo()
            assert os.strerror(FAULTS[name]) in str(error)
            assert everything(tmp_path) == there, "call %d of %s" % (number, name)
            continue
        monkeypatch.undo()
        assert calls[0] < number, "the failure of call %d of %s was lost" % (number, name)
        break
    assert number > 3 or (restoring and name == "link")
    expected = before if restoring else after
    assert [content(path) for path in three] == [expected(name) for name in NAMES]
    assert len(everything(tmp_path)) == 6


def test_what_cannot_be_put_back_is_told(tmp_path, three, monkeypatch):
    edits = prepare(three)
    real = os.replace

    def replace(source, target):
        if target == three[2] or source.endswith(".backup"):
            raise OSError(errno.EIO, "Input/output error", source, None, target)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(apply.ApplyError) as raised:
        edits.commit()
    monkeypatch.undo()
    for path in three[:2]:
        assert "%s could not be put back" % path in str(raised.value)
        assert "its former content is in %s.backup" % path in str(raised.value)
    assert "as it was" not in str(raised.value)
    apply.restore(three[:2]).commit()
    assert [content(path) for path in three] == [before(name) for name in NAMES]


def test_an_interrupt_puts_everything_back(tmp_path, three, monkeypatch):
    edits = prepare(three)
    there = everything(tmp_path)
    real = os.replace

    def replace(source, target):
        if target == three[1]:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        edits.commit()
    monkeypatch.undo()
    assert everything(tmp_path) == there


def test_without_hard_links(tmp_path, three, monkeypatch):
    """File systems such as FAT: the backup's name is held by an empty file first."""

    def link(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    change(*three)
    change(*three, batch=2)
    monkeypatch.undo()
    for name, path in zip(NAMES, three):
        assert content(path + ".backup") == before(name)
        assert content(path + ".backup.1") == after(name)


def test_a_disk_that_takes_little_at_a_time(tmp_path, three, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:3])))
    change(*three)
    monkeypatch.undo()
    for name, path in zip(NAMES, three):
        assert content(path) == after(name) and content(path + ".backup") == before(name)


def test_without_locks(three, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(temporary_files.fcntl, "flock", flock)
    change(*three)
    assert content(three[0]) == after("one.json")


def test_what_cannot_be_put_back_is_kept(tmp_path, monkeypatch):
    """The only copy of a former content is no temporary file."""
    swaps = []
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text("former " + name)
        source = transaction.read(str(tmp_path / name))
        swaps.append(transaction.Swap(source, b"new", source.status, backup=False))
    replace, turns = os.replace, iter([True, False, False])

    def broken(*names):
        if not next(turns):
            raise OSError(errno.EIO, "Input/output error", *names[:1], None, names[1])
        replace(*names)

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(apply.ApplyError, match="could not be put back .* is in (.*)") as raised:
        transaction.swap(swaps)
    kept = str(raised.value).rpartition(" is in ")[2]
    assert content(kept) == b"former one.json" and (tmp_path / "one.json").read_text() == "new"
    assert (tmp_path / "two.json").read_text() == "former two.json"
