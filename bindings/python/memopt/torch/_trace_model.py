"""Traces a training step of a module without weights: sizes are followed, nothing is computed.

The module lies on the meta device (or anywhere: its values are not used). Its parameters become
fake tensors of the CPU, for which torch runs every operation as shapes and dtypes only, in the
forms that they have on a real device: a meta tensor's attention, for example, would not be fused.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_map

from ._optimizer_bytes import OptimizerBytes, optimizer_bytes
from ._step import StepRecorder
from ._step_bytes import Line, Series, StepBytes, step_bytes
from ._target import Target, TargetError, target_of


class Trace:
    """What steps of a module need, by its sizes alone.

        trace = Trace(target_of((module, inputs)))
        trace.at(8).peak_bytes
        trace.line().largest_batch(16 << 30)

    `optimizer` is one of `OPTIMIZERS`, `autocast` a dtype. The module's own tensors and gradients
    are as they were afterwards.
    """

    def __init__(
        self,
        target: Any,
        *,
        sequence: Optional[int] = None,
        optimizer: str = "adamw",
        autocast: Optional[torch.dtype] = None,
        accumulation: int = 1,
    ) -> None:
        self.target: Target = target_of(target, sequence)
        self.optimizer: OptimizerBytes = optimizer_bytes(
            optimizer, list(self.target.module.parameters())
        )
        self._autocast = autocast
        self._accumulation = accumulation

    @property
    def parameters(self) -> int:
        """How many the module has."""
        return sum(p.numel() for p in self.target.module.parameters())

    def at(self, batch: int) -> StepBytes:
        """What a batch size needs, traced."""
        return step_bytes(batch, self.series(batch).highest(), self.optimizer)

    def line(self, batches: Tuple[int, int] = (2, 4)) -> Line:
        """Traces two batch sizes; the others follow from them. 1 is often special: not copied."""
        first, second = ((batch, self.series(batch)) for batch in batches)
        return Line(first, second, self.optimizer)

    def series(self, batch: int) -> Series:
        """Every moment of a step."""
        if batch < 1:
            raise ValueError("the batch size is %d; it must be at least 1" % batch)
        module = self.target.module
        recorder = StepRecorder(self.target, self._autocast, self._accumulation)
        mode = FakeTensorMode(allow_non_fake_inputs=True)  # constants that a model makes itself
        quiet, random = _quiet(), torch.random.fork_rng(devices=[])
        with _fakes_in(module, mode), mode, _not_packed(), quiet, random:
            try:
                recorded = recorder.record(lambda: _fake(self.target.inputs(batch)))
            except (
                DataDependentOutputException,
                DynamicOutputShapeException,
                UnsupportedOperatorException,
            ) as error:
                raise TargetError(
                    "%s cannot be traced without data, since %s depends on values (experts and"
                    " other routing do). Measure it instead: --profile"
                    % (type(module).__name__, getattr(error, "func", error))
                ) from error
            return Series(recorded.account)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """An operation that refuses its inputs raises; torch would also print a traceback."""
    log = logging.getLogger(FakeTensorMode.__module__)
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


@contextlib.contextmanager
def _not_packed() -> Iterator[None]:
    """Transformers takes fake position ids for several packed sequences and makes a mask that a
    real step does not have."""
    masking = sys.modules.get("transformers.masking_utils")
    name = "find_packed_sequence_indices"
    if masking is None or not hasattr(masking, name):
        yield
        return
    before = getattr(masking, name)
    setattr(masking, name, lambda position_ids: None)
    try:
        yield
    finally:
        setattr(masking, name, before)


def _fake(inputs: Any) -> Any:
    return tree_map(_of_cpu, inputs)


def _of_cpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


@contextlib.contextmanager
def _fakes_in(module: torch.nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Fake tensors in place of parameters and buffers; shared ones stay shared."""
    fakes: Dict[int, Any] = {}
    places: List[Tuple[Dict[str, Any], str, Any]] = []
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            places += [(tensors, name, t) for name, t in tensors.items() if t is not None]
    with mode:
        for _, _, tensor in places:
            if id(tensor) not in fakes:
                fakes[id(tensor)] = _fake_of(tensor)
    try:
        for tensors, name, tensor in places:
            tensors[name] = fakes[id(tensor)]
        yield
    finally:
        for tensors, name, tensor in places:
            tensors[name] = tensor


def _fake_of(tensor: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _of_cpu(tensor.detach())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made
