"""A plain PyTorch loop, with each saver of memopt.torch switched on or off by an option.

    pip install ./bindings/python torch transformers
    python examples/python/train_gpt.py
    python examples/python/train_gpt.py --model mixtral --checkpoint budget --budget 1MiB
    python examples/python/train_gpt.py --optimizer torch --no-save-on-cpu --checkpoint layers

The model `gpt` needs no transformers. It prints both loss curves and what memory took, and fails
(exit status 1) unless the run with savers learns as the plain one does, within the tolerance that
common.py states, and its memory is smaller.
"""

import sys
import time

import common
import torch


def train(options, savers, title):
    """One run: losses, bytes and seconds."""
    model = savers.attach(common.make_model(options.model).train()).to(options.device)
    optimizer = savers.make_optimizer(model.parameters(), options.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, common.warmup_and_cosine(options.steps))
    scaler = savers.make_scaler(options.device)
    data = common.Windows(
        common.read_text(options.text), options.model, options.steps * options.batch
    )
    loader = torch.utils.data.DataLoader(data, batch_size=options.batch)
    batches = [{k: v.to(options.device) for k, v in batch.items()} for batch in loader]
    autocast = common.autocast(options, options.device)
    activations = common.measure(model, batches[0], savers, autocast)

    losses, begin = [], time.perf_counter()
    for step in common.progress(options.steps, title):
        optimizer.zero_grad(set_to_none=True)
        with savers.forward(), autocast():
            loss = model(**batches[step])["loss"]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.item())
    return {
        "losses": losses,
        "seconds": time.perf_counter() - begin,
        "state": common.state_bytes(optimizer),
        "activations": activations,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def main():
    parser = common.parser_of(__doc__)
    parser.add_argument("--grad-scaler", action=common.argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain, ours = common.Savers.pair(options)
    theirs, mine = train(options, plain, "plain"), train(options, ours, "memopt")
    status = common.report(options, theirs, mine)
    print("  %.2f and %.2f seconds" % (theirs["seconds"], mine["seconds"]))
    return status


if __name__ == "__main__":
    sys.exit(main())
