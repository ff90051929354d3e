"""Counts the bytes of a training step, every tensor of it, by category."""

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

import torch
from memopt.torch._recorder import Account, Recorder
from memopt.torch._step import states_of

from .models import head_of
from .training import Trainer

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits")
_PHASES = ("forward", "loss", "backward", "step")


class Bytes(NamedTuple):
    """What a step takes: weights and states before it, gradients when backward is done, activations
    at whatever moment of the step has the most, logits at the fullest moment of any phase."""

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


def record(trainer: Trainer, prepare: Optional[Callable[[], None]] = None) -> Account:
    """One step of a trainer that has made a step already, so that states are there. `prepare` may
    make it: what is made meanwhile and stays is counted too."""
    model = trainer.task.model
    recorder = Recorder()
    recorder.claim([*model.parameters(), *model.buffers()], "parameters")
    recorder.claim(states_of(trainer.optimizer), "optimizer")
    learning = [p for p in model.parameters() if p.requires_grad]
    hooks: List[Any] = [
        p.register_post_accumulate_grad_hook(lambda p: recorder.claim([p.grad], "gradients")) for p in learning
    ]
    # A gradient that comes to one that is there is none of the activations either.
    hooks += [p.register_hook(lambda g: recorder.claim([g], "gradients")) for p in learning]

    def on_head(*unused: object) -> None:
        if recorder.marks[-1][1] == "forward":
            recorder.phase("loss")

    hooks.append(head_of(model).register_forward_pre_hook(on_head))
    try:
        with recorder:
            if prepare is not None:
                prepare()
                recorder.claim(states_of(trainer.optimizer), "optimizer")
            trainer.step(phase=recorder.phase, claim=recorder.claim)
    finally:
        for hook in hooks:
            hook.remove()
    return Account(recorder, lambda tensor: trainer.task.is_logits(tensor.shape)).in_place_sums()


def measure(trainer: Trainer, prepare: Optional[Callable[[], None]] = None) -> Bytes:
    """The bytes of a recorded step."""
    account = record(trainer, prepare)
    peaks = {name: peak for name, peak in account.peaks().items() if name in _PHASES}
    moments: Dict[str, Dict[str, int]] = {name: account.categories(peak.event) for name, peak in peaks.items()}
    top = max(peaks.values(), key=lambda peak: peak.bytes)
    model = trainer.task.model
    host = 0 if trainer.host is None else int(trainer.host.stats()["host_bytes_peak"])
    return Bytes(
        _total([*model.parameters(), *model.buffers()]),
        moments["step"]["gradients"],
        _total(states_of(trainer.optimizer)),
        most(account, "activations"),
        max(moment["logits"] for moment in moments.values()),
        top.bytes,
        top.phase,
        host,
    )


def most(account: Account, category: str) -> int:
    """The most bytes of a category alive at any moment before the optimizer's step."""
    end = next(at for at, name in account.marks if name == "step")
    alive = highest = 0
    for event in account.events[:end]:
        number = abs(event) - 1
        if account.category(number) == category:
            alive += account.tensors[number].bytes * (1 if event > 0 else -1)
            highest = max(highest, alive)
    return highest


def _total(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of their storages, each once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
