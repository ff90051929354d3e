"""A video tower and a language model, scaled down: frames, 16 bits, checkpointing."""

import pathlib
import tempfile
from typing import List, Tuple

import memopt.torch as mt
import torch
from memopt.sizes import format_size
from memopt.torch._recorder import Recorder
from recipe.running import Recipe
from safetensors.torch import save_model

#: What load_safetensors reads at a time.
PIECE = 4 << 20


def bytes_of(model: torch.nn.Module) -> int:
    """Of all weights, each once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def extras(recipe: Recipe) -> Tuple[List[str], List[Tuple[str, bool]]]:
    """The guide's fp32 file of 4 GB as a model of 2 GB, without having 4 GB at any moment."""
    model = recipe.trainer(recipe.steps[0]).task.model
    full = bytes_of(model)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.safetensors"
        save_model(model, str(path))
        with torch.device("meta"):
            empty = recipe.trainer(recipe.steps[0]).task.model
        recorder = Recorder()
        with recorder:
            mt.load_safetensors(empty, str(path), dtype=torch.bfloat16, device="cpu")
    half = bytes_of(empty)
    report = mt.report(empty).devices["cpu"].weights
    lines = [
        "Loading fp32 as bf16: %s become %s; %s at most while loading, of it %s for pieces"
        % tuple(map(format_size, (full, half, recorder.peak, PIECE)))
    ]
    return lines, [
        ("the loaded model takes half", 2 * half == full and report == half),
        ("no fp32 tensor is made", all(t.dtype != "float32" for t in recorder.tensors)),
        ("loading takes that and one piece", recorder.peak <= half + PIECE),
    ]
