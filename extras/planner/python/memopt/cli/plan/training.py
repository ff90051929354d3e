"""The user's training file: what it says of the run goes to the options that are not given."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, Optional

from .. import UsageError, apply
from ..apply.reading import Reading, Said, read, together
from .gpus import GPUS

#: Settings that are the value of one option.
_OPTIONS = {
    "micro_batch": "batch",
    "accumulation": "accumulation",
    "sequence": "seq",
    "images": "images",
    "positives": "positives",
    "negatives": "negatives",
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    group = parser.add_argument_group("training file")
    group.add_argument(
        "--from",
        "--config-path",
        dest="from_files",
        action="append",
        nargs="+",
        metavar="FILE",
        help="the training program's YAML, JSON, TOML or Python files, or Hydra's folder: model and run are read "
        "from it, options win over it, and --apply changes it",
    )


def fill_in(arguments: argparse.Namespace) -> List[str]:
    """Sets the options that are not given; what there is to say about it. ApplyError."""
    arguments.read, arguments.said, arguments.of_deepspeed, arguments.filed = set(), set(), False, {}
    if not arguments.from_files:
        return []
    readings = _with_deepspeed(read(apply.files(arguments), apply.keys_of(arguments)))
    said = together(readings)
    arguments.said = set(said)
    given = {name for name in ("batch", "accumulation", "world_size") if getattr(arguments, name) is not None}
    found = _values(said, readings, arguments)
    used = []
    for option, value in found.items():
        if "." in option:  # a setting that has no option of its own
            arguments.filed[option] = value
            used.append("%s %s" % (option.partition(".")[2].replace("_", "-"), _shown(value)))
            continue
        if option == "model" and (arguments.params or arguments.hidden):
            continue
        if getattr(arguments, option) in (None, False):
            places = [said[s].place for s, o in _OPTIONS.items() if o == option and s in said]
            taken = _checked(arguments, option, value, places[0] if places else "")
            setattr(arguments, option, taken)
            arguments.read.add(option)
            used.append("%s %s" % (option.replace("_", "-"), _shown(taken)))
    names = ["%s (%s)" % (each.text.name, each.whose) for each in readings]
    notes = ["from %s: %s" % (", ".join(names), ", ".join(used) or "nothing")]
    notes += _effective(arguments, said, given)
    for each in readings:
        if each.open:
            notes.append("%s: not counted, though it matters: %s" % (each.text.name, ", ".join(each.open)))
    if "sharding" in said and said["sharding"].value.startswith("deepspeed"):
        arguments.of_deepspeed = True
        notes.append(_as_planned(arguments))
    return notes


def _with_deepspeed(readings: List[Reading]) -> List[Reading]:
    """With the DeepSpeed file that a training file names, which must agree with it."""
    more = []
    for each in readings:
        named = each.said.get("deepspeed")
        if named is not None and not isinstance(named.value, str):
            raise UsageError("%s: DeepSpeed's settings in the file itself are not read" % each.text.name)
        if named is not None:
            more += read([named.value], {})
    return readings + more


def _effective(arguments: argparse.Namespace, said: Dict[str, Said], given: Any) -> List[str]:
    """The file's effective batch stays, whatever batch the options ask."""
    if arguments.target_effective_batch or {"accumulation", "batch"} <= given or "micro_batch" not in said:
        return []
    asked = {"micro_batch": said["micro_batch"].value}
    asked["accumulation"] = said["accumulation"].value if "accumulation" in said else 1
    asked["world_size"] = said["world_size"].value if "world_size" in said else arguments.world_size or 1
    whole = int(asked["micro_batch"]) * int(asked["accumulation"]) * int(asked["world_size"])
    if "effective" in said and not ("accumulation" in said and said["accumulation"].written):
        whole = int(said["effective"].value)
    if "accumulation" in given and "batch" not in given:
        return []
    arguments.target_effective_batch = whole
    if "batch" not in given and "world_size" not in given:
        return []
    step = arguments.batch * (arguments.world_size or 1)
    steps = max(1, (2 * whole + step) // (2 * step))
    arguments.accumulation = steps
    if steps * step == whole:
        return ["the file's effective batch of %d is kept: accumulation %d" % (whole, steps)]
    told = "%d does not divide the file's effective batch of %d: the nearest accumulation is %d, of %d samples"
    return [told % (step, whole, steps, steps * step)]


def _values(said: Dict[str, Said], readings: List[Reading], arguments: argparse.Namespace) -> Dict[str, Any]:
    """Options and their values."""
    value = {name: one.value for name, one in said.items() if one.written or name != "sharding"}
    for name in ("nodes", "world_size"):
        if name in value and not said[name].written:
            value.pop(name)
    if "nodes" in value:
        value["world_size"] = int(value["nodes"]) * int(value.get("world_size", 1))
    if str(value.get("builder", "")).rpartition(".")[2].startswith("qlora_"):
        value["quantize"] = "nf4-double"
    if any(each.raw("optimizer.fused") for each in readings) and value.get("optimizer") == "adamw":
        value["optimizer"] = "adamw-fused"
    if not value.get("lora"):
        value = {k: v for k, v in value.items() if not k.startswith("lora") and k != "quantize"}
    found = {option: value[name] for name, option in _OPTIONS.items() if name in value and value[name] not in _WORDS}
    if found.get("lora"):
        found.update(_adapters(value))
    found.update(_sharding(value, readings, arguments))
    found.update(_precision(value, readings, arguments))
    if value.get("states") not in (None, "none"):
        found["offload"] = "optimizer"
    if value.get("graphs") in (True, "reduce-overhead", "max-autotune"):
        found["card.cuda_graphs"] = "yes"
    if value.get("packing") is False and str(value.get("micro_batch", 1)) != "1":
        found["run.attention_mask"] = "yes"
    return {option: one for option, one in found.items() if one not in (None, 0, "none")}


def _adapters(value: Dict[str, Any]) -> Dict[str, Any]:
    targets = value.get("lora_targets")
    if value.get("all_linear"):
        targets = "all-linear"
    if isinstance(targets, list):
        targets = ",".join(map(str, targets))
    for more, names in (("lora_mlp", "gate,up,down"), ("lora_head", "lm_head")):
        if value.get(more):
            targets = "%s,%s" % (targets, names)
    return {"lora_targets": targets, "model.lora_dropout": value.get("lora_dropout")}


def _sharding(value: Dict[str, Any], readings: List[Reading], arguments: argparse.Namespace) -> Dict[str, Any]:
    word = value.get("sharding", "ddp")
    if word == "ddp":
        return {}
    engine, _, stage = word.rpartition("zero")
    if engine:  # DeepSpeed's; on one device its share is all
        several = int(arguments.world_size or value.get("world_size") or 1) > 1
        return {"zero": int(stage)} if several else {}
    several = int(value.get("accumulation") or 1) > 1
    last = several and [each.whose for each in readings] != ["torchtune"]
    return {"zero": int(stage), "run.gradient_sync": "no" if last else None}


def _precision(value: Dict[str, Any], readings: List[Reading], arguments: argparse.Namespace) -> Dict[str, Any]:
    """Of weights, autocast, adapters and quantised bases, as each framework has them."""
    base, _, form = value.get("dtype", "").partition("-")
    framework = next((each.framework for each in readings if "dtype" in each.said and each.framework), None)
    name = framework.name if framework else ""
    if base == "bf16" and name == "axolotl" and any(each.raw("bf16") in (None, "auto") for each in readings):
        if not all(GPUS[card].bf16 for names in arguments.gpu or [] for card in names):
            base = "fp16"
    how = {"true": "weights", "mixed": "autocast"}.get(form, framework.plain if framework else "autocast")
    found: Dict[str, Any] = {}
    if name == "llamafactory" and not form and base != "fp32":
        how = "both" if value.get("lora") else "autocast"
        if not value.get("lora"):
            found["dtype"] = "fp32"  # what learns is made so
    if base not in ("", "fp32") and how != "weights":
        found["autocast"] = base
    if base and how != "autocast":
        found["dtype"] = base
    enabled = any(each.raw(base + ".enabled") in (True, "auto") for each in readings)
    if enabled and arguments.dtype != "fp32":
        found = {"dtype": base, "run.master_dtype": "fp32"}  # DeepSpeed's
    if "weights" in value:
        found["dtype"] = value["weights"].partition("-")[0]
    if value.get("quantize", "none") != "none" and found.get("dtype"):
        found["run.base_dtype"] = found["dtype"]
        found["run.adapter_dtype"] = "bf16" if name == "trl" else None
    if value.get("lora") and name == "torchtune":
        found["run.adapter_dtype"] = found.get("dtype")
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
    action = next((each for each in arguments.parser._actions if each.dest == option), None)
    if action is None or (isinstance(value, bool) and action.nargs == 0):
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


def asked(arguments: argparse.Namespace, option: str) -> Optional[Any]:
    """The value of an option that was given, not read."""
    return None if option in arguments.read else getattr(arguments, option)
