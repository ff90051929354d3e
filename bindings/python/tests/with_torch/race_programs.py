"""Programs without a stream mistake, for a device that is called "cuda". The packages are imported by their users."""

from __future__ import annotations

import pathlib
from typing import Any, Iterator

import fit_models
import torch
from torch import nn

WIDTH = 32
SIZES = {"layers": 2, "width": WIDTH, "length": 32, "words": 100}


def tokens() -> Iterator[torch.Tensor]:
    for _ in range(2):
        yield torch.randint(0, 100, (2, 16)).pin_memory().to("cuda", non_blocking=True)


def gpt2() -> None:
    """With checkpoints of its blocks, and the model's own generation."""
    model = fit_models.gpt2(**SIZES)[0].to("cuda")
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x in tokens():
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() > 0
    model.eval().generate(next(tokens()), max_new_tokens=3, do_sample=False, pad_token_id=0)


def llama_with_scaler() -> None:
    """Half precision, a scaler, and torch's own offloading of activations."""
    model = fit_models.llama(**SIZES)[0].to("cuda")
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.amp.GradScaler("cuda")
    for x in tokens():
        with torch.autograd.graph.save_on_cpu(pin_memory=True), torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=x, labels=x).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Tokens, as transformers' data."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        row = torch.arange(i, i + 16) % 100
        return {"input_ids": row, "labels": row}


def trainer(folder: pathlib.Path) -> None:
    import transformers

    arguments = transformers.TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=1,
        save_strategy="no", report_to=[],
    )  # fmt: skip
    made = transformers.Trainer(model=fit_models.gpt2(**SIZES)[0], args=arguments, train_dataset=Rows())
    assert made.args.device.type == "cuda"
    made.train()


def lightning(folder: pathlib.Path) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = fit_models.gpt2(**SIZES)[0]

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            assert batch["input_ids"].is_cuda
            return self.model(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    quiet = dict.fromkeys("logger enable_checkpointing enable_progress_bar enable_model_summary".split(), False)
    run = pl.Trainer(accelerator="gpu", devices=1, max_steps=2, default_root_dir=folder, **quiet)
    run.fit(Module(), torch.utils.data.DataLoader(Rows(), batch_size=2, pin_memory=True))


FRAMEWORKS = {"transformers": trainer, "lightning": lightning}


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
