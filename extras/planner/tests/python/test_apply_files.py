"""Files change all together: backups, restoring, links, modes, and what is refused."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from apply_files import NAMES, after, before, change, content, everything, prepare, three_files, write
from memopt.cli import apply
from memopt.cli.apply import transaction


@pytest.fixture
def three(tmp_path):
    return three_files(tmp_path)


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
    assert all(os.path.exists(path + suffix) for path in three for suffix in (".backup", ".backup.1"))
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
    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "fstat", other)
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
        ("fifo", "is not a regular file"),
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
