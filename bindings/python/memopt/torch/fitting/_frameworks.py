"""Callbacks of training frameworks; a framework is imported when its callback is made.

``make(model, optimizer)`` gives the Fit, which is the callback's `fit` then.
"""

from __future__ import annotations

from typing import Any, Callable

Make = Callable[[Any, Any], Any]


def trainer_callback(make: Make) -> Any:
    """See Fit.for_trainer()."""
    from transformers import TrainerCallback

    class FitCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        fit: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model = getattr(given["model"], "module", given["model"])
            if getattr(model, "is_gradient_checkpointing", False):
                model.gradient_checkpointing_disable()
            self.fit = make(model, given["optimizer"])

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self.fit.remove()

    return FitCallback()


def lightning_callback(make: Make) -> Any:
    """See Fit.for_lightning()."""
    from lightning.pytorch import Callback

    class FitCallback(Callback):  # type: ignore[misc,unused-ignore]
        fit: Any = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.fit = make(pl_module, trainer.optimizers[0])

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.fit.remove()

    return FitCallback()
