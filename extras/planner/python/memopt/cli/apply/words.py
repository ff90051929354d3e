"""How a setting's value is said in a file: each function takes the value and the old word there, and
gives the word to write, then words that do as well. No word: the key cannot say the value.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Optional, Tuple

from .errors import ApplyError

Words = Tuple[Any, ...]
Say = Callable[[Any, Any], Words]

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
BASES = ("fp32", "fp16", "bf16")
_SPELLINGS = (
    BASES,
    ("float32", "float16", "bfloat16"),
    ("torch.float32", "torch.float16", "torch.bfloat16"),
    ("float", "half", "bfloat16"),
    ("f32", "f16", "bf16"),
    ("no", "fp16", "bf16"),
    ("32", "16", "bf16"),
)

#: What the command calls an optimizer: a class, the word of Hugging Face's ``optim``, and others
#: that need as much memory for their states and do the same.
OPTIMIZERS: Dict[str, Tuple[str, Optional[str], str]] = {
    "adamw": ("torch.optim.AdamW", "adamw_torch", "memopt.torch.AdamW torch.optim.adamw.AdamW "
              "bitsandbytes.optim.AdamW adamw_torch_fused adamw_hf torch.optim.Adam"),
    "adamwforeach": ("torch.optim.AdamW", "adamw_torch", "torch.optim.adamw.AdamW adamw_hf"),
    "adamwfused": ("torch.optim.AdamW", "adamw_torch_fused", "torch.optim.adamw.AdamW"),
    "adamwmemopt": ("memopt.torch.AdamW", "paged_adamw_32bit", ""),
    "adamw8bit": ("memopt.torch.AdamW8bit", "adamw_bnb_8bit", "bitsandbytes.optim.AdamW8bit "
                  "bitsandbytes.optim.PagedAdamW8bit torchao.optim.AdamW8bit "
                  "torchao.prototype.low_bit_optim.AdamW8bit adamw_8bit adamw_torch_8bit paged_adamw_8bit"),
    "adamw4bit": ("memopt.torch.AdamW4bit", "adamw_torch_4bit",
                  "torchao.optim.AdamW4bit torchao.prototype.low_bit_optim.AdamW4bit"),
    "adamwfp8": ("memopt.torch.AdamW8bit", None,
                 "torchao.optim.AdamWFp8 torchao.prototype.low_bit_optim.AdamWFp8"),
    "lion": ("memopt.torch.Lion", "lion_32bit", "bitsandbytes.optim.Lion paged_lion_32bit"),
    "lion8bit": ("memopt.torch.Lion8bit", "lion_8bit",
                 "bitsandbytes.optim.Lion8bit bitsandbytes.optim.PagedLion8bit paged_lion_8bit"),
    "sgd": ("torch.optim.SGD", "sgd", "memopt.torch.SGD torch.optim.sgd.SGD"),
    "sgd8bit": ("memopt.torch.SGD8bit", None, "bitsandbytes.optim.SGD8bit"),
    "adafactor": ("torch.optim.Adafactor", "adafactor", "transformers.optimization.Adafactor"),
}  # fmt: skip
_HF = {word for _, one, more in OPTIMIZERS.values() for word in (one, *more.split()) if word and "." not in word}


def optimizer_key(name: str) -> str:
    """The optimizer's name without the marks that people put between its parts."""
    return re.sub(r"[-_ ]", "", name.lower())


def optimizer_named(name: str) -> str:
    """What the command calls a class or Hugging Face's word, without marks; "" if nothing."""
    own = (key for key, row in OPTIMIZERS.items() if name in row[:2])
    return next(own, next((key for key, row in OPTIMIZERS.items() if name in row[2].split()), ""))


def same(old: Any, new: Any) -> bool:
    """Whether two values mean the same to a framework: ``8``, ``8.0`` and ``"8"`` do."""
    if isinstance(old, bool) or isinstance(new, bool):
        return _truth(old) == _truth(new)
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return bool(old == new)
    return str(old).strip() == str(new).strip()


def _truth(value: Any) -> str:
    word = str(value).lower()
    return "true" if word in _TRUE else "false" if word in _FALSE else word


def is_truth(value: Any) -> bool:
    """Whether a value says yes or no."""
    return _truth(value) in ("true", "false")


def in_kind(old: Any, new: Any) -> Any:
    """``new`` as the kind of value that ``old`` is. ApplyError for a reference."""
    if isinstance(old, str) and re.search(r"\$\{.*\}|\{\{.*\}\}", old, re.DOTALL):
        raise ApplyError("its value is the reference %s: give what that refers to with --key" % old)
    if isinstance(new, bool):
        if isinstance(old, (int, float)) and not isinstance(old, bool):
            return int(new)
        if isinstance(old, str) and old.lower() in _TRUE + _FALSE:
            words = _TRUE if old.lower() in _TRUE else _FALSE
            word = (_TRUE if new else _FALSE)[words.index(old.lower())]
            return word.title() if old.istitle() else word.upper() if old.isupper() else word
    elif isinstance(new, int):
        if isinstance(old, bool):
            raise ApplyError("its value is %s, not a number" % str(old).lower())
        if isinstance(old, float):
            return float(new)
        if isinstance(old, str) and re.fullmatch(r"\s*\d+\s*", old):
            return str(new)
    elif isinstance(old, int) and not isinstance(old, bool) and str(new).isdigit():
        return int(new)
    return new


def number(value: Any, old: Any) -> Words:
    """The number itself, or what else a file has as it is."""
    return (value,)


def rank(value: Any, old: Any) -> Words:
    """The rank of adapters; of none there is no word."""
    return (value,) if value else ()


def truth(value: Any, old: Any) -> Words:
    """Whether it is on; or the word, where the file has such words."""
    if isinstance(old, str) and old.lower() in ("none", "selective", "full"):
        return (value,)
    return (value != "none",)


def flag(dtype: str) -> Say:
    """A key that says whether this is the dtype."""
    return lambda value, old: (value.partition("-")[0] == dtype,)


def precision(value: Any, old: Any) -> Words:
    """Lightning's words for a dtype, and the others that need no more memory."""
    base, _, form = value.partition("-")
    bits = {"fp32": "32", "fp16": "16", "bf16": "bf16"}[base]
    if base == "fp32" or form == "true":
        return (bits + "-true", "32") if base == "fp32" else (bits + "-true",)
    if not str(old).endswith(("-true", "-mixed")) and spelled(value, old) and not str(old).isdigit() and old != "bf16":
        return spelled(value, old)
    return (bits + "-mixed", bits, bits + "-true")


def spelled(value: Any, old: Any) -> Words:
    """A dtype in the spelling of the old word."""
    base = BASES.index(value.partition("-")[0])
    if old is None:
        return (BASES[base],)
    return next(((words[base],) for words in _SPELLINGS if str(old).strip() in words), ())


def weights(value: Any, old: Any) -> Words:
    """The dtype to load a model in: only that of 16-bit weights, or fp32, is said."""
    if not value.endswith("-true") and value != "fp32":
        return ()
    return spelled(value, old) or ("float32", "float16", "bfloat16")[BASES.index(value[:4]) :]


def optimizer(value: Any, old: Any) -> Words:
    """A class where there was one, else Hugging Face's word or the command's own."""
    name, word, others = OPTIMIZERS.get(optimizer_key(value), ("", None, ""))
    words = [one for one in (name, word, *others.split()) if one]
    if not name or not isinstance(old, str):
        return ()
    first: Any = value.replace("-", "_") if "_" in old else value
    if old in _HF and ("_" in old or old == word):
        first = word
    elif "." in old:
        first = name
    elif old[:1].isupper():
        first = name.rpartition(".")[2]
    alike = [old] if optimizer_key(old).replace("adam", "adamw").replace("ww", "w") == optimizer_key(value) else []
    return tuple(one for one in (first, *words, *alike) if one)


def hf_optimizer(value: Any, old: Any) -> Words:
    """Hugging Face's words alone."""
    return tuple(word for word in optimizer(value, old or "adamw_torch") if "." not in word and word in _HF)


def words(**said: Any) -> Say:
    """A word for each value; a tuple has equivalent words too."""

    def say(value: Any, old: Any) -> Words:
        word = said.get(str(value).replace("-", "_"), ())
        return tuple(word) if isinstance(word, tuple) else (word,)

    return say


def written(say: Say, value: Any, old: Any) -> Any:
    """The value to write; ``old`` itself if it is equivalent. ApplyError if no word is known."""
    if isinstance(old, str) and "${" in old:
        in_kind(old, value)
    found = [word for word in say(value, old) if word is not None]
    if not found:
        raise ApplyError("%r does not tell how %s is written there" % (old, value))
    if any(same(old, word) for word in found):
        return old
    alike = [word for word in found if type(word) is type(old) and not (isinstance(old, str) and is_truth(old))]
    return in_kind(old, (alike or found)[0])
