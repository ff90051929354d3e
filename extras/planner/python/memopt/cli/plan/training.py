"""The user's training file: what it says of the run goes to the options that are not given."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, Optional, Sequence

from .. import UsageError, apply
from ..apply.options import mapping
from ..apply.reading import Reading, Said, read, together
from .gpus import GPUS

#: Settings that are the value of one option.
_OPTIONS = {
    "micro_batch": "batch",
    "accumulation": "accumulation",
    "sequence": "seq",
    "optimizer": "optimizer",
    "checkpointing": "checkpointing",
    "attention": "attention",
    "loss": "loss",
    "offload": "offload",
    "quantize": "quantize",
    "lora": "lora",
    "model": "model",
    "world_size": "world_size",
}
_WORDS = ("none", "plain")  # that are no value of an option
_NO: Sequence[Any] = (False, None, [], 0)

#: Where DeepSpeed's files put the optimizer's states elsewhere.
_HOST_STATES = (
    "zero_optimization.offload_optimizer.device",
    "deepspeed_config.offload_optimizer_device",
)

#: Keys that change what is alive in ways that are not planned, with the values that do not.
_OTHERS: Dict[str, Sequence[Any]] = {
    **dict.fromkeys(
        ("torch_compile", "compile", "auto_find_batch_size", "use_dora", "peft_use_dora", "relora",
         "lora_modules_to_save", "additional_target", "lora_target_parameters", "unfrozen_parameters",
         "use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon", "use_unsloth",
         "use_unsloth_gc", "optim_target_modules", "fp8", "enable_fp8_training", "bfloat16",
         "float16", "mixture_of_depths", "ref_model", "rl", "reward_model", "num_generations",
         "optimizer_in_bwd", "fsdp_cpu_offload", "fsdp_config.offload_params", "parallelism_config",
         "fsdp_config.fsdp_offload_params", "fsdp_config.cpu_offload", "selective_checkpointing",
         "chunked_cross_entropy", "freeze_vision_tower", "peft_layers_to_transform"), _NO),
    "stage": ("sft", "pt"),
    "finetuning_type": ("lora", "full"),
    "adapter": ("lora", "qlora", None),
    "quantization_method": ("bnb",),
    "bnb_4bit_quant_type": ("nf4", "fp4"),
    "deepspeed_config.offload_param_device": ("none", None),
    "zero_optimization.offload_param.device": ("none", None),
    "context_parallel_size": (1, None),
    "tensor_parallel_size": (1, None),
    "tensor_parallel_dim": (1, None),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    group = parser.add_argument_group("training file")
    group.add_argument(
        "--from",
        dest="from_files",
        action="append",
        metavar="FILE",
        help="the training program's YAML, JSON or TOML file (Transformers, TRL, LLaMA-Factory, "
        "axolotl, torchtune, Lightning, DeepSpeed, accelerate): model and run are read from it, "
        "options win over it, and --apply changes it; may be repeated",
    )


def fill_in(arguments: argparse.Namespace) -> List[str]:
    """Sets the options that are not given; what there is to say about it. ApplyError."""
    arguments.read, arguments.said, arguments.of_deepspeed = set(), set(), False
    if not arguments.from_files:
        return []
    if arguments.apply and not arguments.config_path:
        arguments.config_path = [arguments.from_files]
    readings = _with_deepspeed(read(arguments.from_files, mapping(arguments)))
    said = together(readings)
    arguments.said = set(said)
    found = _values(said, readings, arguments)
    used = []
    for option, value in found.items():
        if getattr(arguments, option) in (None, False):
            places = [said[s].place for s, o in _OPTIONS.items() if o == option and s in said]
            place = places[0] if places else ""
            taken = _checked(arguments, option, value, place)
            setattr(arguments, option, taken)
            arguments.read.add(option)
            used.append("%s %s" % (option.replace("_", "-"), _shown(taken)))
    names = ["%s (%s)" % (r.name, r.preset.name if r.preset else "--key") for r in readings]
    told = "from %s: %s" % (", ".join(names), ", ".join(used) or "nothing")
    notes = [told, *_not_understood(readings)]
    arguments.of_deepspeed = said["sharding"].value.startswith("deepspeed") if "sharding" in said else False
    if arguments.of_deepspeed:
        notes.append(_as_planned(arguments))
    return notes


def _with_deepspeed(readings: List[Reading]) -> List[Reading]:
    """With the DeepSpeed file that a training file names, which must agree with it."""
    keys = apply.KeyMapping(preset="deepspeed")
    more = []
    for each in readings:
        named = each.said.get("deepspeed")
        if named is not None and not isinstance(named.value, str):
            raise UsageError(
                "%s: DeepSpeed's settings in the file itself are not read; put them in a file and "
                "give that" % named.place.partition(" is ")[0]
            )
        if named is not None:
            more += read([named.value], keys)
    return readings + more


def _values(
    said: Dict[str, Said], readings: List[Reading], arguments: argparse.Namespace
) -> Dict[str, Any]:
    """Options and their values."""
    value = {k: one.value for k, one in said.items() if one.written or k != "sharding"}
    presets = [each.preset.name for each in readings if each.preset]
    if str(value.get("builder", "")).rpartition(".")[2].startswith("qlora_"):
        value["quantize"] = "nf4-double"
    for each in readings:
        if each.keys.get("optimizer.fused") and value.get("optimizer") == "adamw":
            value["optimizer"] = "adamw-fused"
    if not value.get("lora"):
        value = {k: v for k, v in value.items() if not k.startswith("lora") and k != "quantize"}
    found = {
        option: value[name]
        for name, option in _OPTIONS.items()
        if name in value and value[name] not in _WORDS
    }
    if found.get("lora"):
        found.update(_adapters(value))
    found.update(_sharding(value, presets, arguments))
    found.update(_precision(value, readings, arguments))
    if any(each.keys.get(key) not in (None, "none") for each in readings for key in _HOST_STATES):
        found["offload"] = "optimizer"
    if value.get("packing") is False and str(value.get("micro_batch", 1)) != "1":
        found["padding_mask"] = True
    return {option: one for option, one in found.items() if one not in (None, 0, "none")}


def _adapters(value: Dict[str, Any]) -> Dict[str, Any]:
    targets = value.get("lora_targets")
    if value.get("all_linear"):
        targets = "all-linear"
    if isinstance(targets, list):
        targets = ",".join(map(str, targets))
    if value.get("lora_mlp"):
        targets = "%s,gate,up,down" % targets
    if value.get("lora_head"):
        targets = "%s,lm_head" % targets
    return {"lora_targets": targets, "lora_dropout": value.get("lora_dropout")}


def _sharding(
    value: Dict[str, Any], presets: List[str], arguments: argparse.Namespace
) -> Dict[str, Any]:
    word = value.get("sharding", "ddp")
    if word == "ddp":
        return {}
    engine, _, stage = word.rpartition("zero")
    if engine:  # DeepSpeed's; on one device its share is all
        several = int(arguments.world_size or value.get("world_size") or 1) > 1
        return {"zero": int(stage)} if several else {}
    several = int(value.get("accumulation") or 1) > 1
    return {"zero": int(stage), "no_sync": several and presets != ["torchtune"]}


def _precision(
    value: Dict[str, Any], readings: List[Reading], arguments: argparse.Namespace
) -> Dict[str, Any]:
    """Of weights, autocast, adapters and quantised bases, as each framework has them."""
    base, _, form = value.get("dtype", "").partition("-")
    preset = next((r.preset for r in readings if "dtype" in r.said and r.preset), None)
    name = preset.name if preset else ""
    if base == "bf16" and any(each.keys.get("bf16", "auto") == "auto" for each in readings):
        cards = [GPUS[card] for names in arguments.gpu or [] for card in names]
        if name == "axolotl" and not all(card.bf16 for card in cards):
            base = "fp16"
    how = {"true": "weights", "mixed": "autocast"}.get(form, preset.plain if preset else "autocast")
    found: Dict[str, Any] = {}
    if name == "llamafactory" and not form and base != "fp32":
        how = "both" if value.get("lora") else "autocast"
        if not value.get("lora"):
            found["dtype"] = "fp32"  # what learns is made so
    if base not in ("", "fp32") and how != "weights":
        found["autocast"] = base
    if base and how != "autocast":
        found["dtype"] = base
    enabled = any(each.keys.get(base + ".enabled") in (True, "auto") for each in readings)
    if enabled and arguments.dtype != "fp32":
        found = {"dtype": base, "master_weights": True}  # DeepSpeed's
    if "weights" in value:
        found["dtype"] = value["weights"].partition("-")[0]
    if value.get("quantize", "none") != "none" and found.get("dtype"):
        found["base_dtype"] = found["dtype"]
        found["adapter_dtype"] = "bf16" if name == "trl" else None
    if value.get("lora") and name == "torchtune":
        found["adapter_dtype"] = found.get("dtype")
    if arguments.dtype not in (None, "fp32", found.get("autocast")):
        found.pop("autocast", None)  # one 16-bit type is asked for
    return found


def _as_planned(arguments: argparse.Namespace) -> str:
    if not arguments.zero:
        return "DeepSpeed on one device: --world-size says over how many its stage divides"
    return (
        "DeepSpeed's stage %d is planned as torch's, by shares: leave room for DeepSpeed's own "
        "buffers (reduce_bucket_size)" % arguments.zero
    )


def _checked(arguments: argparse.Namespace, option: str, value: Any, place: str) -> Any:
    """A value as the option takes it."""
    action = next(each for each in arguments.parser._actions if each.dest == option)
    if isinstance(value, bool) and action.nargs == 0:
        return value
    try:
        taken = action.type(str(value)) if action.type else value
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise UsageError("%s: %s" % (place or option, error)) from None
    if action.choices is not None and taken not in action.choices:
        raise UsageError("%s: it is one of %s" % (place, ", ".join(map(str, action.choices))))
    return taken


def _shown(value: Any) -> str:
    return "yes" if value is True else ",".join(value) if isinstance(value, list) else str(value)


def _not_understood(readings: List[Reading]) -> List[str]:
    """What matters for memory and is not counted."""
    notes = []
    for each in readings:
        for key, harmless in _OTHERS.items():
            if key in each.keys and each.keys[key] not in harmless:
                each.open.append("%s: %s" % (key, str(each.keys[key])))
        if each.open:
            told = (each.name, ", ".join(each.open))
            notes.append("%s: not counted, though it matters: %s" % told)
    return notes


def asked(arguments: argparse.Namespace, option: str) -> Optional[Any]:
    """The value of an option that was given, not read."""
    return None if option in arguments.read else getattr(arguments, option)
