"""Which keys the frameworks have for the settings, and how a file tells which framework it is for.

Sources: Lightning 2 (``LightningCLI``, ``Trainer``), ``transformers.TrainingArguments`` of
Transformers 5, torchtune's recipes, and projects that nest Lightning's Trainer in a section.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .document import Document
from .errors import ApplyError
from .tree import MAP, Node, Path, Tree, parse_path, spelled
from .values import optimizer_class, optimizer_word, precision


class NoDefault:
    """What an absent key means is not known."""


@dataclass(frozen=True)
class Assignment:
    """One key to set. ``keys`` are candidates: the first that the file has is taken."""

    setting: str
    keys: Tuple[Path, ...]
    value: Any
    #: Values that do as well as ``value``.
    accepted: Tuple[Any, ...] = ()
    #: What a file without the key means.
    default: Any = NoDefault
    #: The value is found by the example of the old one.
    by_example: bool = False
    #: A file without the key needs no change: another key says it.
    optional: bool = False
    #: What else is to be done, by hand.
    note: str = ""


@dataclass(frozen=True)
class Preset:
    """A framework's keys."""

    name: str
    title: str
    #: A file with one of these is for the framework.
    signature: Tuple[str, ...]
    #: … provided that it has one of these too.
    besides: Tuple[str, ...]
    #: The sections that the keys may be in; None: any.
    sections: Optional[Tuple[str, ...]]
    assign: Callable[[str, Any], List[Assignment]]
    #: What to do about a setting that has no key.
    by_hand: Dict[str, str]


def _keys(*names: str) -> Tuple[Path, ...]:
    return tuple(parse_path(name) for name in names)


_CASTS_ONLY = (
    "%s here is for autocast: for weights of 16 bits, as planned, load the model in that dtype too"
)


def _lightning(setting: str, value: Any) -> List[Assignment]:
    if setting == "micro_batch":
        return [Assignment(setting, _keys("data.init_args.batch_size", "data.batch_size"), value)]
    if setting == "accumulation":
        return [Assignment(setting, _keys("trainer.accumulate_grad_batches"), value, default=1)]
    if setting == "dtype":
        word, accepted = precision(value)
        default = "32-true"
        keys = _keys("trainer.precision")
        return [Assignment(setting, keys, word, accepted, default)]
    if setting == "optimizer":
        name, others = optimizer_class(value)
        keys = _keys("optimizer.class_path", "model.init_args.optimizer.class_path")
        return [] if name is None else [Assignment(setting, keys, name, others)]
    return []


def _transformers(setting: str, value: Any) -> List[Assignment]:
    if setting == "micro_batch":
        return [Assignment(setting, _keys("per_device_train_batch_size"), value, default=8)]
    if setting == "accumulation":
        return [Assignment(setting, _keys("gradient_accumulation_steps"), value, default=1)]
    if setting == "dtype":
        base, _, form = value.partition("-")
        note = _CASTS_ONLY % base if form == "true" else ""
        return [
            Assignment(setting, _keys(name), base == name, default=False, note=note)
            for name in ("bf16", "fp16")
        ]
    if setting == "optimizer":
        word, others = optimizer_word(value)
        return [] if word is None else [Assignment(setting, _keys("optim"), word, others)]
    wanted = value != "none"
    return [Assignment(setting, _keys("gradient_checkpointing"), wanted, default=False)]


def _torchtune(setting: str, value: Any) -> List[Assignment]:
    if setting == "micro_batch":
        return [Assignment(setting, _keys("batch_size"), value)]
    if setting == "accumulation":
        return [Assignment(setting, _keys("gradient_accumulation_steps"), value)]
    if setting == "dtype":
        base = value.partition("-")[0]
        return [] if base == "fp16" else [Assignment(setting, _keys("dtype"), base)]
    if setting == "optimizer":
        name, others = optimizer_class(value)
        keys = _keys("optimizer._component_")
        return [] if name is None else [Assignment(setting, keys, name, others)]
    keys = _keys("enable_activation_checkpointing")
    return [Assignment(setting, keys, value != "none", default=False)]


def _nested(setting: str, value: Any) -> List[Assignment]:
    names: Dict[str, Sequence[str]] = {
        "micro_batch": ("data_loader.batch_size",),
        "accumulation": ("training.trainer.accumulate_grad_batches",),
        "dtype": ("training.trainer.precision", "training.precision"),
        "optimizer": (
            "training.optimizer.class_path",
            "training.optimizer._target_",
            "training.optimizer.name",
            "training.optimizer.type",
            "optimizer.name",
            "optimizer.type",
        ),
        "checkpointing": (
            "training.gradient_checkpointing",
            "training.trainer.gradient_checkpointing",
            "model.gradient_checkpointing",
        ),
    }
    keys = _keys(*names[setting])
    if setting == "dtype":
        word, accepted = precision(value)
        return [Assignment(setting, keys, word, accepted, "32-true")]
    default = 1 if setting == "accumulation" else NoDefault
    by_example = setting in ("optimizer", "checkpointing")
    return [Assignment(setting, keys, value, (), default, by_example, optional=by_example)]


PRESETS: Dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "lightning",
            "Lightning",
            ("data.init_args.batch_size", "trainer.accumulate_grad_batches", "trainer.precision"),
            (),
            ("", "fit"),
            _lightning,
            {"checkpointing": "Lightning leaves it to the model: call memopt.torch.checkpoint"},
        ),
        Preset(
            "transformers",
            "Hugging Face TrainingArguments",
            ("per_device_train_batch_size",),
            (),
            None,
            _transformers,
            {"optimizer": "TrainingArguments has no such optim; pass optimizers= to the Trainer"},
        ),
        Preset(
            "torchtune",
            "torchtune",
            ("batch_size",),
            (
                "gradient_accumulation_steps",
                "optimizer._component_",
                "model._component_",
                "enable_activation_checkpointing",
            ),
            ("",),
            _torchtune,
            {"dtype": "torchtune's recipes refuse fp16: plan with bf16 or fp32"},
        ),
        Preset(
            "nested",
            "data_loader and training sections",
            ("data_loader.batch_size", "training.trainer.accumulate_grad_batches"),
            (),
            ("",),
            _nested,
            {},
        ),
    )
}
#: Other names that people use.
ALIASES = {"huggingface": "transformers", "hf": "transformers"}


def preset_named(name: str) -> Preset:
    """The preset; ValueError lists those that there are."""
    found = PRESETS.get(ALIASES.get(name.lower(), name.lower()))
    if found is None:
        raise ValueError("there is no preset %r; there are %s" % (name, ", ".join(PRESETS)))
    return found


def matches(preset: Preset, document: Document) -> List[Path]:
    """The sections of the file that look like the preset's; () is the top."""
    found = []
    for tree in document.trees:
        for section in _sections(preset, tree):
            if any(_has(tree, section, key) for key in preset.signature) and (
                not preset.besides or any(_has(tree, section, key) for key in preset.besides)
            ):
                found.append(section)
    return found


def _sections(preset: Preset, tree: Tree) -> List[Path]:
    if preset.sections is not None:
        return [(name,) if name else () for name in preset.sections]
    return [path for path, node in tree.walk() if node.kind == MAP]


def _has(tree: Tree, section: Path, key: str) -> bool:
    return tree.find(section + parse_path(key)) is not None


def detect(document: Document) -> Tuple[Preset, Path]:
    """The preset and the section that the file's keys tell; ApplyError where they tell none or
    several."""
    found = [(p, section) for p in PRESETS.values() for section in matches(p, document)]
    if len(found) == 1:
        return found[0]
    if len({preset.name for preset, _ in found}) == 1:
        raise _several(found[0][0], document, [section for _, section in found], False)
    if found:
        raise ApplyError(
            "its keys are those of more than one preset: %s. Say which with --preset, or the keys "
            "with --key micro_batch=…" % "; ".join(_told(p, section) for p, section in found)
        )
    if all(tree.root is None for tree in document.trees):
        raise ApplyError("it is empty: there is no key to change")
    looked = "; ".join("%s: %s" % (p.name, ", ".join(p.signature)) for p in PRESETS.values())
    raise ApplyError(
        "none of the known keys is in it (%s). Say where its keys are, for instance --key "
        "micro_batch=train.batch_size --key accumulation=train.accumulation" % looked
    )


def _told(preset: Preset, section: Path) -> str:
    return preset.name + (" in %s" % spelled(section) if section else "")


def section_of(preset: Preset, document: Document) -> Path:
    """Where the keys of a preset that was asked for are: the top where the file has none."""
    found = matches(preset, document)
    if len(found) > 1:
        raise _several(preset, document, found, True)
    return found[0] if found else ()


def _several(preset: Preset, document: Document, found: List[Path], told: bool) -> ApplyError:
    """The keys of one preset are there more than once; ``told``: it was asked for."""
    if len(set(found)) < len(found):
        return ApplyError(
            "%d of its %d documents have the keys of %s; split the file"
            % (len(found), len(document.trees), preset.name)
        )
    keys = " --key ".join(
        "%s=%s" % (setting, spelled(found[0] + preset.assign(setting, 1)[0].keys[0]))
        for setting in ("micro_batch", "accumulation")
    )
    if told:
        where = "%d places: %s" % (len(found), ", ".join(spelled(p) or "the top" for p in found))
        text = "it has the keys of %s in %s" % (preset.name, where)
    else:
        where = "%d places: %s" % (len(found), "; ".join(_told(preset, path) for path in found))
        text = "its keys are those of a preset in %s (which --preset would not settle)" % where
    return ApplyError("%s. Say which are meant, for instance --key %s" % (text, keys))


__all__ = [
    "ALIASES",
    "Assignment",
    "NoDefault",
    "Node",
    "PRESETS",
    "Preset",
    "detect",
    "matches",
    "preset_named",
    "section_of",
]
