"""fit(), and what it refuses."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch

from ..._interrupt import Interruptible
from ...sizes import Size, parse_size
from .._forward_call import ForwardCall
from ..optim._layout import is_sharded
from ._fit import Fit
from ._planning import Step


def fit(
    model: torch.nn.Module,
    optimizer: Any = None,
    step: Optional[Step] = None,
    *,
    budget: Size,
    host: Optional[Size] = None,
    allow: Sequence[str] = (),
) -> Fit:
    """Makes training steps of a model take at most `budget` bytes of its device; the bits stay the same.

        fit = mt.fit(model, optimizer, lambda: model(input_ids=ids, labels=ids).loss, budget="8GiB")
        print(fit.table())

    Each module is kept or run again in backward; each saved value is kept, made again by one cheap
    operation from other saved ones, or, with `host`, moved to host memory of so many bytes. What is
    chosen is what takes least time; nothing is changed where the step fits as it is.

    `step` runs the model and gives the loss, or calls backward() itself, after each micro-batch;
    `optimizer.step()` stays outside. It is called under torch.no_grad(), with fake tensors in place
    of the model's own, and once in earnest to correct the budget by what the kernels take beyond their
    tensors. Random states, buffers and gradients are as before afterwards. Without `step` the first
    training forward is planned as it comes; the model must give its loss.

    A forward of another shape is planned when it comes: `step` is called with that forward's arguments
    in place of its own. A warning says so. So is one that meets gradients for the first time. After the
    optimizer's first step what is left of the budget is planned anew. A step that saves other tensors than
    the planned one is right, too: what the plan does not know is kept, and a warning says so.

    LimitReachedError gives the least budget and what sets it; a later forward may raise it, too. `allow` names
    what may be done below that although it alters training or the optimizer; the fewest that hold the budget are:
    "chunked_loss", the cross-entropy of a last Linear's results is made by pieces of tokens, and logits are never
    whole (last bits of loss and gradients differ); of an optimizer of this package: "host", its states are in host
    memory, as with `paged=True`; "8bit", those of an AdamW, Adam, Lion or SGD are in 8 bits; "split", weights of 32
    bits are bf16, and states have the other bits, as with `split_weights=16`; "release", see
    :func:`release_gradients`, which then is `fit.release`: clipping by all gradients and accumulating end with it.
    What the optimizer has become stays after remove().
    """
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
    made, limits = None, (parse_size(budget), None if host is None else parse_size(host))
    try:
        with Interruptible(patience=1):  # torch ends the process where a mode's function raises in C++'s "noexcept"
            made = Fit(model, optimizer, step, *limits, allow)
            if step is not None:
                made._plan(step)
    except BaseException:
        if made is not None:
            made.remove()
        raise
    return made
