"""What the training programs of this folder share: text, models, savers, measuring, and the report.

Each program trains the same model twice from the same seed: as plain PyTorch would, and with the
savers of `memopt.torch` that its options name. Then it compares the losses and what memory took.
"""

import argparse
import contextlib
import hashlib
import json
import math
import pathlib
import sys
import time

import memopt.torch as mt
import torch
from gpt_block import Block
from memopt.torch._live_bytes import LiveBytes
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTEXT, IMAGE = 64, 24
OPTIMIZERS = (
    "AdamW",
    "AdamW8bit",
    "AdamW4bit",
    "Lion8bit",
    "SGD8bit",
)
MODELS = ("gpt", "gpt2", "llama", "mixtral", "vit")


# --- data -----------------------------------------------------------------------------------------


def read_text(path=None):
    """The bytes of a file, or this repository's own documents, headers and Python sources."""
    if path:
        return pathlib.Path(path).read_bytes()
    patterns = ("README.md", "docs/**/*.md", "include/**/*.h", "bindings/python/memopt/**/*.py")
    files = sorted(file for pattern in patterns for file in ROOT.glob(pattern))
    return b"\n".join(file.read_bytes() for file in files)[: 1 << 20]


class Windows(torch.utils.data.Dataset):
    """Windows of the text; number i is the same in every run.

    For language models a row of bytes, which are also the labels (the models shift them by one).
    For "vit" the bytes are an image's grey levels, and the label is how many of them are blanks: of
    four classes of the same size.
    """

    def __init__(self, text, model, count, seed=2):
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.images = model == "vit"
        self.length = IMAGE * IMAGE if self.images else CONTEXT
        if len(self.bytes) <= self.length:
            raise SystemExit("the text has %d bytes; it needs more" % len(self.bytes))
        generator = torch.Generator().manual_seed(seed)
        self.starts = torch.randint(
            len(self.bytes) - self.length, (count,), generator=generator
        ).tolist()
        if self.images:
            counts = torch.stack([self.blanks(start) for start in self.starts]).float()
            self.bounds = counts.quantile(torch.tensor([0.25, 0.5, 0.75]))

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        start = self.starts[index]
        row = self.bytes[start : start + self.length]
        if not self.images:
            return {"input_ids": row, "labels": row}
        grey = (row.float() / 64 - 1).view(1, IMAGE, IMAGE).expand(3, -1, -1)
        return {"pixel_values": grey, "labels": int((self.blanks(start) > self.bounds).sum())}

    def blanks(self, start):
        """How many blanks an image has."""
        return (self.bytes[start : start + self.length] == ord(" ")).sum()


# --- models ---------------------------------------------------------------------------------------


class GPT(nn.Module):
    """A byte-level transformer; called as the models of `transformers` are."""

    def __init__(self, width=96, heads=4, layers=6, dropout=0.1):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, input_ids, labels):
        x = self.token(input_ids) + self.place.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def make_model(name, seed=1):
    """A small model with random weights: ours, or one of `transformers`."""
    torch.manual_seed(seed)
    if name == "gpt":
        return GPT()
    import transformers as hf

    text = dict(vocab_size=256, bos_token_id=0, eos_token_id=0, pad_token_id=None, use_cache=False)
    sizes = dict(hidden_size=96, num_hidden_layers=4, num_attention_heads=4)
    groups = dict(num_key_value_heads=2, max_position_embeddings=CONTEXT)
    if name == "gpt2":
        config = hf.GPT2Config(n_positions=CONTEXT, n_embd=96, n_layer=4, n_head=4, **text)
        return hf.GPT2LMHeadModel(config)
    if name == "llama":
        config = hf.LlamaConfig(intermediate_size=256, **sizes, **groups, **text)
        return hf.LlamaForCausalLM(config)
    if name == "mixtral":
        experts = dict(num_local_experts=4, num_experts_per_tok=2)
        config = hf.MixtralConfig(intermediate_size=128, **experts, **sizes, **groups, **text)
        return hf.MixtralForCausalLM(config)
    config = hf.ViTConfig(
        image_size=IMAGE, patch_size=4, intermediate_size=256, num_labels=4, **sizes
    )
    return hf.ViTForImageClassification(config)


# --- savers ---------------------------------------------------------------------------------------


class Stage(nn.Module):
    """A layer that takes more than one tensor, as a module of one tensor."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.others = ((), {})

    def forward(self, x):
        arguments, keywords = self.others
        return self.layer(x, *arguments, **keywords)


class Chain(nn.Module):
    """The layers of a model as one module that runs them within a byte budget."""

    def __init__(self, layers, budget):
        super().__init__()
        self.stages = nn.ModuleList(map(Stage, layers))
        self.budget = budget

    def forward(self, x, *arguments, **keywords):
        for stage in self.stages:
            stage.others = (arguments, keywords)  # masks and positions: the same for all layers
        return mt.checkpoint_sequential(self.stages, x, budget=self.budget)


class Savers:
    """Which savers a run uses."""

    def __init__(self, optimizer=None, offload=False, checkpoint="none", budget=None, scaler=None):
        self.optimizer = optimizer
        self.checkpoint = checkpoint
        self.budget = budget
        self.offload = mt.save_on_cpu() if offload else contextlib.nullcontext()
        self.scaler_class = mt.GradScaler if scaler == "memopt" else torch.amp.GradScaler
        self.scales = scaler is not None

    @classmethod
    def pair(cls, options):
        """Those of the plain run, and those that the options name."""
        if options.lr is None:
            options.lr = 5e-4 if options.model == "vit" else 2e-3
        scaler = getattr(options, "grad_scaler", False)
        optimizer = options.optimizer if options.optimizer != "torch" else None
        ours = cls(
            optimizer,
            options.save_on_cpu,
            options.checkpoint,
            options.budget,
            "memopt" if scaler else None,
        )
        plain = cls(scaler="torch" if scaler else None)
        plain.like = optimizer  # the algorithm that ours is to be compared with
        return plain, ours

    def attach(self, model):
        """Makes the model's layers run again in backward, if wanted."""
        parent, name, layers = layers_of(model)
        if self.checkpoint == "layers":
            mt.attach_checkpoint(layers)
        elif self.checkpoint == "budget":
            setattr(parent, name, nn.ModuleList([Chain(layers, self.budget)]))
        return model

    def forward(self):
        """The context in which the model is called."""
        return self.offload

    def make_optimizer(self, parameters, lr):
        if self.optimizer:
            return getattr(mt, self.optimizer)(parameters, **arguments_of(self.optimizer, lr))
        like = getattr(self, "like", None) or "AdamW"
        if like.startswith("Lion"):  # torch has none: ours with 32-bit states
            return mt.Lion(parameters, **arguments_of(like, lr))
        kind = torch.optim.SGD if like.startswith("SGD") else torch.optim.AdamW
        return kind(parameters, **arguments_of(like, lr))

    def make_scaler(self, device):
        return self.scaler_class(device, init_scale=2.0**12, enabled=self.scales)


def arguments_of(optimizer, lr):
    """Learning rates are given for AdamW; others want other ones."""
    if optimizer.startswith("Lion"):
        return dict(lr=lr / 5, weight_decay=0.1)
    if optimizer.startswith("SGD"):
        return dict(lr=lr * 20, momentum=0.9)
    return dict(lr=lr, betas=(0.9, 0.95), weight_decay=0.1)


def layers_of(model):
    """The list of a model's layers: its parent, its name and itself."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) > 1:
                return parent, name, child
    raise SystemExit("the model has no list of layers")


def warmup_and_cosine(steps):
    """The learning rate's factor for each step."""

    def factor(step):
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return min(1.0, (step + 1) / 5) * (0.1 + 0.9 * cosine)

    return factor


# --- measuring ------------------------------------------------------------------------------------


def state_bytes(optimizer):
    """What an optimizer's states take."""
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def digest(model):
    """The parameters' bits, in short."""
    sums = hashlib.sha256()
    for parameter in model.parameters():
        sums.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return sums.hexdigest()


def measure(model, batch, savers, context=contextlib.nullcontext):
    """One forward and backward whose gradients are dropped: bytes that wait for backward.

    `device`: in tensors, `host`: in save_on_cpu's memory; `peak`: the most in tensors. On the CPU
    both are the machine's memory; on a GPU `host` is not the GPU's.
    """
    known = [*model.parameters(), *model.buffers(), *batch.values()]

    def run():
        with savers.forward(), context():
            return model(**batch)["loss"]

    with torch.random.fork_rng():
        run().backward()  # the chain is measured, caches are filled
        model.zero_grad(set_to_none=True)
        with LiveBytes(known) as live:
            loss = run()
            device = live.live
            offloaded = isinstance(savers.offload, mt.save_on_cpu)
            host = savers.offload.stats()["host_bytes_used"] if offloaded else 0
            loss.backward()
        model.zero_grad(set_to_none=True)
    return {"device": device, "host": host, "peak": live.peak}


def autocast(options, device="cpu"):
    """A function that makes the context of the chosen type."""
    dtype = getattr(torch, options.dtype)
    return lambda: torch.autocast(device, dtype=dtype, enabled=dtype is not torch.float32)


# --- command line and report ----------------------------------------------------------------------


def parser_of(document, **defaults):
    """The options that all programs have."""
    parser = argparse.ArgumentParser(description=document.partition("\n\n")[0])
    on_off = argparse.BooleanOptionalAction
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--optimizer", choices=("torch", *OPTIMIZERS), default="AdamW8bit")
    parser.add_argument("--save-on-cpu", action=on_off, default=True)
    parser.add_argument("--checkpoint", choices=("none", "layers", "budget"), default="layers")
    parser.add_argument("--budget", default="12MiB", help="for --checkpoint budget")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, help="AdamW's (others': see common.py); 2e-3, vit 5e-4")
    parser.add_argument("--text", help="train on this file instead of the repository's own text")
    parser.add_argument("--threads", type=int, default=1, help="more do not help models so small")
    parser.add_argument("--json", help="write the results to this file")
    parser.set_defaults(**defaults)
    return parser


def tolerance(options):
    """How far the losses may be from the plain run's, each step's and the mean of the last tenth.

    Recomputing, offloading and scaling by powers of two change no bit; codes do.
    """
    if options.optimizer == "torch":
        return {"step": 0.0, "tail": 0.0}
    if options.optimizer == "AdamW":  # the same formula, rounded in another order
        return {"step": 0.02, "tail": 0.01}
    return {"step": 0.08, "tail": 0.02}


def progress(steps, title):
    """range(steps), with a bar where someone watches."""
    watched = sys.stderr.isatty()
    begin = time.perf_counter()
    for step in range(steps):
        yield step
        if watched:
            bar = "#" * (30 * (step + 1) // steps)
            rate = (step + 1) / (time.perf_counter() - begin)
            print(
                "\r%-8s [%-30s] %d/%d  %.1f steps/s " % (title, bar, step + 1, steps, rate),
                end="\n" if step + 1 == steps else "",
                file=sys.stderr,
                flush=True,
            )


def report(options, plain, ours, more=None):
    """Prints both runs and what was saved; the exit status: 0 if all checks hold.

    A run is a dict: losses, state (bytes), activations (of `measure`), parameters (their number).
    `more` has further checks by their text.
    """
    limit = tolerance(options)
    steps = len(ours["losses"])
    tail, quarter = max(1, steps // 10), max(1, steps // 4)
    ends = [sum(run["losses"][-tail:]) / tail for run in (plain, ours)]
    mine = ours["losses"]
    begin, end = sum(mine[:quarter]) / quarter, sum(mine[-quarter:]) / quarter
    off = max(
        abs(a - b) / abs(a) if math.isfinite(b) else math.inf
        for a, b in zip(plain["losses"], ours["losses"])
    )
    _print_losses(options, plain, ours)
    _print_bytes(plain, ours)
    print("\n  mean loss of the last %d: %.4f and %.4f; furthest step: %.2g" % (tail, *ends, off))
    checks = {
        "both runs took all steps": len(plain["losses"]) == steps == options.steps,
        "the loss falls": end < begin,  # batches differ: as many at both ends
        "every loss within %g %% of plain" % (100 * limit["step"]): off <= limit["step"],
        "the end within %g %% of plain" % (100 * limit["tail"]): ends[1]
        <= ends[0] * (1 + limit["tail"]),
        **_saving_checks(options, plain, ours),
        **(more or {}),
    }
    for text, holds in checks.items():
        print("  %s  %s" % ("yes" if holds else "NO ", text))
    if options.json:
        result = {"options": vars(options), "plain": plain, "ours": ours, "checks": checks}
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1))
    return 0 if all(checks.values()) else 1


def _saving_checks(options, plain, ours):
    checks = {}
    if options.optimizer.endswith(("8bit", "4bit")):
        checks["the states take less than a third"] = ours["state"] < plain["state"] / 3
    theirs, mine = plain["activations"], ours["activations"]
    if options.save_on_cpu or options.checkpoint != "none":
        checks["less waits for backward on the device"] = mine["device"] < 0.6 * theirs["device"]
    if options.checkpoint != "none":
        kept = mine["device"] + mine["host"]
        checks["and less in all"] = kept < 0.6 * (theirs["device"] + theirs["host"])
    return checks


def _print_losses(options, plain, ours):
    print("%s, %d parameters, %d steps\n" % (options.model, ours["parameters"], options.steps))
    print("  step        plain      memopt")
    steps = len(ours["losses"])
    for step in sorted({*range(0, steps, max(1, steps // 8)), steps - 1}):
        print("  %4d  %11.4f %11.4f" % (step, plain["losses"][step], ours["losses"][step]))


def _print_bytes(plain, ours):
    print("\n  bytes                              plain       memopt")
    rows = {
        "optimizer states": (plain["state"], ours["state"]),
        "for backward, on the device": (
            plain["activations"]["device"],
            ours["activations"]["device"],
        ),
        "for backward, on the host": (plain["activations"]["host"], ours["activations"]["host"]),
        "peak of a step, on the device": (
            plain["activations"]["peak"],
            ours["activations"]["peak"],
        ),
    }
    for name, (theirs, mine) in rows.items():
        part = "  %3.0f %%" % (100 * mine / theirs) if theirs else ""
        print("  %-30s %12s %12s%s" % (name, "{:,}".format(theirs), "{:,}".format(mine), part))
