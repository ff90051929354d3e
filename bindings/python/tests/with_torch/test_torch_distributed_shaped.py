"""AdEMAMix and Adafactor in FSDP2: two processes compute what one does, and take each other's states."""

from __future__ import annotations

import copy
from typing import Any, Dict

import pytest
import torch

pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt
from distributed_support import ALIGNED, LAYOUTS, Group, Weights, error_of, sharded_model, take_steps, whole_parameters
from optim_support import drawn, make

kinds = pytest.mark.parametrize("kind", ["AdEMAMix", "AdEMAMix8bit", "Adafactor", "LAMB8bit", "LARS"])


def _made(params: Any, kind: str) -> Any:
    return make(kind, params, lr=1e-2, **({"t_beta3": 4} if kind == "AdEMAMix" else {}))


def _plain(value: Any) -> Any:
    """A state dict without DTensors."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _run(rank: int, backend: str, sharded: bool, kind: str, saved: Any) -> Any:
    """Parameters after three steps; the states; parameters after `saved` and two steps more."""
    model = sharded_model(backend) if sharded else Weights()
    optimizer = _made(model.parameters(), kind)
    take_steps(model, optimizer, [1, 2, 3])
    first, states = whole_parameters(model), optimizer.state_dict()
    states = copy.deepcopy({**states, "state": _plain(states["state"])})
    resumed = _made(model.parameters(), kind)
    resumed.load_state_dict(saved or optimizer.state_dict())
    take_steps(model, resumed, [4, 5])
    return first, states, whole_parameters(model)


def _near(some: Dict[str, Any], others: Dict[str, Any], kind: str) -> None:
    """As far as fp32 sums in another order, or blocks that begin elsewhere, differ."""
    for name, value in others.items():
        bound = 2e-3 if kind.endswith("8bit") and name not in ALIGNED else 1e-6
        torch.testing.assert_close(some[name], value, rtol=bound, atol=bound)


@kinds
def test_two_processes_step_and_resume_as_one(two: Group, kind: str) -> None:
    alone = _run(0, "gloo", False, kind, None)
    own = two.run(_run, two.backend, True, kind, None)
    crossed = two.run(_run, two.backend, True, kind, alone[1])
    for first, _, second in own + crossed:
        _near(first, alone[0], kind)
        _near(second, alone[2], kind)
    _near(_run(0, "gloo", False, kind, own[0][1])[2], alone[2], kind)


def _elsewhere(rank: int, backend: str, layout: str, kind: str) -> None:
    model = LAYOUTS[layout](backend)
    _made(model.parameters(), kind)


def test_adafactor_takes_rows_alone(two: Group) -> None:
    for text in two.run(error_of, _elsewhere, two.backend, "columns", "Adafactor"):
        assert "Adafactor takes shards of dimension 0" in text


def _stack(rank: int, backend: str, sharded: bool) -> Any:
    """A stack of matrices, of which the second process has one of three."""
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(drawn(((3, 5, 7),))[0].detach())
    if sharded:
        from torch.distributed.fsdp import fully_shard

        from distributed_support import mesh_of

        fully_shard(module, mesh=mesh_of(backend))
    optimizer = mt.Adafactor(module.parameters())
    take_steps(module, optimizer, [1, 2, 3])
    return whole_parameters(module)["p"]


def test_a_stack_of_matrices_is_cut_between_them(two: Group) -> None:
    alone = _stack(0, "gloo", False)
    for value in two.run(_stack, two.backend, True):
        torch.testing.assert_close(value, alone, rtol=1e-6, atol=1e-6)
