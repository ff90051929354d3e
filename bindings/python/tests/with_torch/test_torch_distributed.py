"""Optimizers and checkpoints in DDP and FSDP2: two processes compute what one does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Dict, Iterator, List

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)
pytest.importorskip("torch.distributed.fsdp", reason="no fully_shard")

import memopt.torch as mt  # noqa: E402
from distributed_support import Group, WorkerError, environment, mesh_of  # noqa: E402
from optim_support import KINDS, make, same_bits  # noqa: E402

ONE_KINDS = ["AdamW", "Lion", "SGD"]
CODED = sorted(k for k in KINDS if k not in ONE_KINDS)
coded = pytest.mark.parametrize("kind", CODED)

#: By name what is to be sharded over two processes by rows.
SHAPES = {
    "aligned": (8, 768),  # every row is a whole number of blocks
    "cut": (5, 1003),  # 3 rows and 2; the boundary is inside a block
    "single": (1, 5001),  # nothing for the second process
    "halves": (6, 700),  # each shard alone is below min_8bit_size
    "line": (4099,),
    "small": (7,),
}
ALIGNED = ("aligned", "single", "small")  # blocks lie alike in two processes and in one


def _two(backend: str) -> Iterator[Group]:
    group = Group(2, backend)
    yield group
    group.close()


_nccl = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="torch sees fewer than two GPUs for NCCL"
)


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=_nccl)])
def two(request: pytest.FixtureRequest) -> Iterator[Group]:
    """Two processes."""
    yield from _two(request.param)


@pytest.fixture(scope="module")
def one() -> Iterator[Group]:
    """A process that is a group of its own."""
    group = Group(1, "gloo")
    yield group
    group.close()


# --- what runs in the processes, and in this one for comparison -----------------------------------


class Weights(torch.nn.Module):
    """Parameters of the given shapes that do not depend on the process."""

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        for name, shape in SHAPES.items():
            value = torch.randn(shape, generator=generator) * 0.5
            self.register_parameter(name, torch.nn.Parameter(value.to(device)))

    def forward(self, x: Any) -> Any:
        return sum((p * p).sum() for p in self.parameters()) * x


def _set_gradients(model: Any, seed: int) -> None:
    """Gradients that depend on the seed alone."""
    from torch.distributed.tensor import distribute_tensor

    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        grad = torch.randn(p.shape, generator=generator) * 0.01
        if hasattr(p, "placements"):
            grad = distribute_tensor(grad, p.device_mesh, p.placements, src_data_rank=None)
        p.grad = grad.to(p.dtype)


def _walk(model: Any, optimizer: Any, seeds: Any) -> None:
    for seed in seeds:
        _set_gradients(model, seed)
        optimizer.step()


def _whole(model: Any) -> Dict[str, Any]:
    """Parameters as one process sees them."""
    values = {}
    for name, p in model.named_parameters():
        value = p.detach()
        value = value.full_tensor() if hasattr(p, "placements") else value
        values[name] = value.cpu().clone()
    return values


def _sharded_model(backend: str) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of(backend)
    model = Weights(mesh.device_type)
    fully_shard(model, mesh=mesh)
    return model


def _local_states(model: Any, optimizer: Any) -> Dict[str, Any]:
    return {
        name: {k: v.cpu().clone() for k, v in optimizer.state[p].items()}
        for name, p in model.named_parameters()
    }


def _shard_and_walk(rank: int, backend: str, kind: str, seeds: List[int]) -> Any:
    model = _sharded_model(backend)
    optimizer = make(kind, model.parameters(), lr=1e-2)
    _walk(model, optimizer, seeds)
    return _whole(model), _local_states(model, optimizer)


def _walk_alone(kind: str, seeds: Any) -> Any:
    model = Weights()
    optimizer = make(kind, model.parameters(), lr=1e-2)
    _walk(model, optimizer, seeds)
    return model, optimizer


# --- FSDP2: steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ONE_KINDS)
def test_a_step_on_shards_with_32_bit_states_is_that_of_one_process_bit_for_bit(
    two: Group, kind: str
) -> None:
    seeds = [1, 2, 3]
    model, _ = _walk_alone(kind, seeds)
    for values, _ in two.run(_shard_and_walk, two.backend, kind, seeds):
        for name, value in _whole(model).items():
            assert same_bits(values[name], value), name


@coded
def test_shards_quantise_blocks_of_their_own(two: Group, kind: str) -> None:
    """Where blocks lie as in one process the result is the same to the bit; elsewhere it differs
    by less than what coding differs from 32-bit states."""
    seeds = list(range(1, 6))
    model, _ = _walk_alone(kind, seeds)
    exact, _ = _walk_alone(next(k for k in ONE_KINDS if kind.startswith(k)), seeds)
    for values, _ in two.run(_shard_and_walk, two.backend, kind, seeds):
        assert not same_bits(values["cut"], model.cut)
        for name, value in _whole(model).items():
            if name in ALIGNED:
                assert same_bits(values[name], value), name
                continue
            error = (values[name] - value).double().norm()
            coding = (_whole(exact)[name] - value).double().norm()
            assert error <= 1.5 * coding, (name, float(error), float(coding))


@coded
def test_sharding_does_not_change_what_states_are_kept_in(two: Group, kind: str) -> None:
    """A parameter is coded or not by all of its elements, in every process alike, also in one that
    has none of them."""
    model, optimizer = _walk_alone(kind, [1])
    alone = _local_states(model, optimizer)
    for _, states in two.run(_shard_and_walk, two.backend, kind, [1]):
        for name, state in states.items():
            assert list(state) == list(alone[name]), name
            for key, value in state.items():
                assert value.dtype == alone[name][key].dtype, (name, key)
            assert int(state["step"]) == 1


def _infinite_on_one_rank(rank: int, backend: str) -> Any:
    model = _sharded_model(backend)
    before = _whole(model)
    optimizer = make("AdamW8bit", model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(mesh_of(backend).device_type, init_scale=4.0)
    scaler.scale(torch.zeros((), device=mesh_of(backend).device_type))
    _set_gradients(model, 1)
    if rank == 1:
        model.cut.grad.to_local()[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    same = all(same_bits(v, before[k]) for k, v in _whole(model).items())
    steps = [int(state["step"]) for state in optimizer.state.values()]
    return same, steps, scaler.get_scale()


def test_an_infinite_gradient_in_one_process_skips_the_step_in_all(two: Group) -> None:
    for same, steps, scale in two.run(_infinite_on_one_rank, two.backend):
        assert same and not any(steps) and scale == 2.0


def _placed_otherwise(rank: int, backend: str) -> Any:
    from torch.distributed.tensor import DTensor, Partial

    model = _sharded_model(backend)
    optimizer = make("AdamW", model.parameters())
    _set_gradients(model, 1)
    before = _whole(model)
    p = torch.nn.Parameter(
        DTensor.from_local(torch.ones(3, device=model.cut.device), mesh_of(backend))
    )
    optimizer.add_param_group({"params": [p]})
    p.grad = DTensor.from_local(
        torch.ones(3, device=model.cut.device), p.device_mesh, [Partial()], run_check=False
    )
    with pytest.raises(RuntimeError, match="gradient of parameter 0 of group 1 is placed"):
        optimizer.step()
    return all(same_bits(v, before[k]) for k, v in _whole(model).items()), len(optimizer.state)


def test_a_gradient_placed_otherwise_than_its_parameter_is_refused(two: Group) -> None:
    for same, states in two.run(_placed_otherwise, two.backend):
        assert same and not states


# --- FSDP2: states through torch.distributed.checkpoint -------------------------------------------


def _states_by_name(model: Any, optimizer: Any) -> Dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    whole: Dict[str, Any] = get_optimizer_state_dict(model, optimizer)
    return whole


def _save(rank: int, backend: str, kind: str, path: str, flat: bool = False) -> Any:
    """Three steps, a checkpoint, two steps more."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    model = _sharded_model(backend)
    optimizer = make(kind, model.parameters(), lr=1e-2)
    _walk(model, optimizer, [1, 2, 3])
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, states = get_state_dict(model, optimizer, options=options)
    dcp.save({"weights": weights, "states": states}, checkpoint_id=path)
    kept = _local_states(model, optimizer)
    _walk(model, optimizer, [4, 5])
    return kept, _whole(model)


def _load(
    rank: int, backend: str, kind: str, path: str, flat: bool = False, again: Any = None
) -> Any:
    """Another model takes the checkpoint, saves it again if asked to, and goes on."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )

    model = _sharded_model(backend)
    optimizer = make(kind, model.parameters(), lr=0.5)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, states = get_state_dict(model, optimizer, options=options)
    whole = {"weights": weights, "states": states}
    dcp.load(whole, checkpoint_id=path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=whole["weights"],
        optim_state_dict=whole["states"],
        options=options,
    )
    kept = _local_states(model, optimizer)
    if again is not None:
        weights, states = get_state_dict(model, optimizer, options=options)
        dcp.save({"weights": weights, "states": states}, checkpoint_id=again)
    _walk(model, optimizer, [4, 5])
    return kept, _whole(model)


def _assert_same(a: Dict[str, Any], b: Dict[str, Any]) -> None:
    assert list(a) == list(b)
    for name, value in a.items():
        if isinstance(value, dict):
            _assert_same(value, b[name])
        else:
            assert same_bits(value, b[name]), name


@pytest.mark.parametrize(
    "kind, flat",
    [(kind, False) for kind in sorted(KINDS)] + [("AdamW8bit", True), ("AdamW4bit", True)],
)
def test_a_checkpoint_of_the_same_layout_comes_back_bit_for_bit(
    two: Group, kind: str, flat: bool, tmp_path: Any
) -> None:
    path = str(tmp_path / "checkpoint")
    saved = two.run(_save, two.backend, kind, path, flat)
    loaded = two.run(_load, two.backend, kind, path, flat)
    for (states, values), (states_again, values_again) in zip(saved, loaded):
        _assert_same(states, states_again)
        _assert_same(values, values_again)


def _floats(kind: str, state: Dict[str, Any], shape: Any) -> Dict[str, Any]:
    """The moments of a state of one process, decoded."""
    optimizer = make(kind, [torch.nn.Parameter(torch.zeros(shape))])
    from memopt.torch.optim import _load

    read = _load.read(
        state, optimizer._kind, optimizer._states, optimizer.param_groups[0]["params"][0], "it"
    )
    return {
        str(i): m.floats(torch.Size(shape)) if isinstance(m, _load.Codes) else m
        for i, m in enumerate(read.moments)
    }


@pytest.mark.parametrize("kind", ["AdamW", "AdamW8bit", "AdamW4bit", "AdamWFp8", "SGD8bit"])
def test_a_checkpoint_is_resharded_from_two_processes_to_one_and_back(
    two: Group, one: Group, kind: str, tmp_path: Any
) -> None:
    """Exactly with 32-bit states and where blocks lie alike; elsewhere decoded exactly and
    quantised once."""
    first, second = str(tmp_path / "two"), str(tmp_path / "one")
    saved = two.run(_save, two.backend, kind, first)
    ((states, _),) = one.run(_load, "gloo", kind, first, False, second)
    back = two.run(_load, two.backend, kind, second)
    for name, shape in SHAPES.items():
        alone = _floats(kind, states[name], shape)
        parts = [_floats(kind, s[name], _part(r, shape)) for r, (s, _) in enumerate(saved)]
        twice = [_floats(kind, s[name], _part(r, shape)) for r, (s, _) in enumerate(back)]
        assert all(int(s[name]["step"]) == 3 for s, _ in saved + back)
        assert int(states[name]["step"]) == 3
        for key, moment in alone.items():
            before = torch.cat([p[key] for p in parts])
            after = torch.cat([p[key] for p in twice])
            if kind == "AdamW" or name in ALIGNED:
                assert same_bits(before, moment) and same_bits(after, moment), (name, key)
                continue
            bound = {"AdamW4bit": 0.2, "AdamWFp8": 0.04}.get(kind, 0.02)
            scale = float(before.norm())
            assert 0 < float((moment - before).norm()) < bound * scale, (name, key)
            assert float((after - moment).norm()) < bound * scale, (name, key)
        if name in ALIGNED:
            for (s, _), (t, _) in zip(saved, back):
                _assert_same(s[name], t[name])


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
    _walk(models[0], first, [1, 2])
    second.load_state_dict(first.state_dict())
    return _local_states(models[0], first), _local_states(models[1], second)


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW4bit"])
def test_states_of_columns_come_back_bit_for_bit(two: Group, kind: str) -> None:
    for saved, loaded in two.run(_columns, two.backend, kind):
        assert saved["columns"]["exp_avg"].any()
        _assert_same(saved, loaded)


def _full_dict(rank: int, backend: str, kind: str) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    model = _sharded_model(backend)
    optimizer = make(kind, model.parameters(), lr=1e-2)
    _walk(model, optimizer, [1, 2, 3])
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_optimizer_state_dict(model, optimizer, options=options), _local_states(
        model, optimizer
    )


def _take_full_dict(rank: int, backend: str, kind: str, whole: Any, broadcast: bool = False) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    model = _sharded_model(backend)
    optimizer = make(kind, model.parameters(), lr=1e-2)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
    whole = {} if broadcast and rank else whole
    set_optimizer_state_dict(model, optimizer, whole, options=options)
    return _local_states(model, optimizer)


@pytest.mark.parametrize("kind", ["AdamW", "AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_a_full_state_dict_goes_to_a_plain_model_and_back(two: Group, kind: str) -> None:
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    (whole, first), (_, second) = two.run(_full_dict, two.backend, kind)
    again = two.run(_take_full_dict, two.backend, kind, whole)
    _assert_same(first, again[0])  # gathered and distributed: nothing was quantised
    _assert_same(second, again[1])
    again = two.run(_take_full_dict, two.backend, kind, whole, True)
    _assert_same(first, again[0])
    _assert_same(second, again[1])
    model = Weights()
    optimizer = make(kind, model.parameters(), lr=1e-2)
    set_optimizer_state_dict(model, optimizer, whole)
    states = _local_states(model, optimizer)
    for name in ALIGNED:
        for key, value in _floats(kind, states[name], SHAPES[name]).items():
            parts = [
                _floats(kind, s[name], _part(r, SHAPES[name]))[key]
                for r, s in enumerate((first, second))
            ]
            assert same_bits(torch.cat(parts), value), (name, key)
    plain = get_optimizer_state_dict(model, optimizer)
    for rank, taken in enumerate(two.run(_take_full_dict, two.backend, kind, plain)):
        for name in ALIGNED:
            _assert_same(taken[name], (first, second)[rank][name])


def _load_other(rank: int, backend: str, kind: str, path: str) -> Any:
    """The error of taking a checkpoint of another optimizer, and whether anything changed."""
    import torch.distributed.checkpoint as dcp

    model = _sharded_model(backend)
    optimizer = make(kind, model.parameters(), lr=1e-2)
    whole = {"states": _states_by_name(model, optimizer)}
    try:
        dcp.load(whole, checkpoint_id=path)
    except dcp.CheckpointException as error:
        return str(error)
    return ""


@pytest.mark.parametrize("pair", [("AdamW8bit", "AdamW"), ("AdamW", "AdamW8bit")])
def test_codes_are_never_taken_for_values_nor_values_for_codes(
    two: Group, pair: Any, tmp_path: Any
) -> None:
    path = str(tmp_path / "checkpoint")
    two.run(_save, two.backend, pair[0], path)
    for text in two.run(_load_other, two.backend, pair[1], path):
        assert "Size mismatch" in text or "Missing key" in text


# --- processes that fail --------------------------------------------------------------------------


def _fail_on(rank: int, backend: str, failing: int) -> None:
    model = _sharded_model(backend)
    optimizer = make("AdamW8bit", model.parameters())
    _set_gradients(model, 1)
    if rank == failing:
        optimizer.state[model.cut] = {"step": torch.zeros((), dtype=torch.int64)}
    optimizer.step()


def test_a_process_that_fails_says_why_and_no_other_waits(two: Group) -> None:
    """A step has no collective call, so that a state that is broken in one process stops it alone."""
    with pytest.raises(WorkerError, match="the state of parameter 1 of group 0 has no") as caught:
        two.run(_fail_on, two.backend, 1)
    assert caught.value.reports[0] is None


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


def _device_of(rank: int, backend: str) -> Any:
    return torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")


def _ddp(rank: int, backend: str, kind: str, views: bool, accumulate: bool, zero: bool) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    device = _device_of(rank, backend)
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
    return _whole(model.module)


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
    return _whole(model)


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
    _assert_same(first, second)
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
    for name, value in _whole(model).items():
        error = (first[name] - value).double().norm() / value.double().norm()
        assert error < 1e-3, (name, float(error))


def _different(rank: int, backend: str) -> None:
    model = torch.nn.Linear(4, 5 + rank).to(_device_of(rank, backend))
    torch.nn.parallel.DistributedDataParallel(model)


def test_models_that_differ_between_processes_are_an_error_not_a_hang(two: Group) -> None:
    with pytest.raises(WorkerError, match="shape|size"):
        two.run(_different, two.backend)


# --- checkpoint() in FSDP2 and DDP ----------------------------------------------------------------


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
    device = _device_of(rank, backend)
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
    model = _sharded_model(backend)
    _set_gradients(model, 5)
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
import torch, torch.distributed as dist
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
dist.destroy_process_group()
"""


def test_a_program_under_torchrun_trains_a_sharded_model(tmp_path: Any) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node=2", str(program)],
        env={**environment(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2 is done" in done.stdout and "rank 1 of 2 is done" in done.stdout
