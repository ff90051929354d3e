"""What the tests of GradScaler and clip_grad_norm_ share."""

from __future__ import annotations

import math

import torch
from torch import nn

import memopt.torch as mt

TYPES = (torch.float32, torch.float16, torch.bfloat16)
FLT_MAX = torch.finfo(torch.float32).max
INF, NAN = math.inf, math.nan


def ours(device, **options):
    return mt.GradScaler(device.type, **options)


def theirs(device, **options):
    return torch.amp.GradScaler(device.type, **options)


class Recorder(torch.optim.SGD):
    """SGD that counts its steps."""

    def __init__(self, parameters, lr=1.0, **options):
        super().__init__(parameters, lr=lr, **options)
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


class Fused(torch.optim.Optimizer):
    """An optimizer that takes scale and flag as torch's fused ones do."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self._step_supports_amp_scaling = True
        self.seen = []

    @torch.no_grad()
    def step(self, closure=None):
        scale = None if self.grad_scale is None else float(self.grad_scale)
        self.seen.append((scale, float(self.found_inf)))


def parameters_of(device, sizes=(7, 300, 20000), dtypes=(torch.float32,)):
    result = []
    for size in sizes:
        for dtype in dtypes:
            parameter = nn.Parameter(torch.zeros(size, device=device, dtype=dtype))
            parameter.grad = torch.randn(size, device=device).to(dtype)
            result.append(parameter)
    return result


def clones(parameters):
    result = [nn.Parameter(p.detach().clone()) for p in parameters]
    for new, old in zip(result, parameters):
        new.grad = None if old.grad is None else old.grad.clone()
    return result


def started(scaler, device):
    scaler.scale(torch.ones((), device=device))
    return scaler
