"""Groups of an optimizer's parameters, and the hyperparameters of each kind of optimizer."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Dict

from . import _abi
from ._abi import OptimizerKind
from ._library import lib

if TYPE_CHECKING:
    from .optimizer import Optimizer

#: The hyperparameters of each kind and their defaults: torch's, for Lion its paper's.
VALUES: Dict[OptimizerKind, Dict[str, Any]] = {
    OptimizerKind.ADAMW: dict(
        lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, maximize=False
    ),
    OptimizerKind.LION: dict(lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False),
    OptimizerKind.SGD: dict(
        lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False
    ),
}


class Group:
    """The hyperparameters of a group, read and set like torch's: ``group.lr = 3e-4``."""

    __slots__ = ("_optimizer", "index")

    def __init__(self, optimizer: Optimizer, index: int) -> None:
        self._optimizer = optimizer
        #: The group's number.
        self.index = index

    def _get(self) -> _abi.OptimizerGroup:
        raw = _abi.OptimizerGroup()
        lib.memopt_optimizer_get_group(
            self._optimizer._handle.pointer, self.index, ctypes.byref(raw)
        )
        return raw

    def set(self, **values: Any) -> None:
        """Changes some hyperparameters at once, for later steps; all are checked first."""
        raw = self._get()
        set_values(self._optimizer.kind, raw, values)
        lib.memopt_optimizer_set_group(
            self._optimizer._handle.pointer, self.index, ctypes.byref(raw)
        )

    def as_dict(self) -> Dict[str, Any]:
        """All hyperparameters under torch's names."""
        raw = self._get()
        every = {
            "lr": raw.lr,
            "betas": (raw.beta1, raw.beta2),
            "eps": raw.eps,
            "momentum": raw.momentum,
            "dampening": raw.dampening,
            "weight_decay": raw.weight_decay,
            "nesterov": bool(raw.nesterov),
            "maximize": bool(raw.maximize),
        }
        return {name: every[name] for name in VALUES[self._optimizer.kind]}

    def __repr__(self) -> str:
        return "<memopt.Group %d %s>" % (self.index, self.as_dict())


def _group_property(name: str, text: str) -> property:
    def get(self: Group) -> Any:
        values = self.as_dict()
        if name not in values:
            raise AttributeError("a group of %s has no %s" % (self._optimizer.kind.name, name))
        return values[name]

    def set_(self: Group, value: Any) -> None:
        self.set(**{name: value})

    return property(get, set_, doc=text)


for _name, _text in (
    ("lr", "Learning rate."),
    ("betas", "Decays of the first and second moment."),
    ("eps", "Added to the root."),
    ("weight_decay", "Weight decay, decoupled; of SGD part of the gradient."),
    ("momentum", "SGD: decay of the momentum buffer."),
    ("dampening", "SGD: what gradients after the first are damped by."),
    ("nesterov", "SGD: whether the momentum is Nesterov's."),
    ("maximize", "Whether steps climb."),
):
    setattr(Group, _name, _group_property(_name, _text))


def set_values(kind: OptimizerKind, raw: _abi.OptimizerGroup, values: Dict[str, Any]) -> None:
    """Writes hyperparameters under torch's names; TypeError where the kind has no such one."""
    for name, value in values.items():
        if name not in VALUES[kind]:
            raise TypeError(
                "a group of %s has no %r; it has %s" % (kind.name, name, ", ".join(VALUES[kind]))
            )
        if name == "betas":
            raw.beta1, raw.beta2 = value
        elif name in ("maximize", "nesterov"):
            setattr(raw, name, int(bool(value)))
        else:
            setattr(raw, name, float(value))
