"""Whenever a command that changes files dies, they are whole, and --restore brings them back."""

from __future__ import annotations

import os

import pytest

from apply_files import NAMES, after, before, change, content, everything, three_files
from memopt.cli import apply


@pytest.fixture
def three(tmp_path):
    return three_files(tmp_path)


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
