"""Optimizers in FSDP2: states through torch.distributed.checkpoint, and resharded."""

from __future__ import annotations

import copy
from typing import Any, Dict

import pytest
import torch

pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

from distributed_support import (
    ALIGNED,
    SHAPES,
    Group,
    Weights,
    assert_same_values,
    device_of,
    error_of,
    load,
    local_states,
    mesh_of,
    save,
    sharded_model,
    take_steps,
)
from optim_support import KINDS, make, same_bits


@pytest.mark.parametrize(
    "kind, flat", [(kind, False) for kind in sorted(KINDS)] + [("AdamW8bit", True), ("AdamW4bit", True)]
)
def test_a_checkpoint_of_the_same_layout_comes_back_bit_for_bit(
    two: Group, kind: str, flat: bool, tmp_path: Any
) -> None:
    path = str(tmp_path / "checkpoint")
    saved = two.run(save, two.backend, "shards", kind, path, flat=flat)
    loaded = two.run(load, two.backend, "shards", kind, path, flat=flat)
    for (states, values, _), (states_again, values_again, _) in zip(saved, loaded):
        assert_same_values(states, states_again)
        assert_same_values(values, values_again)


@pytest.mark.parametrize("layout", ["split", "split16"])
def test_split_weights_are_resharded_exactly(layout: str, two: Group, one: Group, tmp_path: Any) -> None:
    """The residuals of bf16 shards, through a checkpoint of one process and back."""
    first, second = str(tmp_path / "two"), str(tmp_path / "one")
    saved = two.run(save, "gloo", layout, "AdamW8bit", first)
    one.run(load, "gloo", layout, "AdamW8bit", first, again=second)
    back = two.run(load, "gloo", layout, "AdamW8bit", second)
    kept = "weight_residual"
    for (states, *_), (again, *_) in zip(saved, back):
        assert all(same_bits(states[name][kept], again[name][kept]) for name in SHAPES)
    assert sum(int((s["aligned"][kept] != 0).sum()) for s, *_ in saved) > 100


def _floats(kind: str, state: Dict[str, Any], shape: Any) -> Dict[str, Any]:
    """The moments of a state of one process, decoded."""
    optimizer = make(kind, [torch.nn.Parameter(torch.zeros(shape))])
    from memopt.torch.optim import _load

    read = optimizer._place(optimizer.param_groups[0]["params"][0], "it").read(state)
    return {
        str(i): m.floats(torch.Size(shape)) if isinstance(m, _load.Codes) else m for i, m in enumerate(read.moments)
    }


@pytest.mark.parametrize("kind", ["AdamW", "AdamWBf16", "AdamW8bit", "AdamW8bitDynamic", "AdamW4bit", "SGD8bit"])
def test_a_checkpoint_is_resharded_from_two_processes_to_one_and_back(
    two: Group, one: Group, kind: str, tmp_path: Any
) -> None:
    """Exactly with 32-bit states and where blocks lie alike; elsewhere decoded exactly and
    quantised once."""
    first, second = str(tmp_path / "two"), str(tmp_path / "one")
    saved = two.run(save, two.backend, "shards", kind, first)
    ((states, *_),) = one.run(load, "gloo", "shards", kind, first, again=second)
    back = two.run(load, two.backend, "shards", kind, second)
    for name, shape in SHAPES.items():
        alone = _floats(kind, states[name], shape)
        parts = [_floats(kind, s[name], _part(r, shape)) for r, (s, *_) in enumerate(saved)]
        twice = [_floats(kind, s[name], _part(r, shape)) for r, (s, *_) in enumerate(back)]
        assert all(int(s[name]["step"]) == 3 for s, *_ in saved + back)
        assert int(states[name]["step"]) == 3
        for key, moment in alone.items():
            before = torch.cat([p[key] for p in parts])
            after = torch.cat([p[key] for p in twice])
            if kind in ("AdamW", "AdamWBf16") or name in ALIGNED:
                assert same_bits(before, moment) and same_bits(after, moment), (name, key)
                continue
            bound = {"AdamW4bit": 0.2}.get(kind, 0.02)
            scale = float(before.norm())
            assert 0 < float((moment - before).norm()) < bound * scale, (name, key)
            assert float((after - moment).norm()) < bound * scale, (name, key)
        if name in ALIGNED:
            for (s, *_), (t, *_) in zip(saved, back):
                assert_same_values(s[name], t[name])


def _part(rank: int, shape: Any) -> Any:
    rows = -(-shape[0] // 2)
    return (min(rows, shape[0] - rank * rows), *shape[1:])


def _columns(rank: int, backend: str, kind: str) -> Any:
    """A parameter cut over its columns, unevenly: its state dict into another optimizer."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = mesh_of(backend)
    models = []
    for _ in range(2):
        model = torch.nn.Module()
        value = torch.linspace(-1, 1, 9 * 1001).reshape(9, 1001)
        part = distribute_tensor(value, mesh, [Shard(1)], src_data_rank=None)
        model.register_parameter("columns", torch.nn.Parameter(part))
        models.append(model)
    first, second = (make(kind, m.parameters(), lr=1e-2) for m in models)
    take_steps(models[0], first, [1, 2])
    second.load_state_dict(first.state_dict())
    return local_states(models[0], first), local_states(models[1], second)


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW4bit"])
def test_states_of_columns_come_back_bit_for_bit(two: Group, kind: str) -> None:
    for saved, loaded in two.run(_columns, two.backend, kind):
        assert saved["columns"]["exp_avg"].any()
        assert_same_values(saved, loaded)


def _full_dict(rank: int, backend: str, kind: str) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    model = sharded_model(backend)
    optimizer = make(kind, model.parameters(), lr=1e-2)
    take_steps(model, optimizer, [1, 2, 3])
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_optimizer_state_dict(model, optimizer, options=options), local_states(model, optimizer)


def _take_full_dict(rank: int, backend: str, kind: str, whole: Any, broadcast: bool = False) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    model = sharded_model(backend)
    optimizer = make(kind, model.parameters(), lr=1e-2)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
    whole = {} if broadcast and rank else whole
    set_optimizer_state_dict(model, optimizer, whole, options=options)
    return local_states(model, optimizer)


@pytest.mark.parametrize("kind", ["AdamW", "AdamWBf16", "AdamW8bit", "AdamW8bitDynamic", "AdamW4bit"])
def test_a_full_state_dict_goes_to_a_plain_model_and_back(two: Group, kind: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    (whole, first), (_, second) = two.run(_full_dict, two.backend, kind)
    again = two.run(_take_full_dict, two.backend, kind, whole)
    assert_same_values(first, again[0])  # gathered and distributed: nothing was quantised
    assert_same_values(second, again[1])
    again = two.run(_take_full_dict, two.backend, kind, whole, True)
    assert_same_values(first, again[0])
    assert_same_values(second, again[1])
    model = Weights()
    optimizer = make(kind, model.parameters(), lr=1e-2)
    set_optimizer_state_dict(model, optimizer, whole)
    states = local_states(model, optimizer)
    for name in ALIGNED:
        for key, value in _floats(kind, states[name], SHAPES[name]).items():
            parts = [_floats(kind, s[name], _part(r, SHAPES[name]))[key] for r, s in enumerate((first, second))]
            assert same_bits(torch.cat(parts), value), (name, key)
    plain = get_optimizer_state_dict(model, optimizer)
    for rank, taken in enumerate(two.run(_take_full_dict, two.backend, kind, plain)):
        for name in ALIGNED:
            assert_same_values(taken[name], (first, second)[rank][name])


@pytest.mark.parametrize("pair", [("AdamW8bit", "AdamW"), ("AdamW", "AdamW8bit")])
def test_codes_are_never_taken_for_values_nor_values_for_codes(two: Group, pair: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "checkpoint")
    two.run(save, two.backend, "shards", pair[0], path)
    for text in two.run(error_of, load, two.backend, "shards", pair[1], path):
        assert "Size mismatch" in text or "Missing key" in text


def _flattened(rank: int, backend: str, kind: str, original: bool) -> Any:
    """FullyShardedDataParallel's whole state dict, before and after another optimizer took it."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    network = torch.nn.Sequential(torch.nn.Linear(90, 101), torch.nn.Linear(101, 7))
    model = FullyShardedDataParallel(network, use_orig_params=original, device_id=device_of(rank, backend))
    model(torch.ones(3, 90, device=device_of(rank, backend))).square().mean().backward()
    first, second = (make(kind, model.parameters(), lr=1e-2) for _ in range(2))
    first.step()
    whole = FullyShardedDataParallel.optim_state_dict(model, first)
    second.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(model, second, copy.deepcopy(whole)))
    again = FullyShardedDataParallel.optim_state_dict(model, second)
    kept = [v.dtype for s in second.state.values() for k, v in s.items() if "step" not in k]
    return whole["state"], again["state"], torch.uint8 in kept


@pytest.mark.parametrize("kind, original", [("AdamW8bit", True), ("SGD8bit", False)])
def test_fully_sharded_data_parallel_gathers_decoded_states(two: Group, kind: str, original: bool) -> None:
    for whole, again, coded in two.run(_flattened, two.backend, kind, original):
        assert coded
        for name, shape in (("0.weight", (101, 90)), ("1.bias", (7,))):
            for key in whole[name].keys() - {"step"}:
                before, after = whole[name][key], again[name][key]
                assert before.shape == shape and before.dtype is torch.float32
                assert 0 < float(before.norm())
                assert float((after - before).norm()) < 0.02 * float(before.norm())
