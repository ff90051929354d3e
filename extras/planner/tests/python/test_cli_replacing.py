"""Reports and pictures take the place of older ones whole, or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys

import pytest

from cli_support import command, environment
from memopt.cli import replace_file

OLD, NEW = b"a report of yesterday\n", b"new " * 500


def fault(name, code):
    """A function of os that always fails so."""

    def fails(*_, **__):
        raise OSError(code, os.strerror(code), "somewhere")

    return fails


def check_kept(path, code):
    with pytest.raises(OSError) as raised:
        replace_file.replace(str(path), NEW)
    assert raised.value.errno == code and raised.value.filename == str(path)


# --- full disks -----------------------------------------------------------------------------------


def fill_up(disk):
    """Leaves no byte of a disk."""
    with open(disk / "filler", "wb", buffering=0) as file:
        with pytest.raises(OSError) as raised:
            while True:
                file.write(b"x" * 4096)
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.parametrize("name", ["old.json", "old.csv", "old.png"])
def test_profile_on_a_full_disk_runs_nothing(small_disk, tmp_path, name):
    if name == "old.png":
        pytest.importorskip("matplotlib")
    path = small_disk / name
    path.write_bytes(OLD)
    fill_up(small_disk)
    option = "--plot" if name == "old.png" else "--output"
    result = command("profile", "--no-gpu", option, path, "--", "touch", tmp_path / "ran")
    if name != "old.png":  # whose size nobody knows yet
        assert result.returncode == 1
        assert result.stderr == "memopt: %s: No space left on device\n" % path
        assert not (tmp_path / "ran").exists()
    assert path.read_bytes() == OLD


# --- what takes the place of what -----------------------------------------------------------------


def test_a_reader_has_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(OLD)
    with open(path, "rb") as reader:
        replace_file.replace(str(path), NEW)
        assert reader.read() == OLD
    assert path.read_bytes() == NEW and os.listdir(tmp_path) == ["report.json"]


def test_a_program_that_cannot_be_started_leaves_the_files(tmp_path):
    for name in ("old.csv", "old.json"):
        path = tmp_path / name
        path.write_bytes(OLD)
        result = command("profile", "--no-gpu", "--output", path, "--", "no-such-program")
        assert result.returncode == 127 and path.read_bytes() == OLD
    assert sorted(os.listdir(tmp_path)) == ["old.csv", "old.json"]


@pytest.mark.parametrize("kind", ["link", "dangling", "chain"])
def test_links_stay(tmp_path, kind):
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / "run.json"
    if kind != "dangling":
        real.write_bytes(OLD)
    (tmp_path / "latest.json").symlink_to("real/run.json")
    path = tmp_path / "latest.json"
    if kind == "chain":
        path = tmp_path / "newest.json"
        path.symlink_to(tmp_path / "latest.json")
    replace_file.check_writable(str(path), 4096)
    assert real.exists() == (kind != "dangling")
    replace_file.replace(str(path), NEW)
    assert path.is_symlink() and real.read_bytes() == NEW
    assert os.listdir(tmp_path / "real") == ["run.json"]


def test_modes_stay_and_new_files_have_the_usual(tmp_path):
    old = os.umask(0o027)
    try:
        path = tmp_path / "run.json"
        replace_file.replace(str(path), OLD)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o664)
        replace_file.replace(str(path), NEW)
        assert stat.S_IMODE(path.stat().st_mode) == 0o664 and path.read_bytes() == NEW
    finally:
        os.umask(old)


FAULTS = {"write": errno.ENOSPC, "fsync": errno.EIO, "replace": errno.EIO, "open": errno.EMFILE}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("there", [True, False])
def test_faults(tmp_path, monkeypatch, name, there):
    path = tmp_path / "run.json"
    if there:
        path.write_bytes(OLD)
    monkeypatch.setattr(os, name, fault(name, FAULTS[name]))
    check_kept(path, FAULTS[name])
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["run.json"] * there
    assert not there or path.read_bytes() == OLD


# --- what is no file ------------------------------------------------------------------------------


def test_streams_and_pipes_get_the_report(tmp_path):
    script = '"$@" %s'
    for redirect, name in (
        ("> out", "/dev/stdout"),
        (">> out", "/dev/stdout"),
        ("3> out", "/dev/fd/3"),
        ("| cat > out", "/dev/stdout"),
    ):
        (tmp_path / "out").write_bytes(OLD)
        words = ["profile", "--no-gpu", "--output", name, "--", "echo", "hello"]
        result = subprocess.run(
            ["sh", "-c", script % redirect, "sh", sys.executable, "-m", "memopt", *words],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
        )
        assert result.returncode == 0, result.stderr
        said = (tmp_path / "out").read_bytes()
        assert said.startswith(OLD) == (">>" in redirect)
        last = said.splitlines()[-1]
        assert json.loads(last)["command"] == ["echo", "hello"]
        assert (b"hello\n" in said.replace(last, b"")) == (name == "/dev/stdout")
        assert os.listdir(tmp_path) == ["out"]


def test_a_pipe_with_a_name(tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    result = command("profile", "--no-gpu", "--output", pipe, "--", "true")
    assert result.returncode == 0, result.stderr
    report = reader.communicate(timeout=60)[0]
    assert json.loads(report)["command"] == ["true"] and stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["", "nowhere/x.json", "folder", "file/x.json", "new/"])
def test_names_that_take_no_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(OLD)
    for attempt in (lambda: replace_file.check_writable(name, 100), lambda: replace_file.replace(name, NEW)):
        with pytest.raises(OSError) as raised:
            attempt()
        assert raised.value.filename == name
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert (tmp_path / "file").read_bytes() == OLD and os.listdir(tmp_path / "folder") == []
