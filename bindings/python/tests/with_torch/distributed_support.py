"""A group of processes that runs functions for tests: started once, for starting takes seconds.

Every wait has a limit, and a group whose member failed to answer is killed, never waited for. Below,
what the processes run, and this one for comparison.
"""

from __future__ import annotations

import datetime
import io
import multiprocessing
import os
import sys
import tempfile
import traceback
from typing import Any, Callable, Dict, List, Tuple

import torch

import memopt.torch as mt
from optim_support import make, same_bits

COLLECTIVE_LIMIT = 20  # seconds that two processes wait for each other
ANSWER_LIMIT = 100  # of two processes; more take longer to start


class WorkerError(Exception):
    """A function raised in a process; `reports` holds its traceback by rank, or None."""

    def __init__(self, reports: List[Any]) -> None:
        super().__init__("\n".join(str(r) for r in reports if r))
        self.reports = reports


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _loads(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


def _serve(rank: int, size: int, backend: str, meeting: str, pipe: Any) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    limit = datetime.timedelta(seconds=COLLECTIVE_LIMIT * max(1, size // 2))
    dist.init_process_group(backend, init_method="file://" + meeting, rank=rank, world_size=size, timeout=limit)
    while True:
        call = pipe.recv()
        if call is None:
            break
        function, packed = call
        torch.manual_seed(4321)
        try:
            arguments, options = _loads(packed)
            answer = (True, _dumps(function(rank, *arguments, **options)))
        except BaseException:
            answer = (False, traceback.format_exc().encode())
        pipe.send(answer)
    dist.destroy_process_group()


class Group:
    """Processes with a process group."""

    def __init__(self, size: int, backend: str) -> None:
        self.size, self.backend = size, backend
        self._members: List[Tuple[Any, Any]] = []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        handle, meeting = tempfile.mkstemp(prefix="memopt-meeting-")
        os.close(handle)
        os.unlink(meeting)
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, self.backend, meeting, theirs), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> List[Any]:
        """function(rank, *arguments, **options) in all processes at once; the results by rank."""
        if not self._members:
            self._start()
        packed = _dumps((arguments, options))
        for _, pipe in self._members:
            pipe.send((function, packed))
        answers = []
        for rank, (_, pipe) in enumerate(self._members):
            try:
                if not pipe.poll(ANSWER_LIMIT * max(1, self.size // 2)):
                    raise EOFError
                answers.append(pipe.recv())
            except (EOFError, OSError):
                self.kill()
                raise AssertionError("rank %d did not answer" % rank) from None
        if not all(good for good, _ in answers):
            self.kill()  # what its collectives wait for is unknown
            raise WorkerError([None if good else data.decode() for good, data in answers])
        return [_loads(data) for _, data in answers]

    def kill(self) -> None:
        for process, pipe in self._members:
            process.kill()
            process.join(10)
            pipe.close()
        self._members = []

    def close(self) -> None:
        for _, pipe in self._members:
            try:
                pipe.send(None)
            except OSError:
                pass
        for process, _ in self._members:
            process.join(10)
        self.kill()


def meet() -> None:
    """Waits for the other processes, as long as an answer may take: before collectives, where their times differ."""
    import torch.distributed as dist

    dist.monitored_barrier(timeout=datetime.timedelta(seconds=ANSWER_LIMIT))


def mesh_of(backend: str) -> Any:
    """A mesh of all processes."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    kind = "cuda" if backend == "nccl" else "cpu"
    return init_device_mesh(kind, (dist.get_world_size(),))


#: torchrun for a program on two processes, which meet at a free port of 127.0.0.1. `--standalone` is
#: the same but for names: where "localhost" or the machine's own cannot be resolved, it hangs.
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"),
    *("--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=tests", "--local-addr=127.0.0.1"),
]


# --- what runs in the processes, and in this one for comparison -----------------------------------

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


def set_gradients(model: Any, seed: int) -> None:
    """Gradients that depend on the seed alone."""
    from torch.distributed.tensor import distribute_tensor

    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        grad = torch.randn(p.shape, generator=generator) * 0.01
        if hasattr(p, "placements"):
            grad = distribute_tensor(grad, p.device_mesh, p.placements, src_data_rank=None)
        p.grad = grad.to(p.dtype)


def take_steps(model: Any, optimizer: Any, seeds: Any) -> None:
    for seed in seeds:
        set_gradients(model, seed)
        optimizer.step()


def whole_parameters(model: Any) -> Dict[str, Any]:
    """Parameters as one process sees them."""
    values = {}
    for name, p in model.named_parameters():
        value = p.detach()
        value = value.full_tensor() if hasattr(p, "placements") else value
        values[name] = value.cpu().clone()
    return values


def sharded_model(backend: str) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of(backend)
    model = Weights(mesh.device_type)
    fully_shard(model, mesh=mesh)
    return model


def _network() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(64, 130), torch.nn.GELU(), torch.nn.Linear(130, 70))


def _sharded(model: Any, **options: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, **options)
    return model


def _columns() -> Any:
    from torch.distributed.tensor import Shard

    return _sharded(_network(), shard_placement_fn=lambda p: Shard(1 if p.dim() > 1 else 0))


def _square(*names: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


def _both_ways() -> Any:
    from torch.distributed.tensor import parallel

    mesh, model = _square("data", "tensor"), _network()
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh["tensor"], plan)
    return _sharded(model, mesh=mesh["data"])


#: Ways to lie over the processes of a group, by name.
LAYOUTS: Dict[str, Callable[[str], Any]] = {
    "weights": lambda backend: Weights(),
    "shards": sharded_model,  # of weights, by rows
    "split": lambda backend: _sharded(Weights().bfloat16(), mesh=mesh_of(backend)),
    "split16": lambda backend: _sharded(Weights().bfloat16(), mesh=mesh_of(backend)),
    "pairs": lambda backend: _sharded(Weights(), mesh=_square("replicate", "shard")),
    "network": lambda backend: _network(),
    "rows": lambda backend: _sharded(_network()),
    "columns": lambda backend: _columns(),
    "both ways": lambda backend: _both_ways(),  # tensor parallel in pairs, sharded over them
}


def build(layout: str, backend: str, kind: str, lr: float = 1e-2) -> Any:
    """A model in a layout, and its optimizer; of networks biases are coded, too."""
    model = LAYOUTS[layout](backend)
    least, split = 4096 if isinstance(model, Weights) else 16, {"split": 8, "split16": 16}.get(layout, 0)
    return model, make(kind, model.parameters(), lr=lr, min_8bit_size=least, split_weights=split)


def local_states(model: Any, optimizer: Any) -> Dict[str, Any]:
    return {name: {k: v.cpu().clone() for k, v in optimizer.state[p].items()} for name, p in model.named_parameters()}


def steps_in(rank: int, backend: str, layout: str, kind: str, seeds: List[int]) -> Any:
    """Parameters and states after some steps; with rank 0 and no group in this process."""
    model, optimizer = build(layout, backend, kind)
    take_steps(model, optimizer, seeds)
    return whole_parameters(model), local_states(model, optimizer)


def _both_dicts(model: Any, optimizer: Any, flat: bool) -> Any:
    from torch.distributed.checkpoint import state_dict as helpers

    options = helpers.StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, states = helpers.get_state_dict(model, optimizer, options=options)
    return {"weights": weights, "states": states}, options


def _moments(model: Any, optimizer: Any) -> Dict[str, Any]:
    """The decoded states of the whole model, by parameter and key."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    with mt.portable_states(optimizer):
        states = get_optimizer_state_dict(model, optimizer)["state"]
    return {
        name: {key: (v.full_tensor() if hasattr(v, "full_tensor") else v).clone() for key, v in state.items()}
        for name, state in states.items()
    }


def _result(model: Any, optimizer: Any, portable: bool) -> Any:
    moments = _moments(model, optimizer) if portable else None
    kept = local_states(model, optimizer)
    take_steps(model, optimizer, [4, 5])
    return kept, whole_parameters(model), moments


def save(rank: int, backend: str, layout: str, kind: str, path: str, portable: bool = False, flat: bool = False) -> Any:
    """Three steps, a checkpoint, two steps more: the states of this process at the checkpoint, the
    parameters at the end, and, if portable, the decoded states of all processes."""
    import torch.distributed.checkpoint as dcp

    model, optimizer = build(layout, backend, kind)
    take_steps(model, optimizer, [1, 2, 3])
    with mt.portable_states(*[optimizer] * portable):
        whole, _ = _both_dicts(model, optimizer, flat)
        dcp.save(whole, checkpoint_id=path)
    if portable:
        for name, state in whole["states"]["state"].items():
            shard = dict(model.named_parameters())[name]
            for key in state.keys() - {"step"}:  # a process saves its shard, decoded
                own = getattr(state[key], "_local_tensor", state[key])
                assert own.shape == getattr(shard, "_local_tensor", shard).shape
                assert own.dtype is torch.float32
    return _result(model, optimizer, portable)


def load(
    rank: int,
    backend: str,
    layout: str,
    kind: str,
    path: str,
    portable: bool = False,
    flat: bool = False,
    again: str = "",
) -> Any:
    """Another model takes the checkpoint, saves it again if asked to, and goes on: as save()."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    model, optimizer = build(layout, backend, kind, lr=0.5)
    with mt.portable_states(*[optimizer] * portable):
        whole, options = _both_dicts(model, optimizer, flat)
        dcp.load(whole, checkpoint_id=path)
        set_state_dict(
            model, optimizer, model_state_dict=whole["weights"], optim_state_dict=whole["states"], options=options
        )
        if again:
            dcp.save(_both_dicts(model, optimizer, flat)[0], checkpoint_id=again)
    return _result(model, optimizer, portable)


def error_of(rank: int, function: Callable[..., Any], *arguments: Any) -> str:
    """What a function says that fails in this process without leaving others waiting, or ""."""
    try:
        function(rank, *arguments)
    except BaseException as error:  # which torch's CheckpointException is
        return "%s: %s" % (type(error).__name__, error)
    return ""


def assert_same_values(a: Dict[str, Any], b: Dict[str, Any]) -> None:
    assert list(a) == list(b)
    for name, value in a.items():
        if isinstance(value, dict):
            assert_same_values(value, b[name])
        else:
            assert same_bits(value, b[name]), name


def device_of(rank: int, backend: str) -> Any:
    return torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
