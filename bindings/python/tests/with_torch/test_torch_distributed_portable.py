"""portable_states(): checkpoints of coded states for processes that share parameters otherwise."""

from __future__ import annotations

from typing import Any, Dict

import pytest

pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt
from distributed_support import LAYOUTS, Group, assert_same_values, build, load, save, take_steps
from optim_support import make, same_bits

#: By how much coding a moment once may change it, relative to its norm.
BOUNDS = {"AdamW8bit": 0.02, "AdamW4bit": 0.2, "Lion8bit": 0.02, "AdamW": 0.0}


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
def test_columns_of_two_processes_go_to_one_and_back(two: Group, one: Group, kind: str, tmp_path: Any) -> None:
    first, second = str(tmp_path / "two"), str(tmp_path / "one")
    saved = two.run(save, "gloo", "columns", kind, first, portable=True)
    ((states, _, alone),) = one.run(load, "gloo", "network", kind, first, portable=True, again=second)
    _assert_near(saved[0][2], alone, BOUNDS[kind])
    keys = {key for state in states.values() for key in state}
    assert any(key[:-1] in ("absmax", "power", "companded", "scale") for key in keys) == (kind != "AdamW")
    for own, _, moments in two.run(load, "gloo", "columns", kind, second, portable=True):
        _assert_near(alone, moments, BOUNDS[kind])
        assert {key for state in own.values() for key in state} == keys


def test_a_mesh_of_two_dimensions_goes_to_one_process_and_to_two(
    four: Group, two: Group, one: Group, tmp_path: Any
) -> None:
    kind, path, again = "AdamW4bit", str(tmp_path / "four"), str(tmp_path / "two")
    saved = four.run(save, "gloo", "both ways", kind, path, portable=True)
    ((_, _, alone),) = one.run(load, "gloo", "rows", kind, path, portable=True)
    _assert_near(saved[0][2], alone, BOUNDS[kind])
    results = two.run(load, "gloo", "columns", kind, path, portable=True, again=again)
    for _, _, moments in results:
        _assert_near(saved[0][2], moments, BOUNDS[kind])
    for _, _, moments in four.run(load, "gloo", "both ways", kind, again, portable=True):
        _assert_near(results[0][2], moments, BOUNDS[kind])


def test_another_optimizer_of_the_rule_takes_the_checkpoint(two: Group, one: Group, tmp_path: Any) -> None:
    path = str(tmp_path / "two")
    saved = two.run(save, "gloo", "columns", "AdamW8bit", path, portable=True)
    ((states, _, alone),) = one.run(load, "gloo", "network", "AdamW", path, portable=True)
    for name, state in saved[0][2].items():
        for key in ("exp_avg", "exp_avg_sq"):  # decoded exactly, and never coded again
            assert same_bits(state[key], alone[name][key])
            assert same_bits(state[key], states[name][key])


def test_without_processes_and_within_each_other() -> None:
    model, optimizer = build("network", "gloo", "AdamW4bit")
    another = LAYOUTS["network"]("gloo")
    other = make("SGD8bit", another.parameters(), lr=0.1, momentum=0.9, min_8bit_size=16)
    take_steps(model, optimizer, [1])
    coded = optimizer.state_dict()
    with mt.portable_states(optimizer, other):
        with mt.portable_states(optimizer):
            pass
        state = optimizer.state_dict()["state"]
        assert [sorted(state[i]) for i in range(4)] == [["exp_avg", "exp_avg_sq", "step"]] * 4
        assert other.state_dict()["state"] == {}
    with pytest.raises(KeyError), mt.portable_states(other):
        raise KeyError
    take_steps(another, other, [1])
    assert sorted(other.state_dict()["state"][0]) == ["momentum_buffer", "power1", "step"]
    after = optimizer.state_dict()
    for i in range(4):
        assert_same_values(after["state"][i], coded["state"][i])
