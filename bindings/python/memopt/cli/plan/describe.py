"""The options that describe the model and the run, and what they make of them."""

from __future__ import annotations

import argparse
import re
from typing import Any, Dict, List, NamedTuple, Optional

from ..._abi import plan as _abi_plan
from ...plan import PlanModel, PlanRun, name_of, names
from ...sizes import parse_size
from .. import UsageError
from . import deepspeed, hfconfig

#: Words for optimizers beside the C interface's names.
_OPTIMIZER_ALIASES = {
    "adam": "adamw",
    "adamw-8bit": "adamw8bit",
    "adamw-4bit": "adamw4bit",
    "adamw-fp8": "adamwfp8",
    "lion-8bit": "lion8bit",
    "sgd-8bit": "sgd8bit",
}
_DTYPES = ("fp32", "bf16", "fp16")
_LONG_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "f32": "fp32"}
_TARGETS = {
    "q": "query", "k": "key", "v": "value", "o": "output", "gate": "gate", "up": "up",
    "down": "down", "head": "head", "q_proj": "query", "k_proj": "key", "v_proj": "value",
    "o_proj": "output", "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
    "lm_head": "head", "query": "query", "key": "key", "value": "value", "output": "output",
}  # fmt: skip


class Description(NamedTuple):
    """What the options describe."""

    model: PlanModel
    run: PlanRun
    #: Where the model comes from, for people.
    title: str
    notes: List[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    _model_arguments(parser.add_argument_group("model"))
    _run_arguments(parser.add_argument_group("run"))
    _saver_arguments(parser.add_argument_group("memory savers"))


def _model_arguments(group: Any) -> None:
    group.add_argument(
        "--model",
        metavar="CONFIG",
        help="a Hugging Face config.json or a folder with one, or module:function that makes a "
        "torch module (traced on the meta device: no weights are allocated)",
    )
    group.add_argument(
        "--like", metavar="TYPE", help="read the configuration as one of this model_type"
    )
    group.add_argument("--params", type=_count, metavar="N", help="weights in all: 366M, 7B")
    _numbers(
        group,
        ("--layers", "layers"),
        ("--hidden", "width"),
        ("--heads", "attention heads"),
        ("--kv-heads", "heads of keys and values"),
        ("--ffn", "width of the MLP"),
        ("--vocab", "tokens in the vocabulary"),
        ("--experts", "experts per layer"),
        ("--top-k", "experts that a token visits"),
        ("--positions", "learned positions"),
        ("--labels", "classes of a classification head"),
        ("--vision-layers", "layers of a vision tower"),
        ("--vision-hidden", "width of the vision tower"),
        ("--vision-tokens", "tokens that an image adds to the sequence"),
        ("--image-size", "pixels of an image's side"),
        ("--patch-size", "pixels of a patch's side"),
    )
    group.add_argument(
        "--family", choices=names(_abi_plan.PlanFamily), help="whose layers; default: llama"
    )
    group.add_argument("--head", choices=names(_abi_plan.PlanHead), help="what is on top")
    tied = group.add_mutually_exclusive_group()
    tied.add_argument("--tied", action="store_true", help="the head shares the embeddings")
    tied.add_argument("--untied", action="store_true", help="the head has a weight of its own")
    group.add_argument("--freeze-vision", action="store_true", help="the vision tower learns not")


def _run_arguments(group: Any) -> None:
    _numbers(
        group,
        ("--batch", "samples of a micro-batch on one device; default: what fits, or 1"),
        ("--seq", "tokens of the longest sample; default: 512"),
        ("--seq-mean", "mean tokens of a sample"),
        ("--images", "images or frames per sample"),
        ("--positives", "positives per sample of a contrastive model"),
        ("--negatives", "negatives per sample of a contrastive model"),
        ("--accumulation", "micro-batches per step"),
        ("--world-size", "devices"),
    )
    group.add_argument(
        "--target-effective-batch",
        type=_positive,
        metavar="N",
        help="samples of a step on all devices; accumulation is chosen for it",
    )
    group.add_argument(
        "--dtype", type=_dtype, choices=_DTYPES, metavar="|".join(_DTYPES), help="of the weights"
    )
    group.add_argument(
        "--autocast",
        type=_dtype,
        choices=_DTYPES,
        metavar="bf16|fp16",
        help="compute in it, weights as --dtype",
    )
    group.add_argument(
        "--master-weights", action="store_true", help="the optimizer keeps fp32 copies"
    )
    group.add_argument(
        "--image-dtype",
        type=_dtype,
        choices=_DTYPES,
        metavar="|".join(_DTYPES),
        help="of the images of a batch; default: fp32, as image processors give them",
    )
    group.add_argument(
        "--optimizer",
        type=_optimizer,
        choices=names(_abi_plan.PlanOptimizer),
        metavar="NAME",
        help="one of " + ", ".join(names(_abi_plan.PlanOptimizer)) + "; default: adamw",
    )
    group.add_argument(
        "--attention",
        choices=names(_abi_plan.PlanAttention),
        help="default: sdpa, a flash kernel where it applies",
    )
    group.add_argument("--padding-mask", action="store_true", help="batches carry a padding mask")
    group.add_argument(
        "--keep-outputs", action="store_true", help="the logits are held during backward"
    )
    group.add_argument(
        "--min-8bit-size", type=_count, metavar="N", help="smaller tensors keep 32-bit states"
    )


def _saver_arguments(group: Any) -> None:
    group.add_argument(
        "--checkpointing",
        choices=("none", "selective", "full"),
        help="which layers are run again in backward",
    )
    group.add_argument(
        "--checkpoint-every", type=_positive, metavar="K", help="keep one layer of K"
    )
    group.add_argument(
        "--checkpoint-budget", type=_size, metavar="SIZE", help="the fastest schedule within it"
    )
    group.add_argument(
        "--offload",
        nargs="?",
        const="activations",
        choices=("none", "activations", "optimizer", "all"),
        help="what goes to the host; without a value: activations",
    )
    group.add_argument(
        "--offload-host-limit", type=_size, metavar="SIZE", help="what is more goes to disk"
    )
    group.add_argument(
        "--lora", type=_positive, metavar="R", help="adapters of rank R; rest frozen"
    )
    group.add_argument(
        "--lora-targets", type=_targets, metavar="LIST", help="q,k,v,o,gate,up,down; default: q,v"
    )
    group.add_argument(
        "--adapter-dtype",
        type=_dtype,
        choices=_DTYPES,
        metavar="|".join(_DTYPES),
        help="of LoRA's adapters; default: fp32 whatever --dtype is, as PEFT keeps them",
    )
    group.add_argument(
        "--zero",
        type=int,
        choices=(0, 1, 2, 3),
        help="what is sharded: 1 states; 2 and 3 all, by FSDP, which keeps what it gathered for "
        "backward (2) or gathers it again (3); or DeepSpeed's stages (--zero-engine)",
    )
    group.add_argument(
        "--gather-dtype",
        type=_dtype,
        choices=_DTYPES,
        metavar="bf16|fp16",
        help="FSDP gathers weights and computes in it (MixedPrecisionPolicy)",
    )
    group.add_argument(
        "--no-sync",
        action="store_true",
        help="FSDP reduces gradients with the last micro-batch's alone, as accelerate and Trainer "
        "do: whole until then (set_requires_gradient_sync(False))",
    )
    group.add_argument(
        "--bucket-view",
        action="store_true",
        help="gradients are views of DDP's buckets (gradient_as_bucket_view)",
    )
    deepspeed.add_arguments(group)
    group.add_argument(
        "--loss",
        choices=names(_abi_plan.PlanLoss),
        help="fused, chunked: logits never exist as a whole; chunked: each chunk of tokens is a "
        "checkpoint",
    )


def _numbers(group: Any, *options: Any) -> None:
    for option, text in options:
        group.add_argument(option, type=_positive, metavar="N", help=text)


# --- types of values ------------------------------------------------------------------------------


def _positive(text: str) -> int:
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError("%r is no whole number" % text) from None
    if not 0 < value < 1 << 48:
        raise argparse.ArgumentTypeError("%d is not from 1 to 2^48" % value)
    return value


def _count(text: str) -> int:
    """366M, 1.5B, 4096."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmbt]?)", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError("%r is no count such as 366M or 7B" % text)
    factor = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}[match.group(2)]
    value = round(min(float(match.group(1)) * factor, 2.0**60))  # of many digits: infinity
    if not 0 < value < 1 << 48:
        raise argparse.ArgumentTypeError("%s is not from 1 to 2^48" % text)
    return value


def _size(text: str) -> int:
    try:
        value = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value == 0:
        raise argparse.ArgumentTypeError("a size above 0 is needed, not %r" % text)
    return value


def _dtype(text: str) -> str:
    name = _LONG_DTYPES.get(text.lower(), text.lower())
    if name not in _DTYPES:
        raise argparse.ArgumentTypeError("%r is none of %s" % (text, ", ".join(_DTYPES)))
    return name


def _optimizer(text: str) -> str:
    name = text.lower().replace("_", "-")
    name = _OPTIMIZER_ALIASES.get(name, name)
    known = names(_abi_plan.PlanOptimizer)
    if name not in known:
        raise argparse.ArgumentTypeError("%r is none of %s" % (text, ", ".join(known)))
    return name


def _targets(text: str) -> List[str]:
    try:
        return [_TARGETS[word.strip()] for word in text.split(",")]
    except KeyError as error:
        raise argparse.ArgumentTypeError(
            "%s is none of %s" % (error, ", ".join(sorted(_TARGETS)))
        ) from None


# --- what they describe ---------------------------------------------------------------------------


def traced(arguments: argparse.Namespace) -> bool:
    """Whether --model names a function that makes a torch module."""
    return bool(
        arguments.model and re.fullmatch(r"[A-Za-z_][\w.]*(\.py)?:[A-Za-z_][\w.]*", arguments.model)
    )


def describe(arguments: argparse.Namespace) -> Description:
    """The model and run of the options. UsageError, or hfconfig.ConfigError."""
    if arguments.model is None and arguments.params is None and arguments.hidden is None:
        raise UsageError(
            "which model? --model config.json, --model module:function, or --params 366M "
            "(or --hidden) with --layers, --heads and --vocab where they are known"
        )
    if arguments.model is not None and arguments.params is not None:
        raise UsageError("--model and --params exclude each other")
    reading = None
    if arguments.model is not None:
        reading = hfconfig.read(arguments.model, arguments.like)
        model, title = reading.model, "%s (%s)" % (arguments.model, reading.model_type)
    else:
        model, title = PlanModel(parameters=arguments.params), "a model by its totals"
    fields = _model_fields(arguments)
    if arguments.heads and not arguments.kv_heads and model.kv_heads > arguments.heads:
        fields["kv_heads"] = arguments.heads
    try:
        model = model.replace(**fields)
        engine = deepspeed.fill_in(arguments, model.hidden)
        run = PlanRun(**_run_fields(arguments, reading), **engine)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    return Description(model, run, title, list(reading.notes) if reading else [])


def _model_fields(arguments: argparse.Namespace) -> Dict[str, Any]:
    fields: Dict[str, Any] = {
        "layers": arguments.layers,
        "hidden": arguments.hidden,
        "heads": arguments.heads,
        "kv_heads": arguments.kv_heads,
        "ffn": arguments.ffn,
        "vocabulary": arguments.vocab,
        "experts": arguments.experts,
        "experts_per_token": arguments.top_k,
        "positions": arguments.positions,
        "labels": arguments.labels,
        "vision_layers": arguments.vision_layers,
        "vision_hidden": arguments.vision_hidden,
        "vision_tokens": arguments.vision_tokens,
        "image_size": arguments.image_size,
        "patch_size": arguments.patch_size,
        "family": arguments.family,
        "head": arguments.head,
        "lora_rank": arguments.lora,
        "lora_targets": arguments.lora_targets,
    }
    if arguments.experts and not arguments.family and not arguments.model:
        fields["family"] = "mixtral"
    if arguments.positives or arguments.negatives:
        fields["head"] = arguments.head or "contrastive"
    if arguments.tied or arguments.untied:
        fields["tied"] = bool(arguments.tied)
    if arguments.freeze_vision:
        fields["vision_mode"] = "frozen"
    return {name: value for name, value in fields.items() if value is not None}


def _run_fields(
    arguments: argparse.Namespace, reading: Optional[hfconfig.Reading]
) -> Dict[str, Any]:
    said = reading.run if reading else {}
    fields: Dict[str, Any] = {
        "batch": arguments.batch,
        "sequence": arguments.seq,
        "sequence_mean": arguments.seq_mean,
        "images": arguments.images,
        "positives": arguments.positives,
        "negatives": arguments.negatives,
        "accumulation": arguments.accumulation,
        "world_size": arguments.world_size,
        "weight_dtype": arguments.dtype or "fp32",
        "compute_dtype": arguments.autocast,
        "master_dtype": "fp32" if arguments.master_weights else None,
        "image_dtype": arguments.image_dtype,
        "adapter_dtype": arguments.adapter_dtype,
        "optimizer": arguments.optimizer,
        "attention": arguments.attention,
        "offload": _offload(arguments.offload),
        "sharding": _sharding(arguments),
        "gather_dtype": arguments.gather_dtype,
        "bucket_view": True if arguments.bucket_view else None,
        "gradient_sync": False if arguments.no_sync else None,
        "loss": arguments.loss,
        "use_cache": said.get("use_cache"),
        "keep_outputs": True if arguments.keep_outputs else None,
        "attention_mask": True if arguments.padding_mask else None,
        "host_limit": arguments.offload_host_limit,
        "min_8bit_size": arguments.min_8bit_size,
    }
    fields.update(_checkpointing(arguments))
    return {name: value for name, value in fields.items() if value is not None}


def _offload(value: Optional[str]) -> Optional[List[str]]:
    if value in (None, "none"):
        return None
    return ["activations", "optimizer"] if value == "all" else [value]


def _sharding(arguments: argparse.Namespace) -> Optional[str]:
    if arguments.gather_dtype and (arguments.zero or 0) < 2:
        raise UsageError("--gather-dtype is what --zero 2 and 3 gather weights in")
    if arguments.no_sync and (arguments.zero or 0) < 2:
        raise UsageError("--no-sync is of --zero 2 and 3: else gradients are whole in any case")
    if arguments.bucket_view and ((arguments.world_size or 1) < 2 or (arguments.zero or 0) > 1):
        raise UsageError("--bucket-view is of DDP: --world-size of 2 or more, --zero 0 or 1")
    if arguments.zero is None:
        return None
    if arguments.zero and (arguments.world_size or 1) < 2 and not deepspeed.is_used(arguments):
        raise UsageError(
            "--zero %d shards over devices: --world-size of 2 or more is needed" % arguments.zero
        )
    return ("ddp", "zero1", "zero2", "zero3")[arguments.zero]


def _checkpointing(arguments: argparse.Namespace) -> Dict[str, Any]:
    given = [
        name
        for name in ("checkpointing", "checkpoint_every", "checkpoint_budget")
        if getattr(arguments, name) is not None
    ]
    if len(given) > 1:
        raise UsageError("--%s exclude each other" % " and --".join(given).replace("_", "-"))
    if arguments.checkpoint_every is not None:
        return {"checkpointing": "every", "checkpoint_every": arguments.checkpoint_every}
    if arguments.checkpoint_budget is not None:
        return {"checkpointing": "budget", "checkpoint_budget": arguments.checkpoint_budget}
    return {"checkpointing": arguments.checkpointing}


def dtype_word(run: PlanRun) -> str:
    """The dtype as options say it: "bf16", or "bf16" of autocast."""
    return _named_dtype(run.compute_dtype or run.weight_dtype)


def adapter_word(model: PlanModel, run: PlanRun) -> Optional[str]:
    """The dtype of adapters; None where there are none."""
    return _named_dtype(run.adapter_dtype) if model.lora_rank else None


def image_word(model: PlanModel, run: PlanRun) -> Optional[str]:
    """The dtype of images; None where a batch has none."""
    seen = model.family == _abi_plan.PlanFamily.VIT or model.vision_layers
    return _named_dtype(run.image_dtype) if seen else None


def _named_dtype(value: int) -> str:
    from ..._abi import DType

    return {"f32": "fp32", "f16": "fp16"}.get(DType(value).name.lower(), DType(value).name.lower())


def optimizer_word(run: PlanRun) -> str:
    """The optimizer as options say it."""
    return name_of(_abi_plan.PlanOptimizer(run.optimizer))
