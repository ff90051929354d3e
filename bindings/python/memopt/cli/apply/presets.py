"""The frameworks' keys for the settings, and how to recognise a file's framework.

Sources: Lightning 2 (``LightningCLI``, ``Trainer``), ``transformers.TrainingArguments`` of
Transformers 5, torchtune's recipes, and projects that nest Lightning's Trainer in a section.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

from .document import Document
from .errors import ApplyError
from .tree import MAP, Path, Tree, parse_path, spelled
from .values import optimizer_class, optimizer_word, precision


class NoDefault:
    """What an absent key means is not known."""


@dataclass(frozen=True)
class Assignment:
    """One key to set. ``keys`` are candidates: the first that the file has is taken."""

    setting: str
    keys: Tuple[Path, ...]
    value: Any
    #: Values that are equivalent to ``value``.
    accepted: Tuple[Any, ...] = ()
    #: What a file without the key means.
    default: Any = NoDefault
    #: The old value shows how to write the new one.
    by_example: bool = False
    #: A file without the key needs no change: another key has the setting.
    optional: bool = False
    #: The framework knows the key, so that a file may get it.
    addable: bool = True


@dataclass(frozen=True)
class Preset:
    """A framework's keys: the rows of _ROWS that have its name."""

    name: str
    #: A file with one of these is for the framework.
    signature: Tuple[str, ...]
    #: … provided that it has one of these too.
    besides: Tuple[str, ...]
    #: The sections that the keys may be in; None: any.
    sections: Optional[Tuple[str, ...]]
    #: What to do about a setting that has no key.
    by_hand: Dict[str, str]

    def assign(self, setting: str, value: Any) -> List[Assignment]:
        """The keys to set for a setting."""
        found = []
        for preset, name, keys, say, default in _ROWS:
            if (preset, name) != (self.name, setting):
                continue
            word, accepted = say(value)
            if word is None:
                continue
            one = Assignment(setting, tuple(map(parse_path, keys.split())), word, accepted, default)
            if default in (ByExample, MayLack, NotOwn):
                by_example, addable = default is ByExample, default is not NotOwn
                one = replace(
                    one, default=NoDefault, by_example=by_example, optional=True, addable=addable
                )
            found.append(one)
        return found


#: A setting's value in a framework's words, and others that do as well; None: it has no word.
Say = Callable[[Any], Tuple[Any, Tuple[Any, ...]]]


class ByExample:
    """The value is said by the example of the old one, and the key may be missing."""


class MayLack:
    """The key may be missing: not every program has it."""


class NotOwn:
    """The key is a program's, not the framework's, which refuses it: it is never added."""


def _same(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
    return value, ()


def _truth(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
    return value != "none", ()


def _is(dtype: str) -> Say:
    return lambda value: (value.partition("-")[0] == dtype, ())


def _weights(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
    """Transformers' dtype to load a model in: said by the dtypes of 16-bit weights alone."""
    base, _, form = value.partition("-")
    word = {"bf16": "bfloat16", "fp16": "float16"}.get(base)
    return (word if form == "true" else None), (base, "torch.%s" % word)


def _words(**words: Any) -> Say:
    """A word for a setting's value, or none."""
    return lambda value: (words.get(value), ())


def _not_fp16(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
    dtype = value.partition("-")[0]
    return (None if dtype == "fp16" else dtype), ()


#: Preset, setting, candidates for its key, how the value is said, and what an absent key means.
_ROWS: Tuple[Tuple[str, str, str, Say, Any], ...] = (
    ("lightning", "micro_batch", "data.init_args.batch_size data.batch_size", _same, NoDefault),
    ("lightning", "accumulation", "trainer.accumulate_grad_batches", _same, 1),
    ("lightning", "dtype", "trainer.precision", precision, "32-true"),
    ("lightning", "optimizer", "optimizer.class_path model.init_args.optimizer.class_path",
     optimizer_class, NoDefault),
    ("lightning", "sequence", "data.init_args.max_length data.max_length", _same, MayLack),
    ("lightning", "sharding", "trainer.strategy",
     _words(zero3="fsdp", deepspeed_zero1="deepspeed_stage_1", deepspeed_zero2="deepspeed_stage_2",
            deepspeed_zero3="deepspeed_stage_3"), NoDefault),
    ("transformers", "micro_batch", "per_device_train_batch_size", _same, 8),
    ("transformers", "accumulation", "gradient_accumulation_steps", _same, 1),
    ("transformers", "dtype", "bf16", _is("bf16"), False),
    ("transformers", "dtype", "fp16", _is("fp16"), False),
    ("transformers", "dtype", "dtype torch_dtype model_init_kwargs.dtype "
     "model_init_kwargs.torch_dtype", _weights, NotOwn),
    ("transformers", "sequence", "max_length max_seq_length", _same, NotOwn),
    ("transformers", "lora", "lora_r", _same, NotOwn),
    ("transformers", "loss", "use_liger_kernel", _words(plain=False, fused=True), False),
    ("transformers", "attention", "attn_implementation", _same, NotOwn),
    ("transformers", "sharding", "fsdp", _words(zero2=True, zero3=True), NoDefault),
    ("transformers", "sharding", "fsdp_config.reshard_after_forward",
     _words(zero2=False, zero3=True), True),
    ("transformers", "optimizer", "optim", optimizer_word, NoDefault),
    ("transformers", "checkpointing", "gradient_checkpointing", _truth, False),
    ("torchtune", "micro_batch", "batch_size", _same, NoDefault),
    ("torchtune", "accumulation", "gradient_accumulation_steps", _same, NoDefault),
    ("torchtune", "dtype", "dtype", _not_fp16, NoDefault),
    ("torchtune", "optimizer", "optimizer._component_", optimizer_class, NoDefault),
    ("torchtune", "sequence", "tokenizer.max_seq_len", _same, NoDefault),
    ("torchtune", "lora", "model.lora_rank", _same, MayLack),
    ("torchtune", "offload", "enable_activation_offloading",
     _words(none=False, activations=True), False),
    ("torchtune", "loss", "loss._component_",
     _words(fused="torchtune.modules.loss.LinearCrossEntropyLoss"), NoDefault),
    ("torchtune", "sharding", "fsdp_reshard_after_forward", _words(zero2=False, zero3=True), True),
    ("torchtune", "checkpointing", "enable_activation_checkpointing", _truth, False),
    ("nested", "micro_batch", "data_loader.batch_size", _same, NoDefault),
    ("nested", "accumulation", "training.trainer.accumulate_grad_batches", _same, 1),
    ("nested", "dtype", "training.trainer.precision training.precision", precision, "32-true"),
    ("nested", "optimizer", "training.optimizer.class_path training.optimizer._target_ "
     "training.optimizer.name training.optimizer.type optimizer.name optimizer.type",
     _same, ByExample),
    ("nested", "checkpointing", "training.gradient_checkpointing "
     "training.trainer.gradient_checkpointing model.gradient_checkpointing", _same, ByExample),
)  # fmt: skip

PRESETS: Dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "lightning",
            ("data.init_args.batch_size", "trainer.accumulate_grad_batches", "trainer.precision"),
            (),
            ("", "fit"),
            {"checkpointing": "Lightning leaves it to the model: call memopt.torch.checkpoint"},
        ),
        Preset(
            "transformers",
            ("per_device_train_batch_size",),
            (),
            None,
            {
                "optimizer": "TrainingArguments has no such optim; pass optimizers= to the Trainer",
                "dtype": "TrainingArguments' own is for autocast; load the model in that dtype too",
                "lora": "TrainingArguments has no LoRA; adapt the model with PEFT's LoraConfig",
            },
        ),
        Preset(
            "torchtune",
            ("batch_size",),
            (
                "gradient_accumulation_steps",
                "optimizer._component_",
                "model._component_",
                "enable_activation_checkpointing",
            ),
            ("",),
            {"dtype": "torchtune's recipes refuse fp16: plan with bf16 or fp32"},
        ),
        Preset(
            "nested",
            ("data_loader.batch_size", "training.trainer.accumulate_grad_batches"),
            (),
            ("",),
            {},
        ),
    )
}
#: Other names that people use.
ALIASES = {"huggingface": "transformers", "hf": "transformers"}


def preset_named(name: str) -> Preset:
    """The preset; ValueError lists the existing ones."""
    found = PRESETS.get(ALIASES.get(name.lower(), name.lower()))
    if found is None:
        raise ValueError("%r is not a preset; presets are %s" % (name, ", ".join(PRESETS)))
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
    """The preset and the section by the file's keys; ApplyError if none or several match."""
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
        raise ApplyError("it is empty, so it has no key to change")
    looked = "; ".join("%s: %s" % (p.name, ", ".join(p.signature)) for p in PRESETS.values())
    raise ApplyError(
        "none of the known keys is in it (%s). Say where its keys are, for instance --key "
        "micro_batch=train.batch_size --key accumulation=train.accumulation" % looked
    )


def _told(preset: Preset, section: Path) -> str:
    return preset.name + (" in %s" % spelled(section) if section else "")


def section_of(preset: Preset, document: Document) -> Path:
    """The section with the keys of the requested preset: the top if the file has none."""
    found = matches(preset, document)
    if len(found) > 1:
        raise _several(preset, document, found, True)
    return found[0] if found else ()


def _several(preset: Preset, document: Document, found: List[Path], told: bool) -> ApplyError:
    """The keys of one preset occur more than once; ``told``: the user requested it."""
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

