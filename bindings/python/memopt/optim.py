"""AdamW, Adam, Adafactor, Lion and SGD with states of 4 to 32 bits, used as torch's are.

They take parameters or groups on construction, and gradients from each parameter's ``.grad``. What
they are made of is :class:`Optimizer`, the library's own. Their arguments are those of
:mod:`memopt.rules`.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from . import rules
from .optimizer import Optimizer


class _WithParameters(Optimizer):
    """An optimizer with torch's manners over parameters, or dicts {"params": …, "lr": …, …}."""

    __slots__ = ()

    _rule: rules.Rule

    def __init_subclass__(
        cls, rule: Optional[str] = None, states: str = "fp32", **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if rule is not None:
            cls._rule = rules.RULES[rule]
        if rule is not None or states != "fp32":
            call = rules.call_of_core(cls._rule, states)
            cls.__doc__ = rules.described(cls._rule, cls.__doc__ or cls._rule.text, call)
            cls.__init__ = rules.construct(cls.__doc__, call, _start)  # type: ignore[method-assign]

    def _add_all(self, params: List[Any], defaults: Dict[str, Any], stream: Any) -> None:
        if not params:
            raise ValueError("the optimizer has no parameters; pass at least one")
        groups: List[Dict[str, Any]] = params
        if not isinstance(params[0], dict):
            groups = [{"params": params}]
        for values in groups:
            own: Dict[str, Any] = {k: v for k, v in values.items() if k != "params"}
            group = self.add_group(**{**defaults, **own})
            for parameter in values["params"]:
                self.add_parameter(parameter, group, stream=stream)


def _start(self: Any, allocator: Any, params: Any, values: Dict[str, Any]) -> None:
    stream = values.pop("stream")
    options = {k: values.pop(k) for k in ("min_8bit_size", "stochastic_rounding", "seed")}
    states = rules.format_named(values.pop("states"), values.pop("codes", None), self._rule)
    Optimizer.__init__(self, allocator, kind=self._rule.kind, states=states, **options)
    try:
        self._add_all(list(params), values, stream)
    except BaseException:
        self.close()
        raise


class AdamW(_WithParameters, rule="AdamW"):
    __slots__ = ()


class Adam(_WithParameters, rule="Adam"):
    __slots__ = ()


class Adafactor(_WithParameters, rule="Adafactor"):
    __slots__ = ()


class Lion(_WithParameters, rule="Lion"):
    __slots__ = ()


class SGD(_WithParameters, rule="SGD"):
    """SGD as torch.optim.SGD defines it; the momentum buffer is kept also without momentum."""

    __slots__ = ()


AdamW8bit, AdamW4bit, AdamWBf16 = (rules.variant(AdamW, states) for states in ("8bit", "4bit", "bf16"))
Adam8bit, Lion8bit, SGD8bit = (rules.variant(cls, "8bit") for cls in (Adam, Lion, SGD))
