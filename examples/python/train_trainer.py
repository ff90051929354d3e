"""Hugging Face's Trainer with an optimizer and savers of memopt.torch.

    pip install ./bindings/python torch transformers accelerate
    python examples/python/train_trainer.py --model llama

The optimizer goes to `optimizers=` with a schedule of the learning rate; gradients are clipped by the
Trainer, which saves a checkpoint half way. A third run resumes from that checkpoint and must give the
same losses bit for bit.
"""

import sys
import tempfile

import common
import torch
from transformers import PrinterCallback, Trainer, TrainingArguments


class SavingTrainer(Trainer):
    """A Trainer whose models are called under savers."""

    savers = None

    def compute_loss(self, model, inputs, **others):
        with self.savers.forward():
            return super().compute_loss(model, inputs, **others)


def train(options, savers, folder, resume=None):
    """One run, or its second half from a checkpoint on."""
    model = savers.attach(common.make_model(options.model))
    optimizer = savers.make_optimizer(model.parameters(), options.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, common.warmup_and_cosine(options.steps))
    data = common.Windows(
        common.read_text(options.text), options.model, options.steps * options.batch
    )
    batch = torch.utils.data.default_collate([data[i] for i in range(options.batch)])
    activations = common.measure(model.train(), batch, savers, common.autocast(options))
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        max_grad_norm=1.0,
        bf16=options.dtype == "bfloat16",
        save_steps=options.steps // 2,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        use_cpu=True,
        seed=3,
        disable_tqdm=not sys.stderr.isatty(),
    )
    trainer = SavingTrainer(model, arguments, train_dataset=data, optimizers=(optimizer, schedule))
    trainer.savers = savers
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "losses": [entry["loss"] for entry in history],
        "rates": [entry["learning_rate"] for entry in history],
        "norms": [float(entry["grad_norm"]) for entry in history],
        "state": common.state_bytes(optimizer),
        "activations": activations,
        "parameters": sum(p.numel() for p in model.parameters()),
        "digest": common.digest(model),
    }


def main():
    parser = common.parser_of(__doc__)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("two halves need two steps")
    torch.set_num_threads(options.threads)
    plain, ours = common.Savers.pair(options)
    with tempfile.TemporaryDirectory() as folder:
        theirs = train(options, plain, folder + "/plain")
        mine = train(options, ours, folder + "/memopt")
        half = options.steps // 2
        again = train(options, ours, folder + "/again", "%s/memopt/checkpoint-%d" % (folder, half))
    more = {
        "the schedule sets the learning rate": mine["rates"] == theirs["rates"]
        and len(set(mine["rates"])) > 1,
        "gradients are clipped": max(mine["norms"]) > 1.0,
        "resuming gives the same losses": again["losses"][-half:] == mine["losses"][-half:],
        "and the same parameters": again["digest"] == mine["digest"],
    }
    return common.report(options, theirs, mine, more)


if __name__ == "__main__":
    sys.exit(main())
