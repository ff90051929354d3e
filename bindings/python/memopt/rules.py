"""The optimizers' rules: arguments, defaults, ranges and what help() says of them, once for the classes of
:mod:`memopt.optim` and of :mod:`memopt.torch.optim`, which get their constructors here.

``optim.pyi`` and ``torch/optim/__init__.pyi`` say the same to type checkers; a test writes them anew.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from ._abi import OptimizerKind, StateFormat

#: Parameters with fewer elements keep 32-bit states.
MIN_8BIT_SIZE = 4096

#: States by the names that arguments have for them.
FORMATS = {
    "fp32": StateFormat.F32,
    "bf16": StateFormat.BF16,
    "8bit": StateFormat.BITS8,
    "4bit": StateFormat.BITS4,
}
#: 8-bit states by the names of their codes; "dynamic" are bitsandbytes'.
CODES = {"companded": StateFormat.BITS8, "dynamic": StateFormat.BITS8_DYNAMIC}
#: What help() says first of a class that is named for its states.
_STATES = {
    "8bit": "%s with 8-bit states in blocks of 256: cubes of codes, of second moments fourth powers.",
    "4bit": "%s with 4-bit states in blocks of 128: the first moment on a curve, the second in even steps (Li et"
    " al. 2023). Parameters end 18 to 38 %% of the way that they moved from where 32 bits bring them. torchao's"
    " states load with one more rounding of the first moment.",
    "bf16": "%s with bf16 states, rounded stochastically.",
}

_OPTIONS: Dict[str, Any] = dict(
    states="fp32", codes=None, paged=False, min_8bit_size=MIN_8BIT_SIZE, stochastic_rounding=False, seed=0,
    split_weights=False,
)
_ROUNDING = ("min_8bit_size", "stochastic_rounding", "seed")
_TORCH = dict(maximize=False, foreach=None, capturable=False, differentiable=False, fused=None)
_EITHER = ("fp32", "8bit")


class Rule(NamedTuple):
    """An optimizer's rule."""

    name: str
    kind: Optional[OptimizerKind]  # None: it is no kind of the library's
    text: str
    values: Dict[str, Any]  # hyperparameters in torch's order, and their defaults
    further: Dict[str, Any] = {"maximize": False}  # only by name
    states: Tuple[str, ...] = _EITHER
    options: Tuple[str, ...] = tuple(_OPTIONS)
    texts: Dict[str, str] = {}  # where an argument is another one than elsewhere
    limits: Dict[str, Tuple[float, float]] = {}  # likewise


_RULES = (
    Rule(
        "AdamW", OptimizerKind.ADAMW,
        "Adam with decoupled weight decay, as torch.optim.AdamW.",
        dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False), _TORCH,
        tuple(FORMATS),
    ),
    Rule(
        "Adam", OptimizerKind.ADAM,
        "Adam as torch.optim.Adam: the decay is part of the gradient.",
        dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False), _TORCH,
        texts=dict(weight_decay="the share of a parameter that is added to its gradient."),
    ),
    Rule(
        "Lion", OptimizerKind.LION,
        "Lion (Chen et al. 2023): one moment, the update is a sign.",
        dict(lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0), _TORCH,
        texts=dict(betas="the weight of the moment in the update, and how much it keeps in a step."),
    ),
    Rule(
        "SGD", OptimizerKind.SGD,
        "Gradient descent as torch.optim.SGD. Without a momentum there is no buffer.",
        dict(lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False),
        {k: v for k, v in _TORCH.items() if k != "capturable"},
        texts=dict(weight_decay="the share of a parameter that is added to its gradient."),
    ),
    Rule(
        "RMSprop", OptimizerKind.RMSPROP,
        "RMSprop as torch.optim.RMSprop.",
        dict(lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False),
        {k: v for k, v in _TORCH.items() if k != "fused"},
        texts=dict(
            alpha="how much the mean of squares keeps in a step.",
            momentum="how much the buffer of updates keeps in a step; 0 in all groups: there is none.",
            weight_decay="the share of a parameter that is added to its gradient.",
        ),
        limits=dict(alpha=(0.0, 1.0)),
    ),
    Rule(
        "Adagrad", OptimizerKind.ADAGRAD,
        "Adagrad as torch.optim.Adagrad. With 8 bits, what a step adds to the sum of squares is lost where"
        " it is less than half a code's distance: late in long runs the sum grows too slowly, so that steps"
        " stay longer than with 32 bits.",
        dict(lr=1e-2, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10),
        {k: v for k, v in _TORCH.items() if k != "capturable"},
        texts=dict(weight_decay="the share of a parameter that is added to its gradient."),
    ),
    Rule(
        "AdEMAMix", OptimizerKind.ADEMAMIX,
        "AdEMAMix (Pagliardini et al. 2024) as bitsandbytes': AdamW with a second, slow mean of the"
        " gradients, which is not corrected for its start at 0. 12 bytes a parameter, or 3.05.",
        dict(
            lr=1e-3, betas=(0.9, 0.999, 0.9999), alpha=5.0, t_alpha=None, t_beta3=None, eps=1e-8,
            weight_decay=1e-2,
        ),
        options=("states", "codes", "paged", *_ROUNDING),
        texts=dict(
            betas="what the fast mean, the mean of squares and the slow mean keep in a step.",
            alpha="the weight of the slow mean; the fast one has 1.",
        ),
    ),
    Rule(
        "AdamWScheduleFree", OptimizerKind.SCHEDULE_FREE,
        "Schedule-free AdamW (Defazio et al. 2024) with 32-bit states: no schedule of the learning rate, no"
        " end of the run to know. Call eval() before the model is evaluated or saved, and train() before"
        " it goes on.",
        dict(
            lr=2.5e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, warmup_steps=0, r=0.0,
            weight_lr_power=2.0, foreach=None,
        ),
        states=("fp32",),
        options=_ROUNDING,
        texts=dict(
            betas="how near y is to the average, above 0; and how much the mean of squares keeps.",
            min_8bit_size="no effect; states have 32 bits.",
        ),
        limits={name: (-math.inf, math.inf) for name in ("r", "weight_lr_power")},
    ),
    Rule(
        "Muon", None,
        "Muon (Jordan et al. 2024) as torch.optim.Muon: for matrices, such as the weights of linear layers."
        " Give embeddings, the head, norms and biases to AdamW8bit.",
        dict(
            lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True,
            ns_coefficients=(3.4445, -4.7750, 2.0315), eps=1e-7, ns_steps=5, adjust_lr_fn=None,
        ),
        {},
        options=("states", "codes", *_ROUNDING),
        texts=dict(
            params="parameters of two dimensions, (name, parameter) pairs, or groups of them as dicts.",
            momentum="how much the mean of gradients keeps in a step.",
            eps="the least norm by which a matrix is divided before the iteration.",
        ),
    ),
    Rule(
        "Adafactor", OptimizerKind.ADAFACTOR,
        "Adafactor (Shazeer & Stern 2018) as torch.optim.Adafactor, with fp32 states: R + C numbers for a"
        " matrix of R rows and C columns.",
        dict(lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0),
        dict(foreach=None, maximize=False),
        states=("fp32",),
        options=("stochastic_rounding", "seed"),
        limits=dict(beta2_decay=(-math.inf, 5e-324), d=(1.0, math.inf)),
        texts=dict(
            lr="the learning rate, a number or a tensor of one element: step t takes at most 1 / sqrt(t),"
            " times the root of the mean square of the parameter.",
            eps="below the first, the root of the second moment counts as this (None: fp32's epsilon);"
            " below the second, the root of the mean square of a parameter does.",
        ),
    ),
    Rule(
        "LAMB", OptimizerKind.ADAMW,
        "LAMB (You et al. 2020): an update is at most as long as its parameter.",
        dict(
            lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0,
            amsgrad=False, adam_w_mode=True,
        ),
        dict(max_unorm=1.0, trust_clip=True, maximize=False),
        options=("states", "codes", *_ROUNDING),
        texts=dict(
            weight_decay="the share of a parameter that is added to its update, before the norm."
        ),
    ),
    Rule(
        "LARS", OptimizerKind.SGD,
        "LARS (You et al. 2017): an update is at most as long as a share of its parameter.",
        dict(lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False),
        dict(max_unorm=0.02, trust_clip=True, maximize=False),
        options=("states", "codes", *_ROUNDING),
        texts=dict(
            momentum="how much the buffer keeps in a step.",
            weight_decay="the share of a parameter that is added to its gradient.",
        ),
    ),
)
RULES = {rule.name: rule for rule in _RULES}

#: What help() says of the arguments.
TEXTS = dict(
    allocator="where states come from.",
    params="parameters, (name, parameter) pairs, or groups of them as dicts.",
    stream="the stream that fills new states.",
    lr="the learning rate, a number or a tensor of one element.",
    betas="how much the means of gradients and of their squares keep in a step.",
    eps="added to the root.",
    weight_decay="the share of a parameter, times lr, that a step takes from it.",
    momentum="how much the buffer keeps in a step; 0: there is no buffer.",
    dampening="the share of the gradient that does not go into the buffer.",
    nesterov="use Nesterov's momentum.",
    lr_decay="only 0: a scheduler of torch's does the same.",
    initial_accumulator_value="only 0.",
    t_alpha="alpha grows from 0 over so many steps (None: it is alpha from the first on).",
    t_beta3="the third beta grows from the first over so many steps (None: likewise).",
    warmup_steps="the learning rate grows from 0 to lr over so many steps.",
    r="a step counts in the average by the r-th power of its number.",
    weight_lr_power="and by this power of the largest learning rate so far.",
    ns_coefficients="of the Newton–Schulz iteration's polynomial.",
    ns_steps="iterations, at most 99.",
    adjust_lr_fn='by what a matrix of A rows and B columns multiplies lr: "original" or None: sqrt(max(1,'
    ' A / B)); "match_rms_adamw": 0.2 sqrt(max(A, B)), for AdamW\'s lr; "spectral_unclamped": sqrt(A / B).',
    beta2_decay="at most 0: in step t the second moment takes t ** beta2_decay of the square.",
    d="at least 1: a longer root of the mean square of an update is cut to this.",
    bias_correction="correct the means for their start at 0.",
    max_unorm="an update's norm is at most this times the parameter's; 0: any.",
    trust_clip="leave shorter updates as they are. False: every update gets that norm.",
    maximize="climb instead of descend.",
    amsgrad="only False.",
    centered="only False.",
    differentiable="only False.",
    adam_w_mode="only True: the decay is not part of the gradient.",
    foreach="no effect; a step is one fused call.",
    fused="no effect.",
    capturable="no effect; a step may be captured.",
    states="how states are kept; the same in all groups.",
    paged="keep states in page-locked host memory, which a step brings to the GPU page by page and back,"
    " beside its arithmetic, with the same bits; not in a CUDA graph. On a CPU no effect.",
    codes='of 8-bit states: "companded", or "dynamic", which are bitsandbytes\'; what is loaded is converted to'
    " these. None: companded, and a state dict that is loaded keeps its own.",
    min_8bit_size="parameters with fewer elements keep 32-bit states.",
    stochastic_rounding="round bf16 and fp16 parameters up or down with probability by distance, so that"
    " updates below half a unit are not lost.",
    seed="chooses the random numbers of stochastic_rounding.",
    split_weights="keep more bits of each bf16 parameter in its state, in place of an fp32 master (6 bytes"
    " with the parameter): with True or 8 the next 8 (3 bytes), with 16 all of them (4 bytes, exactly the"
    " master); not with stochastic_rounding.",
)
#: Ranges [least, end) of numbers; others are from 0 to below infinity.
LIMITS = {"dampening": (-math.inf, math.inf)}
#: Arguments that take one value only.
ONLY = dict(amsgrad=False, centered=False, differentiable=False, adam_w_mode=True)
ZERO = ("lr_decay", "initial_accumulator_value")

_TYPES = dict(
    allocator="Allocator", stream="StreamLike", params="Params", lr="Learning", foreach="Optional[bool]",
    fused="Optional[bool]", t_alpha="Optional[int]", t_beta3="Optional[int]",
    adjust_lr_fn="Optional[str]", codes="Optional[str]", split_weights="Union[bool, int]",
)
#: Hyperparameters of a group of the library's, under torch's names.
_IN_GROUPS = (
    "lr", "betas", "alpha", "t_alpha", "t_beta3", "eps", "weight_decay", "momentum", "dampening",
    "nesterov", "maximize", "average", "beta2_decay", "d",
)  # fmt: skip


def in_library(rule: Rule) -> Dict[str, Any]:
    """The values of a rule that a group of the library has, and their defaults there."""
    every = {**rule.values, "maximize": False}
    return {k: 0.0 if v is None else v for k, v in every.items() if k in _IN_GROUPS}


def format_named(states: str, codes: Optional[str], rule: Rule) -> StateFormat:
    """The format of states of these names; ValueError if the rule has none."""
    if states not in rule.states:
        heirs = {"fp8": "8bit", "companded": "8bit", "companded8": "8bit", "companded4": "4bit"}
        heir = heirs.get(states) if isinstance(states, str) else None
        raise ValueError(
            "states=%r: %s has %s%s"
            % (states, rule.name, ", ".join(rule.states), "; take %r" % heir if heir else "")
        )
    if codes not in (None, *CODES) or codes == "dynamic" and states != "8bit":
        raise ValueError("codes=%r, states=%r: codes are companded, or dynamic of 8-bit states" % (codes, states))
    return CODES[codes] if codes is not None and states == "8bit" else FORMATS[states]


# --- constructors ---------------------------------------------------------------------------------


class Call(NamedTuple):
    """The arguments of a class's constructor."""

    first: Tuple[str, ...]  # those without a default
    values: Dict[str, Any]  # by place or by name
    named: Dict[str, Any]  # by name only

    def every(self) -> Dict[str, Any]:
        """The defaults of all that have one."""
        return {**self.values, **self.named}


def call_of_torch(rule: Rule, states: str) -> Call:
    """What a class of memopt.torch.optim takes. `states`: its own default."""
    options = {k: v for k, v in _OPTIONS.items() if k in rule.options}
    options.update({"states": states} if "states" in options else {})
    return Call(("params",), rule.values, {**rule.further, **options})


def call_of_core(rule: Rule, states: str) -> Call:
    """What a class of memopt.optim takes."""
    known = in_library(rule)
    values = {k: known[k] for k in rule.values if k in known}
    options = {k: v for k, v in _OPTIONS.items() if k in _ROUNDING or k == "codes" and k in rule.options}
    return Call(("allocator", "params"), values, dict(maximize=False, stream=None, states=states, **options))


def variant(base: type, states: str) -> Any:
    """The class of a rule that has other states by default, such as AdamW8bit."""
    space = {"__module__": base.__module__, "__doc__": _STATES[states] % base.__name__, "__slots__": ()}
    return type(base)(base.__name__ + states[0].upper() + states[1:], (base,), space, states=states)


def type_of(name: str, default: Any) -> str:
    """An argument's type as text."""
    if isinstance(default, tuple):
        words = ("Optional[float]" if x is None else "float" for x in default)
        return "Betas" if name == "betas" and len(default) == 2 else "Tuple[%s]" % ", ".join(words)
    return _TYPES.get(name) or type(default).__name__


def described(rule: Rule, text: str, call: Call) -> str:
    """What help() says of a class."""
    lines = [_filled(text, ""), "", "Groups of parameters may have their own values.", "", "Args:"]
    for name in (*call.first, *call.every()):
        words = rule.texts.get(name) or TEXTS[name]
        if name == "states":
            words = "%s One of %s." % (words, ", ".join(rule.states))
        lines.append("    " + _filled("%s: %s" % (name, words), " " * 8))
    return "\n".join(lines) + "\n"


def _filled(text: str, indent: str) -> str:
    """Lines of at most 96 characters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > 95 - len(indent):
            lines.append(word)
        else:
            lines[-1] = (lines[-1] + " " + word).lstrip()
    return ("\n" + indent).join(lines)


def construct(about: str, call: Call, start: Callable[..., None]) -> Callable[..., None]:
    """A constructor that calls start(self, *first, values), with a description. It is made of text, as
    those of data classes are: without inspect, which takes long to import."""
    every = call.every()
    shown = ["%s: %r" % (name, _TYPES[name]) for name in call.first]
    for values in (call.values, call.named):
        shown += ["*"] if values is call.named else []
        shown += ["%s: %r = _d[%r]" % (n, type_of(n, v), n) for n, v in values.items()]
    text = "def __init__(self, %s) -> None:\n    _start(self, %s, {%s})\n" % (
        ", ".join(shown),
        ", ".join(call.first),
        ", ".join("%r: %s" % (name, name) for name in every),
    )
    names: Dict[str, Any] = {"_d": every, "_start": start}
    exec(text, names)
    made: Callable[..., None] = names["__init__"]
    made.__doc__ = about
    return made
