"""Meshes of two dimensions: four processes of which pairs hold the same shards, or in which
matrices are cut both ways (tensor parallel and fully_shard); and clipping by all kinds of norms."""

from __future__ import annotations

import math
from typing import Any, List

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt  # noqa: E402
from distributed_support import (  # noqa: E402
    ALIGNED,
    Group,
    Weights,
    WorkerError,
    assert_same_values,
    local_states,
    set_gradients,
    sharded_model,
    take_steps,
    whole_parameters,
)
from optim_support import make, same_bits  # noqa: E402

NORMS = [1.0, 2.0, 3.0, math.inf]


def _mesh(*names: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


def _pairs() -> Any:
    """Weights in two shards, each in two processes."""
    from torch.distributed.fsdp import fully_shard

    model = Weights()
    fully_shard(model, mesh=_mesh("replicate", "shard"))
    return model


def _matrices() -> Any:
    """A small network."""
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 130), torch.nn.GELU(), torch.nn.Linear(130, 70)
    )


def _both_ways() -> Any:
    """Its matrices cut over one pair of processes and sharded over the other."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = _mesh("data", "tensor")
    model = _matrices()
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return model


def _in_two() -> Any:
    """The network in plain shards over all processes."""
    from torch.distributed.fsdp import fully_shard

    model = _matrices()
    fully_shard(model)
    return model


LAYOUTS = {
    "pairs": _pairs,
    "both ways": _both_ways,
    "shards": lambda: sharded_model("gloo"),
    "in two": _in_two,
}


def _build(layout: str, kind: str, lr: float = 1e-2) -> Any:
    model = LAYOUTS[layout]()
    return model, make(kind, model.parameters(), lr=lr, min_8bit_size=16)


# --- steps ----------------------------------------------------------------------------------------


def _steps(rank: int, layout: str, kind: str) -> Any:
    model, optimizer = _build(layout, kind)
    take_steps(model, optimizer, [1, 2, 3])
    return whole_parameters(model), local_states(model, optimizer)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "AdamW8bit", "AdamW4bit"])
def test_steps_of_replicated_shards(four: Group, kind: str) -> None:
    model = Weights()
    optimizer = make(kind, model.parameters(), lr=1e-2, min_8bit_size=16)
    take_steps(model, optimizer, [1, 2, 3])
    results = four.run(_steps, "pairs", kind)
    for values, _ in results:
        for name, value in whole_parameters(model).items():
            if kind in ("AdamW", "SGD") or name in ALIGNED:
                assert same_bits(values[name], value), name
            else:
                torch.testing.assert_close(values[name], value, atol=0.03, rtol=0.0)
    for shard in range(2):  # both processes that hold it
        assert_same_values(results[shard][1], results[2 + shard][1])


@pytest.mark.parametrize("kind", ["AdamW", "Lion", "AdamW8bit"])
def test_steps_of_matrices_cut_both_ways(four: Group, kind: str) -> None:
    model = _matrices()
    optimizer = make(kind, model.parameters(), lr=1e-2, min_8bit_size=16)
    take_steps(model, optimizer, [1, 2, 3])
    for values, states in four.run(_steps, "both ways", kind):
        assert states["0.weight"]["exp_avg"].numel() < 130 * 64 / 3
        for name, value in whole_parameters(model).items():
            if kind == "AdamW8bit":
                torch.testing.assert_close(values[name], value, atol=0.03, rtol=0.0)
            else:
                assert same_bits(values[name], value), name


def _train(rank: int, layout: str, kind: str) -> List[float]:
    model, optimizer = _build(layout, kind)
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
    LAYOUTS["alone"] = _matrices
    alone = _train(0, "alone", "AdamW8bit")
    assert alone[-1] < 0.5 * alone[0]
    for losses in four.run(_train, "both ways", "AdamW8bit"):
        assert losses == pytest.approx(alone, rel=0.02)


# --- clipping -------------------------------------------------------------------------------------


def _clip(
    rank: int, layout: str, norm_type: float, spoil: float = 0.0, careful: bool = False
) -> Any:
    model = LAYOUTS[layout]()
    set_gradients(model, 5)
    gradient = model.line.grad if layout in ("pairs", "shards") else model[0].weight.grad
    if spoil and rank == 1:
        gradient.to_local()[3] = spoil
    try:
        norm: Any = mt.clip_grad_norm_(
            model.parameters(), 0.01, norm_type=norm_type, error_if_nonfinite=careful
        )
    except RuntimeError as error:
        return str(error), None
    return norm.full_tensor(), [p.grad.full_tensor() for p in model.parameters()]


def _clip_alone(model: Any, norm_type: float) -> Any:
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
@pytest.mark.parametrize("layout", ["pairs", "both ways"])
def test_norms_over_two_dimensions(four: Group, layout: str, norm_type: float) -> None:
    alone = _clip_alone(Weights() if layout == "pairs" else _matrices(), norm_type)
    _assert_clipped(four.run(_clip, layout, norm_type), alone)


@pytest.mark.parametrize("norm_type", NORMS)
def test_norms_where_a_process_has_nothing_of_a_parameter(two: Group, norm_type: float) -> None:
    _assert_clipped(two.run(_clip, "shards", norm_type), _clip_alone(Weights(), norm_type))


@pytest.mark.parametrize("spoil", [math.nan, math.inf])
def test_the_largest_element_of_all_is_not_finite(two: Group, spoil: float) -> None:
    for norm, _ in two.run(_clip, "shards", math.inf, spoil):
        assert norm.isnan() if math.isnan(spoil) else norm == spoil
    for text, _ in two.run(_clip, "shards", math.inf, spoil, True):
        assert "order inf" in text and "non-finite" in text


# --- checkpoints ----------------------------------------------------------------------------------


def _save(rank: int, layout: str, kind: str, path: str) -> Any:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = _build(layout, kind)
    take_steps(model, optimizer, [1, 2, 3])
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"weights": weights, "states": states}, checkpoint_id=path)
    kept = local_states(model, optimizer)
    take_steps(model, optimizer, [4, 5])
    return kept, whole_parameters(model)


def _load(rank: int, layout: str, kind: str, path: str, again: str = "") -> Any:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = _build(layout, kind, 0.5)
    weights, states = get_state_dict(model, optimizer)
    whole = {"weights": weights, "states": states}
    dcp.load(whole, checkpoint_id=path)
    set_state_dict(
        model, optimizer, model_state_dict=whole["weights"], optim_state_dict=whole["states"]
    )
    kept = local_states(model, optimizer)
    if again:
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"weights": weights, "states": states}, checkpoint_id=again)
    take_steps(model, optimizer, [4, 5])
    return kept, whole_parameters(model)


@pytest.mark.parametrize(
    "layout, other", [("pairs", "shards"), ("both ways", "in two")], ids=["pairs", "both ways"]
)
@pytest.mark.parametrize("kind", ["AdamW", "AdamW8bit", "AdamW4bit"])
def test_a_checkpoint_of_two_dimensions_goes_to_one_and_back(
    four: Group, two: Group, layout: str, other: str, kind: str, tmp_path: Any
) -> None:
    """In the same layout, and where states have 32 bits or the shards are the same, bit for bit.
    Codes of rows that are cut go to the same layout only; anything else is refused."""
    first, second = str(tmp_path / "four"), str(tmp_path / "two")
    saved = four.run(_save, layout, kind, first)
    for (states, values), (states_again, values_again) in zip(
        saved, four.run(_load, layout, kind, first)
    ):
        assert_same_values(states, states_again)
        assert_same_values(values, values_again)
    if kind != "AdamW" and layout == "both ways":  # codes of pieces of rows stay what they are
        with pytest.raises(WorkerError, match="Size mismatch .*2.weight.exp_avg"):
            two.run(_load, other, kind, first)
        return
    for _, values in two.run(_load, other, kind, first, second):
        for name, value in saved[0][1].items():
            assert same_bits(values[name], value), name
    for (states, values), (states_again, values_again) in zip(
        saved, four.run(_load, layout, kind, second)
    ):
        assert_same_values(states, states_again)
        assert_same_values(values, values_again)
