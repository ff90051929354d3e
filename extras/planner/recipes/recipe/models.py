"""What is trained: models of `transformers` from a configuration, random weights, and samples."""

import pathlib
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from .settings import Settings, load

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_LORA_TARGETS = ("q_proj", "v_proj")


class Lora(nn.Module):
    """A frozen linear layer, and beside it a product of two thin ones that learns: in fp32, however
    narrow the frozen one is, as PEFT has it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        like = {"device": base.weight.device, "dtype": torch.float32}
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, **like)
        self.up = nn.Linear(rank, base.out_features, bias=False, **like)
        nn.init.zeros_(self.up.weight)
        self.scale = 16.0 / rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x)
        dtype = result.dtype
        x = x.to(self.down.weight.dtype)
        result = result + self.up(self.down(x)) * self.scale
        result = result.to(dtype)
        return result


def add_lora(model: nn.Module, rank: int, spared: Optional[nn.Module] = None) -> None:
    """Freezes a model and adapts its queries and values, but for those of a part."""
    model.requires_grad_(False)
    leave = set(spared.modules()) if spared is not None else set()
    for module in [module for module in model.modules() if module not in leave]:
        for name, child in list(module.named_children()):
            if name in _LORA_TARGETS and isinstance(child, nn.Linear):
                setattr(module, name, Lora(child, rank))


class Contrastive(nn.Module):
    """Scores of anchors against the positives and negatives of all samples, and their loss.

    Rows come anchors first: anchor i belongs to row `anchors + i`.
    """

    def __init__(self, encoder: nn.Module, group: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.group = group

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        pooled = self.encoder(input_ids=input_ids, use_cache=False).last_hidden_state.mean(1)
        pooled = F.normalize(pooled.float(), dim=-1)
        anchors = len(pooled) // self.group
        scores = pooled[:anchors] @ pooled[anchors:].T / 0.05
        return F.cross_entropy(scores, torch.arange(anchors))


class Task:
    """A model, and samples for it. `loss(batch)` is a number to go backward from."""

    def __init__(self, path: pathlib.Path, settings: Settings, seed: int = 0) -> None:
        self.config = load(path)
        self.settings = settings
        torch.manual_seed(seed)
        self.model = self._build().train()
        #: Where samples come from: the same ones for a seed.
        self.samples = torch.Generator().manual_seed(seed + 1)

    @property
    def contrastive(self) -> bool:
        """Whether samples come with positives and negatives."""
        return "positives" in self.settings or "negatives" in self.settings

    @property
    def group(self) -> int:
        """Sequences of a sample."""
        if not self.contrastive:
            return 1
        return 1 + self.settings.get("positives", 1) + self.settings.get("negatives", 0)

    def _build(self) -> nn.Module:
        import transformers

        values = {k: v for k, v in self.config.items() if k != "model_type"}
        config = transformers.AutoConfig.for_model(self.config["model_type"], **values)
        kind = getattr(transformers, self.config["architectures"][0])
        model = kind._from_config(
            config,
            dtype=DTYPES[self.settings.get("dtype", "fp32")],
            attn_implementation=self.settings.get("attention", "sdpa"),
        )
        if self.settings.get("freeze-vision"):
            tower_of(model).requires_grad_(False)
        if self.settings.get("lora"):
            spared = tower_of(model) if self.settings.get("freeze-vision") else None
            add_lora(model, self.settings["lora"], spared)
            if spared is not None:  # what is in front of the text learns, as without LoRA
                part_of(model, "multi_modal_projector").requires_grad_(True)
        return Contrastive(model, self.group) if self.contrastive else model

    def batch(self) -> Dict[str, torch.Tensor]:
        """Samples of one micro-batch."""
        rows = self.settings["batch"] * self.group
        vocabulary = self.text["vocab_size"]
        shape = (rows, self.settings["seq"])
        ids = torch.randint(2, vocabulary, shape, generator=self.samples)
        if self.contrastive:
            return {"input_ids": ids}
        frames = self.settings.get("images", 1) if "vision_config" in self.config else 0
        if not frames:
            return {"input_ids": ids, "labels": ids.clone()}
        return self._with_frames(ids, frames)

    def _with_frames(self, ids: torch.Tensor, frames: int) -> Dict[str, torch.Tensor]:
        vision = self.config["vision_config"]
        size, patch = vision["image_size"], vision["patch_size"]
        tokens = frames * (size // patch) ** 2
        pictures = torch.full((len(ids), tokens), self.config["image_token_index"])
        ids = torch.cat([pictures, ids], dim=1)
        pixels = torch.randn(len(ids) * frames, 3, size, size, generator=self.samples)
        return {"input_ids": ids, "labels": ids.clone(), "pixel_values": pixels}

    @property
    def text(self) -> Dict[str, Any]:
        """The configuration of the language model."""
        text: Dict[str, Any] = self.config.get("text_config", self.config)
        return text

    def loss(self, batch: Dict[str, torch.Tensor]) -> torch.Tensor:
        """Forward and loss; the outputs are given up, as in a loop that keeps the loss alone."""
        outputs = self.model(**batch)
        return outputs if self.contrastive else outputs.loss

    def is_logits(self, shape: Tuple[int, ...]) -> bool:
        """Whether a tensor of this shape is as large as tokens × vocabulary, or scores."""
        if not self.contrastive:
            return len(shape) > 0 and shape[-1] == self.text["vocab_size"]
        anchors = self.settings["batch"]
        return shape == (anchors, anchors * (self.group - 1))


def tower_of(model: nn.Module) -> nn.Module:
    """The vision tower of a model."""
    return part_of(model, "vision_tower")


def part_of(model: nn.Module, end: str) -> nn.Module:
    """The part of a model whose name ends so."""
    for name, module in model.named_modules():
        if name.endswith(end):
            return module
    raise ValueError("%s has no %s" % (type(model).__name__, end))


def head_of(model: nn.Module) -> nn.Module:
    """The layer before the loss; a model without one is its own."""
    for name, module in model.named_modules():
        if name.endswith("lm_head"):
            return module
    return model


def layers_of(model: nn.Module) -> List[nn.Module]:
    """The layers that checkpointing runs again: those of all lists named "layers"."""
    return [
        layer
        for name, module in model.named_modules()
        if name.endswith("layers") and isinstance(module, nn.ModuleList)
        for layer in module
    ]
