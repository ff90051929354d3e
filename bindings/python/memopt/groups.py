"""Groups of an optimizer's parameters, and the hyperparameters of each kind of optimizer."""

from __future__ import annotations

from typing import Any, Dict, Generic, Optional, Tuple, TypeVar, Union

from . import _abi
from ._abi import OptimizerKind
from ._library import lib, output
from ._lifetime import Handle
from .rules import RULES, in_library

#: The hyperparameters of each kind and their defaults: torch's, for Lion its paper's.
VALUES: Dict[OptimizerKind, Dict[str, Any]] = {
    rule.kind: in_library(rule) for rule in RULES.values() if rule.kind is not None and "max_unorm" not in rule.further
}
VALUES[OptimizerKind.SCHEDULE_FREE]["average"] = 0.0
VALUES[OptimizerKind.RMSPROP_MOMENTUM] = {**VALUES[OptimizerKind.RMSPROP], "momentum": 0.9}
del VALUES[OptimizerKind.RMSPROP]["momentum"]

#: Adafactor's first eps, where it is None.
F32_EPS = 2.0**-23

_T = TypeVar("_T")


class _Value(Generic[_T]):
    """A hyperparameter as an attribute of a group."""

    def __init__(self, text: str) -> None:
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, group: Any, owner: Any = None) -> _T:
        if group is None:
            return self  # type: ignore[return-value]  # help() asks the class
        values = group.as_dict()
        if self._name not in values:
            raise AttributeError("a group of %s has no %s" % (group._kind.name, self._name))
        value: _T = values[self._name]
        return value

    def __set__(self, group: "Group", value: _T) -> None:
        group._set({self._name: value})


class Group:
    """The hyperparameters of a group, read and set like torch's: ``group.lr = 3e-4``."""

    __slots__ = ("_handle", "_kind", "index")

    lr = _Value[float]("Learning rate.")
    betas = _Value[Tuple[float, ...]]("Decays of the first and second moment; AdEMAMix: of the slow mean too.")
    alpha = _Value[float]("RMSprop: decay of the second moment. AdEMAMix: weight of the slow mean.")
    t_alpha = _Value[float]("AdEMAMix: steps in which alpha grows; 0: none.")
    t_beta3 = _Value[float]("AdEMAMix: steps in which the third beta grows; 0: none.")
    eps = _Value[Any]("Added to the root. Adafactor: the least root, and the least RMS of a parameter.")
    beta2_decay = _Value[float]("Adafactor: step t takes t ** beta2_decay of the square.")
    d = _Value[float]("Adafactor: the longest RMS of an update.")
    weight_decay = _Value[float]("Weight decay, decoupled; of SGD, Adam, RMSprop and Adagrad part of the gradient.")
    momentum = _Value[float]("SGD, RMSprop: decay of the momentum buffer.")
    dampening = _Value[float]("SGD: damping of the gradients after the first.")
    nesterov = _Value[bool]("SGD: whether the momentum is Nesterov's.")
    maximize = _Value[bool]("Whether steps climb.")
    average = _Value[float]("Schedule-free AdamW: the weight of z in the average; 0: 1 / t.")

    def __init__(self, handle: Handle, kind: OptimizerKind, index: int) -> None:
        self._handle = handle  # the optimizer's
        self._kind = kind
        #: The group's number.
        self.index = index

    def set(self, **values: Any) -> None:
        """Changes some hyperparameters at once, for later steps; all are checked first."""
        self._set(values)

    def _set(self, values: Dict[str, Any]) -> None:
        raw = self._get()
        set_values(self._kind, raw, values)
        lib.memopt_optimizer_set_group(self._handle.pointer, self.index, raw)

    def _get(self) -> _abi.OptimizerGroup:
        raw: _abi.OptimizerGroup = output(
            lib.memopt_optimizer_get_group, self._handle.pointer, self.index
        )
        return raw

    def as_dict(self) -> Dict[str, Any]:
        """All hyperparameters under torch's names."""
        raw = self._get()
        every = {
            **{name: getattr(raw, name, None) for name in VALUES[self._kind]},
            "eps": (raw.eps, raw.eps2) if self._kind is OptimizerKind.ADAFACTOR else raw.eps,
            "alpha": raw.alpha if self._kind is OptimizerKind.ADEMAMIX else raw.beta2,
            "betas": (raw.beta1, raw.beta2, raw.beta3)[: _betas(self._kind)],
            "nesterov": bool(raw.nesterov),
            "maximize": bool(raw.maximize),
        }
        return {name: every[name] for name in VALUES[self._kind]}

    def __repr__(self) -> str:
        return "<memopt.Group %d %s>" % (self.index, self.as_dict())


def _betas(kind: OptimizerKind) -> int:
    return 3 if kind is OptimizerKind.ADEMAMIX else 2


def set_values(kind: OptimizerKind, raw: _abi.OptimizerGroup, values: Dict[str, Any]) -> None:
    """Writes hyperparameters under torch's names; TypeError where the kind has no such one."""
    for name, value in values.items():
        if name not in VALUES[kind]:
            raise TypeError(
                "a group of %s has no %r; it has %s" % (kind.name, name, ", ".join(VALUES[kind]))
            )
        if name == "betas":
            if len(value) != _betas(kind):
                raise ValueError("a group of %s has %d betas" % (kind.name, _betas(kind)))
            raw.beta1, raw.beta2, raw.beta3 = (*value, 0.0)[:3]
        elif name == "alpha" and kind is not OptimizerKind.ADEMAMIX:
            raw.beta2 = float(value)
        elif name == "eps" and kind is OptimizerKind.ADAFACTOR:
            raw.eps, raw.eps2 = (F32_EPS if value[0] is None else float(value[0])), float(value[1])
        elif name in ("maximize", "nesterov"):
            setattr(raw, name, int(bool(value)))
        else:
            setattr(raw, name, float(value))
