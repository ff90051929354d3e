"""How a setting replaces an old value: by a value of the same kind, spelt in the same way (``"16"``
stays text, ``float16`` becomes ``bfloat16``, ``torch.optim.AdamW`` another class).
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Sequence, Tuple

from .errors import ApplyError

#: The settings, and what each is called in messages.
SETTINGS = {
    "micro_batch": "samples per step and device",
    "accumulation": "steps whose gradients are added up",
    "dtype": "fp32, fp16 or bf16; bf16-mixed for autocast, bf16-true for the weights too",
    "optimizer": "adamw, adamw8bit, …",
    "checkpointing": "none, selective or full",
    "sequence": "tokens of a sample",
    "lora": "rank of LoRA's adapters",
    "loss": "plain, fused or chunked",
    "offload": "none, activations or optimizer",
    "sharding": "ddp, zero1, zero2 or zero3; DeepSpeed's with deepspeed_ before it",
    "attention": "sdpa, eager or flash",
    "quantize": "nf4, nf4-double, int8, gptq or awq, under LoRA",
}
NUMBERS = ("micro_batch", "accumulation", "sequence", "lora")
#: Words that mean no, where a file has true or false.
_OFF = ("none", "plain", "ddp")
_BASES = ("fp32", "fp16", "bf16")
#: Alone, a name means what the framework's key usually does.
DTYPES = _BASES + ("fp16-mixed", "bf16-mixed", "fp16-true", "bf16-true")
CHECKPOINTING = ("none", "selective", "full")

_REFERENCE = re.compile(r"\$\{.*\}|\{\{.*\}\}", re.DOTALL)
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")

#: Spellings of the dtypes that are in use, in the order of _BASES.
_DTYPE_WORDS: Sequence[Tuple[str, str, str]] = (
    ("fp32", "fp16", "bf16"),
    ("float32", "float16", "bfloat16"),
    ("float", "half", "bfloat16"),
    ("torch.float32", "torch.float16", "torch.bfloat16"),
    ("no", "fp16", "bf16"),
    ("32", "16", "bf16"),
)

#: What the command calls an optimizer: the class, the word of Hugging Face's ``optim``, and others
#: that need as much memory for their states and do the same.
_OPTIMIZERS: Dict[str, Tuple[str, Optional[str], Tuple[str, ...]]] = {
    "adamw": (
        "torch.optim.AdamW",
        "adamw_torch",
        (
            "memopt.torch.AdamW",
            "torch.optim.adamw.AdamW",
            "bitsandbytes.optim.AdamW",
            "adamw_torch_fused",
            "adamw_hf",
        ),
    ),
    "adamwforeach": ("torch.optim.AdamW", "adamw_torch", ("torch.optim.adamw.AdamW", "adamw_hf")),
    "adamwfused": ("torch.optim.AdamW", "adamw_torch_fused", ("torch.optim.adamw.AdamW",)),
    "adamwmemopt": ("memopt.torch.AdamW", "paged_adamw_32bit", ()),
    "adamw8bit": (
        "memopt.torch.AdamW8bit",
        "adamw_bnb_8bit",
        (
            "bitsandbytes.optim.AdamW8bit",
            "bitsandbytes.optim.PagedAdamW8bit",
            "torchao.optim.AdamW8bit",
            "torchao.prototype.low_bit_optim.AdamW8bit",
            "adamw_8bit",
            "adamw_torch_8bit",
            "paged_adamw_8bit",
        ),
    ),
    "adamw4bit": (
        "memopt.torch.AdamW4bit",
        "adamw_torch_4bit",
        ("torchao.optim.AdamW4bit", "torchao.prototype.low_bit_optim.AdamW4bit"),
    ),
    "adamwfp8": (
        "memopt.torch.AdamW8bit",
        None,
        ("torchao.optim.AdamWFp8", "torchao.prototype.low_bit_optim.AdamWFp8"),
    ),
    "lion": ("memopt.torch.Lion", "lion_32bit", ("bitsandbytes.optim.Lion", "paged_lion_32bit")),
    "lion8bit": (
        "memopt.torch.Lion8bit",
        "lion_8bit",
        ("bitsandbytes.optim.Lion8bit", "bitsandbytes.optim.PagedLion8bit", "paged_lion_8bit"),
    ),
    "sgd": ("torch.optim.SGD", "sgd", ("memopt.torch.SGD", "torch.optim.sgd.SGD")),
    "sgd8bit": ("memopt.torch.SGD8bit", None, ("bitsandbytes.optim.SGD8bit",)),
    "adafactor": ("torch.optim.Adafactor", "adafactor", ("transformers.optimization.Adafactor",)),
}


class Unspellable(ApplyError):
    """The old value does not show how to write the setting."""


def optimizer_key(name: str) -> str:
    """The optimizer's name without the marks that people put between its parts."""
    return re.sub(r"[-_ ]", "", name.lower())


def optimizer_named(name: str) -> str:
    """What the command calls a class or Hugging Face's word, without marks; "" if nothing."""
    rows = _OPTIMIZERS.items()
    own = (key for key, row in rows if name in row[:2])
    return next(own, next((key for key, row in rows if name in row[2]), ""))


def optimizer_words() -> Tuple[str, ...]:
    """What the command calls the optimizers, without marks."""
    return tuple(_OPTIMIZERS)


def optimizer_class(name: str) -> Tuple[Optional[str], Tuple[str, ...]]:
    """The class to write for an optimizer, and the equivalent ones."""
    known = _OPTIMIZERS.get(optimizer_key(name))
    return (known[0], known[2]) if known else (None, ())


def optimizer_word(name: str) -> Tuple[Optional[str], Tuple[str, ...]]:
    """Hugging Face's word for an optimizer, and the equivalent ones."""
    known = _OPTIMIZERS.get(optimizer_key(name))
    return (known[1], known[2]) if known else (None, ())


def same(old: Any, new: Any) -> bool:
    """Whether two values mean the same to a framework: ``8``, ``8.0`` and ``"8"`` do."""
    if isinstance(old, bool) or isinstance(new, bool):
        return _truth(old) == _truth(new)
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return bool(old == new)
    return str(old).strip() == str(new).strip()


def _truth(value: Any) -> str:
    word = str(value).lower()
    return "true" if word in _TRUE + ("1",) else "false" if word in _FALSE + ("0",) else word


def is_truth(value: Any) -> bool:
    """Whether a value says yes or no."""
    return isinstance(value, bool) or str(value).lower() in _TRUE + _FALSE


def in_kind(old: Any, new: Any) -> Any:
    """``new`` as the kind of value that ``old`` is."""
    if isinstance(old, str) and _REFERENCE.search(old):
        raise ApplyError(
            "its value is the reference %s: change what that refers to, with --key" % old
        )
    if isinstance(new, bool):
        return _bool_in_kind(old, new)
    if isinstance(new, int):
        if isinstance(old, bool):
            raise ApplyError("its value is %s, not a number" % str(old).lower())
        if isinstance(old, float):
            return float(new)
        if isinstance(old, str) and re.fullmatch(r"\s*\d+\s*", old):
            return str(new)
    return new


def _bool_in_kind(old: Any, new: bool) -> Any:
    if isinstance(old, int) and not isinstance(old, bool):
        return int(new)
    if isinstance(old, str):
        for yes, no in zip(_TRUE + ("1",), _FALSE + ("0",)):
            if old.lower() in (yes, no):
                word = yes if new else no
                return word.title() if old.istitle() else word.upper() if old.isupper() else word
    return new


def number(setting: str, old: Any, new: int) -> Any:
    """A number in place of the old one; the same object if nothing needs to change."""
    written = in_kind(old, new)
    return old if same(old, written) else written


def by_example(setting: str, leaf: str, old: Any, new: Any) -> Any:
    """The setting in the spelling of the old value. ``leaf`` is the key's last part."""
    if isinstance(old, str) and _REFERENCE.search(old):
        in_kind(old, new)
    if setting in NUMBERS:
        return number(setting, old, new)
    if setting == "dtype":
        return _dtype(leaf.lower(), old, new)
    if setting == "optimizer":
        return _optimizer(old, new)
    if setting == "checkpointing":
        return _checkpointing(leaf.lower(), old, new)
    return in_kind(old, new not in _OFF) if isinstance(old, bool) else new


def _unspellable(setting: str, old: Any, new: Any) -> Unspellable:
    return Unspellable(
        "its value %r does not tell how %s %s is written there; say it with --value %s=…"
        % (old, setting, new, setting)
    )


def precision(dtype: str) -> Tuple[str, Tuple[str, ...]]:
    """Lightning's word for a dtype, and the others that need no more memory."""
    base, _, form = dtype.partition("-")
    bits = {"fp32": "32", "fp16": "16", "bf16": "bf16"}[base]
    if base == "fp32" or form == "true":
        return bits + "-true", ("32", "32-true") if base == "fp32" else (bits + "-true",)
    return bits + "-mixed", (bits, bits + "-mixed", bits + "-true")


def _dtype(leaf: str, old: Any, wanted: str) -> Any:
    base, _, form = wanted.partition("-")
    word = str(old).strip()
    if isinstance(old, bool) or word.lower() in ("true", "false", "yes", "on", "off"):
        truth = _dtype_flag(leaf, base)
        if truth is None:
            raise _unspellable("dtype", old, wanted)
        return old if same(old, truth) else in_kind(old, truth)
    if old is None:
        return base
    if word.endswith(("-mixed", "-true")):
        if not form and base != "fp32" and word in ("16-true", "bf16-true"):
            wanted += "-true"
        spelled, accepted = precision(wanted)
        return old if word in accepted else spelled
    for words in _DTYPE_WORDS:
        if word in words:
            spelled = words[_BASES.index(base)]
            if word == spelled:
                return old
            return in_kind(old, int(spelled)) if spelled.isdigit() else spelled
    raise _unspellable("dtype", old, wanted)


def _dtype_flag(leaf: str, base: str) -> Optional[bool]:
    """What a key such as ``bf16`` or ``use_amp`` is set to, by its name."""
    for name in _BASES:
        if name in leaf or name.replace("fp", "float") in leaf:
            return base == ("bf16" if "bf" in leaf else name)
    return base != "fp32" if "amp" in leaf.split("_") or "mixed" in leaf else None


def _optimizer(old: Any, new: str) -> Any:
    name, word = optimizer_class(new), optimizer_word(new)
    if not isinstance(old, str) or name[0] is None:
        raise _unspellable("optimizer", old, new)
    if old in (name[0], word[0]) + name[1]:
        return old
    if "." in old:
        return name[0]
    if old[:1].isupper():
        short = name[0].rpartition(".")[2]
        return old if old == short else short
    known = {entry[1] for entry in _OPTIMIZERS.values()} | {
        other for entry in _OPTIMIZERS.values() for other in entry[2] if "." not in other
    }
    if old in known and "_" in old and word[0] is not None:
        return word[0]
    if optimizer_key(old) in _OPTIMIZERS:
        if optimizer_key(old) == optimizer_key(new):
            return old
        return new.replace("-", "_") if "_" in old else new
    raise _unspellable("optimizer", old, new)


def _checkpointing(leaf: str, old: Any, new: str) -> Any:
    if isinstance(old, str) and old.lower() in CHECKPOINTING:
        return old if old.lower() == new else new
    if str(old).lower() in _TRUE + _FALSE + ("0", "1") or old is None:
        if old is None and any(word in leaf for word in ("granularity", "mode", "policy")):
            return old if new == "none" else new
        wanted = new != "none"
        if old is None and not wanted:
            return old
        return old if same(old, wanted) else in_kind(old, wanted)
    raise _unspellable("checkpointing", old, new)
