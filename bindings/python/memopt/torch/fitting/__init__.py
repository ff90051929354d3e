"""fit(): a model's training step within a byte budget.

One step is recorded as a tape (_tape.py), on fake tensors where the model allows it (_runs.py). The
library replays it to the byte under choices (_choices.py) and finds those that hold the budget in
little time (_planning.py); _apply.py applies them by hooks (_recipes.py) and checkpoint(). Steps of
other shapes have plans of their own (_fit.py).
"""

from ._fit import Fit, fit

__all__ = ["Fit", "fit"]
