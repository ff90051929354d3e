"""DDP, and checkpoint and save_on_cpu in DDP and FSDP2."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt
from distributed_support import Group, assert_same_values, device_of, mesh_of, whole_parameters
from optim_support import KINDS, make, same_bits


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


class _Host(mt.CPUOffloadOptimizer):
    """Whose gradients and parameters go through buffers, also those of the CPU."""

    @staticmethod
    def _is_staged(p: Any) -> bool:
        return True


def _ddp(rank: int, backend: str, kind: str, views: bool, accumulate: bool, where: str) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    device = device_of(rank, backend)
    model = torch.nn.parallel.DistributedDataParallel(_network().to(device), gradient_as_bucket_view=views)
    cls, own, _, _ = KINDS[kind]
    if where == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), cls, lr=1e-2, **own)
    elif where == "host":
        optimizer = _Host(model.parameters(), cls, lr=1e-2, **own)
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
    "kind, views, accumulate, where",
    [
        ("AdamW", False, False, "here"),
        ("AdamW4bit", True, True, "here"),
        ("SGD8bit", False, True, "here"),
        ("Lion", True, False, "zero"),
        ("AdamW8bit", True, False, "zero"),
        ("AdamW8bit", True, True, "host"),
    ],
)
def test_ddp_takes_the_steps_of_one_process(two: Group, kind: str, views: bool, accumulate: bool, where: str) -> None:
    """Gradients that are views of DDP's buckets at any offset, no_sync, the optimizer on the host,
    and ZeroRedundancyOptimizer, which leaves each process a part of the parameters."""
    alone = _halves_alone(kind, accumulate)
    first, second = two.run(_ddp, two.backend, kind, views, accumulate, where)
    assert_same_values(first, second)
    for name, value in alone.items():
        if two.backend == "gloo":
            assert same_bits(first[name], value), name
        else:
            torch.testing.assert_close(first[name], value, rtol=1e-3, atol=2e-3)


# --- savers in FSDP2 and DDP ----------------------------------------------------------------------


class Blocks(torch.nn.Module):
    """Blocks that may be checkpointed."""

    def __init__(self, save: bool) -> None:
        super().__init__()
        self.save = save
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(24, 50), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(50, 24)
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
def test_savers_in_sharded_and_replicated_modules_give_the_same_gradients(two: Group, wrapper: str) -> None:
    kept = two.run(_gradients, two.backend, wrapper, False)
    for save, offload in ((True, False), (False, True), (True, True)):
        saved = two.run(_gradients, two.backend, wrapper, save, offload)
        for a, b in zip(saved, kept):
            assert len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b))
