"""What is traced or measured: a module, inputs for a batch size, and a loss."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import torch
from torch.utils._pytree import tree_iter, tree_map

Inputs = Callable[[int], Any]
Loss = Callable[[Any, Any], torch.Tensor]


class TargetError(ValueError):
    """A function gave something that cannot be traced; the message says what it should give."""


#: What inputs may grow with besides the batch: names of whole-number arguments of `inputs`.
SETTINGS = ("sequence", "images", "frames", "positives", "negatives")


class Target(NamedTuple):
    """A module and how to run it.

    `inputs(batch)` gives a dict (passed by name), a tuple or list, or one tensor. `loss(outputs,
    inputs)` gives one number to go backward from.
    """

    module: torch.nn.Module
    inputs: Inputs
    loss: Loss
    #: The assumptions, in sentences.
    notes: List[str]
    #: Arguments of `inputs` that are SETTINGS, and their values.
    settings: Mapping[str, int] = {}

    def at(self, **values: int) -> "Target":
        """The same with other values of its settings."""
        return self._replace(inputs=functools.partial(self.inputs, **values), settings={**self.settings, **values})

    def run(self, inputs: Any) -> Any:
        """The module's outputs."""
        if isinstance(inputs, dict):
            return self.module(**inputs)
        if isinstance(inputs, (tuple, list)):
            return self.module(*inputs)
        return self.module(inputs)


def load_target(name: str, sequence: Optional[int] = None) -> Target:
    """Calls the function that "module:function" names; see `target_of` for what it may give."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise TargetError("%r does not name a function; write package.module:function" % name)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise TargetError("%s: %s (the current folder is searched too)" % (name, error)) from error
    for part in function_name.split("."):
        try:
            function = getattr(function, part)
        except AttributeError:
            raise TargetError("%s: %s has no %s" % (name, module_name, function_name)) from None
    if not callable(function):
        raise TargetError("%s is a %s, not a function" % (name, type(function).__name__))
    return target_of(function(), sequence)


def target_of(value: Any, sequence: Optional[int] = None) -> Target:
    """From a module of Transformers, or (module, inputs) or (module, inputs, loss)."""
    if isinstance(value, Target):
        return value
    if isinstance(value, torch.nn.Module):
        if not _is_of_transformers(value):
            raise TargetError(
                "a %s needs inputs. Give (module, inputs), where inputs(batch) makes what"
                " the module is called with: a tensor, a tuple, or a dict" % type(value).__name__
            )
        return _of_transformers(value, sequence)
    if not isinstance(value, (tuple, list)) or not 2 <= len(value) <= 3:
        raise TargetError(
            "expected a module, (module, inputs) or (module, inputs, loss), not %s" % type(value).__name__
        )
    module, inputs = value[0], value[1]
    if not isinstance(module, torch.nn.Module) or not callable(inputs):
        raise TargetError(
            "expected (module, inputs) with a torch.nn.Module and a function of the batch size, not"
            " (%s, %s)" % (type(module).__name__, type(inputs).__name__)
        )
    if len(value) == 3 and not callable(value[2]):
        kind = type(value[2]).__name__
        raise TargetError("the loss must be a function of (outputs, inputs), not a %s" % kind)
    notes: List[str] = []
    loss = value[2] if len(value) == 3 else _plain_loss
    if len(value) == 2:
        notes.append("loss: the outputs' own, else the mean of the first output")
    target = Target(module, inputs, loss, notes, _settings(inputs))
    return target.at(sequence=sequence) if sequence and "sequence" in target.settings else target


def _settings(inputs: Inputs) -> Dict[str, int]:
    try:
        arguments = inspect.signature(inputs).parameters
    except (TypeError, ValueError):  # of a function that is not Python's
        return {}
    values = {name: arguments[name].default for name in SETTINGS if name in arguments}
    return {name: value for name, value in values.items() if type(value) is int}


def to_device(inputs: Any, device: torch.device) -> Any:
    """Inputs on a device."""
    return tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, inputs)


def scores(outputs: Any) -> Optional[torch.Tensor]:
    """The logits among a model's outputs, or its largest output of floats."""
    named = outputs.get("logits") if isinstance(outputs, dict) else None
    if isinstance(named, torch.Tensor):
        return named
    found = [
        v
        for v in tree_iter(dict(outputs) if isinstance(outputs, dict) else outputs)
        if isinstance(v, torch.Tensor) and v.is_floating_point() and v.dim() > 0
    ]
    return max(found, key=lambda v: v.numel()) if found else None


def _plain_loss(outputs: Any, inputs: Any) -> torch.Tensor:
    own = getattr(outputs, "loss", None)
    if own is None and isinstance(outputs, dict):
        own = outputs.get("loss")
    if isinstance(own, torch.Tensor):
        return own
    first = scores(outputs)
    if first is None:
        raise TargetError("the module returns no floating-point tensor for a loss; give (module, inputs, loss)")
    return first if first.dim() == 0 else first.mean()


# --- models of Transformers ---


def _is_of_transformers(module: Any) -> bool:
    return hasattr(getattr(module, "config", None), "model_type") and hasattr(module, "main_input_name")


def _of_transformers(module: Any, sequence: Optional[int]) -> Target:
    config = module.config
    if module.main_input_name == "pixel_values":
        return Target(module, _images(module), _plain_loss, _notes(module))
    if module.main_input_name != "input_ids":
        raise TargetError(
            "%s takes %s: give (module, inputs), where inputs(batch) makes a dict with it"
            % (type(module).__name__, module.main_input_name)
        )
    if sequence is None:
        raise TargetError("a language model needs the sequence length (--seq)")
    words = module.get_output_embeddings() is not None
    single = "TokenClassification" in type(module).__name__

    def inputs(batch: int, sequence: int = int(sequence)) -> Dict[str, torch.Tensor]:
        ids = torch.randint(0, int(config.vocab_size), (batch, sequence))
        result = {"input_ids": ids}
        if words:
            result["labels"] = ids.clone()
        elif _takes_labels(module):
            result["labels"] = torch.zeros((batch, *[sequence] * single), dtype=torch.int64)
        return result

    return Target(module, inputs, _plain_loss, _notes(module), _settings(inputs))


def _notes(module: Any) -> List[str]:
    return [] if _takes_labels(module) else ["loss: the mean of the first output"]


def _images(module: Any) -> Inputs:
    config = module.config
    size = config.image_size
    height, width = size if isinstance(size, (tuple, list)) else (size, size)

    def inputs(batch: int) -> Dict[str, torch.Tensor]:
        pixels = torch.randn(batch, config.num_channels, height, width)
        result = {"pixel_values": pixels.to(next(module.parameters()).dtype)}
        if _takes_labels(module):
            result["labels"] = torch.zeros(batch, dtype=torch.int64)
        return result

    return inputs


def _takes_labels(module: torch.nn.Module) -> bool:
    return "labels" in inspect.signature(module.forward).parameters


def head_of(module: Any) -> Optional[torch.nn.Module]:
    """The layer that makes logits, where a model says which."""
    get: Any = getattr(module, "get_output_embeddings", None)
    head = get() if callable(get) else None
    for name in ("classifier", "score"):
        head = getattr(module, name, None) if head is None else head
    return head if isinstance(head, torch.nn.Module) else None
