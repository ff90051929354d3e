"""Measures a step of one of several processes: DistributedDataParallel over gloo, on the CPU.

DDP's buckets are tensors that its C++ part makes, and that no Python object holds: they are seen by
a recorder that is there when it is made and over a first step, after which DDP arranges its buckets
anew in the order in which gradients came.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import weakref
from typing import Any, Dict, List

import models
import torch
from memopt.torch._live import LiveBytes


class Births(LiveBytes):
    """Follows storages, and finds those that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: List[Any] = []

    def _note(self, tensor: torch.Tensor, count: bool) -> None:
        known = tensor.untyped_storage()._cdata in self._seen
        super()._note(tensor, count)
        if not known:
            self._storages.append(weakref.ref(tensor.untyped_storage()))

    def alive(self) -> List[torch.Tensor]:
        """A tensor of bytes over each storage."""
        found = [storage for storage in (r() for r in self._storages) if storage is not None]
        return [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in found]


def replicas(row: Dict[str, Any], model: Any) -> Any:
    """The model in DDP, and the births to look for its buckets in after a step."""
    births = Births()
    with births:
        parallel = torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=bool(row["run"].get("bucket_view"))
        )
    return parallel, births


def in_processes(row: Dict[str, Any]) -> Dict[str, Any]:
    """What the first of the row's processes measured."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "row.json").write_text(json.dumps(row))
        command = [sys.executable, __file__, folder]
        world = range(row["run"]["world_size"])
        running = [subprocess.Popen([*command, str(rank)]) for rank in world]
        if any([process.wait() for process in running]):
            raise RuntimeError("%s: a process failed" % row["name"])
        result: Dict[str, Any] = json.loads(pathlib.Path(folder, "measured.json").read_text())
    return result


def main(folder: pathlib.Path, rank: int) -> None:
    """One process."""
    import measure

    row = json.loads((folder / "row.json").read_text())
    torch.distributed.init_process_group(
        "gloo",
        init_method="file://%s" % (folder / "meeting"),
        rank=rank,
        world_size=row["run"]["world_size"],
    )
    result = measure.measure_here(row)
    if rank == 0:
        (folder / "measured.json").write_text(json.dumps(result))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
