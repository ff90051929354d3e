"""memopt audit-optimizer: every class of ours passes, and each case finds the defect it is for."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List

import cli_support
import json_schema
import pytest
import torch

import memopt.torch as mt
from memopt.cli import audit_optimizer
from memopt.torch import _audit

OURS = [
    mt.AdamW, mt.AdamW8bit, mt.AdamW8bitCompanded, mt.AdamW4bit, mt.AdamWFp8,
    mt.AdamWBf16, mt.Adam, mt.Adam8bit, mt.Lion, mt.Lion8bit, mt.SGD, mt.SGD8bit, mt.Muon, mt.Muon8bit, mt.Adafactor,
    mt.AdamWScheduleFree, mt.AdEMAMix, mt.AdEMAMix8bit, mt.RMSprop8bit, mt.Adagrad8bit,
    mt.LAMB8bit, mt.LARS8bit,
]  # fmt: skip
LARGE = "2^31 elements"


@pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
def test_ours_pass(cls: Any) -> None:
    rule = _audit.rule_of(cls.__name__)
    assert rule is not None
    findings = list(_audit.Audit(cls, rule).run())
    assert [f.name for f in findings if f.passed is False] == []
    assert [f.name for f in findings if f.passed is None] == [LARGE]
    assert len(findings) == 12
    assert all(f.applicable for f in findings)


@pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
def test_ours_pass_the_case_of_large_parameters(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here with a smaller one."""
    assert large(cls, str(_audit.rule_of(cls.__name__)), monkeypatch)


def large(cls: Any, rule: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a class passes the case with 2^18 + 4,096 elements."""
    monkeypatch.setattr(_audit, "_BEYOND", 2**18)
    monkeypatch.setattr(_audit, "CASES", {LARGE: _audit.CASES[LARGE]})
    (finding,) = _audit.Audit(cls, rule, large=True).run()
    assert finding.passed is not None
    return finding.passed


@pytest.mark.parametrize("rule", ["adamw", "muon", "adafactor", "lamb", "lars"])
@pytest.mark.parametrize("part", [slice(-4096, None), slice(-8192, -4096), slice(4096)])
def test_the_case_of_large_parameters_finds_an_end_that_is_left_out(
    rule: str, part: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    base: Any = next(cls for cls in OURS if _audit.rule_of(cls.__name__) == rule)

    class Short(base):
        def step(self, closure: Any = None) -> None:
            (p,) = self.param_groups[0]["params"]
            if p.numel() > 2**18:
                p.grad.view(-1)[part] = 0
            super().step()

    assert not large(Short, rule, monkeypatch)


def test_the_commands_rules_are_the_audits() -> None:
    assert audit_optimizer._RULES == _audit.RULES
    assert [_audit.rule_of(n) for n in ("Adam_mini", "GaLoreAdamW", "Linear")] == ["adammini", "galore", None]


class Faulty(torch.optim.Optimizer):
    """AdamW in plain torch with one defect of a name, none for "" ."""

    defect = ""

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self._count = 0
        self._step_supports_amp_scaling = self.defect == "inf and NaN"

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._count += 1
        for group in self.param_groups:
            for p in group["params"]:
                self._step_one(p, group)

    def _step_one(self, p: torch.Tensor, group: Dict[str, Any]) -> None:
        defect, (beta1, beta2), lr, eps = self.defect, group["betas"], group["lr"], group["eps"]
        g, state = p.grad.float(), self.state[p]
        if defect == "inf and NaN":  # deaf to what GradScaler tells
            g = g / 256
        if defect == "resharding":
            g = g / g.norm()
        if not state:
            state.update(m=torch.zeros_like(g), v=torch.zeros_like(g), step=0)
        state["step"] += 1
        count = self._count if defect == "save, load, resume" else state["step"]
        if defect == "column without gradient":
            state["m"] += 1e-6
        state["m"].lerp_(g, 1 - beta1)
        state["v"].lerp_(g * g, 1 - beta2)
        if defect == "untouched rows":
            state["v"].mul_(0.9)
        if defect == "block spanning 2^20":
            state["v"][state["v"] < state["v"].max() / 512] = 0
        if defect == "tiny eps and gradients":
            eps = max(eps, 1e-8)
        if defect == "learning rate of 0":
            lr = max(lr, 1e-7)
        corrected = defect != "first steps"
        m = state["m"] / (1 - beta1**count if corrected else 1)
        v = state["v"] / (1 - beta2**count if corrected else 1)
        moved = p.float() * (1 - lr * group["weight_decay"]) - lr * m / (v.sqrt() + eps)
        if defect == "ragged tails" and p.numel() > 256:
            tail = p.numel() % 256
            moved.view(-1)[p.numel() - tail :] = p.float().view(-1)[p.numel() - tail :]
        if p.dtype == torch.bfloat16 and defect != "bf16 decay":
            noise = torch.randint_like(moved, 0, 1 << 16, dtype=torch.int32)
            moved = ((moved.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32)
        p.copy_(moved)


def failing(defect: str) -> List[str]:
    cls = type("FaultyAdamW", (Faulty,), {"defect": defect})
    return [f.name for f in _audit.Audit(cls, "adamw").run() if f.passed is False]


def test_a_class_without_a_defect() -> None:
    assert failing("") == []


@pytest.mark.parametrize("defect", [name for name in _audit.CASES if name != LARGE])
def test_each_case_finds_its_defect(defect: str) -> None:
    assert defect in failing(defect)


def test_an_error_of_the_class_is_its_finding() -> None:
    def make(params: Any, lr: float = 1e-3) -> torch.optim.Optimizer:
        raise ValueError("lr %g of %d\nand more" % (lr, len(params)))

    findings = list(_audit.Audit(make, "sgd").run())
    assert findings[0].passed is False and findings[0].detail.startswith("ValueError: lr 0.01 of 1")
    assert "\n" not in findings[0].detail


def test_the_rules_are_torchs() -> None:
    """The rule in 64 bits against torch's classes in 64 bits."""
    torch.manual_seed(1)
    muon = getattr(torch.optim, "Muon", None)  # not in every torch
    for cls, rule, options in (
        (torch.optim.AdamW, "adamw", {}),
        (torch.optim.Adam, "adam", {"weight_decay": 0.1}),
        (torch.optim.SGD, "sgd", {"momentum": 0.9, "weight_decay": 0.1, "dampening": 0.2}),
        (torch.optim.SGD, "sgd", {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adafactor, "adafactor", {"weight_decay": 0.1, "beta2_decay": -0.5}),
        (muon, "muon", {"weight_decay": 0.1}),
        (muon, "muon", {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
    ):
        if cls is None:
            continue
        p = torch.nn.Parameter(torch.randn(10, 10, dtype=torch.float64))
        known = _audit.Rule(rule, p)
        optimizer = cls([p], lr=0.1, **options)
        for _ in range(5):
            g = torch.randn(10, 10, dtype=torch.float64)
            _audit.step(optimizer, p, g)
            known.step(g, optimizer.param_groups[0])
        assert math.isclose(float((p.detach() - known.p).abs().max()), 0, abs_tol=1e-12)


def test_the_command(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("from torch.optim import AdamW as Mine\n")
    monkeypatch.chdir(tmp_path)
    result = cli_support.command(
        "audit-optimizer", "mine:Mine", "--rule", "adamw", "--set", "fused=False", "--json"
    )
    assert result.returncode == 1, result.stderr
    found = json.loads(result.stdout)
    json_schema.validate(found, json_schema.load("audit-optimizer"))
    (mine,) = found["classes"]
    assert (mine["passed"], mine["failed"], mine["not_run"]) == (10, 1, 1)
    assert [c["case"] for c in mine["cases"] if c["passed"] is False] == ["bf16 decay"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["torch.nn.Linear"], 2, "tells no rule; say it by --rule"),
        (["nowhere.AdamW"], 1, "nowhere.AdamW: No module named 'nowhere'"),
        (["torch.optim.AdamW", "--set", "lr"], 2, "'lr' is not NAME=VALUE"),
    ],
)
def test_refusals(words: List[str], code: int, said: str) -> None:
    result = cli_support.command("audit-optimizer", *words)
    assert result.returncode == code and said in result.stderr and result.stdout == ""
