"""Llava as the planner plays it, beside measured steps of shapes that no recipe has."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any, Dict

import pytest

pytest.importorskip("transformers")

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "examples" / "recipes"))

from recipe import planning, training  # noqa: E402
from recipe.measuring import measure  # noqa: E402

pytestmark = pytest.mark.long

SHAPES: Dict[str, Any] = {
    "several images": ({"images": 3}, {}),
    "large images": ({"batch": 1, "seq": 24}, {"vision_config.image_size": 96}),
    "the last layer but one": ({"images": 3}, {"vision_feature_layer": -2}),
    "few words": ({"images": 3}, {"vision_feature_layer": -2, "text_config.vocab_size": 64}),
    "a frozen tower": ({"freeze-vision": True, "images": 2}, {"vision_config.num_hidden_layers": 4}),
    "frozen, autocast": ({"freeze-vision": True, "autocast": "bf16"}, {}),
    "frozen, run again": (
        {"freeze-vision": True, "autocast": "bf16", "checkpointing": "full", "accumulation": 2},
        {},
    ),
    "bf16": ({"dtype": "bf16", "images": 2}, {"vision_config.hidden_act": "gelu"}),
    "bf16, run again": ({"dtype": "bf16", "checkpointing": "full"}, {"vision_feature_layer": -2}),
    "eager": ({"attention": "eager", "images": 4}, {}),
    "shared heads": ({"seq": 40}, {"text_config.num_key_value_heads": 2}),
    "LoRA": ({"lora": 8, "images": 2}, {}),
    "LoRA, frozen tower": ({"lora": 8, "freeze-vision": True}, {}),
    "LoRA, bf16": ({"lora": 8, "dtype": "bf16", "images": 2}, {}),
    "LoRA, bf16, run again": (
        {"lora": 8, "dtype": "bf16", "freeze-vision": True, "checkpointing": "full"}, {}
    ),
}  # fmt: skip


def configuration(folder: pathlib.Path, changes: Dict[str, Any]) -> pathlib.Path:
    config = json.loads((ROOT / "examples" / "recipes" / "video" / "small.json").read_text())
    for key, value in changes.items():
        *parts, last = key.split(".")
        place = config
        for part in parts:
            place = place[part]
        place[last] = value
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", SHAPES)
def test_the_peak_is_what_was_measured(name: str, tmp_path: pathlib.Path) -> None:
    """Never under, above by a hundredth: where a layer is skipped, by the head's own tower."""
    settings, changes = SHAPES[name]
    settings = dict({"batch": 2, "seq": 48, "images": 1, "dtype": "fp32"}, **settings)
    path = configuration(tmp_path, changes)
    trainer = training.Trainer(path, settings)
    if "checkpointing" in settings:  # as gradient_checkpointing_enable does
        trainer.task.model.enable_input_require_grads()
    trainer.losses(2)
    measured = measure(trainer)
    plan = planning.planned(path, settings)
    assert measured.peak <= plan.peak <= 1.01 * measured.peak
    assert plan.parameters == measured.parameters
    assert plan.optimizer == measured.optimizer
    assert measured.activations <= plan.activations <= 1.01 * measured.activations + (1 << 14)
