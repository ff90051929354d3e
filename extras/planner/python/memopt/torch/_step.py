"""Records one training step of a module: batch, forward, loss, backward, and the optimizer's."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

import torch
from torch.utils._pytree import tree_iter

from ._recorder import Account, Recorder, Tensor, tensors_in
from ._target import Target, head_of, scores


class Recorded:
    """The account of a step, and the numbers of the tensors in its outputs."""

    def __init__(self, account: Account, outputs: Set[int]) -> None:
        self.account = account
        self.outputs = outputs


class StepRecorder:
    """Runs a target under a recorder.

    `autocast` is the dtype of the forward's autocast, or None. Outputs are given up once there is
    a loss, as in ``loss = model(**inputs).loss``. Gradients are None before the step, and after it
    when an optimizer is given; without one they stay.
    """

    def __init__(
        self,
        target: Target,
        autocast: Optional[torch.dtype] = None,
        accumulation: int = 1,
        optimizer: Optional[torch.optim.Optimizer] = None,
    ) -> None:
        self.target = target
        self.autocast = autocast
        self.accumulation = accumulation
        self.optimizer = optimizer
        #: Active while the step runs; given the recorder.
        self.around: Callable[[Recorder], Any] = contextlib.nullcontext
        self._outputs: Set[int] = set()
        self._shape: Optional[Tuple[int, int]] = None
        self._sequences = 1

    def record(self, make_inputs: Callable[[], Any]) -> Recorded:
        """One step. `make_inputs` is called for each micro-batch."""
        module = self.target.module
        self._outputs = set()
        recorder = self._recorder()
        held = [*module.parameters(), *module.buffers()]
        scales = tensors_in([vars(tensor) for tensor in held])  # of quantised weights
        recorder.claim([*held, *scales], "parameters")
        with self._hooks(recorder), self.around(recorder), recorder:
            for _ in range(self.accumulation):
                self._micro_step(recorder, make_inputs)
                recorder.phase("between")
            if self.optimizer is not None:
                recorder.phase("optimizer")
                self.optimizer.step()
                recorder.phase("after")
                self.optimizer.zero_grad(set_to_none=True)
        return Recorded(Account(recorder, self._is_logits), self._outputs)

    def _recorder(self) -> Recorder:
        recorder = Recorder(self.target.module)
        recorder.claim(states_of(self.optimizer), "optimizer")
        return recorder

    def run(self, make_inputs: Callable[[], Any]) -> None:
        """The same without recording anything."""
        for _ in range(self.accumulation):
            inputs = make_inputs()
            with self._autocast(inputs):
                loss = self.target.loss(self.target.run(inputs), inputs)
            _backward(loss)

    def _micro_step(self, recorder: Recorder, make_inputs: Callable[[], Any]) -> None:
        inputs = make_inputs()
        recorder.claim(tree_iter(inputs), "batch")
        recorder.phase("forward")
        loss = self._loss(recorder, inputs)
        recorder.phase("backward")
        _backward(loss)

    def _loss(self, recorder: Recorder, inputs: Any) -> torch.Tensor:
        with self._autocast(inputs):
            outputs = self.target.run(inputs)
            self._look_at(recorder, outputs)
            if recorder.marks[-1][1] == "forward":
                recorder.phase("loss")
            return self.target.loss(outputs, inputs)

    def _look_at(self, recorder: Recorder, outputs: Any) -> None:
        values = dict(outputs) if isinstance(outputs, dict) else outputs
        self._outputs |= recorder.numbers(values)
        found = scores(outputs)
        if found is not None and found.dim() > 1:
            self._shape = (found.numel() // found.shape[-1], found.shape[-1])
            self._sequences = found.shape[0]

    def _is_logits(self, tensor: Tensor) -> bool:
        if self._shape is None or not tensor.shape or tensor.shape[-1] != self._shape[1]:
            return False
        rows = 1
        for size in tensor.shape[:-1]:
            rows *= size
        # A loss that shifts labels may have dropped one token of each sequence.
        return self._shape[0] - self._sequences <= rows <= self._shape[0]

    def _autocast(self, inputs: Any) -> Any:
        if self.autocast is None:
            return contextlib.nullcontext()
        kinds = [v.device.type for v in tree_iter(inputs) if isinstance(v, torch.Tensor)]
        return torch.autocast(kinds[0] if kinds else "cpu", dtype=self.autocast)

    @contextlib.contextmanager
    def _hooks(self, recorder: Recorder) -> Iterator[None]:
        hooks: List[Any] = []
        for parameter in self.target.module.parameters():
            if parameter.requires_grad:
                hook: Any = parameter.register_post_accumulate_grad_hook
                hooks.append(hook(lambda p: recorder.claim([p.grad], "gradients")))
        head = head_of(self.target.module)
        if head is not None:
            hooks.append(head.register_forward_pre_hook(_on_head(recorder)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _backward(loss: torch.Tensor) -> None:
    """Of the loss's edge: torch shows functions of tensors to a mode and turns the mode off within,
    for what runs again in backward, too."""
    edge = torch.autograd.graph.get_gradient_edge(loss)
    torch.autograd.backward(edge, torch.ones_like(loss))


def _on_head(recorder: Recorder) -> Callable[..., None]:
    def enter(*unused: Any) -> None:
        if recorder.marks[-1][1] == "forward":
            recorder.phase("loss")

    return enter


def states_of(optimizer: Optional[torch.optim.Optimizer]) -> List[torch.Tensor]:
    """The tensors that an optimizer keeps."""
    if optimizer is None:
        return []
    values = [v for state in optimizer.state.values() for v in state.values()]
    return [v for v in values if isinstance(v, torch.Tensor)]
