"""DistributedDataParallel with an optimizer and savers of memopt.torch.

    pip install ./bindings/python torch transformers
    torchrun --nproc-per-node 2 examples/python/train_ddp.py

Each process sees its part of the batches (gloo on the CPU); the gradients are averaged in backward, and
every process makes the same step: their parameters stay the same bit for bit.
"""

import sys
import time

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(options, savers, title):
    """One run; the losses are the mean over all processes."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = savers.attach(common.make_model(options.model).train())
    data = common.Windows(
        common.read_text(options.text), options.model, options.steps * options.batch
    )
    sampler = torch.utils.data.DistributedSampler(data, world, rank, shuffle=False)
    loader = torch.utils.data.DataLoader(data, options.batch // world, sampler=sampler)
    batches = list(loader)
    autocast = common.autocast(options)
    activations = common.measure(model, batches[0], savers, autocast)
    model = DistributedDataParallel(model, find_unused_parameters=options.model == "mixtral")
    optimizer = savers.make_optimizer(model.parameters(), options.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, common.warmup_and_cosine(options.steps))
    losses = []
    torch.manual_seed(3 + rank)
    for step in common.progress(options.steps, title) if rank == 0 else range(options.steps):
        optimizer.zero_grad(set_to_none=True)
        with savers.forward(), autocast():
            loss = model(**batches[step])["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    digests = [None] * world
    dist.all_gather_object(digests, common.digest(model))
    return {
        "losses": losses,
        "state": common.state_bytes(optimizer),
        "activations": activations,
        "parameters": sum(p.numel() for p in model.parameters()),
        "digests": digests,
    }


def main():
    options = common.parser_of(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo")
    plain, ours = common.Savers.pair(options)
    theirs, mine = train(options, plain, "plain"), train(options, ours, "memopt")
    status = 0
    if dist.get_rank() == 0:
        world = dist.get_world_size()
        same = len(mine["digests"]) == world and len(set(mine["digests"])) == 1
        more = {"the parameters of all %d processes are the same" % world: same}
        status = common.report(options, theirs, mine, more)
    dist.barrier()
    time.sleep(0.5)  # gloo's threads drop their last work; at exit torch 2.15 would abort
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
