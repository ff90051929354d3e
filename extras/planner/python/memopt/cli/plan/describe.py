"""The options that describe the model and the run, and what they make of them.

Names, words and help come from the library's table of keys.
"""

from __future__ import annotations

import argparse
import re
from typing import Any, Dict, List, NamedTuple, Optional

from ...plan import Model, Run, keys, words
from .. import UsageError
from ..option_types import positive_size
from ..apply.values import optimizer_key, optimizer_named
from . import hfconfig

#: Options that set one key.
_MODEL = {
    "--params": "model.parameters",
    "--layers": "model.layers",
    "--hidden": "model.hidden",
    "--heads": "model.heads",
    "--kv-heads": "model.kv_heads",
    "--ffn": "model.ffn",
    "--vocab": "model.vocabulary",
    "--experts": "model.experts",
    "--top-k": "model.experts_per_token",
    "--positions": "model.positions",
    "--labels": "model.labels",
    "--vision-layers": "model.vision_layers",
    "--vision-hidden": "model.vision_hidden",
    "--vision-tokens": "model.vision_tokens",
    "--image-size": "model.image_size",
    "--patch-size": "model.patch_size",
    "--family": "model.family",
    "--head": "model.head",
}
_RUN = {
    "--batch": "run.batch",
    "--seq": "run.sequence",
    "--seq-mean": "run.sequence_mean",
    "--images": "run.images",
    "--positives": "run.positives",
    "--negatives": "run.negatives",
    "--accumulation": "run.accumulation",
    "--world-size": "run.world_size",
    "--target-effective-batch": "target.effective_batch",
    "--dtype": "run.weight_dtype",
    "--autocast": "run.compute_dtype",
    "--image-dtype": "run.image_dtype",
    "--optimizer": "run.optimizer",
    "--attention": "run.attention",
    "--min-8bit-size": "run.min_8bit_size",
}
_SAVERS = {
    "--checkpoint-every": "run.checkpoint_every",
    "--offload-host-limit": "run.host_limit",
    "--lora": "model.lora_rank",
    "--lora-dropout": "model.lora_dropout",
    "--adapter-dtype": "run.adapter_dtype",
    "--quantize": "model.quantize",
    "--base-dtype": "run.base_dtype",
    "--gather-dtype": "run.gather_dtype",
    "--loss": "run.loss",
}

_LONG_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "f32": "fp32"}
#: What a module's name, less "_proj", says of LoRA. Of projections in one weight each part says all.
_TARGETS = {
    "q": "query", "k": "key", "v": "value", "o": "output", "out": "output", "lm_head": "head",
    "fc1": "up", "fc2": "down", "c_fc": "up", "c_attn": "query", "qkv": "query", "gate_up": "gate",
    "all": "all-linear",
}  # fmt: skip


class Description(NamedTuple):
    """What the options describe."""

    #: None where a module alone says it.
    model: Optional[Model]
    run: Run
    #: Where the model comes from, for people.
    title: str
    notes: List[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    _model_arguments(parser.add_argument_group("model"))
    _run_arguments(parser.add_argument_group("run"))
    _saver_arguments(parser.add_argument_group("memory savers"))


def _add(group: Any, options: Dict[str, str]) -> None:
    """Options as the table of keys says what they take."""
    for option, name in options.items():
        key = keys()[name]
        more: Dict[str, Any] = {"metavar": {"count": "N", "size": "SIZE", "share": "P"}.get(key.kind)}
        if key.kind in ("choice", "dtype"):
            more = {"choices": key.accepts.split("|"), "metavar": "|".join(key.accepts.split("|"))}
        kind = {"count": _count, "size": positive_size, "dtype": _dtype, "share": float}.get(key.kind, str)
        if option == "--optimizer":
            kind, more["metavar"] = _optimizer, "NAME"
            more["help"] = "one of %s; or what Hugging Face calls it" % key.accepts.replace("|", ", ")
        group.add_argument(option, type=kind, **{"help": key.help, **more})


def _fields(arguments: argparse.Namespace, group: str) -> Dict[str, Any]:
    """Fields of a group of settings that options set."""
    found: Dict[str, Any] = {}
    for option, name in {**_MODEL, **_RUN, **_SAVERS}.items():
        value = getattr(arguments, option.strip("-").replace("-", "_"))
        if name.startswith(group + ".") and value is not None:
            found[name.split(".")[1]] = value
    return found


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
    _add(group, _MODEL)
    tied = group.add_mutually_exclusive_group()
    tied.add_argument("--tied", action="store_true", help="the head shares the embeddings")
    tied.add_argument("--untied", action="store_true", help="the head has a weight of its own")
    group.add_argument(
        "--freeze-vision", action="store_true", help="the vision tower does not learn"
    )


def _run_arguments(group: Any) -> None:
    _add(group, _RUN)
    group.add_argument(
        "--master-weights", action="store_true", help="the optimizer keeps fp32 copies"
    )
    group.add_argument("--padding-mask", action="store_true", help="batches carry a padding mask")


def _saver_arguments(group: Any) -> None:
    group.add_argument(
        "--checkpointing",
        choices=("none", "selective", "full"),
        help=keys()["run.checkpointing"].help,
    )
    _add(group, _SAVERS)
    group.add_argument(
        "--offload",
        nargs="?",
        const="activations",
        choices=("none", "activations", "optimizer", "all"),
        help="what goes to the host; without a value: activations",
    )
    group.add_argument(
        "--lora-targets", type=_targets, metavar="LIST",
        help="q,k,v,o,gate,up,down, or all-linear: all but the head, as of PEFT; default: q,v"
    )
    group.add_argument(
        "--zero",
        type=int,
        choices=(0, 1, 2, 3),
        help="what is sharded: 1 states; 2 and 3 all, by FSDP, which keeps what it gathered for "
        "backward (2) or gathers it again (3)",
    )
    group.add_argument(
        "--no-sync",
        action="store_true",
        help="FSDP reduces gradients with the last micro-batch only, as accelerate and Trainer do "
        "(set_requires_gradient_sync(False))",
    )
    group.add_argument(
        "--bucket-view",
        action="store_true",
        help="gradients are views of DDP's buckets (gradient_as_bucket_view)",
    )


# --- types of values ------------------------------------------------------------------------------


def _count(text: str) -> int:
    """366M, 1.5B, 4096."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmbt]?)", text.strip().lower().replace("_", ""))
    if not match:
        raise argparse.ArgumentTypeError("%r is not a count such as 4096, 366M or 7B" % text)
    factor = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}[match.group(2)]
    value = min(float(match.group(1)) * factor, 2.0**60)  # of many digits: infinity
    if not 0 < value < 1 << 48 or (not match.group(2) and value != int(value)):
        raise argparse.ArgumentTypeError("%s is not a whole number from 1 to 2^48" % text)
    return round(value)


def _dtype(text: str) -> str:
    return _LONG_DTYPES.get(text.lower(), text.lower())


def _optimizer(text: str) -> str:
    """Of the library's words; or a class, or Hugging Face's word."""
    known = {optimizer_key(word): word for word in words("run.optimizer")}
    name = "adamw" if text.lower() == "adam" else text
    return known.get(optimizer_key(name)) or known.get(optimizer_named(name), text)


def _targets(text: str) -> List[str]:
    """Our words; other names, which only the model itself can tell of, as they are."""
    known, parts = words("model.lora_targets"), [part.strip() for part in text.split(",")]
    names = [re.sub("_proj$", "", part) for part in parts]
    names = [_TARGETS.get(name, name) for name in names]
    return [name if name in known else part for name, part in zip(names, parts)]


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
        model, title = Model(), "a model by its totals"
    fields = _model_fields(arguments)
    own = {"weight_dtype": "fp32", **(reading.run if reading else {})}
    notes = list(reading.notes) if reading else []
    if not arguments.lora and not arguments.quantize and model.as_dict().get("quantize", "none") != "none":
        notes.append("weights of %s do not learn: planned as --dtype says; give --lora" % model.quantize)
        fields["quantize"] = "none"
        own.pop("base_dtype", None)
    if arguments.heads and not arguments.kv_heads and (model.kv_heads or 0) > arguments.heads:
        fields["kv_heads"] = arguments.heads
    try:
        model = model.replace(**fields)
        run = Run(**{**own, **run_fields(arguments)})
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    if not arguments.dtype and run.weight_dtype != "fp32":
        notes.append("weights of %s, as the configuration says (--dtype)" % run.weight_dtype)
    return Description(model, run, title, notes)


def _model_fields(arguments: argparse.Namespace) -> Dict[str, Any]:
    fields = _fields(arguments, "model")
    if arguments.lora_targets:
        known = words("model.lora_targets")
        for name in set(arguments.lora_targets) - set(known):
            raise UsageError("--lora-targets: %r is not one of %s" % (name, ", ".join(known)))
        fields["lora_targets"] = arguments.lora_targets
    if arguments.experts and not arguments.family and not arguments.model:
        fields["family"] = "mixtral"
    if arguments.positives or arguments.negatives:
        fields.setdefault("head", "contrastive")
    if arguments.tied or arguments.untied:
        fields["tied"] = bool(arguments.tied)
    if arguments.freeze_vision:
        fields["vision_mode"] = "frozen"
    return fields


def run_fields(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Fields of a run that options set."""
    return {
        **_fields(arguments, "run"),
        "master_dtype": "fp32" if arguments.master_weights else None,
        "offload": _offload(arguments.offload),
        "sharding": _sharding(arguments),
        "bucket_view": arguments.bucket_view or None,
        "gradient_sync": False if arguments.no_sync else None,
        "attention_mask": arguments.padding_mask or None,
        "checkpointing": _checkpointing(arguments),
    }


def _offload(value: Optional[str]) -> Optional[List[str]]:
    if value in (None, "none"):
        return None
    return ["activations", "optimizer"] if value == "all" else [value]


def _sharding(arguments: argparse.Namespace) -> Optional[str]:
    if arguments.gather_dtype and (arguments.zero or 0) < 2:
        raise UsageError("--gather-dtype needs --zero 2 or 3, which gather weights in it")
    if arguments.no_sync and (arguments.zero or 0) < 2:
        raise UsageError("--no-sync needs --zero 2 or 3: else gradients are whole in any case")
    if arguments.bucket_view and ((arguments.world_size or 1) < 2 or (arguments.zero or 0) > 1):
        raise UsageError("--bucket-view needs DDP: --world-size of 2 or more, --zero 0 or 1")
    if arguments.zero is None:
        return None
    if arguments.zero and (arguments.world_size or 1) < 2:
        raise UsageError(
            "--zero %d shards over devices: --world-size of 2 or more is needed" % arguments.zero
        )
    return ("ddp", "zero1", "zero2", "zero3")[arguments.zero]


def _checkpointing(arguments: argparse.Namespace) -> Optional[str]:
    if arguments.checkpointing is not None and arguments.checkpoint_every is not None:
        raise UsageError("--checkpointing and --checkpoint-every exclude each other")
    return "every" if arguments.checkpoint_every is not None else arguments.checkpointing


def dtype_word(run: Run) -> str:
    """The dtype as options say it: "bf16", or "bf16" of autocast."""
    return run.compute_dtype or run.weight_dtype or "fp32"


def adapter_word(model: Model, run: Run) -> Optional[str]:
    """The dtype of adapters; None where there are none."""
    return run.adapter_dtype if model.lora_rank else None


def image_word(model: Model, run: Run) -> Optional[str]:
    """The dtype of images; None where a batch has none."""
    return run.image_dtype if model.family == "vit" or model.vision_layers else None


def optimizer_word(run: Run) -> str:
    """The optimizer as options say it."""
    return run.optimizer or "adamw"
