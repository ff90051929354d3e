"""A group of processes that runs functions for tests: started once, for starting takes seconds.

Every wait has a limit, and a group whose member failed to answer is killed, never waited for.
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

COLLECTIVE_LIMIT = 20  # seconds that a process waits for the others
ANSWER_LIMIT = 100


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
    limit = datetime.timedelta(seconds=COLLECTIVE_LIMIT)
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
                if not pipe.poll(ANSWER_LIMIT):
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


def environment() -> Dict[str, str]:
    """For a process that is started by its command line."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
