"""A step of several processes, data parallel: each a replica with buckets of gradients, measured."""

import multiprocessing
import os
import pathlib
import tempfile
import time
from typing import Any, List

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from .measuring import Bytes, measure
from .settings import Settings
from .training import Trainer

#: Seconds for all of it.
LIMIT = 300


def measured(model: pathlib.Path, settings: Settings, size: int) -> List[Bytes]:
    """The bytes of a step in each of `size` processes. Each has its own samples."""
    context = multiprocessing.get_context("spawn")
    handle, meeting = tempfile.mkstemp(prefix="memopt-recipe-")
    os.close(handle)
    try:
        with context.Pool(size) as pool:
            calls = [(rank, size, meeting, model, settings) for rank in range(size)]
            return pool.starmap_async(member, calls, chunksize=1).get(LIMIT)
    finally:
        os.unlink(meeting)


def member(rank: int, size: int, meeting: str, model: pathlib.Path, settings: Settings) -> Bytes:
    """One process of them."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=size)
    try:
        trainer = Trainer(model, settings)
        trainer.task.samples.manual_seed(rank + 1)
        task: Any = trainer.task

        def wrap() -> None:
            task.model = DistributedDataParallel(task.model)
            trainer.losses(2)  # the first makes states; the second has the buckets' last shape

        measured = measure(trainer, wrap)
        distributed.barrier()
        time.sleep(0.5)  # gloo's threads drop their last work; at exit torch 2.15 would abort
        return measured
    finally:
        distributed.destroy_process_group()
