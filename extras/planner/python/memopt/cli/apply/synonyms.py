"""The table of synonyms: what the keys of training files mean, whoever reads the files.

Sources: Lightning 2, ``transformers.TrainingArguments`` of Transformers 5, TRL 1.16, LLaMA-Factory
0.9.5, axolotl 0.19, torchtune 0.6's recipes, DeepSpeed's JSON, accelerate 1.15; and what people call
the settings in programs of their own.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .text import Leaf
from .words import Say, flag, hf_optimizer, number, optimizer, precision, rank, spelled, truth, weights, words

#: The settings that can be written, and what each is called in messages.
SETTINGS = {
    "micro_batch": "samples per step and device",
    "accumulation": "steps whose gradients are added up",
    "dtype": "fp32, fp16 or bf16; bf16-mixed for autocast, bf16-true for the weights too",
    "optimizer": "adamw, adamw8bit, …",
    "checkpointing": "none, selective or full",
    "sequence": "tokens of a sample",
    "images": "images or frames of a sample",
    "positives": "positives of a contrastive anchor",
    "negatives": "negatives of a contrastive anchor",
    "lora": "rank of LoRA's adapters",
    "loss": "plain, fused or chunked",
    "offload": "none, activations or optimizer",
    "sharding": "ddp, zero1, zero2 or zero3; DeepSpeed's with deepspeed_ before it",
    "attention": "sdpa, eager or flash",
    "quantize": "nf4, nf4-double, int8, gptq or awq, under LoRA",
}
NUMBERS = ("micro_batch", "accumulation", "sequence", "images", "positives", "negatives", "effective", "world_size",
           "nodes")  # fmt: skip
#: What is only read.
READ = ("weights", "effective", "model", "deepspeed", "world_size", "nodes", "packing", "lora_targets", "lora_dropout",
        "all_linear", "lora_mlp", "lora_head", "builder", "states", "graphs")  # fmt: skip

#: In place of a default: what an absent key means is not known; and the key is never added.
OPEN, NEVER = "open", "never"


class Row(NamedTuple):
    """Keys of a setting, the likeliest first."""

    setting: str
    names: Sequence[Tuple[str, ...]]
    say: Say
    #: Frameworks that know the first of the keys; none: anybody's.
    of: Sequence[str]
    #: What it means that the key is absent.
    default: Any


_ON_OFF = words(none=False, activations=True)
_SHARDS = {
    "zero2": ("shard_grad_op auto_wrap", "shard_grad_op", True),
    "zero3": ("full_shard auto_wrap", "full_shard", True),
}
_STAGES = {"deepspeed_zero%d" % stage: stage for stage in (1, 2, 3)}
_ATTENTION = words(sdpa=("sdpa",), eager=("eager",), flash=("flash_attention_2", "flash_attention_3", "flash"))
_RESHARD = words(zero2=(False, "SHARD_GRAD_OP", 2), zero3=(True, "FULL_SHARD", 1))


def _adapted(yes: Any, no: Any, *also: Any) -> Say:
    return lambda ranks, old: (yes, *also) if ranks else (no,)


def _row(setting: str, names: str, say: Say = number, of: str = "", default: Any = OPEN) -> Row:
    return Row(setting, [tuple(name.split(".")) for name in names.lower().split()], say, of.split(), default)


ROWS: Sequence[Row] = (
    _row("micro_batch", "per_device_train_batch_size", of="transformers", default=8),
    _row("micro_batch", "micro_batch_size", of="axolotl", default=1),
    _row("micro_batch", "train_micro_batch_size_per_gpu", of="deepspeed"),
    _row("micro_batch", "per_device_train_batch_size micro_batch_size per_gpu_batch_size device_batch_size micro_batch microbatch_size per_device_batch_size "
         "batch_size_per_gpu batch_size train.batch bs batch"),
    _row("accumulation", "gradient_accumulation_steps", of="transformers axolotl torchtune deepspeed", default=1),
    _row("accumulation", "accumulate_grad_batches", of="lightning", default=1),
    _row("accumulation", "deepspeed_config.gradient_accumulation_steps", of="accelerate", default=NEVER),
    _row("accumulation", "gradient_accumulation_steps accumulate_grad_batches grad_accumulation_steps grad_accum_steps "
         "gradient_accumulation grad_accumulation accumulation_steps accum_steps grad_accum accum accumulate_steps accumulation accumulate"),
    _row("effective", "global_batch_size effective_batch_size total_batch_size target_effective_batch train_batch_size"),
    _row("dtype", "bf16", flag("bf16"), "transformers", False),
    _row("dtype", "fp16", flag("fp16"), "transformers", False),
    _row("dtype", "bf16", flag("bf16"), "trl", True),
    _row("dtype", "bf16", words(fp32=False, fp16=False, fp16_mixed=False, bf16=True, bf16_mixed=True),
         "llamafactory", False),
    _row("dtype", "pure_bf16", lambda value, old: (value == "bf16-true",), "llamafactory", False),
    _row("dtype", "bf16", words(fp32=False, fp16=False, fp16_mixed=False, fp16_true=False, bf16=(True, "auto"),
                                bf16_mixed=(True, "auto"), bf16_true=(True, "auto")), "axolotl", "auto"),
    _row("dtype", "fp16", flag("fp16"), "axolotl", False),
    _row("dtype", "bf16.enabled", flag("bf16"), "deepspeed", False),
    _row("dtype", "fp16.enabled", flag("fp16"), "deepspeed", False),
    _row("dtype", "mixed_precision", words(fp32="no", fp16="fp16", fp16_mixed="fp16", bf16="bf16", bf16_mixed="bf16"),
         "accelerate"),
    _row("dtype", "dtype", lambda value, old: () if value[:4] == "fp16" else spelled(value, old), "torchtune"),
    _row("dtype", "trainer.precision", precision, "lightning", "32-true"),
    _row("dtype", "precision mixed_precision amp_dtype autocast_dtype", precision),
    _row("dtype", "bf16 use_bf16", flag("bf16")),
    _row("dtype", "fp16 use_fp16", flag("fp16")),
    _row("dtype", "use_amp amp", lambda value, old: (value[:4] != "fp32",)),
    _row("weights", "dtype torch_dtype", weights, "trl", "float32"),
    _row("weights", "torch_dtype model_dtype dtype", weights),
    _row("optimizer", "optim", hf_optimizer, "transformers", "adamw_torch_fused"),
    _row("optimizer", "optimizer", hf_optimizer, "axolotl", "adamw_torch_fused"),
    _row("optimizer", "optimizer.class_path optimizer._component_ optimizer._target_ optimizer.name optimizer.type "
         "optimizer_name optimizer_type optimizer optim.name optim.type optim", optimizer),
    _row("checkpointing", "gradient_checkpointing activation_checkpointing", truth, "transformers axolotl", False),
    _row("checkpointing", "gradient_checkpointing", truth, "trl", True),
    _row("checkpointing", "disable_gradient_checkpointing", words(none=True, full=False, selective=False),
         "llamafactory", False),
    _row("checkpointing", "enable_activation_checkpointing", truth, "torchtune", False),
    _row("checkpointing", "fsdp_config.fsdp_activation_checkpointing", truth, "accelerate", NEVER),
    _row("checkpointing", "gradient_checkpointing activation_checkpointing enable_gradient_checkpointing "
         "use_gradient_checkpointing grad_checkpointing use_checkpointing use_checkpoint checkpointing "
         "checkpoint_activations enable_activation_checkpointing", truth),
    _row("sequence", "max_length max_seq_length", of="trl", default=1024),
    _row("sequence", "cutoff_len", of="llamafactory", default=2048),
    _row("sequence", "sequence_len", of="axolotl", default=512),
    _row("sequence", "max_seq_length max_seq_len max_sequence_length sequence_length seq_length seq_len context_length "
         "block_size cutoff_len max_length sequence"),
    _row("images", "max_frames num_frames n_frames frames_per_sample frames max_images num_images images"),
    _row("positives", "num_positives n_positives positives"),
    _row("negatives", "num_negatives n_negatives num_hard_negatives hard_negatives negatives"),
    _row("lora", "lora_r", rank, "trl", 16),
    _row("lora", "use_peft", _adapted(True, False), "trl", False),
    _row("lora", "lora_rank", rank, "llamafactory", 8),
    _row("lora", "finetuning_type", _adapted("lora", "full"), "llamafactory", "lora"),
    _row("lora", "lora_r", rank, "axolotl"),
    _row("lora", "adapter", _adapted("lora", None, "qlora"), "axolotl", None),
    _row("lora", "lora_r lora_rank lora.r lora.rank", rank, "", NEVER),
    _row("lora_targets", "lora_target", of="llamafactory", default="all"),
    _row("lora_targets", "lora_target_modules model.lora_attn_modules lora.target_modules lora.targets"),
    _row("lora_dropout", "lora_dropout", of="trl", default=0.05),
    _row("lora_dropout", "lora_dropout model.lora_dropout lora.dropout", default=0.0),
    _row("all_linear", "lora_target_linear", of="axolotl", default=False),
    _row("lora_mlp", "model.apply_lora_to_mlp", of="torchtune", default=False),
    _row("lora_head", "model.apply_lora_to_output", of="torchtune", default=False),
    _row("builder", "model._component_", of="torchtune"),
    _row("quantize", "load_in_4bit", words(nf4=True, nf4_double=True, int8=False, none=False, gptq=False),
         "trl axolotl", False),
    _row("quantize", "load_in_8bit", words(nf4=False, nf4_double=False, int8=True, none=False, gptq=False),
         "trl axolotl", False),
    _row("quantize", "use_bnb_nested_quant", words(nf4=False, nf4_double=True), "trl", False),
    _row("quantize", "quantization_bit", words(nf4=4, nf4_double=4, int8=8), "llamafactory", None),
    _row("quantize", "double_quantization", words(nf4=False, nf4_double=True), "llamafactory", True),
    _row("quantize", "gptq", words(nf4=False, nf4_double=False, int8=False, gptq=True), "axolotl", False),
    _row("quantize", "bnb_config_kwargs.bnb_4bit_use_double_quant", words(nf4=False, nf4_double=True), "axolotl", True),
    _row("quantize", "adapter", words(nf4="qlora", nf4_double="qlora", int8="lora", gptq="lora"), "axolotl", None),
    _row("quantize", "model.quantize_base", words(nf4_double=True), "torchtune", NEVER),
    _row("quantize", "load_in_4bit", words(nf4=True, nf4_double=True, int8=False, none=False), "", NEVER),
    _row("quantize", "load_in_8bit", words(nf4=False, nf4_double=False, int8=True, none=False), "", NEVER),
    _row("loss", "use_liger_kernel", words(plain=False, fused=True), "transformers", False),
    _row("loss", "enable_liger_kernel", words(plain=False, fused=True), "llamafactory", False),
    _row("loss", "liger_fused_linear_cross_entropy cut_cross_entropy", words(plain=False, fused=True), "axolotl", False),
    _row("loss", "loss._component_", words(fused="torchtune.modules.loss.LinearCrossEntropyLoss"), "torchtune", NEVER),
    _row("offload", "activation_offloading", _ON_OFF, "trl axolotl", False),
    _row("offload", "enable_activation_offloading", _ON_OFF, "torchtune", False),
    _row("states", "zero_optimization.offload_optimizer.device deepspeed_config.offload_optimizer_device"),
    _row("attention", "attn_implementation", _ATTENTION, "", NEVER),
    _row("attention", "flash_attn", words(sdpa=("sdpa", "auto"), eager="disabled", flash=("fa2", "fa3")),
         "llamafactory", "auto"),
    _row("attention", "flash_attention", words(flash=True, sdpa=False, eager=False), "axolotl", NEVER),
    _row("attention", "sdp_attention", words(flash=False, sdpa=True, eager=False), "axolotl", NEVER),
    _row("attention", "eager_attention", words(flash=False, sdpa=False, eager=True), "axolotl", NEVER),
    _row("sharding", "fsdp", words(**_SHARDS), "transformers"),
    _row("sharding", "fsdp_config.reshard_after_forward", words(zero2=False, zero3=True), "transformers axolotl", NEVER),
    _row("sharding", "strategy", words(ddp=("ddp", "auto", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false"),
                                       zero3=("fsdp", "fsdp_native"),
                                       **{"deepspeed_zero%d" % n: ("deepspeed_stage_%d" % n, "deepspeed_stage_%d_offload" % n)
                                          for n in (1, 2, 3)}), "lightning"),
    _row("sharding", "zero_optimization.stage", words(ddp=0, **_STAGES), "deepspeed", 0),
    _row("sharding", "zero_stage", words(ddp=0, **_STAGES)),
    _row("sharding", "distributed_type",
         words(ddp=("MULTI_GPU", "NO", "MULTI_CPU"), zero2="FSDP", zero3="FSDP", **dict.fromkeys(_STAGES, "DEEPSPEED")),
         "accelerate"),
    _row("sharding", "fsdp_config.fsdp_reshard_after_forward fsdp_config.fsdp_sharding_strategy", _RESHARD,
         "accelerate", True),
    _row("sharding", "deepspeed_config.zero_stage", words(**_STAGES), "accelerate", NEVER),
    _row("sharding", "fsdp_reshard_after_forward", words(zero2=False, zero3=True), "torchtune", True),
    _row("deepspeed", "deepspeed deepspeed_config.deepspeed_config_file"),
    _row("world_size", "num_processes", of="accelerate"),
    _row("world_size", "trainer.devices devices num_gpus n_gpus gpus world_size nproc_per_node num_devices n_gpu"),
    _row("nodes", "num_nodes nnodes trainer.num_nodes"),
    _row("graphs", "cuda_graphs use_cuda_graphs use_cudagraphs cudagraphs enable_cuda_graphs torch_compile_mode compile_mode "
         "compile.mode"),
    _row("packing", "packing neat_packing", of="trl llamafactory", default=False),
    _row("packing", "sample_packing", of="axolotl", default=False),
    _row("packing", "dataset.packed", of="torchtune", default=False),
    _row("model", "base_model model_name_or_path model.name_or_path pretrained_model_name_or_path "
         "checkpointer.checkpoint_dir"),
)  # fmt: skip


class Framework(NamedTuple):
    """What tells a framework's files, and what it means beside its keys."""

    name: str
    #: A file with one of these is for it, if it has one of ``besides`` too.
    signature: str
    besides: str = ""
    #: The framework whose keys are its own too.
    base: str = ""
    #: What a dtype alone is to it: "autocast", "weights" or "both".
    plain: str = "autocast"
    #: What to do about a setting that has no key.
    by_hand: Dict[str, str] = {}


_NO_OPTIM = "it takes Transformers' optim, which has no such word; pass optimizers= to the trainer"
FRAMEWORKS: Sequence[Framework] = (
    Framework("axolotl", "base_model", "micro_batch_size sequence_len adapter datasets", plain="both",
              by_hand={"sharding": "set fsdp_version: 2 and fsdp_config, as axolotl's guide of FSDP2 has them"}),
    Framework("llamafactory", "finetuning_type cutoff_len", base="transformers", by_hand={"optimizer": _NO_OPTIM}),
    Framework("trl", "use_peft use_bnb_nested_quant load_in_4bit lora_target_modules packing dataset_text_field "
              "completion_only_loss assistant_only_loss padding_free", "per_device_train_batch_size model_name_or_path",
              "transformers", by_hand={"optimizer": _NO_OPTIM}),
    Framework("transformers", "per_device_train_batch_size", by_hand={
        "optimizer": _NO_OPTIM,
        "dtype": "TrainingArguments' own is for autocast; load the model in that dtype too",
        "lora": "TrainingArguments has no LoRA; adapt the model with PEFT's LoraConfig",
        "quantize": "TrainingArguments has no quantisation; load the model with "
        "quantization_config=BitsAndBytesConfig(…)"}),
    Framework("accelerate", "distributed_type", by_hand={
        "sharding": "FSDP and DeepSpeed have settings of their own: run accelerate config"}),
    Framework("deepspeed", "train_micro_batch_size_per_gpu zero_optimization.stage", plain="weights"),
    Framework("torchtune", "model._component_ optimizer._component_", plain="weights", by_hand={
        "dtype": "torchtune's recipes refuse fp16: plan with bf16 or fp32",
        "quantize": "torchtune's QLoRA is another recipe, with a qlora_… builder",
        "lora": "torchtune's LoRA is another recipe, with a lora_… builder, which has lora_rank",
        "loss": "torchtune 0.6 has no fused loss"}),
    Framework("lightning", "trainer.accumulate_grad_batches trainer.precision trainer.devices trainer.strategy", by_hand={
        "checkpointing": "Lightning leaves it to the model: call memopt.torch.checkpoint",
        "loss": "Lightning leaves it to the model: call torch.nn.functional.linear_cross_entropy with "
        "options=torch.nn.LinearCrossEntropyOptions() (torch 2.15)"}),
)  # fmt: skip

#: Keys that a framework takes only with another one, or a word in it, and what to do.
NEEDS = (
    ("axolotl", "activation_offloading", "gradient_checkpointing", "", "plan with --checkpointing full"),
    ("axolotl", "liger_fused_linear_cross_entropy", "plugins", "LigerPlugin",
     "add axolotl.integrations.liger.LigerPlugin to it"),
    ("axolotl", "cut_cross_entropy", "plugins", "CutCrossEntropyPlugin",
     "add axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin to it"),
    ("torchtune", "enable_activation_offloading", "enable_activation_checkpointing", "",
     "plan with --checkpointing full"),
)  # fmt: skip

#: Keys that change what is alive in ways that are not planned, with the values that do not.
_OTHERS: Dict[str, Tuple[Any, ...]] = {
    **dict.fromkeys(
        "torch_compile compile auto_find_batch_size use_dora peft_use_dora relora lora_modules_to_save "
        "additional_target lora_target_parameters unfrozen_parameters use_galore use_apollo use_badam use_adam_mini "
        "use_muon use_unsloth use_unsloth_gc optim_target_modules fp8 enable_fp8_training bfloat16 float16 "
        "mixture_of_depths ref_model rl reward_model num_generations optimizer_in_bwd fsdp_cpu_offload offload_params "
        "parallelism_config fsdp_offload_params cpu_offload selective_checkpointing chunked_cross_entropy "
        "freeze_vision_tower peft_layers_to_transform".split(),
        (False, None, [], 0),
    ),
    "stage": ("sft", "pt", 0, 1, 2, 3),
    "finetuning_type": ("lora", "full"),
    "quantization_method": ("bnb",),
    "bnb_4bit_quant_type": ("nf4", "fp4"),
    "offload_param_device": ("none", None),
    "offload_param.device": ("none", None),
    "context_parallel_size": (1, None),
    "tensor_parallel_size": (1, None),
    "tensor_parallel_dim": (1, None),
}  # fmt: skip
#: Keys that look as if they were about memory.
_ABOUT = re.compile(
    r"batch_?size|accum|precision|[bf]p?f?(16|32)$|dtype|checkpointing|seq_?len|max_len|devices|(num|n)_?(nodes|gpus)|"
    r"processes|world_size|strategy|num_frames|max_frames"
)
_ELSEWHERE = re.compile(r"eval|val|valid|validation|test|predict|inference|generat(e|ion)|logging|scheduler", re.I)


def parts_of(leaf: Leaf) -> Tuple[str, ...]:
    """A leaf's path, as names have it."""
    return tuple(part.lower().replace("-", "_").rstrip("'") for part in leaf.path)


def ends(leaf: Leaf, name: Sequence[str]) -> bool:
    """Whether a name is the end of the leaf's path."""
    return parts_of(leaf)[-len(name) :] == tuple(name)


def find(leaves: Sequence[Leaf], key: str) -> Optional[Leaf]:
    """The leaf of a key."""
    return next((leaf for leaf in leaves if ends(leaf, key.split("."))), None)


def about_training(leaf: Leaf) -> bool:
    """Not a key of evaluation, or of what else is no step."""
    return not any(re.fullmatch(r"(%s)(_.*)?|.*_(eval|val|test)" % _ELSEWHERE.pattern, part) for part in parts_of(leaf))


def framework_of(leaves: Sequence[Leaf]) -> Optional[Framework]:
    """Whose file it is; None: somebody's own."""
    for one in FRAMEWORKS:
        has = [any(find(leaves, key) for key in keys.split()) for keys in (one.signature, one.besides)]
        if has[0] and (has[1] or not one.besides):
            return one
    return None


def rows_of(framework: Optional[Framework], setting: str) -> List[Row]:
    """The framework's rows of a setting, else those of its base; and those of anybody's keys after them."""
    all_rows = [row for row in ROWS if row.setting == setting]
    for name in (framework.name, framework.base) if framework else ():
        own = [row for row in all_rows if name in row.of]
        if own:
            if framework and name != framework.base:  # a base's other keys are its too
                names = [row.names[0] for row in own]
                base = [r for r in all_rows if framework.base in r.of and r.names[0] not in names]
                own += base if setting in ("dtype", "sharding") else []
            return own + [row for row in all_rows if not row.of and setting not in ("dtype", "lora", "quantize")]
    return [row for row in all_rows if not row.of] or []


def not_counted(leaves: Sequence[Leaf], taken: Sequence[Leaf]) -> Iterator[str]:
    """What matters for memory and is not counted."""
    for leaf in leaves:
        harmless = next((ok for name, ok in _OTHERS.items() if ends(leaf, name.split("."))), None)
        if harmless is not None and leaf.value not in harmless:
            yield "%s: %s" % (leaf.key, leaf.value)
        elif leaf not in taken and harmless is None and about_training(leaf):
            if _ABOUT.search(parts_of(leaf)[-1]) and leaf.value not in (None, False, "auto"):
                yield "%s: %s" % (leaf.key, leaf.value)
