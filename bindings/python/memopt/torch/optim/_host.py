"""Parameters on a device, their fp32 masters and states on the host, where the steps are made
(ZeRO-Offload: Ren et al. 2021)."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Type

import torch

from ...offload import Disk
from ...sizes import Size
from . import _format, _keep, _layout, _pinned
from ._base import MemoptOptimizer, Params
from ._facts import Facts, is_skipped, on_host, square_sum
from ._disk_steps import DiskStates
from ._lane import Lane
from ._host_on_disk import OnDisk, weakly, with_params
from ._options import number
from ._disk_pieces import MASTER
from ._rules import AdamW8bit

_HOST = torch.device("cpu")
#: Elements of the pieces by which copies and steps overlap; a parameter is not cut.
_PIECE = 8 << 20


class _Place(NamedTuple):
    """What belongs to a parameter."""

    master: torch.Tensor  # fp32 (split: bf16), on the host; the parameter itself if it is such
    wire: Optional[torch.Tensor]  # on the host, for the gradient in and the parameter out
    lane: Optional[Lane]


class CPUOffloadOptimizer(OnDisk):
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
        self._max_norm = 0.0 if max_norm is None else float(max_norm)
        self._checks = bool(skip_non_finite) or max_norm is not None
        self._offload_gradients = offload_gradients
        self._class: Any = optimizer_class
        self._places: Dict[torch.Tensor, _Place] = {}
        self._lanes: Dict[torch.device, Lane] = {}
        self._copies: Dict[torch.Tensor, torch.Tensor] = {}
        #: Gradients that are on the host already, by parameter.
        self._held: Dict[torch.Tensor, Any] = {}
        self._hooks: Dict[torch.Tensor, Any] = {}
        #: Version and address of each parameter after our last write.
        self._written: Dict[torch.Tensor, Tuple[int, int]] = {}
        self._inner: Optional[MemoptOptimizer] = None
        self._binding: Any = None
        self._norm: Optional[torch.Tensor] = None
        #: Stand for the masters in the inner optimizer where those are on the disk.
        self._outlines: Dict[torch.Tensor, torch.Tensor] = {}
        #: Saved masters, while a state dict is being loaded.
        self._loading: Dict[torch.Tensor, Optional[torch.Tensor]] = {}
        self._disk: Optional[DiskStates] = None
        if disk is not None:
            if offload_gradients:
                raise ValueError("offload_gradients keeps all gradients in host memory: not with disk")
            self._disk = DiskStates(disk, host_limit, weakly(self._inner_of))
        example = optimizer_class([torch.zeros(1, 1, requires_grad=True)], **kwargs)
        own = {k: v for k, v in kwargs.items() if k not in example.defaults}  # of all groups
        self._new = functools.partial(optimizer_class, **own)
        super().__init__(params, example.defaults)
        for group in self.param_groups:
            self._extend(group)

    # --- groups and masters ---

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group; nothing changes if one of its values or parameters is refused."""
        before = len(self.param_groups)
        super().add_param_group(param_group)
        _keep.settle(self.param_groups[-1]["params"])
        if self._inner is None and before == 0:
            return  # the constructor's
        if self._inner is not None:
            try:
                self._extend(self.param_groups[-1])
            except (TypeError, ValueError, RuntimeError):
                del self.param_groups[before:]
                raise

    def _extend(self, group: Dict[str, Any]) -> None:
        number_ = len(self._inner.param_groups) if self._inner is not None else 0
        for index, p in enumerate(group["params"]):
            name = _layout.name_of(group, number_, index)
            if _layout.is_sharded(p):
                raise TypeError(
                    "%s is a DTensor; use %s itself on shards, with FSDP2's CPUOffloadPolicy"
                    % (name, self._class.__name__)
                )
            _layout.check_parameter(p, name)
        if self._disk is not None:
            values = with_params(group, [self._outline(p, group) for p in group["params"]])
        else:
            values = with_params(group, [self._place(p, group).master for p in group["params"]])
        if self._inner is None:
            inner = self._inner = self._new([values])
            inner._model_copies = self._copies
            if self._disk is not None:
                inner._outlines, inner._loaded = True, weakly(self._load_to_disk)
        else:
            self._inner.add_param_group(values)

    def _place(self, p: torch.Tensor, group: Optional[Dict[str, Any]] = None) -> _Place:
        """`group`: the parameter's, where it is new."""
        found = self._places.get(p)
        if found is None:
            found = self._places[p] = self._new_place(p, _format.split_bytes(group or {}, p) > 0)
            self._note(p)
            if found.wire is not None and self._offload_gradients and p.requires_grad:
                hooked: Any = p
                self._hooks[p] = hooked.register_post_accumulate_grad_hook(self._take)
        return found

    def _new_place(self, p: torch.Tensor, split: bool) -> _Place:
        staged, dtype = self._is_staged(p), p.dtype if split else torch.float32
        if not staged and p.dtype is dtype:
            return _Place(p, None, None)
        master = _pinned.like(p, dtype, p.device)
        master.copy_(p.detach())
        master.requires_grad_(p.requires_grad)
        if not staged:
            self._copies[master] = p
            return _Place(master, None, None)
        wire = _pinned.like(master, p.dtype, p.device)
        if p.dtype is not dtype:
            self._copies[master] = wire
        lane = self._lanes.get(p.device)
        if lane is None:
            lane = self._lanes[p.device] = Lane(p.device)
        return _Place(master, wire, lane)

    def _is_staged(self, p: torch.Tensor) -> bool:
        """Whether gradient and parameter are copied: not if the step can work on them in place."""
        return p.device.type != "cpu" or not _layout.is_dense(p)

    def _note(self, p: torch.Tensor) -> None:
        self._written[p] = (p._version, p.data_ptr())

    def _all(self) -> List[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _follow(self, only: Optional[torch.Tensor] = None) -> MemoptOptimizer:
        """The inner optimizer with the values of the groups as they are now, and the masters of all
        parameters or one as _refresh() leaves them."""
        inner = self._inner
        assert inner is not None
        for group, own in zip(self.param_groups, inner.param_groups):
            own.update({k: v for k, v in group.items() if k not in ("params", "param_names")})
        for p in self._places if only is None else [only]:
            self._refresh(p, inner)
        return inner

    def _refresh(self, p: torch.Tensor, inner: MemoptOptimizer) -> None:
        """Takes over what something else has written into a parameter, as loading a model does."""
        place = self._place(p)
        if self._written[p] != (p._version, p.data_ptr()) and place.master is not p:
            theirs = p.detach().to(_HOST)
            kept = place.master.to(p.dtype) == theirs
            place.master.data.copy_(torch.where(kept, place.master, theirs.float()))
            residual = inner.state.get(place.master, {}).get(_format.RESIDUAL)
            if residual is not None:
                residual.masked_fill_(~kept, 0)
            self._note(p)
        if _keep.kept(p) and not _keep.kept(place.master):
            _keep.mark(place.master)

    def _finish(self) -> None:
        """Shows the states under the parameters."""
        inner = self._inner
        assert inner is not None
        if inner._binding is not self._binding or inner._binding is None:
            self._binding = inner._binding
            self.state = defaultdict(dict)
            for p, place in self._places.items():
                if inner.state.get(place.master):
                    self.state[p] = inner.state[place.master]

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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        return loss

    def _step(self, scale: Any, found_inf: Any) -> None:
        scale, found_inf = on_host(scale), on_host(found_inf)
        if self._disk is not None:
            self._step_on_disk(self._disk, Facts(scale, found_inf, None, self._max_norm))
            return
        inner = self._follow()
        params = self._all()
        pieces = self._pieces(params)
        for lane in self._lanes.values():
            lane.begin()
        marks = [self._fetch(piece) for piece in pieces]
        grads = [self._gradient(p) for p in params]
        facts = Facts(scale, found_inf, None, self._max_norm)
        if self._checks:
            facts = self._with_norm(facts, self._square_sum(params, grads, marks))
        if not is_skipped(facts):
            masters = [self._place(p).master for p in params]
            index = {p: i for i, p in enumerate(params)}
            for piece, mark in zip(pieces, marks):
                for lane, event in mark:
                    lane.wait(event)
                some: List[Optional[torch.Tensor]] = [None] * len(params)
                for p in piece:
                    some[index[p]] = grads[index[p]]
                inner._step(masters, some, facts)
                for p in piece:
                    self._send(p)
        for lane in self._lanes.values():
            lane.end()
        self._held.clear()
        self._finish()

    def _with_norm(self, facts: Facts, square_sum: torch.Tensor) -> Facts:
        factor = 1.0 if facts.scale is None else 1.0 / float(facts.scale)
        self._norm = (square_sum.sqrt() * factor).float().squeeze()
        return facts._replace(square_sum=square_sum)

    def _pieces(self, params: List[torch.Tensor]) -> List[List[torch.Tensor]]:
        """The parameters with a gradient: those that are not copied in one piece, the others in
        pieces that overlap."""
        have = [p for p in dict.fromkeys(params) if p.grad is not None or p in self._held]
        here = [p for p in have if self._place(p).wire is None]
        pieces, size = ([here] if here else []), _PIECE
        for p in have:
            if self._place(p).wire is None:
                continue
            if size >= _PIECE:
                pieces.append([])
                size = 0
            pieces[-1].append(p)
            size += p.numel()
        return pieces

    def _fetch(self, piece: List[torch.Tensor]) -> List[Tuple[Lane, Any]]:
        """Enqueues the copies of gradients to the host."""
        lanes = []
        for p in piece:
            place = self._place(p)
            if place.wire is not None and place.lane is not None:
                if p not in self._held:
                    place.lane.copy(place.wire, p.grad)  # type: ignore[arg-type]
                lanes.append(place.lane)
        return [(lane, lane.mark()) for lane in dict.fromkeys(lanes)]

    def _gradient(self, p: torch.Tensor) -> Optional[torch.Tensor]:
        """What the step reads as the gradient."""
        if p.grad is None and p not in self._held:
            return None
        wire = self._place(p).wire
        return p.grad if wire is None else wire

    def _send(self, p: torch.Tensor) -> None:
        """Enqueues the copy of a stepped parameter to its device."""
        place = self._place(p)
        if place.wire is not None and place.lane is not None:
            source = place.master.detach() if p.dtype is place.master.dtype else place.wire
            place.lane.copy(p.detach(), source)
        if place.master is not p:
            torch.autograd.graph.increment_version(p)
        self._note(p)

    def _square_sum(
        self, params: List[torch.Tensor], grads: List[Optional[torch.Tensor]], marks: List[Any]
    ) -> torch.Tensor:
        """The sum of squares over all gradients, in the order of one step over them. Where all of
        them are on one device as well, it is taken there, before they have arrived."""
        there = [p.grad for p, g in zip(params, grads) if g is not None]
        given = [g for g in grads if g is not None]
        same = len({(g.device if g is not None else None) for g in there}) == 1
        if same and all(
            a is not None and a.stride() == b.stride() and a.dtype is b.dtype for a, b in zip(there, given)
        ):
            return square_sum([g for g in there if g is not None])
        for mark in marks:
            for lane, event in mark:
                lane.wait(event)
        return square_sum(given)

    @torch.no_grad()
    def _take(self, p: torch.Tensor) -> None:
        """After backward has a gradient: to the host, and freed on the device."""
        place = self._place(p)
        if p.grad is None or place.wire is None or place.lane is None:
            return
        if p in self._held:
            place.lane.wait(self._held[p])
            p.grad.add_(place.wire.to(p.device))
        place.lane.begin()
        place.lane.copy(place.wire, p.grad)
        self._held[p] = place.lane.mark()
        p.grad = None

    @torch.no_grad()
    def _step_one(self, parameter: torch.Tensor, position: int, facts: Facts) -> None:
        """For release_gradients()."""
        if parameter.grad is None or not parameter.numel():
            return
        facts = facts._replace(scale=on_host(facts.scale), found_inf=on_host(facts.found_inf))
        if self._disk is not None:
            self._prepare(self._disk)
            if not is_skipped(facts):
                self._step_these(self._disk, {parameter: parameter.grad}, facts, True)
            return
        inner = self._follow(parameter)
        place = self._place(parameter)
        if place.lane is not None:
            place.lane.begin()
        for lane, mark in self._fetch([parameter]):
            lane.wait(mark)
        if not is_skipped(facts):
            gradient = self._gradient(parameter)
            assert gradient is not None
            inner._step_alone(position, gradient, facts)
            self._send(parameter)
        if place.lane is not None:
            place.lane.end()
        self._finish()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; gradients on the host are forgotten too."""
        self._held.clear()
        super().zero_grad(set_to_none)

    # --- states ---

    @property
    def _portable(self) -> int:
        assert self._inner is not None
        return self._inner._portable

    @_portable.setter
    def _portable(self, value: int) -> None:
        assert self._inner is not None
        self._inner._portable = value

    def host_bytes(self) -> Dict[str, int]:
        """Bytes of host memory: "masters", "states" and "gradients" (the buffers of parameters of a
        device; of parameters of the CPU the gradients themselves are used). With `disk` the masters
        that are in host memory count as states."""
        inner = self._inner
        assert inner is not None
        if self._disk is not None:
            gradients, rest = self._disk.pager.nbytes()
            return {"masters": 0, "states": rest, "gradients": gradients}
        masters = [q.master for p, q in self._places.items() if q.master is not p]
        states = [t for state in inner.state.values() for t in state.values()]
        wires = [q.wire for q in self._places.values() if q.wire is not None]
        return {
            "masters": sum(t.nbytes for t in masters),
            "states": sum(t.nbytes for t in states),
            "gradients": sum(t.nbytes for t in wires),
        }

    def state_dict(self) -> Dict[str, Any]:
        """That of the class, with each parameter's "master" (not a copy) among its states. The
        class itself loads it too, without the masters. With `disk` the tensors are in another file
        there, which ends with them, and take host memory only while it is free."""
        inner = self._follow()
        if self._disk is None:
            saved = inner.state_dict()
            masters = {p: self._place(p).master for p in self._all()}
        else:
            self._prepare(self._disk)
            saved, masters = self._saved_from(self._disk)
        states = dict(saved["state"])
        for p, (number_, _) in self._numbered(saved["param_groups"]).items():
            master = masters[p]
            if master is not p:
                states[number_] = {**states.get(number_, {}), MASTER: master.detach()}
        return {**saved, "state": states}

    def _numbered(self, groups: List[Dict[str, Any]]) -> Dict[torch.Tensor, Tuple[Any, str]]:
        """The number in a state dict, and the name, of each parameter."""
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("loaded state dict has other parameter groups than the optimizer")
        found: Dict[torch.Tensor, Tuple[Any, str]] = {}
        for g, (own, saved) in enumerate(zip(self.param_groups, groups)):
            for i, (p, number_) in enumerate(zip(own["params"], saved["params"])):
                found.setdefault(p, (number_, _layout.name_of(own, g, i)))
        return found

    @torch.no_grad()
    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Loads what state_dict() gave, and writes the masters, rounded, to the parameters; or a
        dict that the class loads: then the masters are the parameters as they are. Everything is
        checked before anything changes."""
        inner = self._follow()
        numbers = self._numbered(state_dict["param_groups"])
        for own, theirs in zip(self.param_groups, state_dict["param_groups"]):
            split = bool(own.get("split_weights"))
            if bool(theirs.get("split_weights", split)) != split:
                raise ValueError(
                    "the state dict has split_weights=%s, this optimizer %s: its masters are of"
                    " another type" % (not split, split)
                )
        states = {
            key: {k: v for k, v in value.items() if k != MASTER} if isinstance(value, dict) else value
            for key, value in state_dict["state"].items()
        }
        masters = {}
        for p, (number_, name) in numbers.items():
            saved = (state_dict["state"].get(number_) or {}).get(MASTER)
            if saved is not None and saved.shape != p.shape:
                raise ValueError(
                    "the loaded master of %s has the shape %s, the parameter %s"
                    % (name, tuple(saved.shape), tuple(p.shape))
                )
            masters[p] = saved
        self._loading = masters
        try:
            inner.load_state_dict({**state_dict, "state": {k: v for k, v in states.items() if v}})
        finally:
            self._loading = {}
        for group, own in zip(self.param_groups, inner.param_groups):
            group.update({k: v for k, v in own.items() if k not in ("params", "param_names")})
        for p, saved in masters.items():
            if saved is not None:
                p.copy_(saved)
            if self._disk is None:
                place = self._place(p)
                if place.master is not p:
                    place.master.data.copy_(p if saved is None else saved)
            self._note(p)
        if self._disk is not None:
            self._show(self._disk)
            return
        self._held.clear()
        self._binding = None
        self.state = defaultdict(dict)
        for p, place in self._places.items():
            if inner.state.get(place.master):
                self.state[p] = inner.state[place.master]

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("a CPUOffloadOptimizer is not copied or pickled; use its state_dict()")
