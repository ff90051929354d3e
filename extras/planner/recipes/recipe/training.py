"""Trains a task with the savers of `memopt.torch` that its settings name."""

import contextlib
import functools
import pathlib
from typing import Any, Callable, Dict, List

import memopt.torch as mt
import torch

from . import models
from .settings import Settings

_OURS = {"adamw8bit": mt.AdamW8bit, "adamw4bit": mt.AdamW4bit, "lion8bit": mt.Lion8bit}

#: Called with the name of each phase as it begins.
Phase = Callable[[str], None]


def _nobody(phase: str) -> None:
    pass


class Trainer:
    """A task, its optimizer and its savers. Everything but the settings is the same for a seed."""

    def __init__(self, model: pathlib.Path, settings: Settings, seed: int = 0) -> None:
        self.settings = settings
        self.task = models.Task(model, settings, seed)
        self.optimizer = _optimizer(self.task.model, settings)
        scaling = bool(settings.get("grad-scaler"))
        self.scaler = mt.GradScaler("cpu", init_scale=2.0**10, enabled=scaling)
        if settings.get("checkpointing") == "full":
            for layer in models.layers_of(self.task.model):
                setattr(layer, "forward", functools.partial(mt.checkpoint, layer.forward))
        offloads = settings.get("offload") in ("activations", "all")
        self.host = mt.save_on_cpu() if offloads else None

    def step(self, phase: Phase = _nobody, claim: Any = None) -> float:
        """One optimizer step over all micro-batches; the mean of their losses."""
        accumulation = self.settings.get("accumulation", 1)
        total = 0.0
        for _ in range(accumulation):
            phase("batch")
            batch = self.task.batch()
            if claim is not None:
                claim(batch.values(), "batch")
            phase("forward")
            with self._forward():
                loss = self.task.loss(batch)
            phase("backward")
            self.scaler.scale(loss / accumulation).backward()
            total += float(loss.detach()) / accumulation
            del loss, batch
        phase("step")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        phase("after")
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def state(self) -> Dict[str, Any]:
        """What a checkpoint on disk holds."""
        return {
            "model": self.task.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "samples": self.task.samples.get_state(),
        }

    def load(self, state: Dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.task.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.task.samples.set_state(state["samples"])

    def losses(self, steps: int) -> List[float]:
        """Trains; the loss of each step."""
        return [self.step() for _ in range(steps)]

    @contextlib.contextmanager
    def _forward(self) -> Any:
        with contextlib.ExitStack() as stack:
            if self.host is not None:
                stack.enter_context(self.host)
            if self.settings.get("autocast"):
                dtype = models.DTYPES[self.settings["autocast"]]
                stack.enter_context(torch.autocast("cpu", dtype=dtype))
            yield


def _optimizer(model: torch.nn.Module, settings: Settings) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    name = settings.get("optimizer", "adamw")
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-3, foreach=False)
    if name not in _OURS:
        raise ValueError("optimizer %r is none of adamw, %s" % (name, ", ".join(_OURS)))
    return _OURS[name](parameters, lr=1e-3, min_8bit_size=4096)
