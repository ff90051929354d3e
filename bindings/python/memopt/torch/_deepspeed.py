"""Steps under DeepSpeed's ZeRO: its own code runs in one process, whose collectives give nothing."""

from __future__ import annotations

import bisect
import contextlib
import gc
import io
import itertools
import logging
import os
import warnings
from importlib import import_module
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter

from ._features import Features
from ._optimizer_bytes import OptimizerBytes
from ._recorder import Account, Recorder, tensors_in
from ._shards import ShardRecorder, alone
from ._step import Recorded, StepRecorder, states_of
from ._target import Target, TargetError

_HOW = "a step under DeepSpeed runs its own code, which is missing (%s): pip install deepspeed"


class EngineRecorder(ShardRecorder):  # type: ignore[no-untyped-call]
    """A recorder that collectives do not disturb."""

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        if function.namespace == "c10d":
            return self.collective(function, args, kwargs or {})
        result = Recorder.__torch_dispatch__(self, function, types, args, kwargs)
        # Whatever is put into one piece in backward is gradients, or claimed as weights after it.
        if function is torch.ops.aten.cat.default and self.marks[-1][1] == "backward":
            self.claim([result] if result.dim() == 1 else [], "gradients")
        return result

    def collective(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Runs a collective unseen."""
        return function(*args, **kwargs)


class Wrapped(Target):
    """A module that is run through a wrapper."""

    wrapper: Any = None

    def run(self, inputs: Any) -> Any:
        return Target.run(self._replace(module=self.wrapper), inputs)


class EngineStep(StepRecorder):
    """Records steps of an engine, which runs backward and the optimizer."""

    kind = EngineRecorder

    def __init__(self, target: Target, engine: Any, accumulation: int) -> None:
        super().__init__(Wrapped(engine.module, *target[1:]), None, accumulation)
        self.target.wrapper = self.engine = engine  # type: ignore[attr-defined]

    def run(self, make_inputs: Callable[[], Any]) -> None:
        """Steps before the one that counts: the third stage learns the order of modules from two."""
        for _ in range(self.accumulation * (3 if self.engine.zero_optimization_stage() == 3 else 1)):
            self._engine_step(make_inputs())

    def _engine_step(self, inputs: Any) -> None:
        self.engine.backward(self.target.loss(self.target.run(inputs), inputs))
        self.engine.step()

    def record(self, make_inputs: Callable[[], Any]) -> Recorded:
        self._outputs = set()
        gc.collect()
        recorder = self._recorder()
        with self._hooks(recorder), recorder:
            for number in range(self.accumulation):
                inputs = make_inputs()
                recorder.claim(tree_iter(inputs), "batch")
                recorder.phase("forward")
                loss = self._loss(recorder, inputs)
                recorder.phase("backward")
                self.engine.backward(loss)
                recorder.phase("between" if number + 1 < self.accumulation else "optimizer")
                self.engine.step()
            recorder.phase("after")
        return Recorded(Account(recorder, self._is_logits), self._outputs)

    def _recorder(self) -> Recorder:
        recorder = self.kind(self.target.module)
        for category, tensors in kept(self.engine).items():
            recorder.claim(tensors, category)
        return recorder

    @contextlib.contextmanager
    def _hooks(self, recorder: Recorder) -> Iterator[None]:
        """What the engine makes is claimed as it is made."""
        gathers = import_module("deepspeed.runtime.zero.partition_parameters")
        flat = import_module("deepspeed.runtime.zero.stage_1_and_2").DeepSpeedZeroOptimizer

        def weights(handle: Any) -> List[Any]:
            if isinstance(handle, gathers.AllGatherHandle):
                return [handle._AllGatherHandle__param.data]
            return [*(p.data for p in handle.params), *handle.partitions]

        def buckets(optimizer: Any) -> List[Any]:
            return [b for bucket in optimizer.ipg_buckets.values() for b in bucket.buffer]

        with contextlib.ExitStack() as stack:
            for kind in (gathers.AllGatherHandle, gathers.AllGatherCoalescedHandle):
                for name in ("__init__", "wait"):
                    stack.enter_context(_claiming(recorder, kind, name, weights, "parameters"))
            stack.enter_context(_claiming(recorder, flat, "setup_buckets", buckets, "gradients"))
            own = lambda optimizer: [optimizer.grads_in_partition]  # noqa: E731
            name = "copy_grads_in_partition"
            stack.enter_context(_claiming(recorder, flat, name, own, "gradients"))
            stack.enter_context(super()._hooks(recorder))
            yield


@contextlib.contextmanager
def _claiming(
    recorder: Recorder, kind: Any, name: str, made: Callable[[Any], List[Any]], category: str
) -> Iterator[None]:
    """Claims what a method of a class has made, whenever it has run."""
    method = getattr(kind, name)

    def claims(self: Any, *args: Any, **named: Any) -> Any:
        result = method(self, *args, **named)
        recorder.claim(made(self), category)
        return result

    with _patched(kind, name, claims):
        yield


def kept(engine: Any) -> Dict[str, List[torch.Tensor]]:
    """What an engine keeps from step to step, by category."""
    optimizer, module = engine.optimizer, engine.module
    weights = [*module.parameters(), *module.buffers()]
    weights += [p.ds_tensor for p in module.parameters() if hasattr(p, "ds_tensor")]
    # Scales of weights that bitsandbytes has quantised.
    scales = [getattr(p, "quant_state", None) for p in module.parameters()]
    weights += tensors_in(scales + [getattr(part, "state", None) for part in module.modules()])
    weights += getattr(optimizer, "bit16_groups_flat", [])
    masters = [
        *getattr(optimizer, "single_partition_of_fp32_groups", []),
        *getattr(optimizer, "fp32_partitioned_groups_flat", []),
    ]
    own = {t.untyped_storage()._cdata for t in weights}
    masters = [t for t in masters if t.untyped_storage()._cdata not in own]
    gradients = [getattr(optimizer, "grad_partitions_flat_buffer", None)]
    for bucket in optimizer.ipg_buckets.values():
        gradients += bucket.buffer if isinstance(bucket.buffer, list) else [bucket.buffer]
    return {
        "parameters": weights,
        "optimizer": [*masters, *states_of(optimizer.optimizer)],
        "gradients": [g for g in gradients if g is not None],
    }


# --- one process of several, the others not there ---

#: What an optimizer takes of parameters.
Rule = Callable[[Sequence[torch.Tensor]], OptimizerBytes]


class _Sizes(torch.optim.Optimizer):
    """Keeps and makes as much as another optimizer would, and steps nothing."""

    def __init__(self, parameters: Any, rule: Rule) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self._rule = rule

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        with _disable_current_modes():  # what the rule makes is not of the step
            states = [self._rule([parameter]).states for parameter in parameters]
            temporaries = self._rule(parameters).temporaries
        for parameter, size in zip(parameters, states):
            if not self.state[parameter]:
                self.state[parameter]["states"] = torch.empty(size, dtype=torch.uint8)
        torch.empty(temporaries, dtype=torch.uint8)


def config_of(features: Features, accumulation: int) -> Dict[str, Any]:
    """DeepSpeed's configuration."""
    zero: Dict[str, Any] = {"stage": int(features.sharding[-1])}
    if features.bucket_elements:
        zero["reduce_bucket_size"] = features.bucket_elements
    if features.overlap is not None:
        zero["overlap_comm"] = features.overlap
    result: Dict[str, Any] = {
        "zero_allow_untested_optimizer": True,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": zero,
    }
    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    if features.deepspeed in names:
        result[names[features.deepspeed]] = {"enabled": True}
    return result


@contextlib.contextmanager
def engine_step(
    target: Target, features: Features, accumulation: int, rule: Rule
) -> Iterator[EngineStep]:
    """Records steps of the device that keeps most."""
    module: Any = target.module
    config = config_of(features, accumulation)
    with contextlib.ExitStack() as stack:
        learning = [p for p in module.parameters() if p.requires_grad]
        fullest = _fullest(features, [p.numel() for p in learning], accumulation)
        stack.enter_context(alone(features.world_size, fullest))
        stack.enter_context(_quiet())
        stack.enter_context(_here())
        module.to = lambda *unused, **named: module  # it is there already
        engine, *_ = import_module("deepspeed").initialize(
            model=module, optimizer=_Sizes(learning, rule), config=config
        )
        try:
            yield EngineStep(target, engine, accumulation)
        finally:
            engine.destroy()


def _fullest(features: Features, sizes: List[int], accumulation: int) -> int:
    """The device that keeps most: gradients come from the last weight to the first, so where they
    are reduced as they come the last keeps its own the longest; from one micro-batch to the next
    each keeps all of the weights that its part touches."""
    world, ends = features.world_size, [0, *itertools.accumulate(sizes)]
    if features.sharding == "zero2" and accumulation > 1:
        part = -(-ends[-1] // (2 * world)) * 2

        def touched(rank: int) -> int:
            first = bisect.bisect_right(ends, rank * part) - 1
            last = bisect.bisect_left(ends, min((rank + 1) * part, ends[-1]))
            return ends[last] - ends[first]

        return max(range(world), key=touched)
    as_they_come = features.sharding == "zero2" or (features.sharding == "zero1" and features.overlap)
    return world - 1 if as_they_come else 0


@contextlib.contextmanager
def _here() -> Iterator[None]:
    """DeepSpeed on the CPU, alone: what it compiles is not needed, and what it compares with other
    devices is equal."""
    try:
        with _disable_current_modes():
            accelerator = import_module("deepspeed.accelerator.real_accelerator")
            of_cpu = import_module("deepspeed.accelerator.cpu_accelerator")
            comm = import_module("deepspeed.comm.comm")
            backend = import_module("deepspeed.comm.torch")
            utils = import_module("deepspeed.runtime.zero.utils")
            groups = vars(import_module("deepspeed.utils.groups"))
    except ImportError as error:
        raise TargetError(_HOW % error) from None
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (accelerator, "ds_accelerator", of_cpu.CPU_Accelerator()),
            (comm, "cdb", None),
            (backend, "build_shm_op", lambda: None),
            (utils, "assert_lst_len_same_as_other_ranks", lambda values: None),
            (utils, "get_lst_from_rank0", list),
        ):
            stack.enter_context(_patched(owner, name, value))
        stack.enter_context(_patched(functional, "linear", functional.linear))  # stage 3 sets its own
        stack.callback(groups.update, dict(groups))
        before = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        os.environ.update(dict.fromkeys(before, "0"))
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


@contextlib.contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """DeepSpeed logs, prints and asks fake tensors for their addresses."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
