"""What the optimizers' tests share."""

from __future__ import annotations

import functools
import io
import os
import pathlib
import subprocess
import sys
from typing import Any, Dict, List, Tuple

import pytest
import torch

import memopt as core
import memopt.torch as mt

#: Every optimizer, its arguments here, and the same of the core binding and of torch.
KINDS = {
    "AdamW": (mt.AdamW, {}, core.AdamW, torch.optim.AdamW),
    "AdamW8bit": (mt.AdamW8bit, {}, core.AdamW8bit, torch.optim.AdamW),
    "AdamW4bit": (mt.AdamW4bit, {}, core.AdamW4bit, torch.optim.AdamW),
    "AdamW8bitDynamic": (
        mt.AdamW8bit, {"codes": "dynamic"}, functools.partial(core.AdamW8bit, codes="dynamic"), torch.optim.AdamW
    ),
    "AdamWBf16": (mt.AdamW, {"states": "bf16"}, core.AdamWBf16, torch.optim.AdamW),
    "Adam": (mt.Adam, {}, core.Adam, torch.optim.Adam),
    "Adam8bit": (mt.Adam8bit, {}, core.Adam8bit, torch.optim.Adam),
    "Lion": (mt.Lion, {}, core.Lion, None),
    "Lion8bit": (mt.Lion8bit, {}, core.Lion8bit, None),
    "SGD": (mt.SGD, {"momentum": 0.9}, core.SGD, torch.optim.SGD),
    "SGD8bit": (mt.SGD8bit, {"momentum": 0.9}, core.SGD8bit, torch.optim.SGD),
}
#: The rules that the core's binding has not.
OTHERS = {
    name: (getattr(mt.optim, name, None) or getattr(mt.bnb, name), own, None, None)
    for own, names in (
        ({}, "Adafactor AdEMAMix AdEMAMix8bit RMSprop RMSprop8bit Adagrad Adagrad8bit AdamWScheduleFree LAMB LAMB8bit"),
        ({"momentum": 0.9}, "LARS LARS8bit"),
        ({}, "Muon Muon8bit"),
    )
    for name in names.split()
}
kinds = pytest.mark.parametrize("kind", sorted(KINDS))
every = pytest.mark.parametrize("kind", [*sorted(KINDS), *OTHERS])
coded = pytest.mark.parametrize("kind", sorted(k for k in KINDS if k.endswith(("bit", "Dynamic"))))


def make(kind: str, params: Any, **values: Any) -> Any:
    """One of our optimizers."""
    cls, own, _, _ = {**KINDS, **OTHERS}[kind]
    return cls(params, **{**own, **values})


SHAPES = ((96, 33), (7,), (), (3, 40, 5), (64, 129), (9, 1))


def drawn(shapes: Any, seed: int = 0, dtype: Any = torch.float32, device: Any = "cpu") -> List[Any]:
    """Parameters of shapes, the same of every seed."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(s, generator=generator) * 0.5 for s in shapes]
    return [v.to(device, dtype).requires_grad_() for v in values]


def parameters(
    device: Any = "cpu", dtype: Any = torch.float32, shapes: Tuple[Any, ...] = ((33, 129), (7,))
) -> List[Any]:
    """Parameters of which, with blocks of 128 or 256, no length is even."""
    return [(torch.randn(s, device=device) * 0.5).to(dtype).requires_grad_() for s in shapes]


def those(kind: str, device: Any = "cpu", dtype: Any = torch.float32) -> List[Any]:
    """Parameters that the rule takes: numbers of dimensions, rows and columns of one, and what does not divide
    into pieces or blocks."""
    matrices = ((96, 33), (33, 129), (80, 80))
    return drawn(matrices if kind.startswith("Muon") else SHAPES, 0, dtype, device)


def twin(params: List[Any]) -> List[Any]:
    """Copies of parameters, without gradients."""
    return [p.detach().clone().requires_grad_() for p in params]


def fill(params: List[Any], seed: int, scale: float = 0.01) -> None:
    """New gradients that depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        g = torch.randn(p.shape, generator=generator) * scale
        p.grad = torch.empty_like(p).copy_(g)


def fill_both(params: List[Any], others: List[Any], seed: int, scale: float = 0.1) -> None:
    """The same gradients for both, in their own types. Of three elements is what stays without one."""
    generator = torch.Generator().manual_seed(seed)
    for p, q in zip(params, others):
        if p.numel() == 3:
            continue
        g = (torch.randn(p.shape, generator=generator) * scale).to(p.dtype)
        p.grad, q.grad = torch.empty_like(p).copy_(g), torch.empty_like(q).copy_(g)


def walk(optimizer: Any, params: List[Any], steps: int, seed: int = 0, scale: float = 0.01) -> None:
    """Some steps."""
    for t in range(steps):
        fill(params, seed + t, scale)
        optimizer.step()


def same_bits(a: Any, b: Any) -> bool:
    """Equal types and bits, whatever the type."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    as_bytes = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return bool(torch.equal(*as_bytes))


def assert_same_states(a: Any, b: Any, first: List[Any], second: List[Any]) -> None:
    """Parameters and states of two optimizers agree bit for bit."""
    for p, q in zip(first, second):
        assert same_bits(p, q)
        x, y = a.state[p], b.state[q]
        assert list(x) == list(y)
        for key in x:
            assert same_bits(x[key], y[key]), key


def snapshot(optimizer: Any, params: List[Any]) -> Dict[str, Any]:
    """All that a refused call must leave as it is."""
    return {
        "params": [p.detach().clone() for p in params],
        "state": {
            i: {k: v.clone() for k, v in optimizer.state[p].items()}
            for i, p in enumerate(params)
            if p in optimizer.state
        },
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        "members": [list(map(id, group["params"])) for group in optimizer.param_groups],
    }


def assert_unchanged(optimizer: Any, params: List[Any], before: Dict[str, Any]) -> None:
    """Nothing of the snapshot has changed."""
    now = snapshot(optimizer, params)
    assert now["groups"] == before["groups"] and now["members"] == before["members"]
    assert all(same_bits(p, q) for p, q in zip(now["params"], before["params"]))
    assert now["state"].keys() == before["state"].keys()
    for i, state in before["state"].items():
        assert all(same_bits(now["state"][i][k], v) for k, v in state.items())


def through_a_file(value):
    """What torch.save and torch.load make of it."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@functools.lru_cache(maxsize=None)
def limited(mode: str, layers: int) -> Tuple[int, str]:
    """host_memory.py's end and what it printed."""
    child = pathlib.Path(__file__).with_name("host_memory.py")
    ended = subprocess.run(
        [sys.executable, str(child), mode, str(layers)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=900,
    )
    return ended.returncode, ended.stdout
