"""Parameters on a device, their fp32 masters and states on the host, where the steps are made
(ZeRO-Offload: Ren et al. 2021)."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

import torch

from ...offload import Disk
from ...sizes import Size
from . import _keep, _layout
from ._base import Loading, MemoptOptimizer, Params, check_counts
from ._disk_pieces import MASTER
from ._disk_steps import OnDisk
from ._facts import Facts, is_skipped, loss_of, on_host
from ._masters import Masters, copy_values
from ._options import number
from ._rules import AdamW8bit


class CPUOffloadOptimizer(torch.optim.Optimizer):
    """Any optimizer of this package with its states, and an fp32 master of each parameter, on the
    host, where the step is made: parameters of 16 bits cost 8.03 bytes each there with 8-bit
    states (4 master, 2 gradient, 2 states), and nothing but themselves on the device.

        optimizer = mt.CPUOffloadOptimizer(model.parameters(), mt.AdamW8bit, lr=1e-4, max_norm=1.0)

    With `split_weights=True` a bf16 parameter's master is bf16 with 8 more bits in its state: 7.03
    bytes (5.03 of a parameter on the CPU, which is its own master); with 16 more it is the fp32
    master to the last bit, in as many bytes as that (6.03 on the CPU). Else the bits are those of
    the same optimizer on fp32 parameters, rounded to the parameter's type once. Parameters on the
    CPU work as well; their gradients are read where they are.
    """

    _step_supports_amp_scaling = True  # GradScaler leaves its scale and verdict to step()

    def __init__(
        self,
        params: Params,
        optimizer_class: Type[MemoptOptimizer] = AdamW8bit,
        *,
        max_norm: Optional[float] = None,
        skip_non_finite: bool = False,
        offload_gradients: bool = False,
        disk: Optional[Disk] = None,
        host_limit: Size = "256MiB",
        **kwargs: Any,
    ) -> None:
        """Groups of parameters may have their own values of the class's arguments.

        Args:
            params: parameters, (name, parameter) pairs, or groups of them as dicts.
            optimizer_class: an optimizer of this package.
            max_norm: clip by the global norm of the gradients, in the step.
            skip_non_finite: a gradient that is not finite makes the step change nothing. With
                max_norm it always does.
            offload_gradients: copy each gradient to the host as soon as backward has it, and free
                it on the device. For accumulation the earlier sum is fetched back to be added to.
                Clip by max_norm then, and not under a GradScaler: both need the gradients on the
                device. No effect on parameters of the CPU.
            disk: a directory, or a file to make, in which masters and states are kept: "/scratch",
                or ("/scratch", "200GiB") to use no more of it. The file has no name and ends with
                the process. A step reads and writes all of it, beside the arithmetic.
            host_limit: with `disk`, the most host memory for masters, states and copies of
                gradients, 1 MiB or more.
            kwargs: the class's other arguments.

        Raises:
            TypeError: the class is not of this package, or a parameter is sharded (a DTensor): with
                FSDP2's CPUOffloadPolicy the shards are on the host already; use the class itself.
        """
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, MemoptOptimizer)):
            raise TypeError("%r is not an optimizer class of memopt.torch" % (optimizer_class,))
        if not optimizer_class._steps_on_host:
            raise TypeError(
                "%s cannot step on the host's masters: its train() and eval() change the parameters"
                " themselves; take AdamW" % optimizer_class.__name__
            )
        if disk is not None and not optimizer_class._by_pieces:
            raise TypeError(
                "%s needs a whole parameter for a step, and a disk's masters come by pieces; leave out"
                " disk, or take AdamW, Adam, Lion, SGD, RMSprop, Adagrad or AdEMAMix" % optimizer_class.__name__
            )
        if max_norm is not None and not 0.0 < number("max_norm", max_norm) < math.inf:
            raise ValueError("Invalid max_norm: %s" % max_norm)
        if disk is not None and offload_gradients:
            raise ValueError("offload_gradients keeps all gradients in host memory: not with disk")
        self._max_norm = 0.0 if max_norm is None else float(max_norm)
        self._checks = bool(skip_non_finite) or max_norm is not None
        self._norm: Optional[torch.Tensor] = None
        example = optimizer_class([torch.zeros(1, 1, requires_grad=True)], **kwargs)
        own = {k: v for k, v in kwargs.items() if k not in example.defaults}  # of all groups
        made = functools.partial(optimizer_class, **own)
        how = made, optimizer_class.__name__, self._is_staged
        self._masters = Masters(*how, offload_gradients) if disk is None else OnDisk(*how, disk, host_limit)
        super().__init__(params, example.defaults)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group; nothing changes if one of its values or parameters is refused."""
        before = len(self.param_groups)
        super().add_param_group(param_group)
        _keep.settle(self.param_groups[-1]["params"])
        try:
            self._masters.extend(self.param_groups)
        except (TypeError, ValueError, RuntimeError):
            del self.param_groups[before:]
            raise

    @staticmethod
    def _is_staged(p: torch.Tensor) -> bool:
        """Whether gradient and parameter are copied: not if the step can work on them in place."""
        return p.device.type != "cpu" or not _layout.is_dense(p)

    def _show(self) -> None:
        """Shows the states under the parameters."""
        states = self._masters.states()
        if states is not None:
            self.state = defaultdict(dict, states)

    # --- stepping ---

    @property
    def norm(self) -> Optional[torch.Tensor]:
        """The global norm of the last step's gradients before clipping, a scalar on the host; None
        where none was taken."""
        return self._norm

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One step over all parameters with a gradient. It returns when the masters are stepped and
        the copies to the device are enqueued.

        `closure` reevaluates the model and returns the loss.
        """
        loss = loss_of(closure)
        self._masters.follow()
        facts = Facts(getattr(self, "grad_scale", None), getattr(self, "found_inf", None), None, self._max_norm)
        self._step(self._masters.gradients(), facts, None)
        self._masters.held.clear()
        return loss

    def _step(self, gradients: Dict[torch.Tensor, Any], facts: Facts, place: Optional[int]) -> None:
        """A step over these; `place`: of the only parameter among all, which is a part of a step."""
        facts, masters = facts._replace(scale=on_host(facts.scale), found_inf=on_host(facts.found_inf)), self._masters
        try:
            masters.begin(gradients)
            if self._checks and place is None:
                squares, factor = masters.square_sum(), 1.0 if facts.scale is None else 1.0 / float(facts.scale)
                self._norm, facts = (squares.sqrt() * factor).float().squeeze(), facts._replace(square_sum=squares)
            if not is_skipped(facts):
                masters.step(facts, place)
        finally:
            masters.end()
        self._show()

    @torch.no_grad()
    def _step_one(self, parameter: torch.Tensor, position: int, facts: Facts) -> None:
        """For release_gradients()."""
        if parameter.grad is not None and parameter.numel():
            self._masters.follow(parameter)
            self._step({parameter: parameter.grad}, facts, position)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; gradients on the host are forgotten too."""
        self._masters.held.clear()
        super().zero_grad(set_to_none)

    # --- states ---

    @property
    def _portable(self) -> int:
        return self._masters.inner._portable

    @_portable.setter
    def _portable(self, value: int) -> None:
        self._masters.inner._portable = value

    def host_bytes(self) -> Dict[str, int]:
        """Bytes of host memory: "masters", "states" and "gradients" (the buffers of parameters of a
        device; of parameters of the CPU the gradients themselves are used). With `disk` the masters
        that are in host memory count as states."""
        return self._masters.host_bytes()

    def disk_stats(self) -> Dict[str, int]:
        """With `disk`: numbers of the offloader that keeps the file: `disk_bytes` (in use),
        `disk_written_bytes`, `disk_read_bytes`, `disk_waits`, `host_bytes_peak` and others."""
        if not isinstance(self._masters, OnDisk):
            raise RuntimeError("the optimizer has no disk")
        return self._masters.pager.offloader.stats()

    def state_dict(self) -> Dict[str, Any]:
        """That of the class, with each parameter's "master" (not a copy) among its states. The
        class itself loads it too, without the masters. With `disk` the tensors are in another file
        there, which ends with them, and take host memory only while it is free."""
        saved, masters = self._masters.saved()
        states = dict(saved["state"])
        for p, (number_, _) in self._numbered(saved["param_groups"]).items():
            if masters[p] is not p:
                states[number_] = {**states.get(number_, {}), MASTER: masters[p].detach()}
        return {**saved, "state": states}

    def _numbered(self, groups: List[Dict[str, Any]]) -> Dict[torch.Tensor, Tuple[Any, str]]:
        """The number in a state dict, and the name, of each parameter."""
        check_counts(self.param_groups, groups)
        places = Loading({}, groups, self.param_groups).places()
        return {p: (number_, name) for number_, (p, _, name) in places.items()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Loads what state_dict() gave, and writes the masters, rounded, to the parameters; or a
        dict that the class loads: then the masters are the parameters as they are. Everything is
        checked before anything changes."""
        numbers = self._numbered(state_dict["param_groups"])
        for own, theirs in zip(self.param_groups, state_dict["param_groups"]):
            split = bool(own.get("split_weights"))
            if bool(theirs.get("split_weights", split)) != split:
                raise ValueError(
                    "the state dict has split_weights=%s, this optimizer %s: its masters are of another type"
                    % (not split, split)
                )
        states = {
            key: {k: v for k, v in value.items() if k != MASTER} if isinstance(value, dict) else value
            for key, value in state_dict["state"].items()
        }
        masters = {p: (state_dict["state"].get(n) or {}).get(MASTER) for p, (n, _) in numbers.items()}
        for p, (_, name) in numbers.items():
            saved = masters[p]
            if saved is not None and saved.shape != p.shape:
                raise ValueError(
                    "the loaded master of %s has the shape %s, the parameter %s"
                    % (name, tuple(saved.shape), tuple(p.shape))
                )
        self._masters.load({**state_dict, "state": {k: v for k, v in states.items() if v}}, masters)
        copy_values(self._masters.inner.param_groups, self)
        self._show()

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("a CPUOffloadOptimizer is not copied or pickled; use its state_dict()")
