"""Meshes of two dimensions: four processes of which pairs hold the same shards, or in which
matrices are cut both ways (tensor parallel and fully_shard); and clipping by all kinds of norms."""

from __future__ import annotations

import math
from typing import Any, List

import pytest
import torch

pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt
from distributed_support import (
    ALIGNED,
    LAYOUTS,
    Group,
    assert_same_values,
    build,
    error_of,
    load,
    save,
    set_gradients,
    steps_in,
)
from optim_support import same_bits

NORMS = [2.0, math.inf]  # the library's, and what is found here; torch knows the others


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["AdamW", "AdamW8bit", "AdamW4bit"])
@pytest.mark.parametrize("layout, alone", [("pairs", "weights"), ("both ways", "network")])
def test_steps(four: Group, layout: str, alone: str, kind: str) -> None:
    """As in one process: bit for bit with 32-bit states and where blocks lie alike."""
    expected, states = steps_in(0, "gloo", alone, kind, [1, 2, 3])
    results = four.run(steps_in, "gloo", layout, kind, [1, 2, 3])
    for values, own in results:
        for name, value in expected.items():
            if kind == "AdamW" or name in ALIGNED:
                assert same_bits(values[name], value), name
            else:
                torch.testing.assert_close(values[name], value, atol=0.03, rtol=0.0)
        name = next(iter(states))
        assert own[name]["exp_avg"].numel() < 0.6 * states[name]["exp_avg"].numel()
    if layout == "pairs":
        for shard in range(2):  # both processes that hold it
            assert_same_values(results[shard][1], results[2 + shard][1])


def _train(rank: int, layout: str, kind: str) -> List[float]:
    model, optimizer = build(layout, "gloo", kind)
    losses = []
    for _ in range(4):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(7))
        with mt.save_on_cpu(min_bytes=1):
            loss = mt.checkpoint(model, x).square().mean()
        loss.backward()
        mt.clip_grad_norm_(model.parameters(), 0.05, norm_type=math.inf)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_training_of_matrices_cut_both_ways(four: Group) -> None:
    alone = _train(0, "network", "AdamW8bit")
    assert alone[-1] < 0.5 * alone[0]
    for losses in four.run(_train, "both ways", "AdamW8bit"):
        assert losses == pytest.approx(alone, rel=0.02)


# --- clipping -------------------------------------------------------------------------------------


def _clip(rank: int, layout: str, norm_type: float, spoil: float = 0.0, careful: bool = False) -> Any:
    model = LAYOUTS[layout]("gloo")
    set_gradients(model, 5)
    if spoil and rank == 1:
        model.line.grad.to_local()[3] = spoil
    try:
        norm: Any = mt.clip_grad_norm_(model.parameters(), 0.01, norm_type=norm_type, error_if_nonfinite=careful)
    except RuntimeError as error:
        return str(error), None
    return norm.full_tensor(), [p.grad.full_tensor() for p in model.parameters()]


def _clip_alone(layout: str, norm_type: float) -> Any:
    model = LAYOUTS[layout]("gloo")
    set_gradients(model, 5)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type=norm_type)
    return norm, [p.grad for p in model.parameters()]


def _assert_clipped(results: List[Any], alone: Any) -> None:
    assert alone[0] > 0.01
    for norm, gradients in results:
        torch.testing.assert_close(norm, alone[0])
        for a, b in zip(gradients, alone[1]):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize("layout, alone", [("pairs", "weights"), ("both ways", "network")])
def test_norms_over_two_dimensions(four: Group, layout: str, alone: str, norm_type: float) -> None:
    _assert_clipped(four.run(_clip, layout, norm_type), _clip_alone(alone, norm_type))


@pytest.mark.parametrize("norm_type", NORMS)
def test_norms_where_a_process_has_nothing_of_a_parameter(two: Group, norm_type: float) -> None:
    _assert_clipped(two.run(_clip, "shards", norm_type), _clip_alone("weights", norm_type))


@pytest.mark.parametrize("spoil", [math.nan, math.inf])
def test_the_largest_element_of_all_is_not_finite(two: Group, spoil: float) -> None:
    for norm, _ in two.run(_clip, "shards", math.inf, spoil):
        assert norm.isnan() if math.isnan(spoil) else norm == spoil
    for text, _ in two.run(_clip, "shards", math.inf, spoil, True):
        assert "order inf" in text and "non-finite" in text


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout, other", [("pairs", "shards"), ("both ways", "rows")])
@pytest.mark.parametrize("kind", ["AdamW", "AdamW4bit"])
def test_a_checkpoint_of_two_dimensions_goes_to_one_and_back(
    four: Group, two: Group, layout: str, other: str, kind: str, tmp_path: Any
) -> None:
    """In the same layout, and where states have 32 bits or the shards are the same, bit for bit.
    Codes of rows that are cut go to the same layout only; anything else is refused."""
    first, second = str(tmp_path / "four"), str(tmp_path / "two")
    saved = four.run(save, "gloo", layout, kind, first)
    for (states, values, _), (states_again, values_again, _) in zip(saved, four.run(load, "gloo", layout, kind, first)):
        assert_same_values(states, states_again)
        assert_same_values(values, values_again)
    if kind != "AdamW" and layout == "both ways":  # codes of pieces of rows stay what they are
        for text in two.run(error_of, load, "gloo", other, kind, first):
            assert "Size mismatch" in text and "2.weight.exp_avg" in text
        return
    for _, values, _ in two.run(load, "gloo", other, kind, first, again=second):
        for name, value in saved[0][1].items():
            assert same_bits(values[name], value), name
    for (states, values, _), (states_again, values_again, _) in zip(
        saved, four.run(load, "gloo", layout, kind, second)
    ):
        assert_same_values(states, states_again)
        assert_same_values(values, values_again)
