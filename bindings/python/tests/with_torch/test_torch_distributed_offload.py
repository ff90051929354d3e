"""Optimizers in FSDP2 with CPUOffloadPolicy: shards, gradients and states are on the host, where the
steps are made. Here the devices are the host as well, so what the policy changes are FSDP2's own paths:
parameters are copied in for a pass, gradients are copied out of the reduction."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import pytest
import torch

pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt

from distributed_support import Group, local_states, mesh_of, whole_parameters
from optim_support import KINDS, make, same_bits


@pytest.fixture
def processes(two: Group) -> Group:
    """Two of them; on GPUs the policy needs gloo beside NCCL, which the group does not have."""
    if two.backend != "gloo":
        pytest.skip("the shards of CPUOffloadPolicy are reduced over gloo")
    return two


KIND = pytest.mark.parametrize("kind", ["AdamW", "AdamW8bit", "AdamW4bit", "Adam8bit", "Lion8bit", "SGD8bit"])


def build(backend: str, kind: str, offload: bool, **options: Any) -> Tuple[Any, Any]:
    """A network in bf16 with fp32 shards, and its optimizer."""
    from torch.distributed import fsdp

    torch.manual_seed(3)
    layers = torch.nn.Linear(64, 130), torch.nn.GELU(), torch.nn.Linear(130, 67)
    model = torch.nn.Sequential(*layers)
    policy = fsdp.CPUOffloadPolicy(pin_memory=False) if offload else fsdp.OffloadPolicy()
    half = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (layers[0], layers[2], model):
        fsdp.fully_shard(layer, mesh=mesh_of(backend), mp_policy=half, offload_policy=policy)
    return model, make(kind, model.parameters(), min_8bit_size=100, **{"lr": 1e-2, **options})


def train(rank: int, model: Any, optimizer: Any, steps: List[int]) -> List[float]:
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(8, 64, generator=generator)
        loss = (model(x).float() - x.repeat(1, 2)[:, :67]).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _trained(rank: int, backend: str, kind: str, offload: bool) -> Any:
    model, optimizer = build(backend, kind, offload)
    losses = train(rank, model, optimizer, list(range(8)))
    assert all(p.device.type == "cpu" for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    return losses, whole_parameters(model), local_states(model, optimizer)


def assert_same(ones: Any, others: Any) -> None:
    for (losses, values, states), (their_losses, their_values, their_states) in zip(ones, others):
        assert losses == their_losses
        assert values.keys() == their_values.keys() and states.keys() == their_states.keys()
        for name, value in values.items():
            assert same_bits(value, their_values[name]), name
            for key, state in states[name].items():
                assert same_bits(state, their_states[name][key]), (name, key)


@KIND
def test_the_bits_are_those_of_shards_without_the_policy(processes: Group, kind: str) -> None:
    ours = processes.run(_trained, processes.backend, kind, True)
    assert_same(ours, processes.run(_trained, processes.backend, kind, False))
    for losses, _, states in ours:
        assert losses[-1] < losses[0]
        keys = {key for state in states.values() for key in state}
        coded = not keys.isdisjoint(("absmax1", "power1", "companded1"))
        assert coded == (kind in KINDS and kind.endswith("bit"))


def _resumed(rank: int, backend: str, kind: str, path: Optional[str], flat: bool) -> Any:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as helpers

    options = helpers.StateDictOptions(flatten_optimizer_state_dict=flat)
    model, optimizer = build(backend, kind, True)
    train(rank, model, optimizer, [0, 1, 2])
    if path is not None:
        weights, states = helpers.get_state_dict(model, optimizer, options=options)
        dcp.save({"weights": weights, "states": states}, checkpoint_id=path)
        model, optimizer = build(backend, kind, True, lr=1.0)
        train(rank, model, optimizer, [5])
        weights, states = helpers.get_state_dict(model, optimizer, options=options)
        dcp.load({"weights": weights, "states": states}, checkpoint_id=path)
        helpers.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states, options=options)
    losses = train(rank, model, optimizer, [3, 4])
    return losses, whole_parameters(model), local_states(model, optimizer)


@pytest.mark.parametrize("kind", ["AdamW", "AdamW8bit"])
@pytest.mark.parametrize("flat", [False, True])
def test_resuming_bit_for_bit(processes: Group, kind: str, flat: bool, tmp_path: Any) -> None:
    straight = processes.run(_resumed, processes.backend, kind, None, flat)
    assert_same(processes.run(_resumed, processes.backend, kind, str(tmp_path / "saved"), flat), straight)


def _wrapped(rank: int, backend: str) -> str:
    model, _ = build(backend, "AdamW8bit", True)
    try:
        mt.CPUOffloadOptimizer(model.parameters(), mt.AdamW8bit)
    except TypeError as error:
        return str(error)
    return ""


def test_the_optimizer_on_the_host_names_the_class_itself(processes: Group) -> None:
    for message in processes.run(_wrapped, processes.backend):
        assert "use AdamW8bit itself on shards" in message
