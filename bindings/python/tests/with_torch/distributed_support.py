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

import pytest

torch = pytest.importorskip("torch")

from optim_support import make, same_bits  # noqa: E402

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
    dist.init_process_group(
        backend, init_method="file://" + meeting, rank=rank, world_size=size, timeout=limit
    )
    while True:
        call = pipe.recv()
        if call is None:
            break
        function, arguments = call
        torch.manual_seed(4321)
        try:
            answer = (True, _dumps(function(rank, *_loads(arguments))))
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
            process = context.Process(
                target=_serve, args=(rank, self.size, self.backend, meeting, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def run(self, function: Callable[..., Any], *arguments: Any) -> List[Any]:
        """function(rank, *arguments) in all processes at once; the results by rank."""
        if not self._members:
            self._start()
        packed = _dumps(arguments)
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


def environment() -> Dict[str, str]:
    """For a process that is started by its command line."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


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


def local_states(model: Any, optimizer: Any) -> Dict[str, Any]:
    return {
        name: {k: v.cpu().clone() for k, v in optimizer.state[p].items()}
        for name, p in model.named_parameters()
    }


def sharded_steps(rank: int, backend: str, kind: str, seeds: List[int]) -> Any:
    model = sharded_model(backend)
    optimizer = make(kind, model.parameters(), lr=1e-2)
    take_steps(model, optimizer, seeds)
    return whole_parameters(model), local_states(model, optimizer)


def steps_alone(kind: str, seeds: Any) -> Any:
    model = Weights()
    optimizer = make(kind, model.parameters(), lr=1e-2)
    take_steps(model, optimizer, seeds)
    return model, optimizer


def assert_same_values(a: Dict[str, Any], b: Dict[str, Any]) -> None:
    assert list(a) == list(b)
    for name, value in a.items():
        if isinstance(value, dict):
            assert_same_values(value, b[name])
        else:
            assert same_bits(value, b[name]), name


def device_of(rank: int, backend: str) -> Any:
    return torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
