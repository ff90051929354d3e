"""bitsandbytes' optimizers by its names and with its arguments:

    import memopt.torch.bnb as bnb

    optimizer = bnb.PagedAdamW8bit(model.parameters(), lr=3e-4)

The classes are those of memopt.torch.optim with other defaults: of each rule one with `optim_bits`, one that
ends in "8bit" and one in "32bit"; of AdamW, Adam, Lion and AdEMAMix also "Paged" ones. bitsandbytes' arguments
that ask for what there is anyway have no effect; others raise, and the message says what does the same here. 8-bit
states have companded codes; bitsandbytes' are codes="dynamic", and those of a state dict that is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List

from .. import rules
from .optim import _base, _options, _rules, _trust

_RULES = {cls.__name__: cls for cls in _rules.CLASSES + (_trust.LAMB, _trust.LARS)}
_PAGED = ("AdEMAMix", "Adam", "AdamW", "Lion")

_ARGUMENTS: Dict[str, Any] = dict(
    optim_bits=None, args=None, percentile_clipping=100, block_wise=True, is_paged=False
)
_TEXTS = dict(
    optim_bits="32 or 8, in a class whose name does not say it.",
    args="only None.",
    percentile_clipping="only 100; call clip_grad_norm_() before step().",
    block_wise="only True.",
    is_paged="keep states in page-locked host memory, as the Paged classes do.",
)

__all__: List[str] = []


def _start(self: Any, params: Any, values: Dict[str, Any]) -> None:
    theirs = {name: values.pop(name) for name in _ARGUMENTS}
    name, bits = type(self).__name__, theirs["optim_bits"]
    own = 8 if self._own_states == "8bit" else 32
    if bits not in (None, 32, own if name.endswith("bit") else 8):
        raise ValueError("optim_bits=%r: the states of %s have %d bits" % (bits, name, own))
    if theirs["percentile_clipping"] != 100:
        raise ValueError(
            "percentile_clipping=%r: %s does not clip; call clip_grad_norm_() before step()"
            % (theirs["percentile_clipping"], name)
        )
    if not theirs["block_wise"]:
        raise ValueError("block_wise=False: %s has a scale for each block, which loses less" % name)
    if theirs["args"] is not None:
        raise ValueError("args: %s takes each value as an argument of its own" % name)
    if theirs["is_paged"] and "paged" not in self._rule.options:
        raise ValueError(
            "is_paged=True: the states of %s are not paged; CPUOffloadOptimizer keeps those of any class on"
            " the host" % name
        )
    eight = bits == 8 or own == 8
    paged = bool(theirs["is_paged"]) or name.startswith("Paged")
    _base._start(self, params, {**values, "states": "8bit" if eight else "fp32", "paged": paged})


def _make(base: Any, name: str, states: str) -> type:
    """A class of bitsandbytes' over the rule's."""
    call = rules.call_of_torch(base._rule, states)
    named = {k: v for k, v in call.named.items() if k not in ("states", "paged")}
    call = call._replace(named={**named, **_ARGUMENTS})
    rule = base._rule._replace(texts={**base._rule.texts, **_TEXTS})
    text = "%s%s with %s-bit states." % (
        base.__name__, ", paged," if name.startswith("Paged") else "", "8" if states == "8bit" else "32"
    )  # fmt: skip
    about = rules.described(rule, text, call)
    init = _options.checked(rules.construct(about, call, _start), call)
    body = {"__init__": init, "__doc__": about, "__module__": __name__, "_own_states": states}
    return type(name, (base,), body)


for _name, _base_class in _RULES.items():
    for _first in ("", "Paged") if _name in _PAGED else ("",):
        for _end in ("", "8bit", "32bit"):
            _full = _first + _name + _end
            globals()[_full] = _make(_base_class, _full, "8bit" if _end == "8bit" else "fp32")
            __all__.append(_full)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
