"""Reads the configuration of a Hugging Face model as the fields of a Model.

What is not known to be counted exactly is refused (UnknownModel); `ofconfig` traces it where
Transformers is installed.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ...plan import Model
from .hffamilies import FAMILIES, Family
from .hffields import FIELDS, ConfigError, Keys, check_types, dtype_of

__all__ = ["FAMILIES", "ConfigError", "Reading", "UnknownModel", "interpret", "load", "read"]


class UnknownModel(ConfigError):
    """A model whose layers are not written down here."""


class Reading(NamedTuple):
    """A model and what was assumed about it."""

    model: Model
    model_type: str
    notes: List[str]
    #: What the configuration says of the run.
    run: Dict[str, Any]


#: Ends of the names of architectures, by the head that they have, and the families that have it so.
_HEADS = (
    ("ForCausalLM", "causal-lm", ("llama", "mixtral", "opt")),
    ("LMHeadModel", "causal-lm", ("gpt2",)),
    ("ForMaskedLM", "masked-lm", ("bert",)),
    ("ForSequenceClassification", "sequence", ("llama", "mixtral", "gpt2", "opt", "bert")),
    ("ForTokenClassification", "token", ("llama", "mixtral", "gpt2", "bert")),
    ("ForImageClassification", "image", ("vit",)),
    ("DoubleHeadsModel", "", ()),
    ("Model", "none", ("llama", "mixtral", "gpt2", "opt", "bert", "vit")),
)

#: For whom no description is here.
_WAYS = """
What to do:
  --model module:function --seq N   traces any torch module; with Transformers, a file model.py of
        from transformers import AutoConfig, AutoModelForCausalLM
        def make():
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("FOLDER"))
    is --model model:make
  a copy of config.json with the "model_type" of a known one, nearly: hidden_size, num_hidden_layers,
    num_attention_heads, intermediate_size and vocab_size are needed
  --params N --layers N --hidden N --heads N --vocab N   of a model by its totals"""


def _cached(name: str) -> str:
    """config.json of a model of the Hugging Face hub in the cache on this machine."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    folder = os.path.join(os.path.expanduser(cache), "models--" + name.replace("/", "--"))
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="utf-8") as file:
            place = os.path.join(folder, "snapshots", file.read().strip(), "config.json")
    except (OSError, ValueError):
        place = ""
    if os.path.isfile(place):
        return place
    raise ConfigError(
        "%s: there is no such file, and no such model in the cache %s (nothing is downloaded); "
        "`hf download %s config.json` puts it there" % (name, cache, name)
    )


def load(path: str) -> Tuple[Dict[str, Any], str]:
    """The JSON object in a file, in ``config.json`` of a folder, or of a model of the hub that is in
    the cache; and where it was."""
    place = os.path.join(path, "config.json") if os.path.isdir(path) else path
    if not os.path.exists(path) and re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?(?<!\.json)", path):
        place = _cached(path)
    try:
        with open(place, encoding="utf-8-sig") as file:
            config = json.load(file)
    except FileNotFoundError:
        raise ConfigError("%s: there is no such file" % place) from None
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are both
        raise ConfigError("%s: not JSON: %s" % (place, error)) from None
    except OSError as error:
        raise ConfigError("%s: %s" % (place, error.strerror or error)) from None
    if not isinstance(config, dict):
        raise ConfigError("%s: a %s, not a JSON object" % (place, type(config).__name__))
    return config, place


def read(path: str) -> Reading:
    """The model of a configuration."""
    config, place = load(path)
    try:
        return interpret(config)
    except ConfigError as error:
        raise type(error)("%s: %s" % (place, error)) from None


def interpret(config: Dict[str, Any]) -> Reading:
    """The model of the object of a ``config.json``."""
    check_types(config)
    if isinstance(config.get("text_config"), dict):
        return _with_tower(config)
    model_type = config.get("model_type")
    family = _family(model_type)
    _check(config, family)
    keys = Keys(config, family.defaults)
    fields = FIELDS[family.family](keys)
    fields["family"] = family.family
    fields["variant"] = family.variant
    fields.update(_head(config, family.family))
    fields["labels"] = len(config.get("id2label") or ()) or keys.count("num_labels") or 2
    quantized, more = _quantized(config)
    fields["quantize"] = quantized
    try:
        model = Model(**fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None
    return Reading(model, str(model_type), more, _run(config, keys))


def _run(config: Dict[str, Any], keys: Keys) -> Dict[str, Any]:
    run: Dict[str, Any] = {}
    if keys.get("use_cache") is not None:
        run["use_cache"] = bool(keys.get("use_cache"))
    if dtype_of(config) is not None:
        run["weight_dtype"] = dtype_of(config)
    quantization = config.get("quantization_config") or {}
    base = dtype_of({"dtype": quantization.get("bnb_4bit_compute_dtype")})
    if base is not None and quantization.get("load_in_4bit"):
        run["base_dtype"] = base
    return run


def _quantized(config: Dict[str, Any]) -> Tuple[Optional[str], List[str]]:
    """How the weights are stored, and a note where that is not known."""
    given = config.get("quantization_config")
    if not given:
        return None, []
    method = given.get("quant_method") or ("bitsandbytes" if "load_in_4bit" in given else None)
    if method == "bitsandbytes" and given.get("load_in_4bit"):  # fp4 has as many bytes
        return "nf4-double" if given.get("bnb_4bit_use_double_quant") else "nf4", []
    if method == "bitsandbytes" and given.get("load_in_8bit"):
        return "int8", []
    if method in ("gptq", "awq") and given.get("bits", 4) == 4:
        return method, []
    told = "quantization_config: %s of %s bits is not known; the plan is of weights as --dtype says"
    return None, [told % (method, given.get("bits", "these"))]


def _family(model_type: Optional[str]) -> Family:
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    known = ", ".join(sorted([*FAMILIES, "llava"]))
    if model_type is None:
        raise UnknownModel('no "model_type"; known are %s%s' % (known, _WAYS))
    raise UnknownModel('unknown model_type "%s"; known are %s%s' % (model_type, known, _WAYS))


def _check(config: Dict[str, Any], family: Family) -> None:
    """UnknownModel where a key asks for parts that the family's layers here do not have."""
    for key, known in family.only.items():
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and value != known:
            raise UnknownModel("%s is %r; only %r is known of %s%s" % (key, value, known, config["model_type"], _WAYS))


def _head(config: Dict[str, Any], family: str) -> Dict[str, Any]:
    """The head of the architecture; the family's default where none is named."""
    architectures = config.get("architectures")
    name = str(architectures[0]) if architectures else ""
    for end, head, families in _HEADS:
        if name.endswith(end):
            if family in families:
                pooled = head in ("none", "sequence") and family in ("bert", "vit")
                return {"head": head, "pooler": True} if pooled else {"head": head}
            break
    if not name:
        return {}
    ends = ", ".join("…" + end for end, _, families in _HEADS if family in families)
    raise UnknownModel('architecture "%s": the heads known of this family are %s%s' % (name, ends, _WAYS))


# --- a language model with a vision tower ---------------------------------------------------------

#: What a vision_config of this type leaves out.
_CLIP: Dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32, "num_channels": 3, "hidden_act": "quick_gelu", "attention_dropout": 0.0,
}  # fmt: skip
#: What Llava has where its file has no vision_config.
_LLAVA_TOWER = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip


def _with_tower(config: Dict[str, Any]) -> Reading:
    """Llava: CLIP's tower, a projector of two layers, and a language model."""
    _check_llava(config)
    text = dict(config["text_config"])
    text["architectures"] = _text_architecture(config, text)
    text.setdefault("model_type", "llama")
    tied = config.get("tie_word_embeddings") or text.get("tie_word_embeddings") or False
    text["tie_word_embeddings"] = tied
    for key in ("dtype", "torch_dtype", "quantization_config"):
        if key in config:
            text[key] = config[key]
    reading = interpret(text)
    vision = config.get("vision_config")
    fields = _tower(_LLAVA_TOWER if vision is None else vision, config)
    try:
        model = reading.model.replace(**fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None
    notes = [*reading.notes, "the vision tower is CLIP's and learns (--set vision_mode=frozen)"]
    return Reading(model, str(config.get("model_type")), notes, reading.run)


def _check_llava(config: Dict[str, Any]) -> None:
    vision = config.get("vision_config") or {}
    kinds = (config.get("model_type"), vision.get("model_type", "clip_vision_model"))
    if kinds != ("llava", "clip_vision_model"):
        raise UnknownModel(
            'a "%s" with a tower "%s"; of models with a text_config, llava with a '
            "clip_vision_model is known%s" % (*kinds, _WAYS)
        )
    only = {"multimodal_projector_bias": True, "projector_hidden_act": "gelu"}
    _check(config, Family("llama", {}, only=only))
    _check(dict(vision, model_type=kinds[1]), Family("vit", {}, only={"attention_dropout": 0.0}))


def _text_architecture(config: Dict[str, Any], text: Dict[str, Any]) -> List[str]:
    """Of the language model: Llava's own class says whether it has a head."""
    architectures = config.get("architectures") or ["LlavaForConditionalGeneration"]
    name = str(architectures[0])
    if name.endswith("ForConditionalGeneration"):
        return ["GPT2LMHeadModel" if text.get("model_type") == "gpt2" else "ForCausalLM"]
    return [name]


def _tower(vision: Dict[str, Any], config: Dict[str, Any]) -> Dict[str, Any]:
    check_types(vision)
    keys = Keys(vision, _CLIP)
    layers = keys.count("num_hidden_layers") or 0
    taken = config.get("vision_feature_layer", -2)
    if isinstance(taken, bool) or not isinstance(taken, int):
        raise UnknownModel("vision_feature_layer is %r; one layer is known%s" % (taken, _WAYS))
    skipped = -1 - taken if taken < 0 else layers - taken
    if not 0 <= skipped < layers:
        raise ConfigError("vision_feature_layer is %d; the tower has %d layers" % (taken, layers))
    image, patch = keys.side("image_size") or 0, keys.side("patch_size") or 1
    fields: Dict[str, Any] = {
        **keys.counts("vision_hidden=hidden_size vision_heads=num_attention_heads vision_ffn=intermediate_size "
                      "channels=num_channels"),
        "vision_layers": layers,
        "vision_skipped": skipped,
        "vision_activation": keys.activation("hidden_act"),
        "image_size": image,
        "patch_size": patch,
    }  # fmt: skip
    if config.get("vision_feature_select_strategy") == "full":
        fields["vision_tokens"] = (image // patch) ** 2 + 1
    return fields
