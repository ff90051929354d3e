"""Lightning with an optimizer and savers of memopt.torch.

    pip install ./bindings/python torch transformers lightning
    python examples/python/train_lightning.py --dtype bfloat16

Automatic optimization, clipping and checkpoints are Lightning's; `--dtype bfloat16` takes its precision
plugin "bf16-mixed". A third run restores the checkpoint of half way, and must give the same losses bit
for bit.
"""

import itertools
import logging
import sys
import tempfile
import warnings

import common
import lightning
import memopt.torch as mt
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Loader(torch.utils.data.DataLoader):
    """Continues where a checkpoint was made: Lightning saves the state of a loader that has one."""

    taken = 0

    def __iter__(self):
        for batch in itertools.islice(super().__iter__(), self.taken, None):
            self.taken += 1
            yield batch

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken = state["taken"]


class Training(lightning.LightningModule):
    """A model with its optimizer and savers."""

    def __init__(self, options, savers):
        super().__init__()
        self.options, self.savers = options, savers
        self.model = savers.attach(common.make_model(options.model))
        self.losses = []
        self.random = None

    def training_step(self, batch, index):
        with self.savers.forward():
            loss = self.model(**batch)["loss"]
        self.losses.append(loss.item())
        return loss

    def on_save_checkpoint(self, checkpoint):
        checkpoint["random"] = torch.get_rng_state()  # of dropout; Lightning leaves it to us

    def on_load_checkpoint(self, checkpoint):
        self.random = checkpoint["random"]

    def on_train_batch_start(self, batch, index):
        if self.random is not None:
            torch.set_rng_state(self.random)
            self.random = None

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, **others):
        # With "bf16-mixed" Lightning's own clipping refuses optimizers that can take a GradScaler's
        # scale (torch's with fused=True as well), though no scale is there.
        mt.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def configure_optimizers(self):
        optimizer = self.savers.make_optimizer(self.model.parameters(), self.options.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, common.warmup_and_cosine(self.options.steps)
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(options, savers, folder, resume=None):
    """One run, or its second half from a checkpoint on."""
    module = Training(options, savers).train()
    data = common.Windows(
        common.read_text(options.text), options.model, options.steps * options.batch
    )
    loader = Loader(data, batch_size=options.batch)
    batch = torch.utils.data.default_collate([data[i] for i in range(options.batch)])
    activations = common.measure(module.model, batch, savers, common.autocast(options))
    half = options.steps // 2
    trainer = lightning.Trainer(
        accelerator="cpu",
        precision="bf16-mixed" if options.dtype == "bfloat16" else "32-true",
        max_steps=options.steps,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=half, save_top_k=-1)],
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stderr.isatty(),
        default_root_dir=folder,
    )
    lightning.seed_everything(3, verbose=False)
    trainer.fit(module, loader, ckpt_path=resume, weights_only=False)
    return {
        "losses": module.losses,
        "state": common.state_bytes(trainer.optimizers[0]),
        "activations": activations,
        "parameters": sum(p.numel() for p in module.model.parameters()),
        "digest": common.digest(module.model),
    }


def main():
    options = common.parser_of(__doc__).parse_args()
    if options.steps < 2:
        raise SystemExit("two halves need two steps")
    torch.set_num_threads(options.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    plain, ours = common.Savers.pair(options)
    half = options.steps // 2
    with tempfile.TemporaryDirectory() as folder:
        theirs = train(options, plain, folder + "/plain")
        mine = train(options, ours, folder + "/memopt")
        again = train(options, ours, folder + "/again", "%s/memopt/step=%d.ckpt" % (folder, half))
    more = {
        "restoring gives the same losses": again["losses"] == mine["losses"][half:],
        "and the same parameters": again["digest"] == mine["digest"],
    }
    return common.report(options, theirs, mine, more)


if __name__ == "__main__":
    sys.exit(main())
