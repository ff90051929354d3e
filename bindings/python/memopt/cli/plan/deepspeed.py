"""DeepSpeed's ZeRO: its options, and what its own configuration says of a run."""

from __future__ import annotations

import argparse
from typing import Any, Dict, Tuple

from .. import UsageError
from ..apply import KeyMapping
from ..apply.reading import read
from . import hfconfig

#: Keys that change what is alive in ways that are not planned, with the values that do not.
_OTHERS: Dict[str, Tuple[Any, ...]] = {
    "contiguous_gradients": (True,),
    "round_robin_gradients": (False,),
    "parameter_alignment": (False,),
    "reduce_scatter": (True,),
    "zero_hpz_partition_size": (0, 1),
    "zero_quantized_weights": (False,),
    "zero_quantized_gradients": (False,),
    "zero_quantized_nontrainable_weights": (False,),
    "stage3_model_persistence_threshold": (),
    "stage3_module_granularity_threshold": (0,),
    "stage3_use_all_reduce_for_fetch_params": (False,),
    "stage3_allgather_sequential": (False,),
    "memory_efficient_linear": (True,),
    "zenflow": (None,),
    "mics_shard_size": (-1,),
}


def add_arguments(group: Any) -> None:
    """Adds the options."""
    group.add_argument(
        "--zero-engine", choices=("torch", "deepspeed"), help="the engine of --zero; default: torch"
    )
    group.add_argument(
        "--reduce-bucket-size",
        type=_elements,
        metavar="N",
        help="DeepSpeed's bucket for gradients, in elements; default: 500M",
    )
    group.add_argument(
        "--deepspeed-config",
        metavar="FILE",
        help="DeepSpeed's JSON: stage, buckets, dtype, batch; \"auto\" as the Hugging Face Trainer "
        "fills it in",
    )


def _elements(text: str) -> int:
    factor = {"k": 10**3, "m": 10**6, "b": 10**9}.get(text[-1:].lower(), 1)
    try:
        value = float(text[:-1] if factor > 1 else text) * factor
        if value == int(value) and 0 < value < 1 << 46:
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError("%r is not a count of elements; write 5e8 or 50M" % text)


def is_used(arguments: argparse.Namespace) -> bool:
    """Whether the run is DeepSpeed's."""
    return arguments.zero_engine == "deepspeed" or arguments.deepspeed_config is not None


def fill_in(arguments: argparse.Namespace, hidden: int, dtype: str) -> Dict[str, Any]:
    """Fields of the run; what the configuration says beside them goes to the options, where they do
    not say it. `dtype`: of the weights, where nothing says it."""
    if arguments.zero_engine == "torch" and arguments.deepspeed_config:
        raise UsageError("--deepspeed-config needs --zero-engine deepspeed")
    if not is_used(arguments):
        if arguments.reduce_bucket_size:
            raise UsageError("--reduce-bucket-size needs --zero-engine deepspeed")
        return {}
    fields: Dict[str, Any] = {"zero_engine": "deepspeed"}
    if arguments.deepspeed_config:
        fields.update(_of_config(arguments, _read(arguments.deepspeed_config), hidden))
    if not arguments.zero:
        raise UsageError("--zero-engine deepspeed needs a stage: --zero 1, 2 or 3")
    if arguments.reduce_bucket_size:
        fields["bucket_bytes"] = arguments.reduce_bucket_size
    if "bucket_bytes" in fields:
        fields["bucket_bytes"] *= 4 if (arguments.dtype or dtype) == "fp32" else 2
    return fields


def _read(name: str) -> Dict[str, Any]:
    try:
        return hfconfig.load(name)[0]
    except hfconfig.ConfigError as error:
        raise UsageError(str(error)) from None


def _section(config: Dict[str, Any], name: str) -> Dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise UsageError("%s: an object is needed, not %r" % (name, value))
    return value


def _of_config(
    arguments: argparse.Namespace, config: Dict[str, Any], hidden: int
) -> Dict[str, Any]:
    zero = _section(config, "zero_optimization")
    _refuse(config, zero)
    _agree(arguments, "zero", zero.get("stage", 0), "zero_optimization.stage")
    if zero.get("stage", 0) not in (1, 2, 3):
        raise UsageError("zero_optimization.stage: %r is not 1, 2 or 3" % zero.get("stage", 0))
    said = read([arguments.deepspeed_config], KeyMapping(preset="deepspeed"))[0].said
    for name, option in (("dtype", "dtype"), ("micro_batch", "batch"), ("accumulation",) * 2):
        if name in said and said[name].written and said[name].value != "fp32":
            value, place = said[name].value, said[name].place
            _agree(arguments, option, value if name == "dtype" else _whole(place, value), place)
    fields: Dict[str, Any] = {}
    if "reduce_bucket_size" in zero:
        fields["bucket_bytes"] = _bucket(zero["reduce_bucket_size"], hidden)
    overlap = zero.get("overlap_comm", "auto")
    if overlap not in ("auto", None):
        if not isinstance(overlap, bool):
            raise UsageError("zero_optimization.overlap_comm: %r is not true or false" % overlap)
        fields["overlap_comm"] = overlap
    return fields


def _agree(arguments: argparse.Namespace, option: str, value: Any, key: str) -> None:
    """An option that is given says what the configuration says; --from yields to it."""
    given = getattr(arguments, option)
    if given is not None and getattr(arguments, "from_files", None):
        return
    if given is not None and given != value:
        raise UsageError("--%s is %s, but %s of the configuration is %s"
                         % (option, given, key, value))
    setattr(arguments, option, value)


def _whole(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError("%s: %r is not an integer" % (key, value))
    if not 0 <= value < 1 << 46:  # nor infinity, nor NaN
        raise UsageError("%s: %s is not from 0 to 2^46" % (key, value))
    if value != int(value):
        raise UsageError("%s: %r is not an integer" % (key, value))
    return int(value)


def _bucket(value: Any, hidden: int) -> int:
    """Elements; the Hugging Face Trainer makes "auto" the square of the model's width."""
    name = "zero_optimization.reduce_bucket_size"
    if value != "auto":
        return _whole(name, value)
    if not hidden:
        raise UsageError('%s: "auto" depends on the model\'s width: give --hidden' % name)
    return hidden * hidden


def _refuse(config: Dict[str, Any], zero: Dict[str, Any]) -> None:
    """What would be counted wrongly."""
    for key, plain in _OTHERS.items():
        if key in zero and zero[key] not in plain and zero[key] != "auto":
            raise UsageError("zero_optimization.%s: the planner does not count %r; leave it out"
                             % (key, zero[key]))
    for key in ("offload_optimizer", "offload_param"):
        device = _section(zero, key).get("device", "none")
        if device not in ("none", None):
            raise UsageError("zero_optimization.%s to %s is not counted; leave it out"
                             % (key, device))
    accumulates = _section(config, "data_types").get("grad_accum_dtype")
    if accumulates not in (None, "auto"):
        raise UsageError("data_types.grad_accum_dtype: only the weights' dtype is counted")
    for key in ("torch_autocast", "amp"):
        if _section(config, key).get("enabled"):
            raise UsageError("%s: the planner counts DeepSpeed's own bf16 and fp16 only" % key)
    if config.get("communication_data_type") not in (None, "auto"):
        raise UsageError("communication_data_type: the planner counts the weights' dtype only")
