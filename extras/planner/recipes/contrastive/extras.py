"""A contrastive encoder with experts, scaled down: negatives, LoRA, checkpointing."""

from typing import List, Tuple

from recipe import planning
from recipe.running import Recipe
from recipe.settings import options


def extras(recipe: Recipe) -> Tuple[List[str], List[Tuple[str, bool]]]:
    """What LoRA leaves to learn: here, and in the model of the guide's size."""
    lines, checks = [], []
    for name in ("small.json", "model.json"):
        path = recipe.folder / name
        model = planning.plan(["--model", str(path), *options(recipe.steps[-1].settings)])["model"]
        share = 100.0 * model["trainable"] / model["parameters"]
        lines.append("LoRA of rank 8 in %s: %.2f %% of the weights learn" % (name, share))
        checks.append(("in %s about 1 %% of the weights learn, or fewer" % name, 0 < share < 1.5))
    trainer = recipe.trainer(recipe.steps[-1])
    learning = sum(p.numel() for p in trainer.task.model.parameters() if p.requires_grad)
    said = planning.plan(["--model", str(recipe.small), *options(recipe.steps[-1].settings)])
    checks.append(("the planner counts them right", learning == said["model"]["trainable"]))
    return lines, checks
