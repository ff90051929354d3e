"""34M parameters on an RX 6750 XT of 12 GB, scaled down: micro-batch, sequence, checkpointing."""

from typing import List, Tuple

from recipe import planning
from recipe.running import Recipe
from recipe.settings import options


def extras(recipe: Recipe) -> Tuple[List[str], List[Tuple[str, bool]]]:
    """The effective batch is the same before and after; checkpointing's time is in the guide's
    range."""
    effective, factors = [], []
    for step in recipe.steps:
        result = planning.plan(["--model", str(recipe.small), *options(step.settings)])
        effective.append(result["effective_batch"])
        factors.append(result["time_factor"])
    lines = ["Effective batch of every step: %s" % ", ".join(map(str, effective))]
    slower = factors[3] / factors[2]
    lines.append("Checkpointing: %.0f %% slower, says the planner" % (100 * (slower - 1)))
    return lines, [
        ("the effective batch stays 32", set(effective) == {32}),
        ("checkpointing costs a third of the time or less", 1 < slower <= 4 / 3),
    ]
