"""save_on_cpu(disk=): more than the host may hold, and nothing lost, whatever the disk does."""

from __future__ import annotations

import errno
import functools
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch

from save_on_cpu_support import (  # noqa: F401
    Keeping,
    assert_equal_lists,
    net,
    offload,
    plain,
    streams,
    through,
    train,
    x,
)

import memopt
import memopt.torch as mt


@pytest.mark.parametrize("keep_last", [0, 3])
def test_training_gives_the_same_gradients(offload, net, x, keep_last, tmp_path):
    wanted = train(net, x, plain())
    context = offload(host_limit="64KiB", disk=str(tmp_path), keep_last=keep_last)
    for _ in range(3):
        assert_equal_lists(train(net, x, context), wanted)
    stats = context.stats()
    assert stats["kept_overflow"] == 0 and stats["host_bytes_peak"] <= 64 << 10
    assert stats["disk_written_bytes"] >= stats["disk_read_bytes"] > 0
    assert stats["tickets"] == stats["disk_tickets"] == stats["disk_bytes_used"] == 0
    assert stats["disk_bytes_peak"] > 0
    assert not list(tmp_path.iterdir())  # the file has no name


def test_eight_times_the_host_limit(offload, device, tmp_path):
    values = [torch.randn(64 * 1024, device=device) for _ in range(16)]
    wanted = [value.clone() for value in values]
    context = offload(host_limit="512KiB", disk=(tmp_path, "64MiB"), prefetch=0)
    assert all(torch.equal(a, b) for a, b in zip(through(context, *values), wanted))
    stats = context.stats()
    assert stats["packs"] == 16 and stats["kept_overflow"] == 0
    assert stats["host_bytes_peak"] <= 512 << 10
    assert stats["disk_written_bytes"] >= 14 * 256 << 10
    # The first to be asked for were written first: what is on the host then is the newest.
    assert 14 * 256 << 10 <= stats["disk_read_bytes"] <= 16 * 256 << 10


def test_a_full_disk_keeps_the_rest_on_the_device(offload, device, tmp_path):
    values = [torch.randn(64 * 1024, device=device) for _ in range(8)]
    context = offload(host_limit="512KiB", disk=(str(tmp_path), "512KiB"))
    got = through(context, *values)
    assert all(torch.equal(a, b) for a, b in zip(got, values))
    stats = context.stats()
    assert stats["kept_overflow"] == 4 and stats["disk_bytes_peak"] == 512 << 10
    assert [a.data_ptr() == b.data_ptr() for a, b in zip(got, values)] == [False] * 4 + [True] * 4


def test_a_disk_that_is_full(small_disk):
    """The step says what is there; a later one, with room, has the same bits."""
    x = torch.linspace(-1, 1, 1 << 13, requires_grad=True)  # values of 32 KiB
    context = mt.save_on_cpu(device_type="cpu", host_limit="64KiB", disk=small_disk, min_bytes=1)

    def step():
        with context:
            y = x
            for _ in range(8):
                y = (y * 2).exp().sigmoid()
        return torch.autograd.grad(y.sum(), x)[0]

    with plain():
        wanted = torch.autograd.grad(functools.reduce(lambda y, _: (y * 2).exp().sigmoid(), range(8), x).sum(), x)[0]
    for _ in range(2):
        with pytest.raises(memopt.StorageError, match=r"\([0-9.]+ KiB of the file are in use, 0 B of its file") as told:
            step()
        assert told.value.errno == errno.ENOSPC
        del told
        stats = context.stats()
        assert stats["tickets"] == stats["host_bytes_used"] == stats["disk_bytes_used"] == 0
    subprocess.run(["mount", "-o", "remount,size=1M", str(small_disk)], check=True)
    assert torch.equal(step(), wanted) and context.stats()["disk_bytes_peak"] > 64 << 10


def test_retain_graph_reads_again(offload, device, tmp_path):
    x = torch.randn(64, 1024, device=device, requires_grad=True)
    context = offload(host_limit="256KiB", disk=str(tmp_path))
    with context:
        y = (x.exp() * x.sin()).tanh().sum()
    first = torch.autograd.grad(y, x, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(y, x)[0])
    assert context.stats()["disk_read_bytes"] > context.stats()["disk_bytes_peak"]


def test_values_are_prefetched_from_the_disk(streams, tmp_path):
    context = streams(prefetch="256KiB", host_limit="1MiB", disk=str(tmp_path))
    anchor = torch.ones((), requires_grad=True)
    for _ in range(3):
        seen, result = [], anchor
        with context:
            for i in range(12):
                result = Keeping.apply(result, seen.extend, torch.full((1 << 16,), float(i)))
        result.backward()
        assert [(float(t.min()), float(t.max())) for t in seen] == [(i, i) for i in range(12)][::-1]
    assert context.stats()["prefetch_hits"] > 0 and context.stats()["disk_read_bytes"] > 0


def test_trim_gives_the_file_s_space_back(tmp_path):
    context = mt.save_on_cpu(device_type="cpu", host_limit="1MiB", disk=str(tmp_path))
    before = os.statvfs(tmp_path).f_bfree
    through(context, *[torch.randn(1 << 20) for _ in range(2)], torch.randn(1 << 18))
    assert context.stats()["disk_bytes"] == 0
    assert context.trim() == context.stats()["host_bytes_peak"] and before > 0


def test_options(tmp_path):
    with pytest.raises(ValueError, match="host_limit"):
        mt.save_on_cpu(disk=str(tmp_path))
    with pytest.raises(ValueError, match="need each other"):
        mt.save_on_cpu(host_limit="1GiB", overflow="spill")
    with pytest.raises(ValueError, match="need each other"):
        mt.save_on_cpu(host_limit="1GiB", overflow="keep", disk=str(tmp_path))
    with pytest.raises(ValueError):
        mt.save_on_cpu(host_limit="1GiB", disk=(str(tmp_path), "much"))
    with pytest.raises(TypeError):
        mt.save_on_cpu(host_limit="1GiB", disk=3)
    context = mt.save_on_cpu(device_type="cpu", host_limit="1MiB", disk=tmp_path / "no" / "such")
    with pytest.raises(memopt.StorageError, match="No such file or directory") as raised:
        through(context, torch.randn(1 << 12))
    assert isinstance(raised.value, OSError) and raised.value.errno == 2


def run(program: str, folder: pathlib.Path) -> "subprocess.CompletedProcess[str]":
    """A program of its own, which is told the folder."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=120,
    )


def test_a_killed_process_leaves_nothing(tmp_path):
    result = run(
        """
        import os, signal, sys, torch, memopt.torch as mt
        context = mt.save_on_cpu(device_type="cpu", host_limit="1MiB", disk=sys.argv[1])
        x = torch.randn(1 << 18, requires_grad=True)
        with context:
            y = x * 2
            for _ in range(6):
                y = y.exp().tanh()
        assert context.stats()["disk_bytes"] >= 4 << 20
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert result.returncode == -9, result.stdout
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_raises_in_forward_and_loses_nothing(tmp_path):
    """The system's limit of a file's size stands for a full disk; it does not end the process."""
    pytest.importorskip("resource")
    result = run(
        """
        import errno, resource, sys, torch, memopt, memopt.torch as mt
        context = mt.save_on_cpu(device_type="cpu", host_limit="2MiB", disk=sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, resource.getrlimit(1)[1]))
        x = torch.randn(1 << 18, requires_grad=True)
        with context:
            values = [(x * i).exp() for i in range(5)]  # two on the host, three on the disk
            before = context.stats()
            try:
                (x * 9).exp()
            except memopt.StorageError as error:
                assert error.errno == errno.EFBIG and sys.argv[1] in str(error), error
            else:
                raise SystemExit("no StorageError")
        now = context.stats()
        assert now["tickets"] == before["tickets"] == 5, (before, now)
        for i, y in enumerate(values):
            (got,) = torch.autograd.grad(y.sum(), x)
            assert torch.equal(got, i * (x * i).exp().detach()), i
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(1)[1],) * 2)
        with context:
            z = [(x * i).exp() for i in range(8)]
        assert context.stats()["disk_tickets"] == 6
        print("well")
        """,
        tmp_path,
    )
    assert result.returncode == 0 and "well" in result.stdout, result.stdout
