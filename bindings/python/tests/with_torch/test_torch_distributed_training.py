"""DDP, and checkpoint, save_on_cpu and clipping in DDP and FSDP2; a program under torchrun."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt  # noqa: E402
from distributed_support import (  # noqa: E402
    TORCHRUN,
    Group,
    WorkerError,
    assert_same_values,
    device_of,
    environment,
    mesh_of,
    set_gradients,
    sharded_model,
    whole_parameters,
)
from optim_support import KINDS, make, same_bits  # noqa: E402


# --- DDP ------------------------------------------------------------------------------------------


def _network() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(24, 203), torch.nn.GELU(), torch.nn.Linear(203, 31), torch.nn.Linear(31, 5)
    )


def _batch(step: int) -> Any:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(8, 24, generator=generator), torch.randn(8, 5, generator=generator)


def _loss(model: Any, part: slice, step: int, device: Any) -> Any:
    x, y = (t[part].to(device) for t in _batch(step))
    return torch.nn.functional.mse_loss(model(x), y)


def _ddp(rank: int, backend: str, kind: str, views: bool, accumulate: bool, zero: bool) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    device = device_of(rank, backend)
    model = torch.nn.parallel.DistributedDataParallel(
        _network().to(device), gradient_as_bucket_view=views
    )
    if zero:
        cls, own, _, _ = KINDS[kind]
        optimizer = ZeroRedundancyOptimizer(model.parameters(), cls, lr=1e-2, **own)
    else:
        optimizer = make(kind, model.parameters(), lr=1e-2)
    half = slice(4 * rank, 4 * rank + 4)
    for step in range(3):
        optimizer.zero_grad()
        if accumulate:
            with model.no_sync():
                _loss(model, half, step + 10, device).backward()
        _loss(model, half, step, device).backward()
        optimizer.step()
    return whole_parameters(model.module)


def _halves_alone(kind: str, accumulate: bool) -> Any:
    """One process that computes both halves and takes the mean of their gradients."""
    model = _network()
    optimizer = make(kind, model.parameters(), lr=1e-2)
    for step in range(3):
        sums = []
        for rank in range(2):
            model.zero_grad()
            half = slice(4 * rank, 4 * rank + 4)
            for number in (step + 10, step) if accumulate else (step,):
                _loss(model, half, number, "cpu").backward()
            sums.append([p.grad / 2 for p in model.parameters()])
        for p, a, b in zip(model.parameters(), *sums):
            p.grad = a + b
        optimizer.step()
    return whole_parameters(model)


@pytest.mark.parametrize(
    "kind, views, accumulate, zero",
    [
        ("AdamW", False, False, False),
        ("AdamW8bit", True, False, False),
        ("AdamW4bit", True, True, False),
        ("SGD8bit", False, True, False),
        ("Lion", True, False, True),
        ("AdamW8bit", True, False, True),
    ],
)
def test_ddp_takes_the_steps_of_one_process(
    two: Group, kind: str, views: bool, accumulate: bool, zero: bool
) -> None:
    """Gradients that are views of DDP's buckets at any offset, no_sync, and
    ZeroRedundancyOptimizer, which leaves each process a part of the parameters."""
    alone = _halves_alone(kind, accumulate)
    first, second = two.run(_ddp, two.backend, kind, views, accumulate, zero)
    assert_same_values(first, second)
    for name, value in alone.items():
        if two.backend == "gloo":
            assert same_bits(first[name], value), name
        else:
            torch.testing.assert_close(first[name], value, rtol=1e-3, atol=2e-3)


def test_ddp_halves_equal_the_whole_batch_within_rounding(two: Group) -> None:
    model = _network()
    optimizer = make("AdamW8bit", model.parameters(), lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        _loss(model, slice(0, 8), step, "cpu").backward()
        optimizer.step()
    first, _ = two.run(_ddp, two.backend, "AdamW8bit", True, False, False)
    for name, value in whole_parameters(model).items():
        error = (first[name] - value).double().norm() / value.double().norm()
        assert error < 1e-3, (name, float(error))


def _different(rank: int, backend: str) -> None:
    model = torch.nn.Linear(4, 5 + rank).to(device_of(rank, backend))
    torch.nn.parallel.DistributedDataParallel(model)


def test_models_that_differ_between_processes_are_an_error_not_a_hang(two: Group) -> None:
    with pytest.raises(WorkerError, match="shape|size"):
        two.run(_different, two.backend)


# --- savers in FSDP2 and DDP ----------------------------------------------------------------------


class Blocks(torch.nn.Module):
    """Blocks that may be checkpointed."""

    def __init__(self, save: bool) -> None:
        super().__init__()
        self.save = save
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(24, 50),
                torch.nn.GELU(),
                torch.nn.Dropout(0.2),
                torch.nn.Linear(50, 24),
            )
            for _ in range(3)
        )

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + (mt.checkpoint(block, x) if self.save else block(x))
        return x


def _gradients(rank: int, backend: str, wrapper: str, save: bool, offload: bool = False) -> Any:
    import contextlib

    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(11)
    device = device_of(rank, backend)
    inner = Blocks(save).to(device)
    model: Any = inner
    if wrapper == "fsdp":
        mesh = mesh_of(backend)
        for block in inner.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        fully_shard(inner, mesh=mesh)
    else:
        model = torch.nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=True)
    torch.manual_seed(50 + rank)
    x = torch.randn(6, 24, device=device, requires_grad=True)
    with mt.save_on_cpu() if offload else contextlib.nullcontext():
        loss = model(x).square().mean()
    loss.backward()
    grads = [p.grad for p in inner.parameters()]
    return [(g.full_tensor() if hasattr(g, "full_tensor") else g).cpu() for g in [*grads, x.grad]]


@pytest.mark.parametrize("wrapper", ["fsdp", "ddp"])
def test_checkpoint_in_sharded_and_replicated_modules_gives_the_same_gradients(
    two: Group, wrapper: str
) -> None:
    saved = two.run(_gradients, two.backend, wrapper, True)
    kept = two.run(_gradients, two.backend, wrapper, False)
    for a, b in zip(saved, kept):
        assert len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("wrapper", ["fsdp", "ddp"])
@pytest.mark.parametrize("save", [False, True])
def test_save_on_cpu_around_sharded_and_replicated_modules_gives_the_same_gradients(
    two: Group, wrapper: str, save: bool
) -> None:
    offloaded = two.run(_gradients, two.backend, wrapper, save, True)
    kept = two.run(_gradients, two.backend, wrapper, False)
    for a, b in zip(offloaded, kept):
        assert len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b))


def _clip(rank: int, backend: str, ours: bool) -> Any:
    model = sharded_model(backend)
    set_gradients(model, 5)
    clip = mt.clip_grad_norm_ if ours else torch.nn.utils.clip_grad_norm_
    norm: Any = clip(model.parameters(), 0.01)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return norm.cpu(), [p.grad.full_tensor().cpu() for p in model.parameters()]


def test_the_norm_of_sharded_gradients_is_that_of_all_shards(two: Group) -> None:
    for (norm, ours), (wanted, theirs) in zip(
        two.run(_clip, two.backend, True), two.run(_clip, two.backend, False)
    ):
        assert norm > 0.01 and torch.equal(norm, wanted)
        assert all(same_bits(a, b) for a, b in zip(ours, theirs))


# --- torchrun -------------------------------------------------------------------------------------

PROGRAM = """
import time, torch, torch.distributed as dist
import memopt.torch as mt
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(100, 101)
fully_shard(model)
optimizer = mt.AdamW8bit(model.parameters(), lr=1e-2)
x = torch.randn(32, 100)
losses = []
for _ in range(20):
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], losses
print("rank %d of %d is done" % (dist.get_rank(), dist.get_world_size()))
dist.barrier()
time.sleep(0.5)  # gloo's threads drop their last work; at exit torch 2.15 would abort
dist.destroy_process_group()
"""


def test_a_program_under_torchrun_trains_a_sharded_model(tmp_path: Any) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [*TORCHRUN, str(program)],
        env={**environment(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2 is done" in done.stdout and "rank 1 of 2 is done" in done.stdout
