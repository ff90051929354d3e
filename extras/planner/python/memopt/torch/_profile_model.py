"""Measures real steps of a module at small batch sizes, and says what larger ones need.

On the CPU the recorder of `_recorder` counts bytes of live tensors; on a GPU it does too, and a
second run without it measures what torch's allocator held at its peak (rounding, workspaces). Steps
are forward and backward; what the optimizer keeps and needs is added by rule, so that weights do
not change. If memory runs out, the step is discarded and a smaller batch is tried.
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ..sizes import format_size
from ._call_context import CallContext
from ._optimizer_bytes import OptimizerBlocks, optimizer_blocks
from ._step import StepRecorder
from ._step_bytes import Line, Series, StepBytes, step_bytes
from ._target import Target, target_of, to_device


class ProfileError(RuntimeError):
    """There is not enough memory to measure two batch sizes."""


class Progress(NamedTuple):
    """Told before each run, and once at the end (`done` == `total`)."""

    done: int
    total: int
    #: The batch size that runs next, and whether a larger one ran out of memory before.
    batch: int
    ran_out: bool


class Checked(NamedTuple):
    """A batch size that was predicted and then measured."""

    batch: int
    measured: int
    predicted: int

    @property
    def error(self) -> float:
        """Of the prediction: 0.01 is one percent too much."""
        return self.predicted / self.measured - 1.0


class Profile:
    """Two measured batch sizes and the line through them."""

    def __init__(
        self,
        line: Line,
        optimizer: OptimizerBlocks,
        measured: Dict[int, StepBytes],
        allocator: Dict[int, int],
        ran_out: List[int],
        device: torch.device,
    ) -> None:
        self.line = line
        self._optimizer = optimizer
        #: By batch size; checked ones too.
        self.measured = measured
        #: Peaks of torch's allocator by batch size, states of the optimizer included; on GPUs.
        self.allocator = allocator
        #: Batch sizes for which there was not enough memory.
        self.ran_out = ran_out
        self.device = device
        self._fitted = tuple(sorted(measured))[:2]
        #: Batch sizes that were measured after the two, beside their predictions.
        self.checked: List[Checked] = []

    def at(self, batch: int) -> StepBytes:
        """What a batch size needs: bytes of live tensors."""
        return self.line.at(batch)

    def blocks(self, batch: int) -> Any:
        """What two steps allocate and free; None where the two measured ones did different things."""
        return self.line.blocks(batch, self._optimizer)

    def device_bytes(self, batch: int) -> int:
        """The same with what torch's allocator holds beyond live tensors; on the CPU nothing."""
        live = self.at(batch).peak_bytes
        if not all(b in self.allocator for b in self._fitted):
            return live
        low, high = self._fitted
        a, b = (self.allocator[n] - self.measured[n].peak_bytes for n in (low, high))
        return live + max(a, b, round(a + (b - a) * (batch - low) / (high - low)), 0)

    def as_dict(self) -> Dict[str, Any]:
        """For JSON."""
        return {
            "device": str(self.device),
            "measured": [self.measured[b].as_dict() for b in sorted(self.measured)],
            "allocator_peak_bytes": {str(b): self.allocator[b] for b in sorted(self.allocator)},
            "checked": [dict(c._asdict(), error=c.error) for c in self.checked],
            "ran_out": self.ran_out,
            "line_of_every_moment": self.line.exact,
        }


def profile(
    target: Any,
    *,
    sequence: Optional[int] = None,
    batches: Tuple[int, int] = (2, 4),
    check: Sequence[int] = (),
    optimizer: str = "adamw",
    autocast: Optional[torch.dtype] = None,
    accumulation: int = 1,
    progress: Optional[Callable[[Progress], None]] = None,
) -> Profile:
    """Runs a module forward and backward at two batch sizes, then at those to check.

    The module's weights, gradients, buffers and the random state are as they were afterwards. It
    runs on the device of its parameters. ProfileError where two sizes cannot be run.
    """
    if not 1 <= batches[0] < batches[1]:
        raise ValueError("batches must be two batch sizes, the smaller first, not %r" % (batches,))
    run = _Profiling(target_of(target, sequence), optimizer, autocast, accumulation, progress)
    with _as_before(run.target.module):
        return run.profile(batches, check)


class _Profiling:
    """The runs of one profile."""

    def __init__(
        self,
        target: Target,
        optimizer: str,
        autocast: Optional[torch.dtype],
        accumulation: int,
        progress: Optional[Callable[[Progress], None]],
    ) -> None:
        self.target = target
        self.device = _device_of(target.module)
        self._blocks = optimizer_blocks(optimizer, list(target.module.parameters()), self.device.type == "cuda")
        self._optimizer = self._blocks.total()
        self._recorder = StepRecorder(target, autocast, accumulation)
        self._progress = progress
        self._done, self._total = 0, 0
        self._ran_out: List[int] = []
        self._series: Dict[int, Series] = {}
        self._measured: Dict[int, StepBytes] = {}
        self._allocator: Dict[int, int] = {}

    def profile(self, batches: Tuple[int, int], check: Sequence[int]) -> Profile:
        """All of it."""
        self._total = 2 + len(check)
        low, high = self._pair(batches)
        first, second = ((b, self._series[b]) for b in (low, high))
        line = Line(first, second, self._optimizer)
        fitted = {b: self._measured[b] for b in (low, high)}
        result = Profile(line, self._blocks, fitted, self._allocator, self._ran_out, self.device)
        for batch in check:
            fits = self._largest_that_runs(batch, high)
            if fits is not None and fits not in result.measured:
                result.measured[fits] = self._measured[fits]
                result.checked.append(self._compared(result, fits))
        self._tell(self._total, high)
        return result

    def _compared(self, result: Profile, batch: int) -> Checked:
        if batch in self._allocator:
            return Checked(batch, self._allocator[batch], result.device_bytes(batch))
        return Checked(batch, self._measured[batch].peak_bytes, result.at(batch).peak_bytes)

    def _pair(self, batches: Tuple[int, int]) -> Tuple[int, int]:
        """Two batch sizes that run: the requested ones, or smaller ones."""
        high = self._largest_that_runs(batches[1], 1)
        if high is None:
            raise ProfileError(
                "a batch of 2 does not fit %s beside what is there (%s of parameters); a smaller"
                " sequence or model can be measured, or --model without --profile is traced"
                % (self.device, format_size(_bytes_of(self.target.module)))
            )
        low = self._largest_that_runs(min(batches[0], high // 2), 0)
        if low is None:
            raise ProfileError(
                "a batch of %d ran on %s and a smaller one did not: memory is taken by something"
                " else meanwhile" % (high, self.device)
            )
        return low, high

    def _largest_that_runs(self, batch: int, above: int) -> Optional[int]:
        """Measures `batch`, or half of it and so on; None when `above` is reached."""
        while batch > above:
            if batch in self._measured or self._runs(batch):
                self._done += 1
                return batch
            batch //= 2
        return None

    def _runs(self, batch: int) -> bool:
        if self._ran_out and batch >= min(self._ran_out):
            return False  # a smaller one did not
        self._tell(self._done, batch)
        try:
            self._measure(batch)
            return True
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            _drop_frames(error)
        self._ran_out.append(batch)
        self._free()  # outside of the handler: the exception held the step's tensors
        return False

    def _measure(self, batch: int) -> None:
        recorded = self._recorder.record(lambda: self._inputs(batch))
        self._free()
        series = Series(recorded.account)
        self._measured[batch] = step_bytes(batch, series.highest(), self._optimizer)
        self._series[batch] = series
        if self.device.type == "cuda":
            self._allocator[batch] = self._allocator_peak(batch)

    def _allocator_peak(self, batch: int) -> int:
        """Without the recorder, which makes more sums of gradients than autograd alone."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self._recorder.run(lambda: self._inputs(batch))
        peak = torch.cuda.max_memory_allocated(self.device) - before
        after = torch.cuda.memory_allocated(self.device) - before
        self._free()
        own = _bytes_of(self.target.module) + self._optimizer.states
        return own + max(peak, after + self._optimizer.temporaries)

    def _inputs(self, batch: int) -> Any:
        return to_device(self.target.inputs(batch), self.device)

    def _free(self) -> None:
        for parameter in self.target.module.parameters():
            parameter.grad = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _tell(self, done: int, batch: int) -> None:
        if self._progress is not None:
            done = min(done, self._total)
            self._progress(Progress(done, self._total, batch, bool(self._ran_out)))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: of torch on any device, or of the library."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        words in text for words in ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    )


def _drop_frames(error: Optional[BaseException]) -> None:
    """The frames of a traceback hold the tensors of the step that failed."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _device_of(module: torch.nn.Module) -> torch.device:
    devices = {p.device for p in module.parameters()} | {b.device for b in module.buffers()}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError("the module must be on one device to be measured; it is on %s" % names)
    device = devices.pop() if devices else torch.device("cpu")
    if device.type == "meta":
        raise ValueError("the module is on the meta device: it has no weights to run with")
    return device


def _bytes_of(module: torch.nn.Module) -> int:
    sizes = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in [*module.parameters(), *module.buffers()]
    }
    return sum(sizes.values())


@contextlib.contextmanager
def _as_before(module: torch.nn.Module) -> Iterator[None]:
    """Train mode without gradients inside; everything as it was afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    gradients = [(p, p.grad) for p in module.parameters()]
    buffers = [(b, b.clone()) for b in module.buffers()]
    call_context = CallContext(list(module.parameters()), True)
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        module.train()
        yield
    finally:
        call_context.put()
        for part, training in modes:
            part.training = training
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
