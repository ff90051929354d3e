"""Callbacks of training frameworks; a framework is imported when its callback is made."""

from __future__ import annotations

from typing import Any, Optional

from . import Fit, fit


def trainer_callback(budget: int, host: Optional[int]) -> Any:
    """See Fit.for_trainer()."""
    from transformers import TrainerCallback

    class FitCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        fit: Optional[Fit] = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model = getattr(given["model"], "module", given["model"])
            if getattr(model, "is_gradient_checkpointing", False):
                model.gradient_checkpointing_disable()
            self.fit = fit(model, given["optimizer"], budget=budget, host=host)

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.fit is not None:
                self.fit.remove()

    return FitCallback()


def lightning_callback(budget: int, host: Optional[int]) -> Any:
    """See Fit.for_lightning()."""
    from lightning.pytorch import Callback

    class FitCallback(Callback):  # type: ignore[misc,unused-ignore]
        fit: Optional[Fit] = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.fit = Fit(pl_module, trainer.optimizers[0], None, budget, host, (), "training_step")

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if self.fit is not None:
                self.fit.remove()

    return FitCallback()
