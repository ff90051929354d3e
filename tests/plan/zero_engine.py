"""Steps of several processes under DeepSpeed's ZeRO: the rows of truth_zero.json.

Each process records its own step, after three small ones: DeepSpeed learns the order of modules
from the first two. What is not as in `several.py`:

* Collectives run on copies that the recorder does not see: nothing of gloo's holds a buffer longer
  than the program does.
* What DeepSpeed keeps from step to step (flat weights, their f32 part, gradients, buckets) is found
  where it keeps it. What else is alive before a step and was made since the model was is an error:
  the table would lack it.
* The engine runs backward and step, a step at each micro-batch.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
from typing import Any, Dict, Iterator, List, Tuple

import models
import several
import torch
from memopt.torch._deepspeed import EngineRecorder, EngineStep, kept
from memopt.torch._step import StepRecorder
from torch.utils._pytree import tree_flatten, tree_iter, tree_unflatten


#: Keys of a row's run, and where DeepSpeed has them.
SETTINGS = {"reduce_bucket": "reduce_bucket_size", "overlap": "overlap_comm"}


def config_of(run: Dict[str, Any]) -> Dict[str, Any]:
    """DeepSpeed's configuration of a row."""
    zero = {name: run[key] for key, name in SETTINGS.items() if key in run}
    result: Dict[str, Any] = {
        "zero_allow_untested_optimizer": True,
        "train_micro_batch_size_per_gpu": run["batch"],
        "gradient_accumulation_steps": run.get("accumulation", 1),
        "zero_optimization": {"stage": int(run["sharding"][-1]), **zero},
    }
    if run["dtype"] != "fp32":
        result[run["dtype"]] = {"enabled": True}
    return result


class GlooEngineRecorder(EngineRecorder, several.GlooRecorder):
    """One whose collectives give something, and that leaves out what gloo makes."""

    HOLDERS: Dict[str, Tuple[int, ...]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._is_gloos(str(function)):
            return function(*args, **(kwargs or {}))
        return EngineRecorder.__torch_dispatch__(self, function, types, args, kwargs)

    def collective(self, function: Any, args: Any, kwargs: Any) -> Any:
        return collective(function, args, kwargs)


class GlooEngineStep(EngineStep):
    """Records a step of one of several processes."""

    kind = GlooEngineRecorder


class Births(several.Births):
    """The same of what is alive."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function.namespace == "c10d":
            return collective(function, args, kwargs or {})
        return super().__torch_dispatch__(function, types, args, kwargs)

    def storages(self) -> List[Any]:
        """Those that are alive, of no fake tensor."""
        alive = [storage for storage in (r() for r in self._storages) if storage is not None]
        return [storage for storage in alive if storage.device.type != "meta"]


def collective(function: Any, args: Any, kwargs: Any) -> Any:
    """Runs it to its end on copies of its tensors."""
    flat, shape = tree_flatten((args, kwargs))
    copies = {id(v): v.detach().clone() for v in flat if isinstance(v, torch.Tensor)}
    with torch.no_grad():
        copied, named = tree_unflatten([copies.get(id(v), v) for v in flat], shape)
        result = function(*copied, **named)
        for value in tree_iter(result):
            if isinstance(value, torch.ScriptObject):
                torch._C._distributed_c10d.Work.unbox(value).wait()
        for value in flat:
            if isinstance(value, torch.Tensor):
                value.detach().copy_(copies[id(value)])
    back = {id(copies[id(v)]): v for v in flat if isinstance(v, torch.Tensor)}
    values, shape = tree_flatten(result)
    return tree_unflatten([back.get(id(v), v) for v in values], shape)


class Process:
    """A row's model in an engine, with states, in one process of several."""

    def __init__(self, row: Dict[str, Any]) -> None:
        import deepspeed

        self.row, self.run = row, row["run"]
        births = Births()
        with births:
            model = models.build(row)
            self.parameters = models.elements(model)
            optimizer = models.optimizer_of(self.run, model)
            self.engine, self.optimizer, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, config=config_of(self.run)
            )
            del model, optimizer
            for _ in range(3 * self.run.get("accumulation", 1)):
                self._small_step()
        gc.collect()
        known = {t.untyped_storage()._cdata for of in kept(self.engine).values() for t in of}
        rest = [s.nbytes() for s in births.storages() if s._cdata not in known]
        rest = [size for size in rest if size > 4096]
        if rest:
            raise RuntimeError("DeepSpeed keeps %s bytes of which nothing is known" % rest)

    def _small_step(self) -> None:
        small = models.batch_of(self.row, 1, min(self.run["seq"], 8))
        loss = self.engine(**small).loss
        self.engine.backward(loss)
        self.engine.step()

    def recorder(self) -> StepRecorder:
        """Of the next step."""
        target = several.target_of(self.engine.module, self.engine)
        return GlooEngineStep(target, self.engine, self.run.get("accumulation", 1))

    def end(self) -> None:
        """Of the engine."""
        self.engine.destroy()


@contextlib.contextmanager
def group(rank: int, world: int, folder: pathlib.Path) -> Iterator[None]:
    """A group of processes, with DeepSpeed on the CPU."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), DS_ACCELERATOR="cpu"
    )
    import deepspeed
    import deepspeed.comm.torch as backend

    backend.build_shm_op = lambda: None  # shared memory of its own, which it would compile
    method = "file://%s" % (folder / "meeting")
    deepspeed.init_distributed(
        dist_backend="gloo", auto_mpi_discovery=False, init_method=method, rank=rank,
        world_size=world,
    )
    yield


if __name__ == "__main__":
    several.main(Process, group)
