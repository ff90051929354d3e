"""Steps of several processes: replicas (DDP), a sharded optimizer (ZeRO 1), FSDP; gloo, on the CPU.

Each process records its own step; a row tells the largest. Four things are not as in one process:

* DDP's buckets are made by its C++ part and held by no Python object. A recorder of births is there
  when DDP is made and over two steps: after the first, DDP lays its buckets out anew, in the order
  in which gradients came. What is alive then and nobody else's is a bucket.
* FSDP resizes the storages of gathered weights: to nothing, and back. No operation does it, so the
  recorder stands in for the storages' own method.
* gloo reduces a copy, in a thread of its own that takes the recorder along. What it makes is not the
  program's. That thread lets buffers go after the collective has ended; the recorder waits for it.
* Sharded weights are DTensors: what counts is the local tensor in them, and operations on them are
  seen where they reach it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple

import memopt
import models
import torch
from memopt.torch._live_bytes import LiveBytes
from memopt.torch._recorder import Recorder, tensors_in
from memopt.torch._shards import ShardRecorder, ShardStep, local, shard
from memopt.torch._step import StepRecorder, states_of
from memopt.torch._target import Target
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


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


class GlooRecorder(ShardRecorder):
    """One that leaves out what gloo makes."""

    #: How many hold the output and the input of a collective once it is over. The input of an
    #: all-gather is a view of its output, which nobody needs any more; the output of a
    #: reduce-scatter stays.
    HOLDERS = {"c10d._allgather_base_.default": (1, 0), "c10d._reduce_scatter_base_.default": (sys.maxsize, 1)}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if threading.get_ident() != self._thread:
            return function(*args, **(kwargs or {}))  # gloo's, inside a collective
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with what is in them
        if self._is_gloos(str(function)):
            return function(*args, **(kwargs or {}))
        self._await_release()
        for value, holders in zip(args, self.HOLDERS.get(str(function), ())):
            self._given.append((weakref.ref(value), holders))
        return super().__torch_dispatch__(function, types, args, kwargs)

    def _is_gloos(self, function: str) -> bool:
        """Once it waits, gloo's reduce-scatter cuts its part out of a copy that it has summed."""
        if self._reducing and function in ("aten.split.Tensor", "aten.copy_.default"):
            return True
        self._reducing = function == "c10d._reduce_scatter_base_.default"
        return False

    def _await_release(self) -> None:
        """gloo's own thread lets buffers go some time after it has said that it is done."""
        end = time.monotonic() + 60
        while self._given:
            for given, holders in self._given:
                value = given()
                if value is not None and value._use_count() > holders:
                    break
            else:
                self._given = []
                return
            del value
            if time.monotonic() > end:
                raise RuntimeError("a collective holds its buffers for a minute")
            time.sleep(0.001)

    def phase(self, name: str) -> None:
        self._await_release()
        super().phase(name)

    def __enter__(self) -> Any:
        self._given: List[Any] = []
        self._reducing = False
        self._thread = threading.get_ident()
        return super().__enter__()


class GlooStep(ShardStep):
    """Records a step of one of several processes."""

    kind = GlooRecorder

    def _recorder(self) -> Recorder:
        recorder = super()._recorder()
        # Scales of quantised weights, which lie with the weight before it is divided.
        held = [getattr(part, "quant_state", None) for part in self.target.module.modules()]
        recorder.claim(tensors_in(held), "parameters")
        return recorder


class Wrapped(Target):
    """A module that is run through a wrapper."""

    wrapper: Any = None

    def run(self, inputs: Any) -> Any:
        return Target.run(self._replace(module=self.wrapper), inputs)


def target_of(model: torch.nn.Module, wrapper: torch.nn.Module) -> Wrapped:
    """The model, run through the wrapper."""
    target = Wrapped(model, lambda batch: None, lambda outputs, inputs: outputs.loss, [])
    target.wrapper = wrapper
    return target


def states(optimizer: Any) -> List[torch.Tensor]:
    """What an optimizer keeps in this process."""
    return [local(state) for state in states_of(getattr(optimizer, "optim", optimizer))]


# --- making them ---


def replicas(run: Dict[str, Any], model: torch.nn.Module) -> torch.nn.Module:
    """The model in DDP."""
    return DistributedDataParallel(
        model,
        gradient_as_bucket_view=bool(run.get("bucket_view")),
        bucket_cap_mb=run.get("bucket_mb"),
        find_unused_parameters=bool(run.get("unused")),
    )


def sharded(run: Dict[str, Any], model: torch.nn.Module) -> torch.nn.Module:
    """The model in FSDP, a group of weights a layer, the rest in one."""
    shard(model, run["sharding"] == "zero3", models.DTYPES.get(run.get("gather")))
    return model


class Process:
    """A row's model, wrapped, with its optimizer and states, in one process of several."""

    def __init__(self, row: Dict[str, Any]) -> None:
        self.row, self.run = row, row["run"]
        self.model = models.build(row)
        self.parameters = models.elements(self.model)
        births = Births()
        kind = self.run["sharding"]
        with births if kind in ("ddp", "zero1") else contextlib.nullcontext():
            wrap = replicas if kind in ("ddp", "zero1") else sharded
            self.wrapper = wrap(self.run, self.model)
            self.optimizer = self._optimizer()
            for _ in range(2):
                self._small_step()
        gc.collect()
        known = [*self.model.parameters(), *self.model.buffers(), *states(self.optimizer)]
        seen = {local(tensor).untyped_storage()._cdata for tensor in known}
        self.buckets = [t for t in births.alive() if t.untyped_storage()._cdata not in seen]

    def _optimizer(self) -> Any:
        if self.run["sharding"] != "zero1":
            return models.optimizer_of(self.run, self.model)
        whole = models.optimizer_of(self.run, self.model)
        named = {"lr": 1e-4}
        for key in ("foreach", "momentum"):
            if key in whole.defaults:
                named[key] = whole.defaults[key]
        learning = [p for p in self.model.parameters() if p.requires_grad]
        return ZeroRedundancyOptimizer(learning, optimizer_class=type(whole), **named)

    def _small_step(self) -> None:
        small = models.batch_of(self.row, 1, min(self.run["seq"], 8))
        with models.autocast(self.run):
            loss = self.wrapper(**small).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def recorder(self) -> StepRecorder:
        """Of the next step."""
        step = GlooStep(
            target_of(self.model, self.wrapper),
            models.DTYPES.get(self.run.get("autocast")),
            self.run.get("accumulation", 1),
            self.optimizer,
        )
        step.buckets = self.buckets
        step.waits = self.wrapper if self.run.get("sync") == "last" else None
        return step

    def end(self) -> None:
        """Nothing outlives it."""


# --- running them ---


def measure(row: Dict[str, Any]) -> Dict[str, Any]:
    """What the processes measured of a row: the fullest, and of each phase the fullest."""
    world = row["run"]["world_size"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "row.json").write_text(json.dumps(row))
        run_all(folder, world)
        told = [json.loads((folder / ("%d.json" % rank)).read_text()) for rank in range(world)]
    result: Dict[str, Any] = max(told, key=lambda one: one["peak_bytes"])
    for phase in result["phases"]:
        of_all = [one["phases"][phase] for one in told]
        result["phases"][phase] = max(of_all, key=lambda of: of["bytes"])
    for key in ("held_peak_bytes", "in_place_peak_bytes"):
        result[key] = max(one[key] for one in told)
    return result


def run_all(folder: pathlib.Path, world: int) -> None:
    """This program in each process, until all have ended, or one has failed."""
    command = [sys.executable, __file__, str(folder)]
    path = [str(pathlib.Path(memopt.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    named = {"env": {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}}
    running = [subprocess.Popen([*command, str(rank)], **named) for rank in range(world)]
    try:
        while any(process.poll() is None for process in running):
            if any(process.poll() for process in running):
                break
            time.sleep(0.05)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
    if any(process.wait() for process in running):
        raise RuntimeError("a process failed; what it said is above")


@contextlib.contextmanager
def group(rank: int, world: int, folder: pathlib.Path) -> Iterator[None]:
    """A group of processes."""
    method = "file://%s" % (folder / "meeting")
    torch.distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
    yield


def main(kind: Any = Process, group: Any = group) -> None:
    """One process: the program is given a folder, which has the row, and its rank."""
    import measure as whole

    folder, rank = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    row = json.loads((folder / "row.json").read_text())
    torch.set_num_threads(1)
    with group(rank, row["run"]["world_size"], folder):
        process = kind(row)
        told = whole.told(row, process.parameters, process.recorder())
        process.end()
        (folder / ("%d.json" % rank)).write_text(json.dumps(told))
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
