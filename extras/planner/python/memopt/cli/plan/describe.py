"""The options that describe the model and the run, and what they make of them.

Names, words and help come from the library's table of keys.
"""

from __future__ import annotations

import argparse
import difflib
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ...plan import Model, Run, keys, words
from .. import UsageError
from ..option_types import positive_size
from ..apply.words import optimizer_key, optimizer_named
from . import hfconfig

#: Options that set one key; --set has the others.
_MODEL = {
    "--params": "model.parameters",
    "--layers": "model.layers",
    "--hidden": "model.hidden",
    "--heads": "model.heads",
    "--kv-heads": "model.kv_heads",
    "--ffn": "model.ffn",
    "--vocab": "model.vocabulary",
}
_RUN = {
    "--batch": "run.batch",
    "--seq": "run.sequence",
    "--images": "run.images",
    "--positives": "run.positives",
    "--negatives": "run.negatives",
    "--accumulation": "run.accumulation",
    "--world-size": "run.world_size",
    "--target-effective-batch": "target.effective_batch",
    "--dtype": "run.weight_dtype",
    "--autocast": "run.compute_dtype",
    "--optimizer": "run.optimizer",
    "--attention": "run.attention",
}
_SAVERS = {"--lora": "model.lora_rank", "--quantize": "model.quantize", "--loss": "run.loss"}
_ALIASES = {"--batch": "--batch-size"}

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
        names = [name for name in (option, _ALIASES.get(option)) if name]
        group.add_argument(*names, type=kind, **{"help": key.help, **more})


def _fields(arguments: argparse.Namespace, group: str) -> Dict[str, Any]:
    """Fields of a group of settings that options set; --set wins."""
    found: Dict[str, Any] = {}
    for option, name in {**_MODEL, **_RUN, **_SAVERS}.items():
        value = getattr(arguments, option.strip("-").replace("-", "_"))
        if name.startswith(group + ".") and value is not None:
            found[name.split(".")[1]] = value
    for name, value in settings_of(arguments).items():
        if name.startswith(group + "."):
            found[name.split(".")[1]] = value
    return found


def settings_of(arguments: argparse.Namespace) -> Dict[str, Any]:
    """What --set says, and what a training file says beside the options."""
    return {**getattr(arguments, "filed", {}), **dict(arguments.set)}


def _model_arguments(group: Any) -> None:
    group.add_argument(
        "--model",
        metavar="CONFIG",
        help="a Hugging Face config.json or a folder with one, or module:function that makes a "
        "torch module (traced on the meta device: no weights are allocated)",
    )
    _add(group, _MODEL)
    group.add_argument(
        "--set",
        action="append",
        type=_set,
        default=[],
        metavar="KEY=VALUE",
        help="any other setting of the planner, model.family=gpt2, "
        "run.gather_dtype=bf16, card.flops_per_second=3e13; may be repeated; keys: "
        + ", ".join(name for name in keys() if name not in {**_MODEL, **_RUN, **_SAVERS}.values()),
    )


def _run_arguments(group: Any) -> None:
    _add(group, _RUN)


def _saver_arguments(group: Any) -> None:
    group.add_argument("--checkpointing", choices=("none", "selective", "full"), help=keys()["run.checkpointing"].help)
    _add(group, _SAVERS)
    group.add_argument(
        "--offload",
        nargs="?",
        const="activations",
        choices=("none", "activations", "optimizer", "all"),
        help="what goes to the host; without a value: activations",
    )
    group.add_argument(
        "--lora-targets",
        type=_targets,
        metavar="LIST",
        help="q,k,v,o,gate,up,down, or all-linear: all but the head, as of PEFT; default: q,v",
    )
    group.add_argument(
        "--zero",
        type=int,
        choices=(0, 1, 2, 3),
        help="what is sharded: 1 states; 2 and 3 all, by FSDP, which keeps what it gathered for "
        "backward (2) or gathers it again (3)",
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


def _set(text: str) -> Tuple[str, str]:
    """A key of the library, or the end of one."""
    name, equals, value = (part.strip() for part in text.partition("="))
    found = [key for key in keys() if name in (key, key.partition(".")[2])]
    if not equals or not value or len(found) != 1:
        near = difflib.get_close_matches(name, [*keys(), *(key.partition(".")[2] for key in keys())], 3)
        raise argparse.ArgumentTypeError(
            "%r is not KEY=VALUE of one key%s" % (text, "; near: " + ", ".join(near) if near else "")
        )
    return found[0], value


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
    return bool(arguments.model and re.fullmatch(r"[A-Za-z_][\w.]*(\.py)?:[A-Za-z_][\w.]*", arguments.model))


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
        reading = hfconfig.read(arguments.model)
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
    if "experts" in fields and not arguments.model:
        fields.setdefault("family", "mixtral")
    if arguments.positives or arguments.negatives:
        fields.setdefault("head", "contrastive")
    return fields


def run_fields(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Fields of a run that options set."""
    return {
        "offload": _offload(arguments.offload),
        "sharding": _sharding(arguments),
        "checkpointing": arguments.checkpointing,
        **_fields(arguments, "run"),
    }


def card_fields(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Fields of the card that --set has."""
    return _fields(arguments, "card")


def _offload(value: Optional[str]) -> Optional[List[str]]:
    if value in (None, "none"):
        return None
    return ["activations", "optimizer"] if value == "all" else [value]


def _sharding(arguments: argparse.Namespace) -> Optional[str]:
    if arguments.zero is None:
        return None
    if arguments.zero and (arguments.world_size or 1) < 2:
        raise UsageError("--zero %d shards over devices: --world-size of 2 or more is needed" % arguments.zero)
    return ("ddp", "zero1", "zero2", "zero3")[arguments.zero]


def on_card(run: Run, card: Any) -> Tuple[Run, List[str]]:
    """A run as the card can do it: one without bf16 computes in fp16, with a gradient scaler."""
    narrow = {name: "fp16" for name, value in run.as_dict().items() if name.endswith("_dtype") and value == "bf16"}
    if card is None or card.card.bf16 != "no" or not narrow:
        return run, []
    return run.replace(**narrow), ["%s has no bf16: planned as fp16 with a gradient scaler" % card.name]


def assumed(arguments: argparse.Namespace, plan: Any) -> List[str]:
    """What the plan takes that nobody said."""
    found = []
    if not arguments.seq and plan.run.sequence and plan.layers:
        found.append("sequence %d" % plan.run.sequence)
    if not arguments.model and plan.layers:
        shape = (("layers", "layers"), ("hidden", "hidden"), ("heads", "heads"), ("vocab", "vocabulary"))
        found += ["%s %s" % (key, getattr(plan.model, key)) for name, key in shape if not getattr(arguments, name)]
        found.append("the layers of a %s" % plan.model.family)
    if not (arguments.batch or arguments.gpu or arguments.gpu_memory or arguments.auto):
        found.append("micro-batch %d" % plan.run.batch)
    if arguments.gpu_memory and (plan.time_factor > 1.0005):
        found.append("60 TFLOP/s")
    return found


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
