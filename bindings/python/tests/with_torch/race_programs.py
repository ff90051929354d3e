"""Programs without a stream mistake, for a device that is called "cuda". The packages are imported by their users."""

from __future__ import annotations

import pathlib
from typing import Any, Callable, Iterator

import torch
from torch import nn

WIDTH = 32


def trained(model: nn.Module, batches: Iterator[Any], loss_of: Callable[[nn.Module, Any], torch.Tensor]) -> None:
    model.to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() > 0


def tokens(count: int = 2) -> Iterator[torch.Tensor]:
    for _ in range(count):
        yield torch.randint(0, 100, (2, 16)).pin_memory().to("cuda", non_blocking=True)


def language_model(name: str) -> nn.Module:
    import transformers

    if name == "gpt2":
        size = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32}
        config = transformers.GPT2Config(vocab_size=100, bos_token_id=0, eos_token_id=0, **size)
        return transformers.GPT2LMHeadModel(config)
    size = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "max_position_embeddings": 32}
    size.update(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    config = transformers.LlamaConfig(vocab_size=100, pad_token_id=0, bos_token_id=0, eos_token_id=0, **size)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> None:
    """With checkpoints of its blocks, and the model's own generation."""
    model = language_model("gpt2")
    model.gradient_checkpointing_enable()
    trained(model, tokens(), lambda model, x: model(input_ids=x, labels=x).loss)
    model.eval().generate(next(tokens()), max_new_tokens=3, do_sample=False, pad_token_id=0)


def llama() -> None:
    trained(language_model("llama"), tokens(), lambda model, x: model(input_ids=x, labels=x).loss)


def llama_with_scaler() -> None:
    """Half precision, a scaler, and torch's own offloading of activations."""
    model = language_model("llama").to("cuda")
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.amp.GradScaler("cuda")
    for x in tokens():
        with torch.autograd.graph.save_on_cpu(pin_memory=True), torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=x, labels=x).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def vit() -> None:
    import transformers

    size = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": WIDTH}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=8, **size))
    images = [torch.rand(2, 3, 16, 16).pin_memory() for _ in range(2)]

    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        labels = torch.zeros(2, dtype=torch.long, device="cuda")
        return model(x.to("cuda", non_blocking=True), labels=labels).loss

    trained(model, iter(images), loss_of)


def llama_with_lora() -> None:
    import peft

    model = peft.get_peft_model(language_model("llama"), peft.LoraConfig(target_modules=["q_proj", "v_proj"]))
    trained(model, tokens(), lambda model, x: model(input_ids=x, labels=x).loss)


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Tokens, as transformers' data."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        row = torch.arange(i, i + 16) % 100
        return {"input_ids": row, "labels": row}


def loader() -> None:
    """Pinned batches, and the next one on a side stream while this one is used."""
    model, side = nn.Linear(16, 1), torch.cuda.Stream()

    def ahead() -> Iterator[torch.Tensor]:
        ready = None
        batches = torch.utils.data.DataLoader(Rows(), batch_size=2, pin_memory=True)
        for batch in batches:
            with torch.cuda.stream(side):
                following = batch["input_ids"].to("cuda", non_blocking=True)
            if ready is not None:
                yield ready
            torch.cuda.current_stream().wait_stream(side)
            following.record_stream(torch.cuda.current_stream())
            ready = following
        yield ready

    trained(model, ahead(), lambda model, x: model(x.float()).square().mean() + 1)


TRAINING = {"max_steps": 2, "per_device_train_batch_size": 2, "save_strategy": "no", "report_to": []}


def trainer(folder: pathlib.Path) -> None:
    import transformers

    arguments = transformers.TrainingArguments(str(folder), gradient_accumulation_steps=2, logging_steps=1, **TRAINING)
    made = transformers.Trainer(model=language_model("gpt2"), args=arguments, train_dataset=Rows())
    assert made.args.device.type == "cuda"
    made.train()


def accelerated(_: pathlib.Path) -> None:
    import accelerate

    accelerator = accelerate.Accelerator()
    assert accelerator.device.type == "cuda"
    model = language_model("gpt2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.DataLoader(Rows(), batch_size=2, pin_memory=True)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


def lightning(folder: pathlib.Path) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = language_model("gpt2")

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            assert batch["input_ids"].is_cuda
            return self.model(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    quiet = dict.fromkeys("logger enable_checkpointing enable_progress_bar enable_model_summary".split(), False)
    run = pl.Trainer(accelerator="gpu", devices=1, max_steps=2, default_root_dir=folder, **quiet)
    run.fit(Module(), torch.utils.data.DataLoader(Rows(), batch_size=2, pin_memory=True))


def fine_tuned(folder: pathlib.Path) -> None:
    """With TRL's own offloading of activations."""
    import datasets
    import tokenizers
    import transformers
    import trl

    words = tokenizers.models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), pad_token="<pad>", eos_token="</s>"
    )
    arguments = trl.SFTConfig(str(folder), activation_offloading=True, bf16=False, **TRAINING)
    rows = datasets.Dataset.from_list([{"input_ids": [*range(i, i + 16)]} for i in range(4, 12)])
    made = trl.SFTTrainer(language_model("llama"), arguments, train_dataset=rows, processing_class=tokenizer)
    assert made.args.device.type == "cuda"
    made.train()


FRAMEWORKS = {"transformers": trainer, "accelerate": accelerated, "lightning": lightning, "trl": fine_tuned}


def fsdp(rank: int, meeting: str) -> int:
    """FSDP2 on two processes, with gloo in the place of NCCL. Returns how many reports there are."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from race_cases import find

    def program() -> None:
        dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        model.to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            model(torch.rand(4, WIDTH, device="cuda")).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    return len(find(program))
