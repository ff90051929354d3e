"""A step in backward: each parameter is stepped as soon as its gradient is complete, and the gradient
freed, so that gradients never lie in memory together (LOMO: Lv et al. 2023)."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Dict, Iterator, List, Optional, Union

import torch

from ._base import MemoptOptimizer
from .._tensor_lists import is_gradient
from ._facts import Facts, device_square_sum
from ._host import CPUOffloadOptimizer
from ._options import number

NORMS = ("measured", "previous")


class GradientRelease:
    """What `release_gradients()` gives back. Not thread-safe, like the optimizer."""

    def __init__(
        self, optimizer: Union[MemoptOptimizer, CPUOffloadOptimizer], max_norm: Optional[float], norm: str
    ) -> None:
        self._optimizer, self._max_norm, self._policy = optimizer, max_norm, norm
        self._accumulating = self._measuring = False
        #: Sums of squares of this backward's gradients, by device.
        self._squares: Dict[torch.device, torch.Tensor] = {}
        self._norm: Optional[torch.Tensor] = None
        self._place: Dict[torch.Tensor, int] = {}
        self._hooks: List[Any] = [optimizer.register_step_post_hook(self._end)]
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for place, parameter in enumerate(params):
            if parameter.requires_grad and parameter not in self._place:
                self._place[parameter] = place
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._ready))

    @property
    def norm(self) -> Optional[torch.Tensor]:
        """The global norm by which the next steps are clipped, a scalar; None: not known yet."""
        return self._norm

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes inside add to the gradients and step nothing, for all but the last of
        several micro-batches. The gradients live until that last pass."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """The backward pass inside only measures the norm: each gradient is freed at once and
        nothing is stepped. The same pass follows outside, by which the parameters are stepped:
        ``backward(retain_graph=True)`` inside, or a second forward."""
        if self._max_norm is None or self._policy != "measured":
            raise RuntimeError('measure() needs max_norm and norm="measured"')
        if any(p.grad is not None for p in self._place):
            raise RuntimeError("measure() does not work with accumulated gradients: use step()")
        self._measuring, self._squares = True, {}
        try:
            yield
            self._norm = self._total()
        finally:
            self._measuring, self._squares = False, {}

    def remove(self) -> None:
        """Steps in backward end; the optimizer is as any other."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _ready(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None or self._accumulating:
            return
        scale = bad = None
        if self._max_norm is not None:
            norm = self._norm
            if self._measuring or self._policy == "previous":
                bad = self._add_square(gradient)
            elif norm is None:
                raise RuntimeError("no norm is known to clip by: run backward in measure() first")
            if norm is not None:
                norm = norm.to(gradient.device)
                scale = torch.clamp((norm + 1e-6) / self._max_norm, min=1.0)
                bad = norm if bad is None else bad
            bad = None if bad is None else (~torch.isfinite(bad)).float()
        if not self._measuring:
            self._optimizer._step_one(parameter, self._place[parameter], Facts(scale, bad))
        parameter.grad = None

    def _add_square(self, gradient: torch.Tensor) -> torch.Tensor:
        if is_gradient(gradient):  # without the fp32 copy that torch makes of 16 bits on a CPU
            square = device_square_sum([gradient])[0]
        else:
            norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)
            square = norm.double().square()
        before = self._squares.get(square.device)
        self._squares[square.device] = square if before is None else before + square
        return square

    def _total(self) -> Optional[torch.Tensor]:
        squares = list(self._squares.values())
        if not squares:
            return None
        device = squares[0].device
        return torch.stack([s.to(device) for s in squares]).sum().sqrt().float()

    def _end(self, *unused: Any) -> None:
        """The user's step(): what was measured is used up, or begins to count."""
        total = self._total() if self._policy == "previous" else None
        if total is not None and self._norm is not None:
            total = torch.where(torch.isfinite(total), total, self._norm.to(total.device))
        if total is not None or self._policy == "measured":
            self._norm = total
        self._squares = {}


def release_gradients(
    optimizer: Union[MemoptOptimizer, CPUOffloadOptimizer], *, max_norm: Optional[float] = None, norm: str = "measured"
) -> GradientRelease:
    """Makes backward() step each parameter as soon as its gradient is complete, and free it.

        release = mt.release_gradients(optimizer)
        loss.backward()       # steps
        optimizer.step()      # ends the step, for schedulers and hooks; steps what is left

    The bits are those of a step after backward (with `stochastic_rounding`: if every parameter gets
    a gradient). The parameters' states are made with the first one's.

    Args:
        optimizer: one of this package; not under a GradScaler, which must know all gradients first.
        max_norm: clip by the global norm of the gradients.
        norm: which norm that is. "measured": of the same gradients, which a first backward in
            `measure()` finds; a norm that is not finite skips the steps. "previous": of the last
            step's gradients, without a second pass; the first step is not clipped, and a gradient
            that is not finite skips the step of its parameter alone.

    Raises:
        TypeError: it is not an optimizer of this package.
        ValueError: max_norm is not positive, or norm is not one of these.
        RuntimeError: several processes train together: they reduce gradients after these steps.
    """
    if not isinstance(optimizer, (MemoptOptimizer, CPUOffloadOptimizer)):
        raise TypeError("%s is not an optimizer of memopt.torch" % type(optimizer).__name__)
    if max_norm is not None and not 0.0 < number("max_norm", max_norm) < math.inf:
        raise ValueError("Invalid max_norm: %s" % max_norm)
    if norm not in NORMS:
        raise ValueError("Invalid norm: %r; it is one of %s" % (norm, ", ".join(NORMS)))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        if torch.distributed.get_world_size() > 1:
            raise RuntimeError(
                "release_gradients() is for one process: %d of them train together, and reduce a"
                " gradient after it was stepped" % torch.distributed.get_world_size()
            )
    return GradientRelease(optimizer, max_norm, norm)
