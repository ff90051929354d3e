"""Files change all together or not at all: backups, restoring, links, modes, and every fault."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys

import pytest

import memopt
from apply_files import content, keyed, write
from memopt.cli import apply
from memopt.cli.apply import transaction

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(memopt.__file__)))
KEY = keyed("micro_batch=b")
NAMES = ("one.json", "two.json", "three.json")


def prepare(paths, batch=4):
    return apply.prepare([str(path) for path in paths], {"micro_batch": batch}, KEY)


def change(*paths, batch=4):
    edits = prepare(paths, batch)
    edits.commit()
    return edits


def before(name):
    return ('{"b": 8, "name": "%s"}\n' % name).encode()


def after(name, batch=4):
    return ('{"b": %d, "name": "%s"}\n' % (batch, name)).encode()


@pytest.fixture
def three(tmp_path):
    """Three files, one of them in a folder of its own."""
    (tmp_path / "sub").mkdir()
    folders = {"three.json": tmp_path / "sub"}
    return [write(folders.get(name, tmp_path), name, before(name)) for name in NAMES]


def everything(folder):
    """Every file below, hidden ones too, with its content."""
    found = {}
    for place, _, names in os.walk(folder):
        found.update(
            {os.path.join(place, name): content(os.path.join(place, name)) for name in names}
        )
    return found


# --- backups and restoring ------------------------------------------------------------------------


def test_all_change_and_each_has_a_backup(tmp_path, three):
    edits = change(*three)
    for name, path in zip(NAMES, three):
        assert content(path) == after(name)
        assert content(path + ".backup") == before(name)
    assert [file.backup for file in edits.files] == [path + ".backup" for path in three]
    assert len(everything(tmp_path)) == 6


def test_a_second_run_changes_nothing(tmp_path, three):
    change(*three)
    there = everything(tmp_path)
    times = [os.stat(path).st_mtime_ns for path in three]
    edits = change(*three)
    assert edits.changed == [] and edits.diff() == [] and not edits.committed
    assert everything(tmp_path) == there
    assert times == [os.stat(path).st_mtime_ns for path in three]


def test_a_file_that_is_right_gets_no_backup(tmp_path, three):
    write(tmp_path, "one.json", after("one.json"))
    change(*three)
    assert not os.path.exists(three[0] + ".backup") and os.path.exists(three[1] + ".backup")


def test_backups_are_never_overwritten(tmp_path):
    path = write(tmp_path, "c.json", '{"b": 1}')
    for batch in range(2, 13):
        change(path, batch=batch)
    names = [path + ".backup"] + ["%s.backup.%d" % (path, i) for i in range(1, 11)]
    assert [json.loads(content(name))["b"] for name in names] == list(range(1, 12))


def test_the_next_number_is_after_the_last(tmp_path):
    path = write(tmp_path, "c.json", '{"b": 1}')
    write(tmp_path, "c.json.backup.7", "{}")
    write(tmp_path, "c.json.backup.old", "{}")
    write(tmp_path, "c.json.backup.08", "{}")
    (tmp_path / "c.json.backup.9").mkdir()
    os.symlink("c.json", str(tmp_path / "c.json.backup.10"))
    assert change(path).files[0].backup == path + ".backup.8"
    assert os.readlink(path + ".backup.10") == "c.json"


@pytest.mark.parametrize("kind", ["folder", "link", "dangling"])
def test_a_name_that_is_taken_by_something_else(tmp_path, kind):
    path = write(tmp_path, "c.json", '{"b": 1}')
    if kind == "folder":
        (tmp_path / "c.json.backup").mkdir()
    else:
        os.symlink("c.json" if kind == "link" else "nowhere", path + ".backup")
    assert change(path).files[0].backup == path + ".backup.1"
    assert kind == "folder" or os.path.islink(path + ".backup")
    assert not os.path.exists(str(tmp_path / "nowhere"))


def test_restore(tmp_path, three):
    change(*three)
    change(*three, batch=2)
    edits = apply.restore(three)
    assert [file.backup for file in edits.files] == [path + ".backup.1" for path in three]
    edits.commit()
    assert [content(path) for path in three] == [after(name) for name in NAMES]
    assert all(
        os.path.exists(path + suffix) for path in three for suffix in (".backup", ".backup.1")
    )
    again = apply.restore(three)
    assert again.changed == []
    again.commit()
    assert len(everything(tmp_path)) == 9


def test_restore_puts_back_a_file_that_is_gone(tmp_path, three):
    change(*three)
    os.unlink(three[1])
    edits = apply.restore(three)
    assert edits.files[1].diff()[0].startswith("--- /dev/null")
    edits.commit()
    assert [content(path) for path in three] == [before(name) for name in NAMES]


def test_restore_puts_back_any_bytes_mode_and_time(tmp_path):
    path = write(tmp_path, "c.json", b'{"b": 8}')
    os.chmod(path, 0o640)
    os.utime(path, ns=(10**18, 10**18 + 5))
    change(path)
    os.chmod(path, 0o600)
    write(tmp_path, "c.json", b"\xff\x00 no text")
    edits = apply.restore([path])
    assert edits.diff()
    edits.commit()
    assert content(path) == b'{"b": 8}'
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
    assert os.stat(path).st_mtime_ns == 10**18 + 5


def test_restore_without_a_backup_restores_nothing(tmp_path, three):
    change(three[0], three[1])
    there = everything(tmp_path)
    with pytest.raises(apply.ApplyError, match="three.json: there is no .*three.json.backup"):
        apply.restore(three)
    assert everything(tmp_path) == there


# --- links, modes, owners -------------------------------------------------------------------------


def test_a_symbolic_link_stays_one(tmp_path):
    pytest.importorskip("ruamel.yaml")
    (tmp_path / "real").mkdir()
    real = write(tmp_path / "real", "base.json", '{"b": 8}')
    (tmp_path / "links").mkdir()
    link = str(tmp_path / "links" / "c.yaml")
    os.symlink("../real/base.json", link)
    edits = change(link)
    assert os.readlink(link) == "../real/base.json" and content(real) == b'{"b": 4}'
    assert edits.files[0].backup == real + ".backup"
    assert os.listdir(str(tmp_path / "links")) == ["c.yaml"]
    apply.restore([link]).commit()
    assert os.path.islink(link) and content(real) == b'{"b": 8}'


def test_a_file_named_twice_is_one(tmp_path):
    path = write(tmp_path, "c.json", '{"b": 8}')
    os.symlink(path, str(tmp_path / "d.json"))
    edits = change(path, tmp_path / "d.json", os.path.relpath(path))
    assert len(edits.files) == 1 and content(path) == b'{"b": 4}'
    assert not os.path.exists(path + ".backup.1")


def test_hard_links_are_refused(tmp_path, three):
    os.link(three[1], str(tmp_path / "other"))
    there = everything(tmp_path)
    with pytest.raises(apply.ApplyError, match="two.json has 2 hard links"):
        prepare(three)
    assert everything(tmp_path) == there


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640, 0o755, 0o666, 0o2664])
def test_modes_stay(tmp_path, mode):
    path = write(tmp_path, "c.json", '{"b": 8}')
    os.chmod(path, mode)
    old = os.umask(0o077)
    try:
        change(path)
    finally:
        os.umask(old)
    for name in (path, path + ".backup"):
        assert stat.S_IMODE(os.stat(name).st_mode) == mode


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_owners_stay(tmp_path):
    path = write(tmp_path, "c.json", '{"b": 8}')
    os.chown(path, 12345, 54321)
    change(path)
    for name in (path, path + ".backup"):
        assert (os.stat(name).st_uid, os.stat(name).st_gid) == (12345, 54321)


def test_an_owner_that_cannot_stay_is_refused(tmp_path, three, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    real = os.fstat

    def other(handle):
        values = list(real(handle))
        values[4] += 1
        return os.stat_result(values)

    edits = prepare(three)
    there = everything(tmp_path)
    monkeypatch.setattr(transaction.os, "fchown", refuse)
    monkeypatch.setattr(transaction.os, "fstat", other)
    with pytest.raises(apply.ApplyError, match="change it as its owner"):
        edits.commit()
    monkeypatch.undo()
    assert everything(tmp_path) == there


def test_extended_attributes_stay(tmp_path):
    path = write(tmp_path, "c.json", '{"b": 8}')
    try:
        os.setxattr(path, "user.memopt", b"kept")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    change(path)
    assert os.getxattr(path, "user.memopt") == b"kept"
    assert os.getxattr(path + ".backup", "user.memopt") == b"kept"


# --- what is refused ------------------------------------------------------------------------------


def test_one_bad_file_stops_all(tmp_path, three):
    write(tmp_path / "sub", "three.json", '{"c": 8}')
    there = everything(tmp_path)
    with pytest.raises(apply.KeyMissing, match="three.json: it has no key b"):
        prepare(three)
    assert everything(tmp_path) == there


@pytest.mark.parametrize(
    "kind, said",
    [
        ("missing", "there is no such file"),
        ("folder", "is a folder"),
        ("fifo", "is no regular file"),
        ("dangling", "there is no such file"),
        ("loop", "cannot be read: Too many levels"),
        ("through a file", "cannot be read: Not a directory"),
        ("suffix", ".yaml, .yml, .json, .toml are known"),
        ("bytes", "line 2: it is not UTF-8 (byte 0xff at 3)"),
        ("utf-16", "it is not UTF-8"),
    ],
)
def test_unfit_files(tmp_path, kind, said):
    path = str(tmp_path / "c.json")
    if kind == "folder":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind in ("dangling", "loop"):
        os.symlink("c.json" if kind == "loop" else "nowhere", path)
    elif kind == "through a file":
        path = os.path.join(write(tmp_path, "x", ""), "c.json")
    elif kind == "suffix":
        path = write(tmp_path, "c.cfg", "b = 8")
    elif kind == "bytes":
        write(tmp_path, "c.json", b'{ \n\xff"b": 8}')
    elif kind == "utf-16":
        write(tmp_path, "c.json", '{"b": 8}'.encode("utf-16"))
    with pytest.raises(apply.ApplyError) as raised:
        prepare([path])
    assert said in str(raised.value) and path in str(raised.value)


def test_a_folder_that_cannot_be_listed(tmp_path, three, monkeypatch):
    def listdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    change(*three)
    there = everything(tmp_path)
    edits = prepare(three, batch=2)
    monkeypatch.setattr(os, "listdir", listdir)
    for attempt in (lambda: apply.restore(three), edits.commit):
        with pytest.raises(apply.ApplyError, match="%s.*: Permission denied" % tmp_path):
            attempt()
    monkeypatch.undo()
    assert everything(tmp_path) == there


@pytest.mark.parametrize("mode", [0o444, 0o400])
def test_a_read_only_file_is_refused(tmp_path, three, mode):
    os.chmod(three[2], mode)
    there = everything(tmp_path)
    with pytest.raises(apply.ApplyError, match="three.json is read-only; chmod u.w"):
        prepare(three)
    assert everything(tmp_path) == there
    os.chmod(three[2], 0o644)
    edits = prepare(three)
    os.chmod(three[2], mode)
    edits.files[2].source.status = os.stat(three[2])
    with pytest.raises(apply.ApplyError, match="read-only"):
        edits.commit()
    assert everything(tmp_path) == there


def test_a_file_that_only_others_may_write_is_refused(tmp_path, three, monkeypatch):
    monkeypatch.setattr(transaction.os, "access", lambda path, _: not path.endswith("two.json"))
    with pytest.raises(apply.ApplyError, match="two.json may not be written by you.* 6[0-9]{2}"):
        prepare(three)


def test_a_name_too_long_for_a_backup(tmp_path):
    long = write(tmp_path, "c" * 240 + ".json", '{"b": 8}')
    assert change(long).files[0].backup == long + ".backup"
    longer = write(tmp_path, "d" * 250 + ".json", '{"b": 8}')
    there = everything(tmp_path)
    with pytest.raises(apply.ApplyError, match="File name too long.*Every file is as it was"):
        change(longer)
    assert everything(tmp_path) == there


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
    monkeypatch.setattr(transaction, "LOCK_SECONDS", 0.1)
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
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "MEMOPT_LIBRARY": memopt.library_path}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(batch), *paths],
        env=environment,
        stdin=subprocess.PIPE,
    )


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

    monkeypatch.setattr(transaction.fcntl, "flock", flock)
    change(*three)
    assert content(three[0]) == after("one.json")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 KiB, with one page of it free."""
    place = tmp_path / "disk"
    place.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    options = ["-t", "tmpfs", "-o", "size=65536", "memopt-test", str(place)]
    if mount is None or subprocess.run([mount, *options], capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run([umount, str(place)], check=True)


def test_a_disk_that_is_full(small_disk):
    size = 20000
    paths = []
    for name in NAMES:
        text = '{"b": 8, "x": "%s"}' % ("x" * size if name == "two.json" else "")
        paths.append(write(small_disk, name, text))
    there = everything(small_disk)
    with pytest.raises(apply.ApplyError) as raised:
        change(*paths)
    assert "No space left on device; make room. Every file is as it was" in str(raised.value)
    assert str(small_disk) in str(raised.value)
    assert everything(small_disk) == there
    free = os.statvfs(str(small_disk))
    assert free.f_bavail * free.f_bsize >= 20000, "what was written for nothing is still there"


def test_a_read_only_disk(small_disk):
    paths = [write(small_disk, name, before(name)) for name in NAMES]
    edits = prepare(paths)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    there = everything(small_disk)
    for attempt in (edits.commit, lambda: prepare(paths)):
        with pytest.raises(apply.ApplyError, match="one.json .* its file system is read-only"):
            attempt()
    assert everything(small_disk) == there


def test_an_immutable_file(tmp_path, three):
    chattr = shutil.which("chattr")
    if not chattr or subprocess.run([chattr, "+i", three[2]], capture_output=True).returncode:
        pytest.skip("no file can be made immutable here")
    try:
        there = everything(tmp_path)
        edits = None
        with pytest.raises(apply.ApplyError, match="three.json"):
            edits = prepare(three)
            edits.commit()
        assert everything(tmp_path) == there
    finally:
        subprocess.run([chattr, "-i", three[2]], check=True)


# --- killed in the middle -------------------------------------------------------------------------


def dies_at(number, work):
    """Runs ``work`` in a process that ends without a word at its n-th call of the system, as one
    that is killed does. Returns whether it lived."""
    process = os.fork()
    if process == 0:
        calls = [0]

        def deadly(real):
            def call(*arguments, **names):
                calls[0] += 1
                if calls[0] == number:
                    os._exit(9)
                return real(*arguments, **names)

            return call

        try:
            for name in ("open", "write", "fsync", "link", "unlink", "replace"):
                setattr(os, name, deadly(getattr(os, name)))
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.WEXITSTATUS(os.waitpid(process, 0)[1])
    assert code in (0, 9)
    return code == 0


def check_whole(paths, allowed):
    for name, path in zip(NAMES, paths):
        assert content(path) in [maker(name) for maker in allowed], "half a file"
        if os.path.exists(path + ".backup"):
            assert content(path + ".backup") == before(name)


def test_killed_at_any_moment(tmp_path, three):
    """Whenever the process dies, files are whole, and --restore brings all of them back."""
    fresh = {path: content(path) for path in three}
    partly, at, finished = 0, 1, False
    while not finished:
        for path in everything(tmp_path):
            os.unlink(path)
        for path, data in fresh.items():
            with open(path, "wb") as file:
                file.write(data)
        finished = dies_at(at, lambda: change(*three))
        check_whole(three, (before, after))
        changed = [path for path in three if content(path) != fresh[path]]
        partly += 0 < len(changed) < 3
        assert all(os.path.exists(path + ".backup") for path in changed)
        if changed:
            apply.restore(three).commit()
        assert {path: content(path) for path in three} == fresh
        change(*three)  # the next command works, and sweeps
        assert [name for name in everything(tmp_path) if "memopt-" in name] == []
        at += 1
    assert partly >= 2, "no run died between two renames"


def test_killed_while_restoring(tmp_path, three):
    change(*three)
    finished, at, partly = False, 1, 0
    while not finished:
        change(*three)
        finished = dies_at(at, lambda: apply.restore(three).commit())
        check_whole(three, (before, after))
        partly += 0 < sum(content(path) == after(name) for name, path in zip(NAMES, three)) < 3
        apply.restore(three).commit()
        assert [content(path) for path in three] == [before(name) for name in NAMES]
        assert [name for name in everything(tmp_path) if "memopt-" in name] == []
        at += 1
        for path in three:
            if os.path.exists(path + ".backup.1"):
                os.unlink(path + ".backup.1")
    assert partly >= 2, "no run died between two renames"


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
