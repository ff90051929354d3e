"""Twelve cases in which optimizers are known to go wrong, for any class of torch's interface.

The truth is the rule in 64 bits (`_audit_rules`); only Muon's iteration is in bf16, which its definition
says. A case asks what every format can keep, not how exact
it is: a parameter without a gradient stays as it is, none moves much farther than the rule says,
and a run goes on bit for bit after a pause. `memopt audit-optimizer` prints what they find.
"""

from __future__ import annotations

import copy
import inspect
import io
import math
import mmap
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from ._audit_rules import RULES, Rule, rule_of

Tensor = torch.Tensor

#: Words that switch stochastic rounding on, by whom they are used.
_ROUNDING = ("stochastic_rounding", "bf16_stochastic_round")
#: The share of a movement by which a run with coarse states may differ from the rule.
_NEAR = 0.25
#: Those whose step of a parameter needs all of it.
_WHOLE = ("adafactor", "muon", "lamb", "lars", "galore", "apollo")
#: Those that are for matrices.
_MATRICES = ("muon", "galore", "apollo", "adammini")
#: Elements of the large parameter, but for 4,096 more.
_BEYOND = 2**31
#: How many times as far as the rule's farthest parameter any may move.
_FAR = 1.5


@dataclass(frozen=True)
class Finding:
    """What a case found: `passed` is None where it was not run."""

    name: str
    passed: Optional[bool]
    detail: str
    applicable: bool = True  # False: the case cannot judge the rule, whatever the options


class _Wrong(Exception):
    """The case failed; the text says how."""


class _Skipped(Exception):
    """The case was not run; the text says why."""


class _NotApplicable(_Skipped):
    """The case cannot judge the rule; the text says why."""


def _words_of(make: Callable[..., Any], options: Dict[str, Any]) -> Set[str]:
    """What a class takes: where it passes keywords on, those of its bases, or of the class in its
    `optimizer_class`."""
    words: Set[str] = set()
    bases: List[Any] = list(inspect.getmro(make)[1:-1]) if inspect.isclass(make) else []
    for one in (make, *bases):
        own = inspect.signature(one).parameters
        words.update(own)
        inner = own.get("optimizer_class")
        if inner is not None:
            words |= _words_of(options.get("optimizer_class", inner.default), {})
        if all(p.kind is not p.VAR_KEYWORD for p in own.values()):
            break
    return words


class Audit:
    """Runs the cases on one class.

    Args:
        make: the class, or anything that makes an optimizer from parameters and options.
        rule: one of RULES; adam's decay is part of the gradient.
        options: for every optimizer that is made.
        large: also the case with 2^31 elements.
    """

    def __init__(
        self,
        make: Callable[..., torch.optim.Optimizer],
        rule: str,
        options: Optional[Dict[str, Any]] = None,
        large: bool = False,
    ) -> None:
        self._make, self._rule, self._options, self._large = make, rule, dict(options or {}), large
        self._words = _words_of(make, self._options)
        self._random = torch.Generator()

    def run(self) -> Iterator[Finding]:
        """Each case's finding as soon as it is known."""
        for name, case in CASES.items():
            self._random.manual_seed(len(name))
            try:
                passed, detail = True, case(self)
            except _Wrong as wrong:
                passed, detail = False, str(wrong)
            except _Skipped as skipped:
                applicable = not isinstance(skipped, _NotApplicable)
                yield Finding(name, None, str(skipped), applicable)
                continue
            except Exception as error:  # whatever the class raises is the finding
                passed, detail = False, "%s: %s" % (type(error).__name__, str(error).split("\n")[0])
            yield Finding(name, passed, detail)

    # --- what the cases are made of ---------------------------------------------------------------

    def has(self, word: str) -> bool:
        """Whether the class takes this option."""
        return word in self._words

    def open(self, params: Sequence[Tensor], **options: Any) -> torch.optim.Optimizer:
        """An optimizer with those of the options that the class takes."""
        options = {"rank": 4, "update_proj_gap": 1000, **options}
        known = {word: value for word, value in options.items() if self.has(word)}
        if self._rule == "adafactor" and "eps" in known:
            known["eps"] = (known["eps"], 1e-3)
        if self._rule in ("sgd", "lars") and self.has("momentum"):
            known.setdefault("momentum", 0.9)
        return self._make(list(params), **{**known, **self._options})

    def shape(self, n: int) -> Tuple[int, ...]:
        """The shape of a parameter of n elements: a row, or the nearest to a square matrix where
        the rule is for matrices."""
        if self._rule not in _MATRICES:
            return (n,)
        rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
        return (rows, n // rows)

    def normal(self, *shape: int) -> Tensor:
        """Normally distributed numbers; of one size in the rule's shape."""
        return torch.randn(self._of(shape), generator=self._random)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers from 0 to 1; of one size in the rule's shape."""
        return torch.rand(self._of(shape), generator=self._random)

    def _of(self, shape: Tuple[int, ...]) -> Tuple[int, ...]:
        return self.shape(*shape) if len(shape) == 1 else shape

    def train(
        self, p: Tensor, gradients: Sequence[Tensor], **options: Any
    ) -> Tuple[torch.optim.Optimizer, Rule]:
        """Steps `p` by the gradients, and the rule with it."""
        optimizer, rule = self.open([p], **options), Rule(self._rule, p)
        for g in gradients:
            self.both(optimizer, rule, p, g)
        return optimizer, rule

    def both(self, optimizer: torch.optim.Optimizer, rule: Rule, p: Tensor, g: Tensor) -> None:
        """One step of the optimizer, and of the rule."""
        step(optimizer, p, g)
        projection = _projection(optimizer, p) if self._rule == "apollo" else None
        rule.step(g, optimizer.param_groups[0], projection)


def _projection(optimizer: torch.optim.Optimizer, p: Tensor) -> Optional[Tensor]:
    """The random projection of the last step, of the shorter side, if the parameter has one."""
    group = optimizer.param_groups[0]
    if p.dim() != 2 or min(p.shape) <= int(group["rank"]):
        return None
    known = getattr(optimizer, "projection_of", None)
    if known is None:
        raise _NotApplicable("the class does not tell its random projection (projection_of)")
    projection: Tensor = known(p)
    return projection


def step(optimizer: torch.optim.Optimizer, p: Tensor, g: Tensor) -> None:
    """One step with this gradient."""
    p.grad = g.to(p.dtype, copy=True)
    optimizer.step()


def parameter(values: Tensor) -> torch.nn.Parameter:
    """A parameter of its own memory."""
    return torch.nn.Parameter(values.clone())


def _finite(p: Tensor) -> None:
    bad = int((~torch.isfinite(p)).sum())
    if bad:
        raise _Wrong("%d of %d parameters are not finite" % (bad, p.numel()))


def _apart(p: Tensor, rule: Rule) -> float:
    """The difference from the rule as a share of its movement (root of the mean square)."""
    _finite(p)
    moved = float((rule.p - rule.start).norm())
    return float((p.detach().double() - rule.p).norm()) / (moved or 1.0)


def _near(p: Tensor, rule: Rule) -> str:
    apart = _apart(p, rule)
    text = "%.2g of the movement from the rule's" % apart
    if not apart <= _NEAR:
        raise _Wrong(text + ", more than %g" % _NEAR)
    return text


def _not_far(p: Tensor, rule: Rule) -> str:
    _finite(p)
    most = float((rule.p - rule.start).abs().max())
    moved = (p.detach().double() - rule.start).abs()
    text = "the farthest moved %.3g, the rule's %.3g" % (float(moved.max()), most)
    beyond = int((moved > _FAR * most).sum())
    if beyond:
        raise _Wrong("%s; %d of %d beyond %g times that" % (text, beyond, p.numel(), _FAR))
    return text


def _same(what: str, a: Tensor, b: Tensor) -> None:
    if not torch.equal(a, b):
        raise _Wrong("%s: %d of %d elements differ" % (what, int((a != b).sum()), a.numel()))


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a state dict, those inside tensor subclasses too."""
    if isinstance(value, Tensor):
        inner = getattr(value, "__tensor_flatten__", None)
        if inner is None:
            yield value
        else:
            for name in inner()[0]:
                yield from _tensors(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of states; tables of a few KiB that do not grow count little at the sizes used."""
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in _tensors(optimizer.state_dict()["state"])}
    return sum(held.values())


# --- the cases ------------------------------------------------------------------------------------


def _zero_column(audit: Audit) -> str:
    p = parameter(audit.normal(128, 256))
    start = p.detach().clone()
    gradients = [audit.normal(128, 256) * 0.1 for _ in range(50)]
    for g in gradients:
        g[:, 17] = 0
        g[3] = 0
    audit.train(p, gradients, lr=1e-2, weight_decay=0.0)
    _same("column without a gradient", p.detach()[:, 17], start[:, 17])
    _same("row without a gradient", p.detach()[3], start[3])
    return "unchanged after 50 steps"


def _wide_block(audit: Audit) -> str:
    size = torch.exp2(-20 * audit.uniform(32768))
    p = parameter(audit.normal(32768))
    gradients = [audit.normal(32768) * size for _ in range(50)]
    _, rule = audit.train(p, gradients, lr=1e-3, weight_decay=0.0)
    return _not_far(p, rule)


def _bf16_decay(audit: Audit) -> str:
    word = next((word for word in _ROUNDING if audit.has(word)), "")
    p = parameter(torch.ones(audit.shape(8192), dtype=torch.bfloat16))
    options = {word: True} if word else {}
    zero = torch.zeros(audit.shape(8192))
    _, rule = audit.train(p, [zero] * 200, lr=1e-2, weight_decay=1e-2, **options)
    due, done = 1 - float(rule.p.mean()), 1 - float(p.detach().double().mean())
    text = "decayed by %.4f of %.4f" % (done, due) + (", with %s" % word if word else "")
    if not abs(done - due) <= 0.2 * due:
        raise _Wrong(text)
    return text


def _ragged(audit: Audit) -> str:
    worst = 0.0
    for n in (1, 255, 257, 300, 4097, 65537):
        whole = torch.full((n + 512,), 7.0)
        p = torch.nn.Parameter(whole[256 : 256 + n].view(audit.shape(n)))
        p.data.copy_(audit.normal(n))
        gradients = [audit.normal(n) + 0.5 for _ in range(20)]
        _, rule = audit.train(p, gradients, lr=1e-2, weight_decay=0.0)
        if not (torch.all(whole[:256] == 7) and torch.all(whole[256 + n :] == 7)):
            raise _Wrong("%d elements: memory beside the parameter was written" % n)
        _near(p, rule)
        worst = max(worst, _apart(p, rule))
    held, odd = [], 65537 if audit.shape(65537)[0] > 1 or len(audit.shape(2)) == 1 else 65792
    for n in (65536, odd):
        p = parameter(audit.normal(n))
        held.append(_state_bytes(audit.train(p, [audit.normal(n)])[0]))
    if held[1] > 1.1 * held[0] + 4096:
        raise _Wrong("65,536 elements have %d bytes of states, %d have %d" % (held[0], odd, held[1]))
    return "at most %.2g of the movement from the rule's" % worst


def _resume(audit: Audit) -> str:
    p = parameter(audit.normal(20000))
    gradients = [audit.normal(20000) for _ in range(10)]
    optimizer, _ = audit.train(p, gradients[:5], lr=1e-2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = parameter(p.detach())
    again = audit.open([resumed], lr=1e-2)
    again.load_state_dict(torch.load(file, weights_only=False))
    for g in gradients[5:]:
        step(optimizer, p, g)
        step(again, resumed, g)
    _same("after a pause", resumed.detach(), p.detach())
    return "the same bits after torch.save, torch.load and 5 steps"


def _resharding(audit: Audit) -> str:
    n, parts = 4 * 65536, 4
    if audit._rule in _WHOLE:
        return _whole_parameters(audit, n // parts, parts)
    whole = parameter(audit.normal(n))
    shards = [parameter(part) for part in whole.detach().chunk(parts)]
    gradients = [audit.normal(n) for _ in range(5)]
    audit.train(whole, gradients, lr=1e-2)
    optimizer = audit.open(shards, lr=1e-2)
    for g in gradients:
        for shard, part in zip(shards, g.chunk(parts)):
            shard.grad = part.clone()
        optimizer.step()
    joined = torch.cat([shard.detach() for shard in shards])
    _same("four shards and the whole", joined, whole.detach())
    return "four shards step as the whole, bit for bit"


def _whole_parameters(audit: Audit, n: int, parts: int) -> str:
    """Such rules cannot step a part of a parameter; processes share out whole ones."""
    together = [parameter(audit.normal(n)) for _ in range(parts)]
    alone = [parameter(p.detach()) for p in together]
    owners = [audit.open(_among(p, i, parts), lr=1e-2) for i, p in enumerate(alone)]
    optimizer = audit.open(together, lr=1e-2)
    for _ in range(5):
        for p, q, owner in zip(together, alone, owners):
            p.grad = audit.normal(n)
            step(owner, q, p.grad)
        optimizer.step()
    for p, q in zip(together, alone):
        _same("a parameter alone and with others", q.detach(), p.detach())
    return "four whole parameters step alone as together, bit for bit"


def _among(p: Tensor, place: int, count: int) -> List[Tensor]:
    """The parameter at its place among others that get no gradient: random numbers go by places."""
    others = [parameter(torch.zeros_like(p)) for _ in range(count)]
    return [*others[:place], p, *others[place + 1 :]]


def _not_finite(audit: Audit) -> str:
    n = 4096 + 513
    tried = 0
    for at in (0, n // 2, n - 1):
        for value in (math.inf, -math.inf, math.nan):
            p = parameter(audit.normal(n))
            optimizer = audit.open([p], lr=1e-2)
            scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
            scaler.scale(torch.ones(()))

            def scaled_step(g: Tensor) -> None:
                p.grad = g * scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()

            scaled_step(audit.normal(n))
            kept = p.detach().clone()
            states = [t.clone() for t in _tensors(copy.deepcopy(optimizer.state_dict()["state"]))]
            bad = audit.normal(n)
            bad.view(-1)[at] = value
            scaled_step(bad)
            where = "%g at element %d of %d" % (value, at, n)
            _same("parameters after " + where, p.detach(), kept)
            for old, new in zip(states, _tensors(optimizer.state_dict()["state"])):
                _same("a state after " + where, new, old)
            scaled_step(audit.normal(n))
            _finite(p)
            tried += 1
    return "%d steps skipped by GradScaler left everything as it was" % tried


def _unwritten_zeros(n: int) -> Tensor:
    """bf16 zeros that take no memory until they are written."""
    memory = mmap.mmap(-1, 2 * n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.bfloat16)


def _beyond_31_bits(audit: Audit) -> str:
    """The gradient is 0 except at both ends, so norms, means and products depend on those alone."""
    n, ends = _BEYOND + 4096, 4096
    if not audit._large:
        raise _Skipped("needs some 7 to 31 GB; --large runs it")
    rows: Tuple[int, ...] = (-1,)
    if audit._rule in _MATRICES:  # products of few columns are quick
        rows = (-1, {"muon": 8, "galore": 32, "apollo": 32}.get(audit._rule, ends))
    g = audit.normal(3, ends).bfloat16()
    trusted = audit._rule in ("lamb", "lars")  # a step is a share of the parameter
    start = audit.normal(3, ends).bfloat16() if trusted else torch.zeros_like(g)
    places = (slice(0, ends), slice(n - 2 * ends, n - ends), slice(n - ends, n))
    p, small = parameter(torch.zeros(n, dtype=g.dtype).view(rows)), parameter(start.view(rows))
    p.grad, small.grad = _unwritten_zeros(n).view(rows), g.view(rows)
    for place, part, values in zip(places, g, start):
        p.grad.view(-1)[place] = part
        p.detach().view(-1)[place] = values
    lr = {"lamb": 0.5, "lars": 25.0}.get(audit._rule, 1e-2)
    drawn: List[Any] = []
    for x in (small, p):
        optimizer = audit.open([x], lr=lr, weight_decay=0.0)
        optimizer.step()
        if audit._rule == "apollo":
            drawn.append(_projection(optimizer, x))
    if drawn and not torch.equal(*drawn):
        raise _NotApplicable("the class draws another projection for each parameter")
    ours, known = torch.cat([p.detach().view(-1)[at] for at in places]), small.detach().view(-1)
    if audit._rule not in _WHOLE:
        _same("the first and last elements, and a small parameter's", ours, known)
        return "2^31 + 4,096 elements: both ends step as in a small parameter"
    ours, known = (x.double() / x.double().norm() for x in (ours, known))  # Muon's length is the shape's
    apart = float((ours - known).norm())
    if not apart <= 0.01:
        raise _Wrong("both ends are %.2g of their length from a small parameter's" % apart)
    return "2^31 + 4,096 elements: both ends are %.1g of their length from a small parameter's" % apart


def _untouched_rows(audit: Audit) -> str:
    p = parameter(audit.normal(512, 256))
    start = p.detach().clone()
    touched = audit.uniform(512, 1)[:, 0] < 0.2
    zero = torch.zeros(512, 256)
    gradients = [audit.normal(512, 256) * touched[:, None] for _ in range(5)] + [zero] * 195
    _, rule = audit.train(p, gradients, lr=1e-3, weight_decay=0.0)
    _same("rows that were never touched", p.detach()[~touched], start[~touched])
    return _near(p, rule)


def _tiny(audit: Audit) -> str:
    p = parameter(audit.normal(8192))
    gradients = [(audit.normal(8192) + 0.5) * 1e-12 for _ in range(20)]
    lr = 1e9 if audit._rule in ("sgd", "lars") else 1e-3
    _, rule = audit.train(p, gradients, lr=lr, eps=1e-15, weight_decay=0.0)
    return _near(p, rule)


def _rate_of_zero(audit: Audit) -> str:
    p = parameter(audit.normal(8192))
    start = p.detach().clone()
    optimizer, rule = audit.train(
        p, [audit.normal(8192) + 0.5 for _ in range(10)], lr=0.0, weight_decay=0.1
    )
    _same("parameters at a learning rate of 0", p.detach(), start)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"].fill_(1e-3) if isinstance(group["lr"], Tensor) else 1e-3
    for _ in range(5):
        g = audit.normal(8192)
        audit.both(optimizer, rule, p, g)
    return "unchanged; then " + _near(p, rule)


def _first_steps(audit: Audit) -> str:
    n = 16384
    size = 10 ** (audit.uniform(n) * 8 - 6)
    p = parameter(audit.normal(n))
    optimizer, rule = audit.train(p, [audit.normal(n) * size], lr=1e-3, weight_decay=0.0)
    apart = _apart(p, rule)
    if not apart <= 0.01:
        raise _Wrong("the first step is %.2g of its length from the rule's" % apart)
    for _ in range(2):
        g = audit.normal(n) * size
        audit.both(optimizer, rule, p, g)
    return _not_far(p, rule)


#: The cases by name, in the order of their running.
CASES: Dict[str, Callable[[Audit], str]] = {
    "column without gradient": _zero_column,
    "block spanning 2^20": _wide_block,
    "bf16 decay": _bf16_decay,
    "ragged tails": _ragged,
    "save, load, resume": _resume,
    "resharding": _resharding,
    "inf and NaN": _not_finite,
    "2^31 elements": _beyond_31_bits,
    "untouched rows": _untouched_rows,
    "tiny eps and gradients": _tiny,
    "learning rate of 0": _rate_of_zero,
    "first steps": _first_steps,
}


def names() -> List[str]:
    """The cases' names."""
    return list(CASES)
