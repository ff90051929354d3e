"""memopt.torch.race(): each mistake is found in the wrong form of a program, and not in the mended one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import types

import pytest
import torch
from torch import nn

import cli_support
import json_schema
import memopt.torch as mt
from race_cases import check

N = 1000


def missing_wait(mended):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        batch = torch.full((N,), 2.0, device="cuda")
    if mended:
        torch.cuda.current_stream().wait_stream(side)
    return batch + 1


def missing_record_stream(mended):
    side, batch = torch.cuda.Stream(), torch.ones(N, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        other = batch * 2
    if mended:
        batch.record_stream(side)
    del batch
    torch.zeros(N, device="cuda")
    return other


def read_before_event(mended):
    host, done = torch.empty(N, pin_memory=True), torch.cuda.Event()
    host.copy_(torch.ones(N, device="cuda"), non_blocking=True)
    done.record()
    if mended:
        done.synchronize()
    return host.sum()


def read_of_to_cpu(mended):
    host = torch.ones(N, device="cuda").to("cpu", non_blocking=True)
    if mended:
        torch.cuda.synchronize()
    return host.tolist()


def pinned_rewritten(mended):
    host = torch.ones(N).pin_memory()
    batch = host.to("cuda", non_blocking=True)
    if mended:
        torch.cuda.current_stream().synchronize()
    host.fill_(3)
    return batch


def freed_by_resize(mended):
    """As FSDP frees a unit's parameters."""
    side, weights = torch.cuda.Stream(), torch.ones(N, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        other = weights * 2
    if mended:
        torch.cuda.current_stream().wait_stream(side)
    weights.untyped_storage().resize_(0)
    torch.zeros(N, device="cuda")
    return other


def backward_of_side(mended):
    """Backward runs on the forward's stream; what it makes is not there for the caller's before the engine's end."""
    side, seen = torch.cuda.Stream(), []
    x = torch.ones(N, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2

    def hook(gradient):
        stream = torch.cuda.current_stream() if mended else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            seen.append(gradient + 1)

    y.register_hook(hook)
    torch.cuda.current_stream().wait_stream(side)
    (y * 1).sum().backward() if mended else _backward_on(side, y)
    return x.grad + 1, seen


def _backward_on(side, y):
    with torch.cuda.stream(side):
        loss = (y * y).sum()
    loss.backward()


def peer_copy(mended):
    """A copy between devices waits on both sides; another stream of the second one does not."""
    there = torch.ones(N, device="cuda:0").to("cuda:1", non_blocking=True)
    side = torch.cuda.Stream(1)
    if mended:
        side.wait_stream(torch.cuda.current_stream(1))
    with torch.cuda.stream(side):
        return there + 1


def accelerator(mended):
    """The names that are no vendor's, and a generator of the device."""
    side, done = torch.Stream(device="cuda"), torch.Event()
    x = torch.rand(N, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    assert x.cpu().equal(torch.rand(N, generator=torch.Generator().manual_seed(3)))
    with side:
        y = x + 1
        done.record()
    if mended:
        torch.accelerator.current_stream().wait_event(done)
    return y + 1


def on_a_thread(mended):
    """A thread has current streams of its own, and what it does is seen."""
    side, batches = torch.cuda.Stream(), []

    def load():
        with torch.cuda.stream(side):
            batches.append(torch.ones(N, device="cuda"))
        assert torch.cuda.current_stream() == torch.cuda.default_stream()

    loader = threading.Thread(target=load)
    loader.start()
    loader.join()
    if mended:
        torch.cuda.current_stream().wait_stream(side)
    return batches[0] + 1


@contextlib.contextmanager
def group():
    """A group of one process; its name."""
    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD.group_name
    torch.distributed.destroy_process_group()


def collective(mended):
    """NCCL's stream is waited for by Work.wait()."""
    with group():
        x = torch.ones(N, device="cuda")
        work = torch.distributed.all_reduce(x, async_op=True)
        if mended:
            work.wait()
        x + 1


def functional_collective(mended):
    """Its result may be used behind wait_tensor()."""
    functions = torch.ops._c10d_functional
    with group() as name:
        y = functions.all_reduce(torch.ones(N, device="cuda"), "sum", name)
        if mended:
            functions.wait_tensor(y)
        y + 1
        functions.wait_tensor(y)


def compiled(mended):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.inference_mode():
        x = torch.ones(4, N // 4, device="cuda").t().reshape(N)
    if mended:
        torch.cuda.current_stream().wait_stream(side)
    return torch.compile(lambda x: x * 2)(x)


CASES = {
    missing_wait: "read after write",
    missing_record_stream: "freed in use",
    read_before_event: "host read after write",
    read_of_to_cpu: "host read after write",
    pinned_rewritten: "host write after read",
    freed_by_resize: "freed in use",
    backward_of_side: "read after write",
    peer_copy: "read after write",
    accelerator: "read after write",
    on_a_thread: "read after write",
    collective: "read after write",
    functional_collective: "read after write",
    compiled: "read after write",
}
SMALL = [*CASES][:6]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_wrong_form_is_found_and_the_mended_one_is_silent(case, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    check(case, {CASES[case]})


def test_a_report_names_bytes_lines_and_the_missing_call():
    with mt.race() as found:
        missing_wait(False)
    text = found.text()
    first, second = (missing_wait.__code__.co_firstlineno + n for n in (3, 6))
    assert "aten.add.Tensor on the default stream reads bytes 0 to 3999" in text
    assert "the default stream.wait_stream(stream 1)" in text and "race.md#read-after-write" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", found.text(color=True)) == text != found.text(color=True)
    assert "test_torch_race.py:%d in missing_wait" % first in text
    assert "test_torch_race.py:%d in missing_wait" % second in text


def test_a_report_of_backward_names_the_forward_and_what_a_hook_brought_back():
    """The engine records gradients of other streams, not what a hook of saved tensors makes on a stream of its own."""
    with mt.race() as found:
        side = torch.cuda.Stream()

        def unpack(host):
            with torch.cuda.stream(side):
                back = host.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            return back

        x = torch.ones(N, device="cuda", requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu().pin_memory(), unpack):
            y = x.pow(2).exp()
        y.sum().backward()
    (report,) = found.races
    assert report.kind == "freed in use" and "in the backward of ExpBackward0" in str(report), found.text()
    (line,) = [line for line in str(report).splitlines() if line.endswith("_brought_back")][-1:]
    assert ":%d in" % (sys._getframe().f_code.co_firstlineno + 14) in line, found.text()


def test_torch_is_as_before():
    import torch._dynamo  # changes torch by itself

    names = [(torch, n) for n in dir(torch)] + [(torch.cuda, n) for n in dir(torch.cuda)]
    names += [(torch.Tensor, n) for n in dir(torch.Tensor)]
    before = [(owner, n, owner.__dict__.get(n)) for owner, n in names]
    with mt.race():
        assert torch.ones(1, device="cuda").is_cuda
        with pytest.raises(RuntimeError, match="cannot be nested"):
            with mt.race():
                pass
    for owner, name, value in before:
        assert owner.__dict__.get(name) is value, name
    with mt.race() as found:
        missing_wait(False)
    assert len(found.races) == 1


def test_tensors_on_two_devices_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with mt.race():
        model, x = nn.Linear(8, 8), torch.ones(2, 8, device="cuda")
        with pytest.raises(RuntimeError, match="same device.*cuda:0 and cpu"):
            model(x)
        with pytest.raises(RuntimeError, match="same device.*cuda:0 and cuda:1"):
            x + torch.ones(2, 8, device="cuda:1")
        assert (x + torch.tensor(2.0)).device == torch.device("cuda:0")
        assert x[torch.tensor([0])].is_cuda
        assert nn.functional.one_hot(torch.tensor([1, 2], device="cuda")).is_cuda


def train(device, steps=3):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 16).pin_memory().to(device, non_blocking=True) if device == "cuda" else torch.randn(8, 16)
        with torch.autograd.graph.save_on_cpu(pin_memory=True) if device == "cuda" else torch.enable_grad():
            loss = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_training_computes_as_on_the_cpu_and_is_silent():
    expected = train("cpu")
    with mt.race() as found:
        losses = train("cuda")
    assert losses == expected
    assert not found.races and not found.unseen and found.stats["operations"] > 100, found.text()


def test_our_own_save_on_cpu_is_checked():
    """Its copies run in the order of the current stream: a tensor of another stream that is saved is found."""
    for mended in (True, False):
        with mt.race() as found:
            side, layer = torch.cuda.Stream(), nn.Linear(64, 64).cuda()
            with torch.cuda.stream(side):
                x = torch.ones(64, 64, device="cuda")
            if mended:
                torch.cuda.current_stream().wait_stream(side)
            with mt.save_on_cpu():
                loss = mt.checkpoint(layer, x).exp().sum()
            loss.backward()
        assert bool(found.races) != mended, found.text()
    assert "memopt.save_on_cpu on the default stream reads" in found.text()


def test_disjoint_columns_on_two_streams_are_no_race():
    with mt.race() as found:
        side, table = torch.cuda.Stream(), torch.zeros(16, 16, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            table[:, :8] += 1
        table[:, 8:] += 1
        torch.cuda.synchronize()
    assert not found.races, found.text()


def test_an_address_that_leaves_torch_is_named_as_unseen():
    with mt.race() as found:
        torch.ones(4, device="cuda").data_ptr()
    assert list(found.unseen) == ["uses of an address from Tensor.data_ptr() in " + sys._getframe().f_code.co_name]
    assert "not seen" in found.text()


def test_compiled_functions_run_as_written_and_triton_kernels_are_named(monkeypatch):
    class Kernel:
        fn = missing_wait

        def run(self, x):
            return x

    monkeypatch.setitem(sys.modules, "triton.runtime.jit", types.SimpleNamespace(JITFunction=Kernel))
    earlier = torch.compile(lambda x: x * 2)
    with mt.race() as found:
        x = torch.ones(4, device="cuda")
        later = torch.compile(lambda x: x * 2, mode="max-autotune")
        assert Kernel().run(earlier(x)).equal(later(x))
    assert found.unseen == {
        "fused kernels of torch.compile(): its operators run as written": 1,
        "launches of the Triton kernel missing_wait": 1,
    }
    assert found.stats["operations"] == 4  # ones, mul twice, equal


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.__name__)
def test_confirm_shows_the_race_as_wrong_numbers(case):
    values = []
    for mended in (False, True):
        with mt.race(confirm=True) as found:
            value = case(mended)
            torch.cuda.synchronize()
            values.append(torch.as_tensor(value).cpu())
        assert len(found.races) == (not mended), found.text()
    assert not values[0].equal(values[1]) and torch.isfinite(values[1]).all()


def test_confirm_trains_as_before():
    with mt.race(confirm=True) as found:
        losses = train("cuda")
    assert losses == train("cpu") and not found.races


SCRIPT = """
import sys
import torch

side, host = torch.cuda.Stream(), torch.empty(64, pin_memory=True)
x = torch.ones(64, device="cuda")
if "mended" in sys.argv:
    side.wait_stream(torch.cuda.current_stream())
    x.record_stream(side)
with torch.cuda.stream(side):
    host.copy_(x, non_blocking=True)
del x
y = torch.zeros(64, device="cuda")
print("ran on", y.device)
sys.exit(5)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


def test_the_command(script):
    wrong = cli_support.command("race", script)
    assert (wrong.returncode, wrong.stdout) == (3, "ran on cuda:0\n"), wrong.stderr
    mended = cli_support.command("race", "--json", script, "mended")
    assert mended.returncode == 5 and "ran on" in mended.stderr
    assert json.loads(mended.stdout)["races"] == []
    report = json.loads(cli_support.command("race", "--json", "--stacks", "1", script).stdout)
    json_schema.validate(report, json_schema.load("race"))
    assert [race["kind"] for race in report["races"]] == ["read after write", "freed in use"]
    for race in report["races"]:
        assert len(race["first"]["stack"]) == 1 and race["text"] in wrong.stderr


def test_the_plugin(tmp_path):
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            from torch.cuda import Stream
            import pytest, torch

            @pytest.mark.parametrize("mended", [False, True, False])
            def test_it(mended):
                side = Stream()
                with torch.cuda.stream(side):
                    x = torch.ones(8, device="cuda")
                if mended:
                    side.synchronize()
                x + 1
            """
        )
    )
    package = tmp_path / "memopt_race-0.dist-info"  # found as where pip has installed it
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: memopt_race\nVersion: 0\n")
    (package / "entry_points.txt").write_text("[pytest11]\nmemopt_race = memopt_command.pytest_race\n")
    environment = cli_support.environment()
    environment["PYTHONPATH"] = str(tmp_path) + os.pathsep + environment.get("PYTHONPATH", "")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    for option, last in (("--race", "2 failed, 1 passed"), (None, "3 failed")):
        result = subprocess.run(
            [sys.executable, *words, *([option] if option else [])],
            env=environment, cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert last in result.stdout, result.stdout
        assert ("RACE (read after write)" in result.stdout) == bool(option)


def test_without_torch_the_command_says_what_to_install(tmp_path, script):
    result = cli_support.command("race", script, PYTHONPATH=cli_support.without(tmp_path, "torch"))
    assert result.returncode == 1 and "pip install torch" in result.stderr
