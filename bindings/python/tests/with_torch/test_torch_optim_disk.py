"""CPUOffloadOptimizer(disk=): the bits of states in host memory, in a stated part of it, whatever the
disk does."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

import memopt
import memopt.torch as mt
from optim_support import KINDS, limited, same_bits, through_a_file
from optim_support import fill_both as fill

LIMIT = "1MiB"  # chunks of 84 KiB


def parameters(dtype, seed=1, large=300):
    """Some of several chunks, transposed, ragged, with gaps, and one that stays without a gradient."""
    torch.manual_seed(seed)
    whole = [
        torch.randn(large, 1001),
        torch.randn(64, 80).t(),
        torch.randn(7),
        torch.randn(90, 300),
        torch.randn(411, 150).t(),
        torch.ones(3),
    ]
    return [torch.nn.Parameter(p.to(dtype)[:, ::2] if i == 3 else p.to(dtype)) for i, p in enumerate(whole)]


def assert_same_dicts(a, b):
    """What both would save, without the masters of parameters that never had a gradient."""
    assert a["state"].keys() == b["state"].keys()
    for number, state in b["state"].items():
        assert list(a["state"][number]) == list(state)
        for key, value in state.items():
            got = a["state"][number][key]
            if isinstance(value, dict):
                got, value = got["memopt"], value["memopt"]
            assert same_bits(got, value) and got.stride() == value.stride(), key
    assert a["param_groups"] == b["param_groups"]


def pair(dtype, disk, cls=mt.AdamW8bit, host_limit=LIMIT, **options):
    params, others = parameters(dtype), parameters(dtype)
    groups = [[{"params": ps[:2]}, {"params": ps[2:], "lr": 3e-2, "weight_decay": 0.5}] for ps in (params, others)]
    options = dict(lr=1e-2, min_8bit_size=100, **options)
    a = mt.CPUOffloadOptimizer(groups[0], cls, disk=disk, host_limit=host_limit, **options)
    return a, mt.CPUOffloadOptimizer(groups[1], cls, **options), params, others


@pytest.mark.parametrize("kind", [*sorted(KINDS), "AdEMAMix"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_bits_are_those_of_states_in_memory(kind, dtype, staged, tmp_path):
    """Also with groups, a scheduler, and a parameter that gets its first gradient later."""
    cls, own = KINDS.get(kind, (mt.optim.AdEMAMix, {"states": "8bit"}))[:2]
    a, b, params, others = pair(dtype, tmp_path, cls, **own)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (a, b)]
    for step in range(4):
        fill(params, others, step)
        if step < 2:
            params[1].grad = others[1].grad = None
        for optimizer, schedule in zip((a, b), schedules):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        assert all(map(same_bits, params, others))
    assert_same_dicts(a.state_dict(), b.state_dict())
    with mt.portable_states(a, b):
        assert_same_dicts(a.state_dict(), b.state_dict())
    assert sum(a.host_bytes().values()) <= 1 << 20
    if (kind, dtype) == ("AdamW", torch.bfloat16):
        stats = a.disk_stats()
        assert min(stats["disk_written_bytes"], stats["disk_read_bytes"]) > 8 << 20
        assert stats["prefetch_hits"] > 20
    assert not list(tmp_path.iterdir())  # the file has no name


def test_clipping_a_scaler_and_gradients_freed_in_backward(staged, tmp_path):
    a, b, params, others = pair(torch.float32, tmp_path, max_norm=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(4):
        fill(params, others, step)
        for p in params[:-1]:
            p.grad *= scaler.get_scale()
        scaler.scale(torch.zeros(()))
        if step == 2:
            params[0].grad[0, 0] = float("inf")
            before = [p.detach().clone() for p in params]
        scaler.step(a)
        scaler.update()
        if step == 2:
            assert all(map(same_bits, params, before))
        else:
            b.step()
            assert same_bits(a.norm, b.norm)
        assert all(map(same_bits, params, others))
    params, others = parameters(torch.bfloat16)[:3], parameters(torch.bfloat16)[:3]
    a = mt.CPUOffloadOptimizer(params, lr=1e-2, disk=tmp_path, host_limit=LIMIT)
    b = mt.CPUOffloadOptimizer(others, lr=1e-2)
    mt.release_gradients(a)
    for step in range(3):
        for ps in (params, others):
            sum((p.float() * (p + step).float()).sum() for p in ps).backward()
        assert all(p.grad is None for p in params)
        a.step()
        b.step()
        b.zero_grad()
        assert all(map(same_bits, params, others))
    assert_same_dicts(a.state_dict(), b.state_dict())


@pytest.mark.parametrize("split", [False, True, 16])
def test_resuming(split, staged, tmp_path):
    """Bit for bit from a file; states in memory and on a disk load each other's."""
    a, b, params, others = pair(torch.bfloat16, tmp_path, split_weights=split)
    for step in range(3):
        fill(params, others, step)
        a.step()
        b.step()
    saved, before = through_a_file(a.state_dict()), [p.detach().clone() for p in params]
    for optimizer in (a, b, pair(torch.bfloat16, tmp_path, split_weights=split)[0]):
        ps = [p for group in optimizer.param_groups for p in group["params"]]
        if split and not staged:  # the parameters are the masters
            for p, q in zip(ps, before):
                p.data.copy_(q)
        optimizer.load_state_dict(saved)
        assert all(map(same_bits, ps, before)) and optimizer.param_groups[0]["lr"] == 1e-2
        assert_same_dicts(optimizer.state_dict(), saved)
        for step in range(3, 6):
            fill(ps, ps, step)
            optimizer.step()
        if optimizer is a:
            after = a.state_dict()
        else:
            assert all(map(same_bits, ps, params))
            assert_same_dicts(optimizer.state_dict(), after)
    before = a.state_dict()
    saved["state"][4]["master"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"master of .* has the shape \(3,\)"):
        a.load_state_dict(saved)
    saved["state"][4].pop("master")
    saved["state"][4]["power2"] = {"memopt": torch.zeros(5)}
    with pytest.raises(ValueError, match="5 scales"):
        a.load_state_dict(saved)
    assert_same_dicts(a.state_dict(), before)


def test_the_class_s_dicts_and_others(tmp_path):
    """32-bit states of torch's AdamW are coded; codes of another format become what they stand for."""
    params, others = parameters(torch.bfloat16), parameters(torch.bfloat16)
    plain = torch.optim.AdamW([p.detach().float().requires_grad_() for p in params])
    for p in plain.param_groups[0]["params"]:
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(3))
    plain.step()
    four = mt.CPUOffloadOptimizer(parameters(torch.bfloat16), mt.AdamW4bit)
    fill(*[four.param_groups[0]["params"]] * 2, 3)
    four.step()
    for saved in (plain.state_dict(), four.state_dict()):
        a = mt.CPUOffloadOptimizer(params, disk=tmp_path, host_limit=LIMIT)
        b = mt.CPUOffloadOptimizer(others)
        for optimizer in (a, b):
            optimizer.load_state_dict(saved)
        fill(params, others, 4)
        a.step()
        b.step()
        assert all(map(same_bits, params, others))
        assert_same_dicts(a.state_dict(), b.state_dict())


def test_parameters_that_others_write_or_move(staged, tmp_path):
    for dtype in (torch.bfloat16, torch.float32):
        a, b, params, others = pair(dtype, tmp_path, split_weights=dtype is torch.bfloat16)
        for step in range(4):
            fill(params, others, step)
            with torch.no_grad():
                for p in (params[0], others[0]):
                    p[step : 2 * step] = 3.0
                if step == 2:
                    for p in (params[4], others[4]):
                        p.data = p.detach().clone()
            a.step()
            b.step()
            assert all(map(same_bits, params, others))
        assert_same_dicts(a.state_dict(), b.state_dict())


def test_groups_that_come_later(tmp_path):
    params, others = parameters(torch.bfloat16), parameters(torch.bfloat16)
    named = [[("p%d" % i, p) for i, p in enumerate(ps)] for ps in (params, others)]
    a = mt.CPUOffloadOptimizer(named[0][:2], disk=(tmp_path, "64MiB"), host_limit=LIMIT)
    b = mt.CPUOffloadOptimizer(named[1][:2])
    fill(params, others, 1)
    for optimizer, ps in ((a, named[0]), (b, named[1])):
        optimizer.step()
        optimizer.add_param_group({"params": ps[2:], "lr": 0.1})
    fill(params, others, 2)
    for optimizer in (a, b):
        optimizer.step()
    assert all(map(same_bits, params, others))
    assert_same_dicts(a.state_dict(), b.state_dict())


def test_refusals(tmp_path):
    params = parameters(torch.bfloat16)
    with pytest.raises(ValueError, match="1 MiB"):
        mt.CPUOffloadOptimizer(params, disk=tmp_path, host_limit="512KiB")
    with pytest.raises(ValueError, match="offload_gradients"):
        mt.CPUOffloadOptimizer(params, disk=tmp_path, offload_gradients=True)
    with pytest.raises(memopt.StorageError, match="No such file or directory"):
        mt.CPUOffloadOptimizer(params, disk=tmp_path / "no" / "such")
    sgd = mt.CPUOffloadOptimizer(params, mt.SGD, disk=tmp_path, host_limit=LIMIT)
    fill(params, params, 1)
    sgd.step()
    before = [p.detach().clone() for p in params]
    sgd.param_groups[0]["momentum"] = 0.9
    with pytest.raises(RuntimeError, match="without a momentum"):
        sgd.step()
    assert all(map(same_bits, params, before))
    sgd.load_state_dict(sgd.state_dict())
    sgd.step()
    with pytest.raises(RuntimeError, match="no disk"):
        mt.CPUOffloadOptimizer(params).disk_stats()


def test_no_room_on_the_disk_changes_nothing(tmp_path):
    """Before the first step, when the file becomes as large as it will ever be, and while loading."""
    a, b, params, others = pair(torch.bfloat16, (tmp_path, "1MiB"))
    fill(params, others, 1)
    before = [p.detach().clone() for p in params]
    for _ in range(2):
        with pytest.raises(memopt.LimitReachedError, match="disk= allows no more"):
            a.step()
        assert all(map(same_bits, params, before))
    a, b, params, others = pair(torch.bfloat16, (tmp_path, "4MiB"))
    for step in range(2):
        fill(params, others, step)
        b.step()
        a.step()
    with pytest.raises(memopt.LimitReachedError, match="disk= allows no more"):
        a.load_state_dict(pair(torch.bfloat16, None)[1].state_dict())
    fill(params, others, 3)
    a.step()
    b.step()
    assert all(map(same_bits, params, others))
    assert_same_dicts(a.state_dict(), b.state_dict())


def test_damaged_bytes_are_noticed(tmp_path):
    """A step that cannot read a chunk ends; so do all later ones, until a dict is loaded."""
    a, b, params, others = pair(torch.bfloat16, tmp_path)
    fill(params, others, 1)
    a.step()
    saved = through_a_file(a.state_dict())
    fill(params, others, 2)
    for fd in os.listdir("/proc/self/fd"):
        path = "/proc/self/fd/" + fd
        if os.path.islink(path) and os.readlink(path).startswith(str(tmp_path)):
            with open(path, "r+b") as file:
                file.write(os.urandom(os.fstat(file.fileno()).st_size))
    with pytest.raises(memopt.CorruptError):
        a.step()
    for call in (a.step, a.state_dict):
        with pytest.raises(RuntimeError, match="a step ended in part|not the ones that were written"):
            call()
    a.load_state_dict(saved)
    b.load_state_dict(saved)
    fill(params, others, 2)
    a.step()
    b.step()
    assert all(map(same_bits, params, others))
    assert_same_dicts(a.state_dict(), b.state_dict())


def run(program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """A program of its own with this module's names."""
    here = pathlib.Path(__file__)
    head = "import sys; sys.path[:0] = [%r, %r]; from %s import *\n" % (
        str(here.parent),
        str(here.parent.parent),
        here.stem,
    )
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(program), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=300,
    )


def test_a_full_disk(tmp_path):
    """The system's limit of a file's size stands for it: at the first step nothing has changed; a
    failed write in a later one is reported, and nothing goes on from there."""
    pytest.importorskip("resource")
    result = run(
        """
        import resource
        def at_most(size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        a, b, params, others = pair(torch.bfloat16, sys.argv[1])
        fill(params, others, 1)
        before = [p.detach().clone() for p in params]
        at_most(1 << 20)
        for _ in range(2):
            with pytest.raises(memopt.StorageError, match="writing .* to the disk tier"):
                a.step()
            assert all(map(same_bits, params, before))
        at_most(resource.RLIM_INFINITY)
        a.step()
        b.step()
        assert all(map(same_bits, params, others))
        saved = through_a_file(a.state_dict())
        fill(params, others, 2)
        at_most(1 << 16)
        with pytest.raises(memopt.StorageError, match="writing .* to the disk tier"):
            a.step()
        at_most(resource.RLIM_INFINITY)
        for call in (a.step, a.state_dict):
            with pytest.raises(RuntimeError, match="ended in part.*Load a saved state dict"):
                call()
        for optimizer in (a, b):
            optimizer.load_state_dict(saved)
        fill(params, others, 2)
        a.step()
        b.step()
        assert all(map(same_bits, params, others))
        assert_same_dicts(a.state_dict(), b.state_dict())
        print("as it should be")
        """,
        tmp_path,
    )
    assert "as it should be" in result.stdout, result.stdout[-3000:]


def test_a_killed_process(tmp_path):
    """It leaves no file; another one goes on from the last saved dict with the same bits."""
    saved = tmp_path / "saved"
    (tmp_path / "disk").mkdir()
    result = run(
        """
        import threading, time
        a, b, params, others = pair(torch.bfloat16, sys.argv[1])
        for step in range(2):
            fill(params, others, step)
            a.step()
        torch.save(a.state_dict(), sys.argv[2])
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            a.step()
        """,
        tmp_path / "disk",
        saved,
    )
    assert result.returncode == -9, result.stdout
    assert not list((tmp_path / "disk").iterdir())
    a, b, params, others = pair(torch.bfloat16, tmp_path)
    for step in range(2):
        fill(params, others, step)
        b.step()
    a.load_state_dict(torch.load(saved))
    fill(params, others, 2)
    a.step()
    b.step()
    assert all(map(same_bits, params, others))
    assert_same_dicts(a.state_dict(), b.state_dict())


@pytest.mark.parametrize("layers", [24, pytest.param(256, marks=pytest.mark.long)])
def test_trains_in_the_stated_memory(layers, capsys):
    """Under a limit of 2 bytes a parameter, the stated 16 MiB and 80 MiB for threads and the like, also
    while a dict of 6 bytes a parameter is saved and loaded; in memory the same does not run."""
    (code, text), (other, why) = limited("disk", layers), limited("small", layers)
    with capsys.disabled():
        print("\n%d parameters: %s" % (layers << 20, text.split("\n")))
    assert code == 0, text
    parts = dict(line.split(": ") for line in text.strip().splitlines()[-5:])
    assert float(parts["last loss"]) < 0.7 * float(parts["first loss"])
    assert float(parts["held"]) <= 16.0
    assert other == 1 and re.search("memory|bad_alloc", why)


def test_states_that_a_rule_completes(tmp_path):
    """bitsandbytes' two means of AdEMAMix in one tensor, and a state from before RMSprop had a momentum."""
    p = torch.ones(5000).requires_grad_()
    mixed, plain = mt.optim.AdEMAMix([p], lr=1e-3), mt.optim.RMSprop([p], lr=1e-3)
    for optimizer in (mixed, plain):
        p.grad = torch.full_like(p, 0.5)
        optimizer.step()
    before = plain.state_dict()
    before["param_groups"][0]["momentum"] = 0.9
    for cls, saved, key in (
        (mt.optim.AdEMAMix, mt.optim.to_bitsandbytes(mixed), "exp_avg_slow"),
        (mt.optim.RMSprop, before, "momentum_buffer"),
    ):
        a = mt.CPUOffloadOptimizer([p.detach().clone().requires_grad_()], cls, disk=tmp_path, host_limit="4MiB")
        a.load_state_dict(saved)
        want = mixed.state[p][key] if cls is mt.optim.AdEMAMix else torch.zeros_like(p)
        assert torch.equal(a.state_dict()["state"][0][key], want)
