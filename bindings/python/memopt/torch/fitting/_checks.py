"""What fit() refuses before it runs anything."""

from __future__ import annotations

import torch

from .._forward_call import ForwardCall
from ..optim._layout import is_sharded


def check(model: torch.nn.Module) -> None:
    """Raises for a model that cannot be planned."""
    for name, part in model.named_modules():
        if getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule":
            raise NotImplementedError("fit: module %r is compiled; pass the model before torch.compile" % name)
        sharded = [n for n, p in part.named_parameters(recurse=False) if is_sharded(p)]
        if sharded:
            raise NotImplementedError(
                "fit: parameter %s of %r is sharded (a DTensor), and a step on fake tensors would reduce over"
                " processes; use attach_checkpoint()" % (sharded[0], name)
            )
        if getattr(part, "gradient_checkpointing", False) is True:
            raise ValueError("fit: module %r checkpoints itself; call model.gradient_checkpointing_disable()" % name)
    if isinstance(vars(model).get("forward"), ForwardCall):
        raise ValueError("fit: the model has a plan; call remove() of its Fit first")
