"""Writes the stubs of the optimizers' modules from memopt/rules.py: run it after a change of the table."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import sys
import textwrap

CORE = """# Written by tests/stubs.py from memopt/rules.py.
from typing import Any, Dict, Iterable, Optional, Tuple, Union

from .allocator import Allocator
from .optimizer import Optimizer
from .streams import StreamLike
from .tensors import TensorLike

Params = Iterable[Union[TensorLike, Dict[str, Any]]]
Learning = float
Betas = Tuple[float, float]
"""
TORCH = """# Written by tests/stubs.py from memopt/rules.py.
from typing import Optional, Tuple, Union

import torch

from ._base import MemoptOptimizer as MemoptOptimizer
from ._base import Params as Params
from ._host import CPUOffloadOptimizer as CPUOffloadOptimizer
from ._keep import keep_32bit as keep_32bit
from ._release import GradientRelease as GradientRelease
from ._release import release_gradients as release_gradients
from ._save import portable_states as portable_states
from ._save import to_bitsandbytes as to_bitsandbytes

Learning = Union[float, torch.Tensor]
Betas = Tuple[Learning, Learning]
"""
MODULES = {
    "memopt.optim": (CORE, "optim.pyi", "_WithParameters", "Optimizer"),
    "memopt.torch.optim": (TORCH, "torch/optim/__init__.pyi", "MemoptOptimizer", "MemoptOptimizer"),
}


def class_text(cls, base, inherits):
    """A class as a stub has it."""
    text = "\nclass %s(%s):" % (cls.__name__, base)
    if inherits:
        return text + " ...\n"
    words = ["self"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for p in inspect.signature(cls).parameters.values():
        words += ["*"] if p.kind is not kind and "*" not in words else []
        word = "%s: %s%s" % (p.name, p.annotation, "" if p.default is p.empty else " = ...")
        words.append(word.replace(" ", "~"))
    lines = textwrap.wrap(", ".join(words) + ",", 112)
    lines = ["        " + line.replace("~", " ") for line in lines]
    lines = ["    def __init__(", *lines, "    ) -> None: ..."]
    methods = ["    def %s(self) -> None: ..." % m for m in ("train", "eval") if m in vars(cls)]
    return "\n".join([text, *lines, *methods]) + "\n"


def stub(module):
    """The text of a module's stub."""
    head, _, root, shown = MODULES[module]
    found = importlib.import_module(module)
    classes = [c for _, c in inspect.getmembers(found, inspect.isclass) if hasattr(c, "_rule")]
    classes = [c for c in classes if c.__name__ != root]
    classes.sort(key=lambda c: (c._rule.name, len(c.__mro__), c.__name__))
    texts = []
    for cls in classes:
        own = next((b for b in cls.__mro__[1:] if b in classes), None)
        texts.append(class_text(cls, own.__name__ if own else shown, own is not None))
    return head + "".join(texts)


def path(module):
    """Where it lies."""
    import memopt

    return pathlib.Path(memopt.__file__).parent / MODULES[module][1]


if __name__ == "__main__":
    for name in sys.argv[1:] or MODULES:
        path(name).write_text(stub(name))
