"""Plans at work on a model: one for each shape of its forward, made when it comes."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from ... import errors
from ..._interrupt import Interruptible
from ...offload import Disk
from ...sizes import Size, format_size, parse_size
from ..streaming import WeightStream
from ._apply import Applied
from ._arenas import words_of
from ._checks import check
from ._otherwise import apply
from ._places import Place, options_of, parse_place
from ._planned import Planned
from ._planning import Planning, Step
from ._runs import Variant
from ._tape import tensors_in
from ._weights import Weights, find
from ._weights import load as load_found

FORMAT = 3


def fit(
    model: torch.nn.Module,
    optimizer: Any = None,
    step: Optional[Step] = None,
    *,
    budget: Size,
    host: Optional[Size] = None,
    disk: Optional[Disk] = None,
    allow: Sequence[str] = (),
) -> "Fit":
    """Makes training steps of a model take at most `budget` bytes of its device; the bits stay the same.

        fit = mt.fit(model, optimizer, lambda: model(input_ids=ids, labels=ids).loss, budget="8GiB")
        print(fit.table())

    Each module is kept or run again in backward; each saved value is kept, made again by one cheap
    operation from other saved ones, or, with `host`, moved to host memory of so many bytes, and
    with `disk`, a folder or ("/scratch", "200GiB"), from there to the disk. What is
    chosen is what takes least time; nothing is changed where the step fits as it is.

    `step` runs the model and gives the loss, or calls backward() itself, after each micro-batch;
    `optimizer.step()` stays outside. It is called under torch.no_grad(), with fake tensors in place
    of the model's own, and once in earnest to correct the budget by what the kernels take beyond their
    tensors. Random states, buffers and gradients are as before afterwards. Without `step` the first
    training forward is planned as it comes; the model must give its loss.

    A forward of another shape is planned when it comes: `step` is called with that forward's arguments
    in place of its own. A warning says so. So is one that meets gradients for the first time. After the
    optimizer's first step what is left of the budget is planned anew. A step that saves other tensors than
    the planned one is right, too: what the plan does not know is kept, and a warning says so.

    LimitReachedError gives the least budget and what sets it; a later forward may raise it, too. `allow` names
    what may be done although it alters the model, training or the optimizer. "stream", where the budget asks for it
    or where that is quicker than to run things again: frozen weights of repeated layers stream from host memory as
    by :func:`stream_weights`, which gives `fit.stream`; bits stay the same. Others below the least budget, the fewest
    that hold it:
    "chunked_loss", the cross-entropy of a last Linear's results is made by pieces of tokens, and logits are never
    whole (last bits of loss and gradients differ; a step whose loss needs them otherwise is refused, and elsewhere they
    are made when they are asked for); of an optimizer of this package: "host", its states are in host
    memory, as with `paged=True`; "8bit", those of an AdamW, Adam, Lion or SGD are in 8 bits; "split", weights of 32
    bits are bf16, and states have the other bits, as with `split_weights=16`; "release", see
    :func:`release_gradients`, which then is `fit.release`: clipping by all gradients and accumulating end with it.
    What the optimizer has become stays after remove().
    """
    check(model)
    made, make = None, _maker(budget, host, disk, allow, "forward")
    try:
        with Interruptible(patience=1):  # torch ends the process where a mode's function raises in C++'s "noexcept"
            made = make(model, optimizer, step)
            if step is not None:
                made._plan(step)
    except BaseException:
        if made is not None:
            made.remove()
        raise
    return made


class Fit(Planning):
    """Plans at work on a model, made by :func:`fit`. Not thread-safe."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        step: Optional[Step],
        budget: int,
        host: Optional[int] = None,
        allow: Sequence[str] = (),
        method: str = "forward",
        disk: Place = None,
    ) -> None:
        super().__init__(model, optimizer, budget, host, disk, allow, method)
        self._step, self._method, self._parameters = step, method, list(model.parameters())
        self._applied = Applied(model, method, options_of(host, disk), self._spec_of)

    @property
    def plain_bytes(self) -> int:
        """What a step took as it was."""
        return self._now.plain

    @property
    def peak_bytes(self) -> int:
        """What it takes by the plan."""
        return self._now.peak

    @property
    def host_bytes(self) -> int:
        """What it takes of the host by the plan, streamed weights included."""
        return self._now.host + int(self._streaming.facts.get("weights", 0))

    @property
    def stream(self) -> Optional[WeightStream]:
        """What stream_weights() gave, where that was allowed and chosen."""
        return self._streaming.stream

    @property
    def disk_bytes(self) -> int:
        """What it takes of the disk by the plan."""
        return self._now.disk

    @property
    def choices(self) -> List[Tuple[str, str]]:
        """What is done, in the table's words."""
        return self._now.choices

    @property
    def seconds(self) -> float:
        """What that adds to a step's time by the plan."""
        return self._now.seconds

    @property
    def unplanned(self) -> int:
        """Forwards that saved other tensors than the planned ones."""
        return self._applied.unplanned

    def load_weights(
        self,
        weights: Weights,
        device: Union[None, str, torch.device] = None,
        rename: Callable[[str], str] = str,
    ) -> None:
        """Gives a model that was planned on the meta device its weights, as the plan has them.

            with torch.device("meta"):
                model = Model(config)
            fit = mt.fit(model, None, step, budget="8GB", allow=("stream",))
            fit.load_weights("model.safetensors", "cuda")

        Layers that stream do so from now on: their weights are read into host memory, a tensor at a time, all others
        into `device` (None: the CPU), where also what has values already moves. Types are the model's.
        Then `step` is measured there, and planned again with real times; a smaller arena is taken if it needs that.

        `weights` is a safetensors file, its index or a folder, or tensors by name. `rename` gives what they call a
        tensor of the model, as where adapters stand around a layer. Parameters on the meta device become new ones: make
        the optimizer afterwards, or before of parameters that have values.

        Raises ValueError, and has changed nothing, where a tensor on the meta device is not among the weights, as a
        buffer that no file has: make it outside of torch.device("meta"). LimitReachedError: the measured step needs more.
        """
        if not self._runs.is_virtual() or self._step is None:
            raise ValueError("fit: load_weights() is for a model that fit() has planned on the meta device by a step")
        where = torch.device("cpu" if device is None else device)
        if where.type == "cuda" and where.index is None:
            where = torch.device("cuda", torch.cuda.current_device())
        found = find(self._model, weights, rename)
        self._streaming.load(self._streaming.facts, where)
        load_found(self._model, found, where)
        self._parameters = list(self._model.parameters())
        self._tried.clear()
        self._plans.clear()
        with Interruptible(patience=1):
            self._plan(self._step)

    def remove(self) -> None:
        """The model trains as before."""
        self._applied.remove()
        self._streaming.remove()
        if self._hook is not None:
            self._hook.remove()
        if self.release is not None:
            self.release.remove()

    def table(self) -> str:
        """What is done in steps as the last one, and what it takes."""
        rows = [
            ("budget", format_size(self.budget)),
            ("as it was", format_size(self.plain_bytes)),
            ("planned", format_size(self.peak_bytes)),
            ("measured", "-" if self.measured is None else format_size(self.measured)),
            ("on the host", format_size(self.host_bytes)),
            ("on the disk", format_size(self.disk_bytes)),
            ("more time", "%.3g ms planned" % (1e3 * self.seconds)),
            ("shapes", "%d, %d steps not as planned" % (len(self._plans), self.unplanned)),
            *([("streams", words_of(self._streaming.facts))] if self._streaming.facts else []),
            *(("allowed", "%s: %s" % both) for both in self.done.items()),
            *self.choices,
        ]
        width = max(len(first) for first, _ in rows)
        return "\n".join("%-*s  %s" % (width, first, second) for first, second in rows)

    __str__ = table

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the plans as JSON; :meth:`load` applies them to a model of the same code."""
        plans = {key: planned.facts() for key, planned in self._plans.items() if planned is not None}
        facts: Dict[str, Any] = {"format": FORMAT, "budget": self.budget, "host": self._host, "disk": self._disk}
        facts.update(measured=self.measured, streams=self._streaming.facts)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**facts, "margin": self._margin, "done": self.done, "plans": plans}, file, indent=1)

    @classmethod
    def load(cls, path: Union[str, "os.PathLike[str]"], model: torch.nn.Module, optimizer: Any = None) -> "Fit":
        """Applies saved plans; nothing is measured. Other shapes are planned as without a step. Where `allow` was
        needed for more than the loss, the optimizer becomes what that one had become."""
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("fit: %s is not a plan of format %d" % (os.fspath(path), FORMAT))
        done = found["done"]
        if optimizer is None and done.keys() - {"chunked_loss"}:
            raise ValueError("fit: the plan is for an optimizer with %s; pass it" % ", ".join(done.values()))
        made = cls(model, optimizer, None, found["budget"], found["host"], disk=found["disk"] and tuple(found["disk"]))
        made.measured, made._margin, made.done = found["measured"], found["margin"], done
        made._runs.variant = Variant(done.get("chunked_loss", ""), "release" in done, "split" in done)
        try:
            apply(done, made._optimizer, made)
            made._streaming.load(found["streams"])
            for key, facts in found["plans"].items():
                made._plans[key] = made._now = Planned(**facts)
                made._applied.use(made._now.spec)
        except BaseException:
            made.remove()
            raise
        return made

    @staticmethod
    def for_trainer(
        budget: Size, host: Optional[Size] = None, allow: Sequence[str] = (), *, disk: Optional[Disk] = None
    ) -> Any:
        """A callback for the Trainer of transformers, whose training takes at most `budget` bytes; see :func:`fit`."""
        from ._frameworks import trainer_callback

        return trainer_callback(_maker(budget, host, disk, allow, "forward"))

    @staticmethod
    def for_lightning(
        budget: Size, host: Optional[Size] = None, allow: Sequence[str] = (), *, disk: Optional[Disk] = None
    ) -> Any:
        """A callback for Lightning's Trainer, with automatic optimization; see :func:`fit`."""
        from ._frameworks import lightning_callback

        return lightning_callback(_maker(budget, host, disk, allow, "training_step"))

    # --- forwards ---

    def _spec_of(self, args: Any, kwargs: Any) -> Optional[Dict[str, Any]]:
        """What the plan for a forward is; it is made where there is none."""
        key = self._key = _key_of(args, kwargs)
        planned = self._plans.get(key)
        if not self._planning and (self._model.training or not self._plans):
            gradients = any(p.grad is not None for p in self._parameters)
            if key not in self._plans or (planned is not None and gradients and not planned.gradients):
                planned = self._plan_anew(key, gradients, args, kwargs)
            elif planned is not None and planned.planner is not None and planned.states != self._states:
                try:
                    self._solve(planned)
                except errors.LimitReachedError:  # what is allowed may help
                    planned = self._plan_anew(key, gradients, args, kwargs)
        if planned is None:
            return None
        self._now = planned
        return planned.spec  # type: ignore[no-any-return]

    def _plan_anew(self, key: str, gradients: bool, args: Any, kwargs: Any) -> Optional[Planned]:
        def step() -> Any:
            if self._step is None:
                return _loss_of(getattr(self._model, self._method)(*args, **kwargs))
            forward = own = self._model.forward
            self._model.forward = lambda *unused, **also: forward(*args, **kwargs)
            try:
                return self._step()
            finally:
                self._model.forward = own

        first, self._runs.gradients = not self._plans, gradients
        self._plans.pop(key, None)
        try:
            with Interruptible(patience=1):
                planned = self._plan(step)
            said = "was planned: %s of %s" % (format_size(planned.peak), format_size(self.budget))
        except Exception as error:
            if first or isinstance(error, errors.LimitReachedError):
                raise
            self._plans[key] = planned = None
            said = "cannot be planned (%s: %s), and keeps what it saves" % (type(error).__name__, error)
        if not first:
            with_gradients = " that adds to gradients" if gradients else ""
            warnings.warn("fit: a step of shapes %s%s %s" % (key, with_gradients, said), stacklevel=5)
        return planned


def _maker(
    budget: Size, host: Optional[Size], disk: Optional[Disk], allow: Sequence[str], method: str
) -> Callable[..., "Fit"]:
    """Checks what fit() is given; the result makes the Fit of a model, an optimizer and a step."""
    limits, place = (parse_size(budget), None if host is None else parse_size(host)), parse_place(host, disk)

    def make(model: torch.nn.Module, optimizer: Any, step: Optional[Step] = None) -> Fit:
        return Fit(model, optimizer, step, *limits, allow, method, place)

    return make


def _key_of(args: Any, kwargs: Any) -> str:
    """What forwards of one plan agree in."""
    return " ".join("%s:%s" % ("x".join(map(str, t.shape)), str(t.dtype)[6:]) for t in tensors_in((args, kwargs)))


def _loss_of(result: Any) -> torch.Tensor:
    """The loss that a model gives."""
    if isinstance(result, dict):  # as outputs of transformers are
        result = result.get("loss")
    elif isinstance(result, tuple) and result:
        result = result[0]
    if not isinstance(result, torch.Tensor) or result.numel() != 1:
        raise TypeError("fit: without a step the model must give its loss, not a %s" % type(result).__name__)
    return result
