"""Counts the bytes of a training step, every tensor of it, by category."""

from typing import Dict, NamedTuple, Tuple

import torch
from memopt.torch._recorder import Account, Recorder
from memopt.torch._step import states_of

from .models import head_of
from .training import Trainer

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits")
_PHASES = ("forward", "loss", "backward", "step")


class Bytes(NamedTuple):
    """What a step takes.

    Of activations and logits it is the most that the fullest moment of any phase has; of gradients
    what backward leaves; of weights and states what is there before the step.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    #: The most alive at once, of all categories.
    peak: int
    peak_phase: str
    #: Bytes that wait on the host (save_on_cpu).
    host: int


def measure(trainer: Trainer) -> Bytes:
    """Records one step of a trainer that has made a step already, so that states are there."""
    model, optimizer = trainer.task.model, trainer.optimizer
    recorder = Recorder()
    recorder.claim([*model.parameters(), *model.buffers()], "parameters")
    states = states_of(optimizer)
    recorder.claim(states, "optimizer")
    hooks = [
        p.register_post_accumulate_grad_hook(lambda p: recorder.claim([p.grad], "gradients"))
        for p in model.parameters()
        if p.requires_grad
    ]

    def on_head(*unused: object) -> None:
        if recorder.marks[-1][1] == "forward":
            recorder.phase("loss")

    hooks.append(head_of(model).register_forward_pre_hook(on_head))
    before = _host_peak(trainer)
    try:
        with recorder:
            trainer.step(phase=recorder.phase, claim=recorder.claim)
    finally:
        for hook in hooks:
            hook.remove()
    account = Account(recorder, lambda tensor: trainer.task.is_logits(tensor.shape))
    return _bytes(account, model, sum(map(_nbytes, states)), _host_peak(trainer), before)


def _bytes(
    account: Account, model: torch.nn.Module, states: int, host: int, before: int
) -> Bytes:
    peaks = {name: p for name, p in account.in_place_sums().peaks().items() if name in _PHASES}
    account = account.in_place_sums()
    moments: Dict[str, Dict[str, int]] = {
        name: account.categories(peak.event) for name, peak in peaks.items()
    }
    top = max(peaks.values(), key=lambda peak: peak.bytes)
    unique: Dict[int, Tuple[int, torch.Tensor]] = {
        t.untyped_storage()._cdata: (_nbytes(t), t) for t in [*model.parameters(), *model.buffers()]
    }
    return Bytes(
        sum(size for size, _ in unique.values()),
        max(moment["gradients"] for moment in moments.values()),
        states,
        max(moment["activations"] for moment in moments.values()),
        max(moment["logits"] for moment in moments.values()),
        top.bytes,
        top.phase,
        max(host, before),
    )


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _host_peak(trainer: Trainer) -> int:
    return 0 if trainer.host is None else int(trainer.host.stats()["host_bytes_peak"])
