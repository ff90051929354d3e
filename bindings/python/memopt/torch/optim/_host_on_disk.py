"""What CPUOffloadOptimizer does differently where masters and states are on a disk."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from . import _format, _keep, _layout, _load
from ._base import Loading, MemoptOptimizer
from ._facts import Facts, is_skipped, square_sum
from ._disk_steps import DiskStates, New
from ._disk_pieces import MASTER, Kept, dense

_HOST = torch.device("cpu")


class OnDisk(torch.optim.Optimizer):
    """The part of CPUOffloadOptimizer that the file needs; the rest is there."""

    _class: Any
    _new: Any  # the class with the states that were asked for
    _inner: Optional[MemoptOptimizer]
    _disk: Optional[DiskStates]
    _checks: bool
    _written: Dict[torch.Tensor, Tuple[int, int]]
    #: Stand for the masters in the inner optimizer.
    _outlines: Dict[torch.Tensor, torch.Tensor]
    #: Saved masters, while a state dict is being loaded.
    _loading: Dict[torch.Tensor, Optional[torch.Tensor]]

    def _follow(self, only: Optional[torch.Tensor] = None) -> MemoptOptimizer:
        raise NotImplementedError

    def _is_staged(self, p: torch.Tensor) -> bool:
        raise NotImplementedError

    def _note(self, p: torch.Tensor) -> None:
        raise NotImplementedError

    def _all(self) -> List[torch.Tensor]:
        raise NotImplementedError

    def _with_norm(self, facts: Facts, square_sum: torch.Tensor) -> Facts:
        raise NotImplementedError

    def _outline(self, p: torch.Tensor, group: Dict[str, Any]) -> torch.Tensor:
        found = self._outlines.get(p)
        if found is None:
            dtype = p.dtype if _format.split_bytes(group, p) else torch.float32
            like = torch.empty_like(p, dtype=dtype, device="meta", requires_grad=p.requires_grad)
            found = self._outlines[p] = like
        return found

    def _inner_of(self, members: Dict[int, List[torch.Tensor]]) -> MemoptOptimizer:
        """An optimizer of the class over tensors of some groups."""
        groups = [with_params(self.param_groups[g], masters) for g, masters in members.items()]
        made: MemoptOptimizer = self._new(groups)
        return made

    def _kept_as(self, p: torch.Tensor, number_: int, group: Dict[str, Any]) -> Kept:
        """How the file keeps a parameter with a new state."""
        inner: Any = self._inner
        outline = self._outline(p, group)
        staged = self._is_staged(p)
        return Kept(
            parameter=p,
            outline=outline,
            group=number_,
            kind=inner._kind,
            format=inner._format_of(group, outline),
            moments=inner._keeps_moments(group),
            split=_format.split_bytes(group, p),
            staged=staged,
            mastered=staged or p.dtype is not outline.dtype,
        )

    def _prepare(self, disk: DiskStates) -> None:
        """Parameters that the file does not have yet go there; what others have written into the
        rest is taken over."""
        disk.check()
        self._follow()
        new: List[New] = []
        for g, group in enumerate(self.param_groups):
            for p in group["params"]:
                if _keep.kept(p):
                    _keep.mark(self._outlines[p])
                if disk.knows(p):
                    if self._written[p] != (p._version, p.data_ptr()):
                        disk.refresh(p)
                        self._note(p)
                elif p.numel() and (p.requires_grad or p.grad is not None):
                    new.append((self._kept_as(p, g, group), 0, _from_parameter(dense(p))))
        if new:
            disk.add(new)
            for kept, _, _ in new:
                self._note(kept.parameter)
            self._show(disk)

    def _show(self, disk: DiskStates) -> None:
        known = [p for p in self._all() if disk.knows(p)]
        self.state = defaultdict(dict, {p: {"step": disk.steps_of(p)} for p in known})

    def _step_on_disk(self, disk: DiskStates, facts: Facts) -> None:
        self._prepare(disk)
        gradients = {p: p.grad for p in self._all() if p.grad is not None and p.numel()}
        self._check_gradients(disk, gradients)
        if self._checks:
            given = [p.grad for p in dict.fromkeys(self._all()) if p.grad is not None]
            together = len({g.device for g in given}) == 1
            given = given if together else [g.to(_HOST) for g in given]
            facts = self._with_norm(facts, square_sum(given))
        if not is_skipped(facts):
            self._step_these(disk, gradients, facts, False)

    def _check_gradients(self, disk: DiskStates, gradients: Dict[torch.Tensor, torch.Tensor]) -> None:
        inner: Any = self._inner
        for g, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                name = _layout.name_of(group, g, i)
                if p in gradients:
                    _layout.check_gradient(gradients[p], p, name, self._class.__name__)
                    if inner._keeps_moments(group) and not disk.has_moments(p):
                        raise RuntimeError(
                            "the state of %s on the disk was made without a momentum; load a state"
                            " dict to make it anew" % name
                        )

    def _step_these(self, disk: DiskStates, gradients: Dict[torch.Tensor, Any], facts: Facts, alone: bool) -> None:
        disk.step(gradients, self.param_groups, facts, alone)
        for p in gradients:
            torch.autograd.graph.increment_version(p)
            self._note(p)

    def _load_to_disk(self, loading: Loading) -> Dict[Any, Any]:
        """In the place of the inner optimizer's _loaded(): its states go to the file, one parameter
        after the other."""
        inner, disk = self._inner, self._disk
        assert inner is not None and disk is not None
        others, read = inner._read(loading)
        residuals = dict(inner._read_residuals(loading))
        coded = any(_load.has_codes(one.saved) for one in read)
        found = {r.parameter: r._replace(saved=r.saved._replace(lent=True)) for r in read}
        shared = _Room()

        def each() -> Iterator[New]:
            for g, (group, own) in enumerate(zip(loading.groups, self.param_groups)):
                for p in own["params"]:
                    kept, steps, flats = self._kept_as(p, g, group), 0, {}
                    one, residual = found.get(kept.outline), residuals.get(kept.outline)
                    if not p.numel() or not (p.requires_grad or one is not None):
                        continue
                    room = shared.like(kept.outline)
                    if one is not None:
                        state = inner._converted(one, room, coded)
                        steps = int(state["step"])
                        format_ = _format.of(state, kept.kind, p.numel(), kept.format)
                        kept = kept._replace(moments=True, format=format_)
                        keys = _format.keys(kept.kind, format_)
                        flats = {key: _layout.flat(state[key]) for key in keys}
                    if residual is not None:
                        whole = _format.residual(room, residual, kept.split)
                        flats[_format.RESIDUAL] = _layout.flat(whole)
                    master = self._loading.get(p)
                    room.copy_(p.detach() if master is None else master)
                    flats[MASTER] = _layout.flat(room)
                    yield kept, steps, flats.get

        disk.replace(each())
        return {key: value for key, value in others.items() if not isinstance(key, torch.Tensor)}

    def disk_stats(self) -> Dict[str, int]:
        """With `disk`: numbers of the offloader that keeps the file: `disk_bytes` (in use),
        `disk_written_bytes`, `disk_read_bytes`, `disk_waits`, `host_bytes_peak` and others."""
        if self._disk is None:
            raise RuntimeError("the optimizer has no disk")
        return self._disk.pager.offloader.stats()

    def _saved_from(self, disk: DiskStates) -> Tuple[Dict[str, Any], Dict[torch.Tensor, torch.Tensor]]:
        """The class's state dict, and the masters (or the parameter)."""
        inner = self._inner
        assert inner is not None
        whole = disk.snapshot()
        masters = {p: p for p in self._all()}
        masters.update({p: master for p, (master, _) in whole.items() if master is not None})
        members = [[masters[p] for p in group["params"]] for group in self.param_groups]
        own = self._inner_of(dict(enumerate(members)))
        own._portable = inner._portable
        for p, (_, state) in whole.items():
            if _format.steps_taken(state["step"]) > 0:
                own.state[masters[p]] = state
        return own.state_dict(), masters


class _Room:
    """Host memory of one tensor after the other, kept: malloc scatters what it is asked for anew each
    time, until the heap has grown by more than a stated limit."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8, device=_HOST)

    def like(self, outline: torch.Tensor) -> torch.Tensor:
        """A tensor of this memory, where the last one was, in the outline's order of memory."""
        count = outline.numel() * outline.dtype.itemsize
        if self._bytes.numel() < count:
            self._bytes = torch.empty(count, dtype=torch.uint8, device=_HOST)
        flat = self._bytes[:count].view(outline.dtype)
        return flat.as_strided(outline.size(), outline.stride())


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A call of a method that does not keep its object, so that the file ends with the optimizer."""
    found = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        own = found()
        assert own is not None
        return own(*arguments)

    return call


def with_params(group: Dict[str, Any], members: List[torch.Tensor]) -> Dict[str, Any]:
    """A group with other tensors in the place of its parameters, under their names if it is all."""
    values = {**{k: v for k, v in group.items() if k != "params"}, "params": members}
    names = values.pop("param_names", None)
    if names is not None:
        some = names if len(names) == len(members) else ["of %s" % names[0]]
        values["params"] = [(some[i % len(some)], member) for i, member in enumerate(members)]
    return values


def _from_parameter(flat: torch.Tensor) -> Callable[[str], Optional[torch.Tensor]]:
    """What a new parameter's chunks begin with."""
    return lambda key: flat if key == MASTER else None
