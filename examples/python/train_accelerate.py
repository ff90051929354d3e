"""accelerate with an optimizer and savers of memopt.torch.

    pip install ./bindings/python torch transformers accelerate
    python examples/python/train_accelerate.py --model llama

`prepare` wraps the optimizer; `backward`, `clip_grad_norm_`, gradient accumulation over two batches
and `save_state` are accelerate's. A third run loads the state that the second saved half way, and must
give the same losses bit for bit.
"""

import sys
import tempfile

import common
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed


def train(options, savers, folder, title, resume=False):
    """One run, or its second half from a saved state on."""
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="bf16" if options.dtype == "bfloat16" else "no",
        gradient_accumulation_steps=2,
        step_scheduler_with_optimizer=False,
    )
    model = savers.attach(common.make_model(options.model).train())
    optimizer = savers.make_optimizer(model.parameters(), options.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, common.warmup_and_cosine(options.steps))
    data = common.Windows(
        common.read_text(options.text), options.model, options.steps * options.batch
    )
    loader = torch.utils.data.DataLoader(data, batch_size=options.batch // 2)
    batches = list(loader)
    activations = common.measure(model, batches[0], savers, common.autocast(options))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    set_seed(3)
    half, losses = options.steps // 2, []
    if resume:
        accelerator.load_state(folder)
    for step in common.progress(options.steps, title):
        if resume and step < half:
            continue
        total = 0.0
        for batch in batches[2 * step : 2 * step + 2]:
            with accelerator.accumulate(model):
                with savers.forward():
                    loss = model(**batch)["loss"]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item() / 2
        schedule.step()
        losses.append(total)
        if step + 1 == half and folder and not resume:
            accelerator.save_state(folder)
    return {
        "losses": losses,
        "state": common.state_bytes(optimizer.optimizer),
        "activations": activations,
        "parameters": sum(p.numel() for p in model.parameters()),
        "digest": common.digest(model),
    }


def main():
    parser = common.parser_of(__doc__)
    options = parser.parse_args()
    if options.steps < 2 or options.batch < 2:
        parser.error("there are two halves, and batches are taken in two parts")
    torch.set_num_threads(options.threads)
    plain, ours = common.Savers.pair(options)
    with tempfile.TemporaryDirectory() as folder:
        theirs = train(options, plain, None, "plain")
        mine = train(options, ours, folder, "memopt")
        again = train(options, ours, folder, "again", resume=True)
    more = {
        "resuming gives the same losses": again["losses"] == mine["losses"][options.steps // 2 :],
        "and the same parameters": again["digest"] == mine["digest"],
    }
    return common.report(options, theirs, mine, more)


if __name__ == "__main__":
    sys.exit(main())
