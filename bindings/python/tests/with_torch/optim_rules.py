"""The optimizers' rules: one parameter's updates in 64 bits."""

from __future__ import annotations

import math
from typing import Any, Dict, Optional

import torch

Tensor = torch.Tensor

#: The rules; a name with several of these words tells the first.
RULES = (
    *("schedulefree", "adafactor", "ademamix", "adagrad", "rmsprop"),
    *("adamw", "adam", "lion", "sgd", "muon", "lamb", "lars"),
)
#: Those whose decay is a share of the parameter.
_DECOUPLED = ("adafactor", "adamw", "ademamix", "lion", "muon")


class Rule:
    """One parameter's updates in 64 bits, by the options of the optimizer's group."""

    def __init__(self, name: str, p: Tensor) -> None:
        self.name, self.p, self.step_count = name, p.detach().double().clone(), 0
        self.start = self.p.clone()
        self.m = torch.zeros_like(self.p)
        self.v = torch.zeros_like(self.p)
        self.slow = torch.zeros_like(self.p)
        self.most = self.total = 0.0  # the largest rate and the sum of weights

    def step(self, g: Tensor, group: Dict[str, Any]) -> None:
        lr, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
        g = g.double()
        self.step_count += 1
        if self.name in ("lamb", "lars"):
            self._trusted(g, group)
            return
        size = float(self.p.norm()) / self.p.numel() ** 0.5  # of which Adafactor's step is a share
        g = -g if group.get("maximize") else g
        if self.name in _DECOUPLED:
            self.p -= lr * decay * self.p
        elif self.name != "schedulefree":
            g = g + decay * self.p
        if self.name == "sgd":
            kept = float(group.get("momentum", 0.0))
            fresh = 1.0 if self.step_count == 1 else 1.0 - float(group.get("dampening", 0.0))
            self.m = kept * self.m + fresh * g
            update = g + kept * self.m if group.get("nesterov") else self.m
        elif self.name in ("rmsprop", "adagrad"):
            update = self._by_root(g, group)
        elif self.name == "schedulefree":
            self._schedule_free(g, group)
            return
        elif self.name == "muon":
            update = self._muon(g, group)
        elif self.name == "adafactor":
            update = self._adafactor(g, group)
            lr = min(lr, self.step_count**-0.5) * max(float(group["eps"][1]), size)
        else:
            beta1, beta2 = (float(b) for b in group["betas"][:2])
            if self.name == "lion":
                update = torch.sign(beta1 * self.m + (1 - beta1) * g)
                self.m = beta2 * self.m + (1 - beta2) * g
            else:
                update = self._adam(g, group)
        self.p -= lr * update

    def _adam(self, g: Tensor, group: Dict[str, Any]) -> Tensor:
        """Adam's update, or AdEMAMix's."""
        beta1, beta2 = (float(b) for b in group["betas"][:2])
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g * g
        root = (self.v / (1 - beta2**self.step_count)).sqrt()
        mean = self.m / (1 - beta1**self.step_count)
        if self.name == "ademamix":
            mean = mean + self._slow_mean(g, group)
        update: Tensor = mean / (root + float(group["eps"]))
        return update

    def _trusted(self, g: Tensor, group: Dict[str, Any]) -> None:
        """LAMB's and LARS's step: the update is not longer than a share of the parameter."""
        decay, lr = float(group["weight_decay"]), float(group["lr"])
        g = -g if group.get("maximize") else g
        if self.name == "lamb":
            beta1, beta2 = (float(b) for b in group["betas"])
            self.m = beta1 * self.m + (1 - beta1) * g
            self.v = beta2 * self.v + (1 - beta2) * g * g
            correct = self.step_count if group.get("bias_correction", True) else 0
            root = (self.v / (1 - beta2**correct if correct else 1)).sqrt() + float(group["eps"])
            update = self.m / (1 - beta1**correct if correct else 1) / root + decay * self.p
        else:
            fresh = 1.0 if self.step_count == 1 else 1.0 - float(group["dampening"])
            self.m = float(group["momentum"]) * self.m + fresh * (g + decay * self.p)
            update = self.m
        most, size = float(group["max_unorm"]), float(self.p.norm())
        length = float(update.norm())
        if most and size and length:
            ratio = most * size / length
            lr *= min(1.0, ratio) if group["trust_clip"] else ratio
        self.p = self.p - lr * update

    def _by_root(self, g: Tensor, group: Dict[str, Any]) -> Tensor:
        """RMSprop's update, and Adagrad's, whose squares add up."""
        kept = float(group.get("alpha", 0.99)) if self.name == "rmsprop" else 1.0
        fresh = 1.0 - kept if self.name == "rmsprop" else 1.0
        self.v = kept * self.v + fresh * g * g
        kept = float(group.get("momentum", 0.0)) if self.name == "rmsprop" else 0.0
        self.m = kept * self.m + g / (self.v.sqrt() + float(group["eps"]))
        return self.m

    def _slow_mean(self, g: Tensor, group: Dict[str, Any]) -> Tensor:
        """AdEMAMix's second mean, weighted."""
        (beta1, _, beta3), alpha = group["betas"], float(group["alpha"])
        if group.get("t_alpha"):
            alpha = min(alpha, alpha * self.step_count / group["t_alpha"])
        if group.get("t_beta3"):
            part = min(1.0, self.step_count / group["t_beta3"])
            beta3 = min(beta3, math.exp(1 / ((1 - part) / math.log(beta1) + part / math.log(beta3))))
        self.slow = beta3 * self.slow + (1 - beta3) * g
        return alpha * self.slow

    def _schedule_free(self, g: Tensor, group: Dict[str, Any]) -> None:
        """p is y, m is z."""
        t, (beta1, beta2) = self.step_count, (float(b) for b in group["betas"][:2])
        warm = group.get("warmup_steps", 0)
        lr = float(group["lr"]) * (min(1.0, t / warm) if warm else 1.0)
        self.most = max(self.most, lr)
        weight = t ** float(group.get("r", 0.0)) * self.most ** float(group["weight_lr_power"])
        self.total += weight
        c = weight / self.total if self.total else 0.0
        self.m = self.start.clone() if t == 1 else self.m
        self.v = beta2 * self.v + (1 - beta2) * g * g
        update = g / ((self.v / (1 - beta2**t)).sqrt() + float(group["eps"]))
        update += float(group["weight_decay"]) * self.p
        self.p = self.p + c * (self.m - self.p) + lr * (beta1 * (1 - c) - 1) * update
        self.m -= lr * update

    def _adafactor(self, g: Tensor, group: Dict[str, Any]) -> Tensor:
        """The gradient over the root of its factored second moment, cut."""
        fresh = self.step_count ** float(group["beta2_decay"])
        least = torch.finfo(torch.float32).eps if group["eps"][0] is None else float(group["eps"][0])
        self.v = (1 - fresh) * self.v + fresh * g * g
        mean = self.v
        if g.dim() > 1:  # rows and columns are linear in the squares
            row, column = self.v.mean(-1, keepdim=True), self.v.mean(-2, keepdim=True)
            mean = row * column / row.mean(-2, keepdim=True).clamp(min=least)
        update: Tensor = g / mean.clamp(min=least**2).sqrt()
        long = float(update.norm()) / update.numel() ** 0.5 / float(group["d"])
        update /= max(1.0, long)
        return update

    def _muon(self, g: Tensor, group: Dict[str, Any]) -> Tensor:
        """The momentum of a matrix, orthogonalised by Newton–Schulz iterations, and what scales it."""
        kept = float(group["momentum"])
        self.m = kept * self.m + (1 - kept) * g
        x = (1 - kept) * g + kept * self.m if group["nesterov"] else self.m
        a, b, c = group["ns_coefficients"]
        x = x.bfloat16()  # by the rule's definition
        x = x / x.norm().clamp(min=float(group["eps"]))
        tall = x.size(0) > x.size(1)
        x = x.T if tall else x
        for _ in range(group["ns_steps"]):
            gram = x @ x.T
            gram = torch.addmm(gram, gram, gram, beta=b, alpha=c)
            x = torch.addmm(x, gram, x, beta=a)
        x = (x.T if tall else x).double()
        rows, columns = g.shape
        if group.get("adjust_lr_fn") == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns)) * x
        return math.sqrt(max(1, rows / columns)) * x


def rule_of(name: str) -> Optional[str]:
    """The rule that a class's name tells, one of RULES."""
    low = name.lower().replace("_", "")
    return next((rule for rule in RULES if rule in low), None)
