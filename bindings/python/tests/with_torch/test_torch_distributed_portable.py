"""portable_states(): checkpoints of coded states for processes that share parameters otherwise."""

from __future__ import annotations

from typing import Any, Dict

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt  # noqa: E402
from distributed_support import (  # noqa: E402
    Group,
    WorkerError,
    assert_same_values,
    local_states,
    take_steps,
)
from optim_support import make, same_bits  # noqa: E402

#: By how much coding a moment once may change it, relative to its norm.
BOUNDS = {"AdamW8bit": 0.02, "AdamWFp8": 0.04, "AdamW4bit": 0.2, "Lion8bit": 0.02, "AdamW": 0.0}


def _network() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 130), torch.nn.GELU(), torch.nn.Linear(130, 70)
    )


def _by_columns() -> Any:
    """Matrices sharded over their columns."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    model = _network()
    fully_shard(model, shard_placement_fn=lambda p: Shard(1 if p.dim() > 1 else 0))
    return model


def _by_rows() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = _network()
    fully_shard(model)
    return model


def _both_ways() -> Any:
    """Tensor parallel over one pair of processes and sharded over the other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = _network()
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return model


LAYOUTS = {"columns": _by_columns, "rows": _by_rows, "both ways": _both_ways, "plain": _network}


def _build(layout: str, kind: str) -> Any:
    model = LAYOUTS[layout]()
    return model, make(kind, model.parameters(), lr=1e-2, min_8bit_size=16)


def _whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _moments(model: Any, optimizer: Any) -> Dict[str, Any]:
    """The decoded states of the whole model, by parameter and key."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    with mt.optim.portable_states(optimizer):
        states = get_optimizer_state_dict(model, optimizer)["state"]
    return {
        name: {key: _whole(value).clone() for key, value in state.items()}
        for name, state in states.items()
    }


def _save(rank: int, layout: str, kind: str, path: str) -> Any:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = _build(layout, kind)
    take_steps(model, optimizer, [1, 2, 3])
    before = local_states(model, optimizer)
    with mt.optim.portable_states(optimizer):
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"weights": weights, "states": states}, checkpoint_id=path)
    for name, state in states["state"].items():
        shard = dict(model.named_parameters())[name]
        for key in state:  # nobody has more than what is his
            if key != "step":
                own = getattr(state[key], "_local_tensor", state[key])
                assert own.shape == getattr(shard, "_local_tensor", shard).shape
                assert own.dtype is torch.float32
    assert_same_values(before, local_states(model, optimizer))
    return _moments(model, optimizer), before


def _load(rank: int, layout: str, kind: str, path: str, again: str = "") -> Any:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = _build(layout, kind)
    with mt.optim.portable_states(optimizer):
        weights, states = get_state_dict(model, optimizer)
        whole = {"weights": weights, "states": states}
        dcp.load(whole, checkpoint_id=path)
        set_state_dict(
            model, optimizer, model_state_dict=whole["weights"], optim_state_dict=whole["states"]
        )
        if again:
            weights, states = get_state_dict(model, optimizer)
            dcp.save({"weights": weights, "states": states}, checkpoint_id=again)
    result = _moments(model, optimizer), local_states(model, optimizer)
    take_steps(model, optimizer, [4, 5])
    return result


def _assert_near(one: Dict[str, Any], other: Dict[str, Any], bound: float) -> None:
    assert sorted(one) == sorted(other) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    for name, state in one.items():
        for key, value in state.items():
            if key == "step":
                assert int(value) == int(other[name][key]) == 3
                continue
            distance = float((value - other[name][key]).norm())
            assert float(value.norm()) > 0
            assert distance <= bound * float(value.norm()), (name, key, distance)


@pytest.mark.parametrize("kind", sorted(BOUNDS))
def test_columns_of_two_processes_go_to_one_and_back(
    two: Group, one: Group, kind: str, tmp_path: Any
) -> None:
    first, second = str(tmp_path / "two"), str(tmp_path / "one")
    saved = two.run(_save, "columns", kind, first)
    ((alone, states),) = one.run(_load, "plain", kind, first, second)
    _assert_near(saved[0][0], alone, BOUNDS[kind])
    keys = {key for state in states.values() for key in state}
    assert any(key[:-1] in ("absmax", "scale") for key in keys) == (kind != "AdamW")
    for moments, own in two.run(_load, "columns", kind, second):
        _assert_near(alone, moments, BOUNDS[kind])
        assert {key for state in own.values() for key in state} == keys


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW4bit"])
def test_a_mesh_of_two_dimensions_goes_to_one_process_and_to_two(
    four: Group, two: Group, one: Group, kind: str, tmp_path: Any
) -> None:
    path, again = str(tmp_path / "four"), str(tmp_path / "two")
    saved = four.run(_save, "both ways", kind, path)
    ((alone, _),) = one.run(_load, "rows", kind, path)
    _assert_near(saved[0][0], alone, BOUNDS[kind])
    results = two.run(_load, "columns", kind, path, again)
    for moments, _ in results:
        _assert_near(saved[0][0], moments, BOUNDS[kind])
    for moments, _ in four.run(_load, "both ways", kind, again):
        _assert_near(results[0][0], moments, BOUNDS[kind])


def test_another_optimizer_of_the_rule_takes_the_checkpoint(
    two: Group, one: Group, tmp_path: Any
) -> None:
    path = str(tmp_path / "two")
    saved = two.run(_save, "columns", "AdamW8bit", path)
    ((alone, states),) = one.run(_load, "plain", "AdamW", path)
    for name, state in saved[0][0].items():
        for key in ("exp_avg", "exp_avg_sq"):  # decoded exactly, and never coded again
            assert same_bits(state[key], alone[name][key])
            assert same_bits(state[key], states[name][key])


def test_what_was_saved_in_codes_is_refused(two: Group, one: Group, tmp_path: Any) -> None:
    """Both sides have to be within the context."""
    path = str(tmp_path / "two")
    two.run(_save_codes, path)
    with pytest.raises(WorkerError, match="Missing key|Size mismatch"):
        one.run(_load, "plain", "AdamW8bit", path)


def _save_codes(rank: int, path: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = _build("columns", "AdamW8bit")
    take_steps(model, optimizer, [1])
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"weights": weights, "states": states}, checkpoint_id=path)


def test_without_processes_and_within_each_other() -> None:
    model, optimizer = _build("plain", "AdamW4bit")
    another = _network()
    other = make("SGD8bit", another.parameters(), lr=0.1, momentum=0.9, min_8bit_size=16)
    take_steps(model, optimizer, [1])
    coded = optimizer.state_dict()
    with mt.optim.portable_states(optimizer, other):
        with mt.optim.portable_states(optimizer):
            pass
        state = optimizer.state_dict()["state"]
        assert [sorted(state[i]) for i in range(4)] == [["exp_avg", "exp_avg_sq", "step"]] * 4
        assert other.state_dict()["state"] == {}
    with pytest.raises(KeyError), mt.optim.portable_states(other):
        raise KeyError
    take_steps(another, other, [1])
    assert sorted(other.state_dict()["state"][0]) == ["absmax1", "momentum_buffer", "step"]
    after = optimizer.state_dict()
    for i in range(4):
        assert_same_values(after["state"][i], coded["state"][i])
