"""Models, batches and optimizers of the rows: Transformers' own, from configurations, random."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any, Dict, Iterator, List, Optional

import heads
import torch
import transformers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def config_of(row: Dict[str, Any]) -> Any:
    """Transformers' configuration of a row."""
    values = dict(row["config"])
    return transformers.AutoConfig.for_model(values.pop("model_type"), **values)


def build(row: Dict[str, Any], device: str = "cpu") -> torch.nn.Module:
    """The module of a row, in train mode."""
    run = row["run"]
    torch.manual_seed(0)
    kind = getattr(transformers, row["config"]["architectures"][0])
    with torch.device(device):
        model = kind._from_config(config_of(row), dtype=DTYPES[run["dtype"]], attn_implementation=run["attention"])
    if device == "meta":
        model.tie_weights()
    if run.get("quantize"):
        model = adapted(quantized(model, run), run)
    elif run.get("peft"):
        model = adapted(model, run)
    else:
        freeze(model, run)
    checkpointing(model, run)
    if contrastive(run):
        model = heads.Contrastive(model, group_of(run))
    if run.get("loss"):
        model = heads.Headless(model, run["loss"])
    if run.get("offload"):
        offloading(model)
    return model.train()


def contrastive(run: Dict[str, Any]) -> bool:
    """Whether samples come with positives and negatives."""
    return "positives" in run or "negatives" in run


def group_of(run: Dict[str, Any]) -> int:
    """Sequences of a sample."""
    return 1 + run.get("positives", 1) + run.get("negatives", 0) if contrastive(run) else 1


def offloading(model: Any) -> None:
    """What forward and loss save for backward waits in host memory, which is no tensor's."""
    save_on_cpu = importlib.import_module("memopt.torch").save_on_cpu
    forward = model.forward

    @functools.wraps(forward)
    def saving(*args: Any, **named: Any) -> Any:
        with save_on_cpu():
            return forward(*args, **named)

    model.forward = saving


def checkpointing(model: Any, run: Dict[str, Any]) -> None:
    """Full: each layer is run again in backward. With `every` = k, all but each k-th are.

    Inputs of layers under adapters are made to learn, as PEFT does it, unless `inputs` is "frozen".
    """
    if run["checkpointing"] == "none":
        return
    model.gradient_checkpointing_enable()
    kind = transformers.modeling_layers.GradientCheckpointingLayer
    for path, layer in model.named_modules():
        if isinstance(layer, kind) and "every" in run:
            number = int(path.split(".")[-1])  # in its list
            layer.gradient_checkpointing = (number + 1) % run["every"] != 0
    if run.get("lora") and run.get("inputs", "learn") == "learn":
        model.enable_input_require_grads()


def freeze(model: Any, run: Dict[str, Any]) -> None:
    """A vision tower that learns not, and adapters: of the text alone beside such a tower, whose
    projector then learns."""
    tower, projector = part_of(model, "vision_tower"), part_of(model, "multi_modal_projector")
    frozen = bool(run.get("freeze_vision"))
    if frozen:
        tower.requires_grad_(False)
    if run.get("lora"):
        dtype = DTYPES[run.get("adapters", "fp32")]
        add_lora(model, run["lora"], run["lora_targets"], dtype, tower if frozen else None)
        if frozen:
            projector.requires_grad_(True)


def quantized(model: Any, run: Dict[str, Any]) -> Any:
    """bitsandbytes' layers in place of all linear ones but the head.

    Weights are quantised from the type that they are computed in; with the others of fp32, it is
    what `prepare_model_for_kbit_training` leaves of a model of that type. FSDP gathers codes that
    are stored in the type that it gathers.
    """
    nn = importlib.import_module("bitsandbytes.nn")
    kind, base = run["quantize"], DTYPES[run.get("base", run.get("autocast", run["dtype"]))]
    stored = {"quant_storage": DTYPES[run["gather"]]} if "gather" in run else {}
    for path, linear in list(model.named_modules()):
        if not isinstance(linear, torch.nn.Linear) or linear is model.get_output_embeddings():
            continue
        sizes = (linear.in_features, linear.out_features, linear.bias is not None)
        weight = linear.weight.data
        if kind == "int8":
            made = nn.Linear8bitLt(*sizes, has_fp16_weights=False)
            made.weight = nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
        else:
            made = nn.Linear4bit(*sizes, compute_dtype=base, quant_type="nf4", **stored)
            made.weight = nn.Params4bit(
                weight.to(base),
                requires_grad=False,
                compress_statistics=kind == "nf4-double",
                quant_type="nf4",
                module=made,
                **stored,
            )
        made.bias = linear.bias
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, made.to("cpu"))
    model.is_loaded_in_8bit, model.is_loaded_in_4bit = kind == "int8", kind != "int8"
    return model


def elements(model: Any) -> int:
    """Of all weights, which 4 bits hold in another shape."""
    states = [(weight, getattr(weight, "quant_state", None)) for weight in model.parameters()]
    return sum(w.numel() if of is None else torch.Size(of.shape).numel() for w, of in states)


def adapted(model: Any, run: Dict[str, Any]) -> Any:
    """PEFT's adapters on a model."""
    peft = importlib.import_module("peft")
    adapters = peft.LoraConfig(
        r=run["lora"],
        target_modules=run["lora_targets"],
        target_parameters=run.get("lora_parameters"),
        lora_dropout=run.get("dropout", 0.0),
    )
    return peft.get_peft_model(model, adapters).get_base_model()


def part_of(model: torch.nn.Module, name: str) -> Any:
    """The module of this name, or None."""
    found = [module for path, module in model.named_modules() if path.split(".")[-1] == name]
    return found[0] if found else None


class Lora(torch.nn.Module):
    """A frozen linear layer with a trained product of two thin ones beside it (Hu et al. 2021).

    Types as PEFT has them (`peft.tuners.lora.Linear`): the thin ones are of fp32 however narrow the
    frozen one is (`autocast_adapter_dtype`), x is cast to theirs, and the sum back to its own.
    """

    def __init__(self, base: torch.nn.Linear, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        like = {"device": base.weight.device, "dtype": dtype}
        self.a = torch.nn.Linear(base.in_features, rank, bias=False, **like)
        self.b = torch.nn.Linear(rank, base.out_features, bias=False, **like)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x)
        dtype = result.dtype
        x = x.to(self.a.weight.dtype)
        result = result + self.b(self.a(x)) * self.scale
        result = result.to(dtype)
        return result


def add_lora(
    model: torch.nn.Module,
    rank: int,
    targets: List[str],
    dtype: torch.dtype = torch.float32,
    spared: Optional[torch.nn.Module] = None,
) -> None:
    """Freezes a model and puts `Lora` where a linear layer has one of the names, but for those of
    a spared part."""
    model.requires_grad_(False)
    leave = set() if spared is None else set(spared.modules())
    for module in [module for module in model.modules() if module not in leave]:
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, torch.nn.Linear):
                setattr(module, name, Lora(child, rank, dtype))


def batch_of(row: Dict[str, Any], batch: int, sequence: int, device: str = "cpu") -> Dict[str, Any]:
    """Inputs and labels."""
    config = row["config"]
    random = torch.Generator(device="cpu").manual_seed(1)

    def integers(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=random).to(device)

    if config["model_type"] == "vit":
        size = config["image_size"]
        pixels = torch.randn(batch, config["num_channels"], size, size, generator=random)
        pixels = pixels.to(device=device, dtype=DTYPES[row["run"].get("images", "fp32")])
        return {"pixel_values": pixels, "labels": integers(classes(config), batch)}
    text = config.get("text_config", config)
    ids = integers(text["vocab_size"], batch * group_of(row["run"]), sequence)
    result = {"input_ids": ids}
    if "vision_config" in config:
        return with_frames(row, ids, random)
    if contrastive(row["run"]):
        return result
    if row["run"].get("mask"):
        mask = torch.ones(batch, sequence, dtype=torch.int64)
        for number in range(batch):  # rows of different lengths, padded on the right
            mask[number, sequence - number * sequence // (2 * batch) :] = 0
        result["attention_mask"] = mask.to(device)
    if config["architectures"][0].endswith("SequenceClassification"):
        result["labels"] = integers(classes(config), batch)
    elif config["architectures"][0].endswith("TokenClassification"):
        result["labels"] = integers(classes(config), batch, sequence)
    else:
        result["labels"] = ids.clone()
    return result


def with_frames(row: Dict[str, Any], ids: torch.Tensor, random: torch.Generator) -> Dict[str, Any]:
    """Images in front of the words: `frames` of them a sample."""
    config, frames = row["config"], row["run"].get("frames", 1)
    size, patch = (config["vision_config"][key] for key in ("image_size", "patch_size"))
    token = config["image_token_index"]
    ids = ids.masked_fill(ids == token, token + 1)
    tokens = frames * (size // patch) ** 2
    ids = torch.cat([ids.new_full((len(ids), tokens), token), ids], dim=1)
    pixels = torch.randn(len(ids) * frames, 3, size, size, generator=random)
    pixels = pixels.to(device=ids.device, dtype=DTYPES[row["run"].get("images", "fp32")])
    return {"input_ids": ids, "labels": ids.clone(), "pixel_values": pixels}


def classes(config: Dict[str, Any]) -> int:
    """Of a classifier."""
    return int(config.get("num_labels", 2))


def optimizer_of(run: Dict[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer that a row names."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    kind = run["optimizer"]
    if kind in ("adamw", "adamw-foreach"):
        return torch.optim.AdamW(parameters, lr=1e-4, foreach=kind == "adamw-foreach")
    if kind == "sgd-momentum":
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, foreach=False)
    if kind == "adamw8bit":
        return importlib.import_module("memopt.torch").AdamW8bit(parameters, lr=1e-4)
    raise ValueError("row: no optimizer is called %r" % kind)


@contextlib.contextmanager
def autocast(run: Dict[str, Any], device: str = "cpu") -> Iterator[None]:
    """Around the forward."""
    name = run.get("autocast")
    if name is None:
        yield
    else:
        with torch.autocast(device, dtype=DTYPES[name]):
            yield
