"""Runs a model's step on fake tensors: shapes and types only, nothing is computed or allocated."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

#: What a step raises that needs values.
REFUSALS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


@contextlib.contextmanager
def fakes(model: torch.nn.Module) -> Iterator[None]:
    """Meanwhile the model's parameters and buffers are fakes; shared ones stay shared."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    known: Dict[int, Any] = {}
    places: List[Tuple[Dict[str, Any], str, Any]] = []
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            places += [(tensors, name, t) for name, t in tensors.items() if t is not None]
    with mode:
        for _, _, tensor in places:
            if id(tensor) not in known:
                known[id(tensor)] = _fake_of(tensor)
    try:
        for tensors, name, tensor in places:
            tensors[name] = known[id(tensor)]
        with mode, _not_packed(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for tensors, name, tensor in places:
            tensors[name] = tensor


def _fake_of(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


@contextlib.contextmanager
def _not_packed() -> Iterator[None]:
    """Transformers takes fake position ids for several packed sequences, and makes a mask that a real
    step does not have."""
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
