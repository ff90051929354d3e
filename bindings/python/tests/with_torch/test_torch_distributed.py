"""Optimizers in FSDP2: two processes compute what one does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt

from distributed_support import (
    ALIGNED,
    SHAPES,
    Group,
    Weights,
    error_of,
    mesh_of,
    set_gradients,
    sharded_model,
    steps_in,
    take_steps,
    whole_parameters,
)
from optim_support import KINDS, make, same_bits

# The longer names first, except of what is coded.
ONE_KINDS = ["AdamW", "Adam", "AdamWBf16", "Lion", "SGD"]
CODED = sorted(k for k in KINDS if k not in ONE_KINDS)
coded = pytest.mark.parametrize("kind", CODED)


@pytest.mark.parametrize("kind", ONE_KINDS)
def test_a_step_on_shards_without_blocks_is_that_of_one_process_bit_for_bit(two: Group, kind: str) -> None:
    seeds = [1, 2, 3]
    alone, _ = steps_in(0, "gloo", "weights", kind, seeds)
    for values, _ in two.run(steps_in, two.backend, "shards", kind, seeds):
        for name, value in alone.items():
            assert same_bits(values[name], value), name


def _schedule_free(rank: int, backend: str, sharded: bool) -> Any:
    """Parameters at the average, and after steps that follow it and a state dict."""
    model = sharded_model(backend) if sharded else Weights()
    optimizer = mt.AdamWScheduleFree(model.parameters(), lr=1e-2, warmup_steps=3)
    take_steps(model, optimizer, [1, 2])
    optimizer.eval()
    average = whole_parameters(model)
    resumed = mt.AdamWScheduleFree(model.parameters())
    resumed.load_state_dict(optimizer.state_dict())
    resumed.train()
    take_steps(model, resumed, [3])
    return average, whole_parameters(model)


def test_schedule_free_shards_hold_the_average_of_one_process(two: Group) -> None:
    alone = _schedule_free(0, "gloo", False)
    for values in two.run(_schedule_free, two.backend, True):
        for one, whole in zip(values, alone):
            for name, value in whole.items():
                assert same_bits(one[name], value), name


@coded
def test_shards_quantise_blocks_of_their_own(two: Group, kind: str) -> None:
    """Where blocks lie as in one process the result is the same to the bit; elsewhere it differs
    by less than what coding differs from 32-bit states. A parameter is coded or not by all of its
    elements, in every process alike, also in one that has none of them."""
    seeds = list(range(1, 6))
    alone, kept = steps_in(0, "gloo", "weights", kind, seeds)
    exact_kind = next(k for k in ONE_KINDS if kind.startswith(k))
    exact, _ = steps_in(0, "gloo", "weights", exact_kind, seeds)
    for values, states in two.run(steps_in, two.backend, "shards", kind, seeds):
        for name, state in states.items():
            assert {k: v.dtype for k, v in state.items()} == {k: v.dtype for k, v in kept[name].items()}
            assert int(state["step"]) == 5
        assert not same_bits(values["cut"], alone["cut"])
        for name, value in alone.items():
            if name in ALIGNED:
                assert same_bits(values[name], value), name
                continue
            error = (values[name] - value).double().norm()
            coding = (exact[name] - value).double().norm()
            assert error <= 1.5 * coding, (name, float(error), float(coding))


def _infinite_on_one_rank(rank: int, backend: str) -> Any:
    model = sharded_model(backend)
    before = whole_parameters(model)
    optimizer = make("AdamW8bit", model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(mesh_of(backend).device_type, init_scale=4.0)
    scaler.scale(torch.zeros((), device=mesh_of(backend).device_type))
    set_gradients(model, 1)
    if rank == 1:
        model.cut.grad.to_local()[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    same = all(same_bits(v, before[k]) for k, v in whole_parameters(model).items())
    steps = [int(state["step"]) for state in optimizer.state.values()]
    scale = scaler.get_scale()
    set_gradients(model, 2)
    scaler.step(optimizer)
    again = [int(state["step"]) for state in optimizer.state.values()]
    return same, steps, scale, again


def test_an_infinite_gradient_in_one_process_skips_the_step_in_all(two: Group) -> None:
    for same, steps, scale, again in two.run(_infinite_on_one_rank, two.backend):
        assert same and not any(steps) and scale == 2.0
        assert again == [1] * len(SHAPES)  # also of parameters that this process has nothing of


def _placed_otherwise(rank: int, backend: str) -> Any:
    from torch.distributed.tensor import DTensor, Partial

    model = sharded_model(backend)
    optimizer = make("AdamW", model.parameters())
    set_gradients(model, 1)
    before = whole_parameters(model)
    p = torch.nn.Parameter(DTensor.from_local(torch.ones(3, device=model.cut.device), mesh_of(backend)))
    optimizer.add_param_group({"params": [p]})
    p.grad = DTensor.from_local(torch.ones(3, device=model.cut.device), p.device_mesh, [Partial()], run_check=False)
    with pytest.raises(RuntimeError, match="gradient of parameter 0 of group 1 is placed"):
        optimizer.step()
    return all(same_bits(v, before[k]) for k, v in whole_parameters(model).items()), len(optimizer.state)


def test_a_gradient_placed_otherwise_than_its_parameter_is_refused(two: Group) -> None:
    for same, states in two.run(_placed_otherwise, two.backend):
        assert same and not states


# --- processes that fail --------------------------------------------------------------------------


def _fail_on(rank: int, backend: str, failing: int) -> None:
    model = sharded_model(backend)
    optimizer = make("AdamW8bit", model.parameters())
    set_gradients(model, 1)
    if rank == failing:
        optimizer.state[model.cut] = {"step": torch.zeros((), dtype=torch.int64)}
    optimizer.step()


def test_a_process_that_fails_says_why_and_no_other_waits(two: Group) -> None:
    """A step has no collective call, so that a state that is broken in one process stops it alone."""
    first, second = two.run(error_of, _fail_on, two.backend, 1)
    assert first == "" and "the state of parameter 1 of group 0 is without moments" in second
