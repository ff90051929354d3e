"""Transformers' own class of a config.json: built to be measured, or traced where the planner has
no description of the model."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any, Dict, List, Optional

from ...plan import Model, Run
from . import hfconfig, hffields
from .describe import Description
from .traced import DTYPES, Sizes, TraceFailed, Traced, check, describe

#: What to give Transformers where a configuration does not name its class.
_CLASSES = {"gpt2": "GPT2LMHeadModel", "bert": "BertForMaskedLM", "vit": "ViTForImageClassification"}

#: Options that a class of Transformers takes, of those that a module says itself.
_TAKEN = ("dtype", "attention")

#: Parts that a batch of tokens alone would leave out.
_OTHER_INPUTS = ("text_config", "vision_config", "audio_config", "encoder")
_SEQUENCE = 512


def target(parts: Any, arguments: argparse.Namespace, sequence: Any) -> Any:
    """The module of a configuration and what it is run with. TraceFailed with the reason."""
    try:
        import transformers
    except Exception as error:  # not there, or not whole
        raise TraceFailed(_unusable(error)) from None
    config, place = hfconfig.load(arguments.model)
    try:
        module = _module(transformers, dict(config), parts.torch, arguments)
        return parts.target.target_of(module, sequence)
    except Exception as error:  # Transformers' view of somebody's configuration
        raise TraceFailed("%s: %s: %s" % (place, type(error).__name__, error)) from error


def _module(transformers: Any, values: Dict[str, Any], torch: Any, arguments: argparse.Namespace) -> Any:
    kind = values.pop("model_type", None)
    named = (values.get("architectures") or [_CLASSES.get(str(kind))])[0]
    config = transformers.AutoConfig.for_model(kind, **values)
    loader = getattr(transformers, named) if named else transformers.AutoModelForCausalLM
    make = getattr(loader, "_from_config", None) or loader.from_config
    module = make(
        config,
        dtype=getattr(torch, DTYPES[arguments.dtype or hffields.dtype_of(values) or "fp32"]),
        attn_implementation=arguments.attention,  # None: sdpa where the class has it
    )
    module.tie_weights()
    return module.train()


def _unusable(error: Exception) -> str:
    """Why Transformers cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "transformers":
        how = "needs Transformers (%s): pip install transformers" % error
    else:
        how = "needs Transformers, which is installed but cannot be imported (%s: %s): mend it" % (
            type(error).__name__,
            error,
        )
    return "a configuration's own class %s, or give --model module:function" % how


def obstacle(path: str) -> Optional[str]:
    """Why the model of a configuration cannot be traced here, and what to do, "" where nothing
    helps; None where it can be traced."""
    config, _ = hfconfig.load(path)
    if any(key in config for key in _OTHER_INPUTS) or not config.get("model_type"):
        return ""
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    if missing:
        return "\n  pip install %s   Transformers' own class is then traced, where it knows the type" % " ".join(
            missing
        )
    try:
        from transformers import CONFIG_MAPPING
    except Exception as error:  # not whole
        return "\n" + _unusable(error)
    return None if config["model_type"] in CONFIG_MAPPING else ""


class TracedConfig(Traced):
    """Transformers' class of a configuration that is not described here, traced by sizes."""

    needs = ("a configuration's own class", "torch", "give --params, --layers and so on")

    def __init__(self, arguments: argparse.Namespace, unknown: Exception) -> None:
        self._unknown = str(unknown)
        check(arguments, _TAKEN)
        super().__init__(arguments)
        config, _ = hfconfig.load(arguments.model)
        note = "%s is traced, from Transformers' own %s at %d tokens"
        name = type(self.target.module).__name__
        self.notes: List[str] = [
            note % (config["model_type"], name, self._sequence or 0), *self.target.notes
        ]  # fmt: skip

    def _load(self, name: str) -> Any:
        self._sequence = self._sequence or _SEQUENCE
        try:
            return target(self._parts, self._arguments, self._sequence)
        except TraceFailed as error:
            raise self._failed(error) from error

    def sizes(self, run: Run, model: Model) -> Sizes:
        try:
            return super().sizes(run, model)
        except TraceFailed as error:
            raise self._failed(error) from error

    def _failed(self, error: TraceFailed) -> TraceFailed:
        return TraceFailed("%s\nTransformers' own class was tried: %s" % (self._unknown, error))


def description(arguments: argparse.Namespace) -> Description:
    """The run of the options; the module says what the model is."""
    return describe(arguments, _TAKEN)


__all__ = ["TracedConfig", "description", "obstacle", "target"]
