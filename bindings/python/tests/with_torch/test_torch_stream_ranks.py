"""stream_weights(train="host") in several processes: what DistributedDataParallel gives."""

from __future__ import annotations

from typing import Any, List

import torch
from distributed_support import Group

import memopt.torch as mt

from stream_models import COUNT, LAYER, stack


def _trained(rank: int, streams: bool, differ: bool, accumulate: int) -> List[torch.Tensor]:
    """Weights after some steps; processes have other data, and may begin with other weights."""
    from torch.nn.parallel import DistributedDataParallel

    body, _ = stack(None)
    model = torch.nn.Sequential(body, torch.nn.Linear(32, 3))
    if differ and rank:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.5)
    stream = mt.stream_weights(body, 2 * LAYER, train="host") if streams else None
    if stream is not None:
        stream.ignore_in_ddp(model)
    whole: Any = DistributedDataParallel(model)
    hosted = dict(stream.named_parameters()) if stream else {}
    parameters = [hosted.get(name[2:], p) for name, p in model.named_parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(rank))
    for _ in range(3):
        for _ in range(accumulate):
            whole(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [value.clone() for value in model.state_dict().values()]


def test_two_processes(two: Group) -> None:
    for differ, accumulate in ((False, 1), (True, 2)):
        plain = two.run(_trained, False, differ, accumulate)
        streamed = two.run(_trained, True, differ, accumulate)
        assert len(plain[0]) > COUNT
        for one, other in zip([*plain, plain[0]], [*streamed, streamed[1]]):
            assert all(map(torch.equal, one, other))
