"""The frameworks' keys for the settings, and how to recognise a file's framework.

``edits`` writes by this table and ``reading`` reads by it. Sources: Lightning 2 (``LightningCLI``,
``Trainer``), ``transformers.TrainingArguments`` of Transformers 5, TRL 1.16 (``SFTConfig``,
``ModelConfig``), LLaMA-Factory 0.9.5, axolotl 0.19, torchtune 0.6's recipes, DeepSpeed's JSON,
accelerate 1.15 (``ClusterConfig``), and projects that nest Lightning's Trainer in a section.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

from .document import Document
from .errors import ApplyError
from .tree import MAP, Path, Tree, parse_path, plain, spelled
from .values import optimizer_class, optimizer_word, precision, same


class NoDefault:
    """What an absent key means is not known."""


@dataclass(frozen=True)
class Assignment:
    """One key to set. ``keys`` are candidates: the first that the file has is taken."""

    setting: str
    keys: Tuple[Path, ...]
    #: None: the framework does not take it by this key alone, if the file has no equivalent.
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
    #: Another spelling of a key: set where the file has it. If it is true there, it is enough.
    alternative: bool = False


@dataclass(frozen=True)
class Preset:
    """A framework's keys: the rows of _ROWS that have its name."""

    name: str
    #: A file with one of these is for the framework.
    signature: Tuple[str, ...]
    #: … provided that it has one of these too.
    besides: Tuple[str, ...] = ()
    #: The sections that the keys may be in; None: any.
    sections: Optional[Tuple[str, ...]] = ("",)
    #: What to do about a setting that has no key.
    by_hand: Dict[str, str] = field(default_factory=dict)
    #: Presets whose signature its files have too. Settings without a row are those of the first.
    over: Tuple[str, ...] = ()
    #: What a dtype alone is to it: "autocast", "weights" or "both".
    plain: str = "autocast"
    #: Keys that it takes only with another key (or with a word in that key's list), and the advice.
    needs: Tuple[Tuple[str, str, str, str], ...] = ()

    def rows(self, setting: str) -> "List[Row]":
        """The rows of a setting."""
        own = [row for row in _ROWS if row[:2] == (self.name, setting)]
        return own or (PRESETS[self.over[0]].rows(setting) if self.over else [])

    def assign(self, setting: str, value: Any) -> List[Assignment]:
        """The keys to set for a setting."""
        found = []
        for _, _, keys, say, default in self.rows(setting):
            word, accepted = say(value)
            if word is None and not accepted:
                continue
            one = Assignment(setting, tuple(map(parse_path, keys.split())), word, accepted, default)
            if default in MARKS:
                one = replace(
                    one,
                    default=NoDefault,
                    optional=True,
                    by_example=default is ByExample,
                    addable=default is not NotOwn,
                    alternative=default is Alternative,
                )
            found.append(one)
        return found


#: A setting's value in a framework's words, and others that do as well; None: it has no word.
Say = Callable[[Any], Tuple[Any, Tuple[Any, ...]]]
#: Preset, setting, candidates for its key, how the value is said, and what an absent key means.
Row = Tuple[str, str, str, Say, Any]


class ByExample:
    """The value is said by the example of the old one, and the key may be missing."""


class MayLack:
    """The key may be missing: not every program has it."""


class NotOwn:
    """The key is a program's, not the framework's, which refuses it: it is never added."""


class Alternative:
    """Another spelling of the setting: it is set where a file has it, and never added."""


#: What a row may have in place of what an absent key means.
MARKS = (ByExample, MayLack, NotOwn, Alternative)


def _same(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
    return value, ()


def _truth(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
    return value != "none", ()


def _is(dtype: str) -> Say:
    return lambda value: (value.partition("-")[0] == dtype, ())


def weights(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
    """Transformers' dtype to load a model in: said by the dtypes of 16-bit weights alone."""
    base, _, form = value.partition("-")
    word = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[base]
    return (word, (base, "torch.%s" % word)) if form == "true" else (None, ())


def _words(**words: Any) -> Say:
    """A word for a setting's value, or none; a tuple has equivalent words too."""

    def say(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
        word = words.get(str(value).replace("-", "_"))
        return (word[0], word[1:]) if isinstance(word, tuple) else (word, ())

    return say


def _adapted(yes: Any, no: Any, *also: Any) -> Say:
    """Whether there are adapters: the setting is their rank."""
    return lambda rank: (yes if rank else no, also if rank else ())


def rank_of(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
    """The rank of adapters; of none there is no word."""
    return value or None, ()


def _not_fp16(value: Any) -> Tuple[Any, Tuple[Any, ...]]:
    dtype = value.partition("-")[0]
    return (None if dtype == "fp16" else dtype), ()


_ATTENTION = _words(
    sdpa="sdpa", eager="eager", flash=("flash_attention_2", "flash_attention_3", "flash")
)
_SHARDS = {
    "zero2": (True, "shard_grad_op auto_wrap", "shard_grad_op"),
    "zero3": (True, "full_shard auto_wrap", "full_shard"),
}
_DEEPSPEED_STAGES = {"deepspeed_zero%d" % stage: stage for stage in (1, 2, 3)}
_FOUR_BITS = {"nf4": True, "nf4_double": True, "int8": False, "none": False}
_EIGHT_BITS = {"nf4": False, "nf4_double": False, "int8": True, "none": False}

_ROWS: Tuple[Row, ...] = (
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
     "model_init_kwargs.torch_dtype", weights, NotOwn),
    ("transformers", "sequence", "max_length max_seq_length", _same, NotOwn),
    ("transformers", "lora", "lora_r", rank_of, NotOwn),
    ("transformers", "loss", "use_liger_kernel", _words(plain=False, fused=True), False),
    ("transformers", "attention", "attn_implementation", _ATTENTION, NotOwn),
    ("transformers", "sharding", "fsdp", _words(**_SHARDS), NoDefault),
    ("transformers", "sharding", "fsdp_config.reshard_after_forward",
     _words(zero2=False, zero3=True), True),
    ("transformers", "optimizer", "optim", optimizer_word, "adamw_torch_fused"),
    ("transformers", "checkpointing", "gradient_checkpointing activation_checkpointing", _truth, False),
    ("transformers", "model", "model_name_or_path model.name_or_path", _same, NoDefault),
    ("transformers", "deepspeed", "deepspeed", _same, NoDefault),
    ("transformers", "packing", "packing", _same, NoDefault),
    ("transformers", "lora_targets", "lora_target_modules", _same, NoDefault),
    ("transformers", "lora_dropout", "lora_dropout", _same, NoDefault),
    ("trl", "dtype", "bf16", _is("bf16"), True),
    ("trl", "dtype", "fp16", _is("fp16"), False),
    ("trl", "dtype", "dtype torch_dtype model_init_kwargs.dtype", weights, "float32"),
    ("trl", "sequence", "max_length max_seq_length", _same, 1024),
    ("trl", "checkpointing", "gradient_checkpointing activation_checkpointing", _truth, True),
    ("trl", "offload", "activation_offloading", _words(none=False, activations=True), False),
    ("trl", "attention", "attn_implementation", _ATTENTION, MayLack),
    ("trl", "lora", "lora_r", rank_of, 16),
    ("trl", "lora", "use_peft", _adapted(True, False), False),
    ("trl", "lora_dropout", "lora_dropout", _same, 0.05),
    ("trl", "quantize", "load_in_4bit", _words(**_FOUR_BITS), False),
    ("trl", "quantize", "load_in_8bit", _words(**_EIGHT_BITS), False),
    ("trl", "quantize", "use_bnb_nested_quant", _words(nf4=False, nf4_double=True), False),
    ("trl", "packing", "packing", _same, False),
    ("llamafactory", "dtype", "bf16",
     _words(fp32=False, fp16=False, fp16_mixed=False, bf16=True, bf16_mixed=True), False),
    ("llamafactory", "dtype", "fp16", _is("fp16"), False),
    ("llamafactory", "dtype", "pure_bf16", lambda value: (value == "bf16-true", ()), False),
    ("llamafactory", "sequence", "cutoff_len", _same, 2048),
    ("llamafactory", "loss", "enable_liger_kernel", _words(plain=False, fused=True), False),
    ("llamafactory", "checkpointing", "disable_gradient_checkpointing",
     _words(none=True, full=False, selective=False), False),
    ("llamafactory", "attention", "flash_attn",
     _words(sdpa=("sdpa", "auto"), eager="disabled", flash=("fa2", "fa3")), "auto"),
    ("llamafactory", "lora", "lora_rank", rank_of, 8),
    ("llamafactory", "lora", "finetuning_type", _adapted("lora", "full"), "lora"),
    ("llamafactory", "lora_targets", "lora_target", _same, "all"),
    ("llamafactory", "lora_dropout", "lora_dropout", _same, 0.0),
    ("llamafactory", "quantize", "quantization_bit", _words(nf4=4, nf4_double=4, int8=8), None),
    ("llamafactory", "quantize", "double_quantization", _words(nf4=False, nf4_double=True), True),
    ("llamafactory", "sharding", "fsdp",
     _words(zero2=("shard_grad_op auto_wrap", "shard_grad_op"),
            zero3=("full_shard auto_wrap", "full_shard", True)), NoDefault),
    ("llamafactory", "sharding", "fsdp_config.reshard_after_forward",
     _words(zero2=False, zero3=True), Alternative),
    ("llamafactory", "packing", "packing neat_packing", _same, False),
    ("axolotl", "micro_batch", "micro_batch_size", _same, 1),
    ("axolotl", "accumulation", "gradient_accumulation_steps", _same, 1),
    ("axolotl", "dtype", "bf16",
     _words(fp32=False, fp16=False, fp16_mixed=False, fp16_true=False, bf16=(True, "auto"),
            bf16_mixed=(True, "auto"), bf16_true=(True, "auto")), "auto"),
    ("axolotl", "dtype", "fp16", _is("fp16"), False),
    ("axolotl", "optimizer", "optimizer", optimizer_word, "adamw_torch_fused"),
    ("axolotl", "checkpointing", "gradient_checkpointing", _truth, False),
    ("axolotl", "sequence", "sequence_len", _same, 512),
    ("axolotl", "offload", "activation_offloading", _words(none=False, activations=True), False),
    ("axolotl", "loss", "liger_fused_linear_cross_entropy cut_cross_entropy",
     _words(plain=False, fused=True), False),
    ("axolotl", "attention", "flash_attention", _words(flash=True, sdpa=False, eager=False),
     Alternative),
    ("axolotl", "attention", "sdp_attention", _words(flash=False, sdpa=True, eager=False),
     Alternative),
    ("axolotl", "attention", "eager_attention", _words(flash=False, sdpa=False, eager=True),
     Alternative),
    ("axolotl", "attention", "attn_implementation", _ATTENTION, MayLack),
    ("axolotl", "lora", "lora_r", rank_of, NoDefault),
    ("axolotl", "lora", "adapter", _adapted("lora", None, "qlora"), None),
    ("axolotl", "lora_targets", "lora_target_modules", _same, NoDefault),
    ("axolotl", "all_linear", "lora_target_linear", _same, False),
    ("axolotl", "lora_dropout", "lora_dropout", _same, 0.0),
    ("axolotl", "quantize", "load_in_4bit", _words(**_FOUR_BITS, gptq=False), False),
    ("axolotl", "quantize", "load_in_8bit", _words(**_EIGHT_BITS, gptq=False), False),
    ("axolotl", "quantize", "gptq", _words(nf4=False, nf4_double=False, int8=False, gptq=True), False),
    ("axolotl", "quantize", "bnb_config_kwargs.bnb_4bit_use_double_quant",
     _words(nf4=False, nf4_double=True), True),
    ("axolotl", "quantize", "adapter", _words(nf4="qlora", nf4_double="qlora", int8="lora", gptq="lora"),
     None),
    ("axolotl", "sharding", "fsdp_version fsdp_config.fsdp_version",
     _words(zero2=(None, 2), zero3=(None, 2)), NoDefault),
    ("axolotl", "sharding", "fsdp_config.reshard_after_forward", _words(zero2=False, zero3=True),
     NoDefault),
    ("axolotl", "model", "base_model", _same, NoDefault),
    ("axolotl", "deepspeed", "deepspeed", _same, NoDefault),
    ("axolotl", "packing", "sample_packing", _same, False),
    ("deepspeed", "micro_batch", "train_micro_batch_size_per_gpu", _same, NoDefault),
    ("deepspeed", "accumulation", "gradient_accumulation_steps", _same, NoDefault),
    ("deepspeed", "dtype", "bf16.enabled", _is("bf16"), False),
    ("deepspeed", "dtype", "fp16.enabled", _is("fp16"), False),
    ("deepspeed", "sharding", "zero_optimization.stage", _words(ddp=0, **_DEEPSPEED_STAGES), 0),
    ("accelerate", "dtype", "mixed_precision", _words(fp32="no", fp16="fp16", fp16_mixed="fp16",
                                                      bf16="bf16", bf16_mixed="bf16"), NoDefault),
    ("accelerate", "accumulation", "deepspeed_config.gradient_accumulation_steps", _same, NotOwn),
    ("accelerate", "sharding", "distributed_type",
     _words(ddp=("MULTI_GPU", "NO", "MULTI_CPU"), zero2=(None, "FSDP"), zero3=(None, "FSDP"),
            **dict.fromkeys(_DEEPSPEED_STAGES, (None, "DEEPSPEED"))), NoDefault),
    ("accelerate", "sharding",
     "fsdp_config.fsdp_reshard_after_forward fsdp_config.fsdp_sharding_strategy",
     _words(zero2=(False, "SHARD_GRAD_OP", 2), zero3=(True, "FULL_SHARD", 1)), True),
    ("accelerate", "sharding", "deepspeed_config.zero_stage", _words(**_DEEPSPEED_STAGES), NotOwn),
    ("accelerate", "checkpointing", "fsdp_config.fsdp_activation_checkpointing", _truth, NotOwn),
    ("accelerate", "deepspeed", "deepspeed_config.deepspeed_config_file", _same, NoDefault),
    ("accelerate", "world_size", "num_processes", _same, NoDefault),
    ("torchtune", "micro_batch", "batch_size", _same, NoDefault),
    ("torchtune", "accumulation", "gradient_accumulation_steps", _same, NoDefault),
    ("torchtune", "dtype", "dtype", _not_fp16, NoDefault),
    ("torchtune", "optimizer", "optimizer._component_", optimizer_class, NoDefault),
    ("torchtune", "sequence", "tokenizer.max_seq_len", _same, NoDefault),
    ("torchtune", "lora", "model.lora_rank", rank_of, NotOwn),
    ("torchtune", "lora_targets", "model.lora_attn_modules", _same, NoDefault),
    ("torchtune", "lora_mlp", "model.apply_lora_to_mlp", _same, False),
    ("torchtune", "lora_head", "model.apply_lora_to_output", _same, False),
    ("torchtune", "lora_dropout", "model.lora_dropout", _same, 0.0),
    ("torchtune", "quantize", "model.quantize_base", _words(nf4_double=True), NotOwn),
    ("torchtune", "builder", "model._component_", _same, NoDefault),
    ("torchtune", "model", "checkpointer.checkpoint_dir", _same, NoDefault),
    ("torchtune", "packing", "dataset.packed", _same, False),
    ("torchtune", "offload", "enable_activation_offloading",
     _words(none=False, activations=True), False),
    ("torchtune", "loss", "loss._component_",
     _words(fused=(None, "torchtune.modules.loss.LinearCrossEntropyLoss")), NoDefault),
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

_RECOMPUTE = "plan with --checkpointing full, or without offload"

PRESETS: Dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "lightning",
            ("data.init_args.batch_size", "trainer.accumulate_grad_batches", "trainer.precision"),
            sections=("", "fit"),
            by_hand={
                "checkpointing": "Lightning leaves it to the model: call memopt.torch.checkpoint",
                "loss": "Lightning leaves it to the model: call torch.nn.functional."
                "linear_cross_entropy with options=torch.nn.LinearCrossEntropyOptions() (torch 2.15)",
            },
        ),
        Preset(
            "transformers",
            ("per_device_train_batch_size",),
            sections=None,
            by_hand={
                "optimizer": "TrainingArguments has no such optim; pass optimizers= to the Trainer",
                "dtype": "TrainingArguments' own is for autocast; load the model in that dtype too",
                "lora": "TrainingArguments has no LoRA; adapt the model with PEFT's LoraConfig",
                "quantize": "TrainingArguments has no quantisation; load the model with "
                "quantization_config=BitsAndBytesConfig(…)",
            },
        ),
        Preset(
            "trl",
            ("use_peft", "use_bnb_nested_quant", "load_in_4bit", "lora_target_modules", "packing",
             "dataset_text_field", "completion_only_loss", "assistant_only_loss", "padding_free"),
            ("per_device_train_batch_size", "model_name_or_path"),
            by_hand={"optimizer": "SFTConfig has no such optim; pass optimizers= to the trainer"},
            over=("transformers",),
        ),
        Preset(
            "llamafactory",
            ("finetuning_type", "cutoff_len"),
            by_hand={"optimizer": "LLaMA-Factory takes Transformers' optim, which has no such"},
            over=("transformers", "trl"),
        ),
        Preset(
            "axolotl",
            ("base_model",),
            ("micro_batch_size", "sequence_len", "adapter", "datasets"),
            by_hand={
                "sharding": "set fsdp_version: 2 and fsdp_config, as axolotl's guide of FSDP2 has them"
            },
            plain="both",
            needs=(
                ("activation_offloading", "gradient_checkpointing", "", _RECOMPUTE),
                ("liger_fused_linear_cross_entropy", "plugins", "LigerPlugin",
                 "add axolotl.integrations.liger.LigerPlugin to it"),
                ("cut_cross_entropy", "plugins", "CutCrossEntropyPlugin",
                 "add axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin to it"),
            ),
        ),
        Preset(
            "deepspeed",
            ("train_micro_batch_size_per_gpu", "zero_optimization", "train_batch_size"),
            plain="weights",
        ),
        Preset(
            "accelerate",
            ("distributed_type",),
            by_hand={
                "sharding": "FSDP and DeepSpeed have settings of their own: run accelerate config"
            },
        ),
        Preset(
            "torchtune",
            ("batch_size",),
            ("gradient_accumulation_steps", "optimizer._component_", "model._component_",
             "enable_activation_checkpointing"),
            by_hand={
                "dtype": "torchtune's recipes refuse fp16: plan with bf16 or fp32",
                "quantize": "torchtune's QLoRA is another recipe: model._component_ is a "
                "torchtune.models.….qlora_… builder, run by lora_finetune_single_device",
                "lora": "torchtune's LoRA is another recipe: model._component_ is a "
                "torchtune.models.….lora_… builder, which has lora_rank",
                "loss": "torchtune 0.6 has no fused loss; a newer one may have --value "
                "loss=torchtune.modules.loss.LinearCrossEntropyLoss",
            },
            plain="weights",
            needs=(
                ("enable_activation_offloading", "enable_activation_checkpointing", "", _RECOMPUTE),
            ),
        ),
        Preset("nested", ("data_loader.batch_size", "training.trainer.accumulate_grad_batches")),
    )
}
#: Other names that people use.
ALIASES = {
    "huggingface": "transformers",
    "hf": "transformers",
    "llama-factory": "llamafactory",
    "llama_factory": "llamafactory",
}


def preset_named(name: str) -> Preset:
    """The preset; ValueError lists the existing ones."""
    found = PRESETS.get(ALIASES.get(name.lower(), name.lower()))
    if found is None:
        raise ValueError("%r is not a preset; presets are %s" % (name, ", ".join(PRESETS)))
    return found


def unmet(
    document: Document, preset: Optional[Preset], section: Path
) -> List[Tuple[str, str]]:
    """The file's keys that the framework does not take without another one, and what to do."""
    found = []
    for key, other, word, advice in preset.needs if preset is not None else ():
        spots = [document.find(section + parse_path(one)) for one in (key, other)]
        here, there = (plain(spot[1].node) if spot is not None else None for spot in spots)
        off = there in (None, []) or same(there, False)
        if here is not None and not same(here, False) and (off or word not in str(there)):
            found.append((key, "%s needs %s: %s" % (key, other, advice)))
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
    hidden = {name for preset, _ in found for name in preset.over}
    found = [(preset, section) for preset, section in found if preset.name not in hidden]
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

