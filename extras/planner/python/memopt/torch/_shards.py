"""Steps whose weights, gradients or states several devices share: traced in one process, whose
collectives give nothing."""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter

from ._features import Features
from ._recorder import Recorder, Tensor
from ._step import StepRecorder, states_of
from ._target import TargetError


def local(tensor: Any) -> Any:
    """The tensor that a process has of a sharded one."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


class ShardRecorder(Recorder):
    """A recorder that sees through sharded tensors and follows storages that change their size."""

    #: Operations of communication, which of their arguments are its buffers, and whose they are.
    BUFFERS = {
        "fsdp.all_gather_copy_in.default": (slice(0, 2), "parameters"),
        "fsdp.chunk_cat_mixed_dtype.default": ("out", "gradients"),
        "c10d._reduce_scatter_base_.default": (0, "gradients"),
    }

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with what is in them
        place, category = self.BUFFERS.get(str(function), (None, ""))
        if place is not None:
            named = kwargs or {}
            buffers = named.get(place) if isinstance(place, str) else args[place]  # type: ignore
            self.claim(tree_iter(buffers), category)
        return super().__torch_dispatch__(function, types, args, kwargs)

    def claim(self, tensors: Iterable[Any], category: str) -> None:
        super().claim([local(tensor) for tensor in tensors], category)

    def __enter__(self) -> Any:
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            self._resized(storage)
            return result

        self._resize, torch.UntypedStorage.resize_ = resize, resized  # type: ignore
        return super().__enter__()

    def __exit__(self, *exception: Any) -> Any:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore
        return super().__exit__(*exception)

    def _resized(self, storage: Any) -> None:
        """It dies, and is born again with its new size: weights that are gathered."""
        key, size = storage._cdata, storage.nbytes()
        finalizer = self._seen.get(key)
        if finalizer is not None:
            finalizer()
        made = Tensor(torch.empty(0, dtype=torch.uint8, device="meta"), size, self.marks[-1][1])
        made.shape, made.category, made.operation = (size,), "parameters", "resize_"
        self._numbers[key] = len(self.tensors)
        self.tensors.append(made)
        self.events.append(len(self.tensors))
        self._seen[key] = weakref.finalize(storage, self._forget, key, size)
        self.live += size
        self.peak = max(self.peak, self.live)


class ShardStep(StepRecorder):
    """Records a step of one of several processes; `buckets` are DDP's; `waits` is FSDP's module
    where gradients of micro-batches before the last are not reduced."""

    kind = ShardRecorder
    buckets: Sequence[torch.Tensor] = ()
    waits: Any = None

    def _micro_step(self, recorder: Recorder, make_inputs: Any) -> None:
        if self.waits is not None:  # until the last one
            self._micro_batches += 1
            self.waits.set_requires_gradient_sync(self._micro_batches == self.accumulation)
        super()._micro_step(recorder, make_inputs)
        recorder.claim([p.grad for p in self._unsharded()], "gradients")

    def _recorder(self) -> Recorder:
        self._micro_batches = 0
        recorder = self.kind(self.target.module)
        recorder.claim(self.buckets, "gradients")
        recorder.claim(states_of(getattr(self.optimizer, "optim", self.optimizer)), "optimizer")
        return recorder

    @contextlib.contextmanager
    def _hooks(self, recorder: Recorder) -> Iterator[None]:
        hooks = []
        for parameter in self._unsharded():
            hook: Any = parameter.register_post_accumulate_grad_hook
            hooks.append(hook(lambda p: recorder.claim([p.grad], "gradients")))
            if self.waits is not None:  # what is added to another is one, too
                hooks.append(parameter.register_hook(lambda g: recorder.claim([g], "gradients")))
        with super()._hooks(recorder):
            try:
                yield
            finally:
                for hook in hooks:
                    hook.remove()

    def _unsharded(self) -> Iterator[Any]:
        """FSDP's gathered weights that learn."""
        for module in self.target.module.modules():
            if not isinstance(module, FSDPModule):
                continue
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    if parameter.sharded_param.requires_grad:
                        yield parameter._unsharded_param


def shard(module: Any, again: bool, gather: Optional[torch.dtype], **named: Any) -> None:
    """FSDP of each layer, and of the rest, which stays gathered. `again`: layers are gathered again
    in backward."""
    if gather is not None:
        named["mp_policy"] = MixedPrecisionPolicy(param_dtype=gather)
    for layer in layers_of(module):
        fully_shard(layer, reshard_after_forward=again, **named)
    fully_shard(module, reshard_after_forward=None if again else False, **named)


class Devices:
    """Of a step with features: the first of several devices."""

    def __init__(self, module: torch.nn.Module, features: Features) -> None:
        self._module, self._features = module, features
        self._buckets: Dict[Any, torch.Tensor] = {}

    def recorder(self, *taken: Any) -> StepRecorder:
        """Of the device's step."""
        step = ShardStep(*taken)
        step.buckets = list(self._buckets.values())
        if self._features.divides and not self._features.gradient_sync:
            step.waits = self._module
        return step

    @contextlib.contextmanager
    def made(self) -> Iterator["Devices"]:
        """With FSDP's groups, or DDP's buckets."""
        features = self._features
        if features.divides:
            with alone(features.world_size) as mesh:
                again = features.sharding == "zero3"
                shard(self._module, again, features.gather_dtype, mesh=mesh)
                yield self
            return
        learning = [p for p in self._module.parameters() if p.requires_grad]
        self._buckets = {p: torch.empty_like(p) for p in learning}
        hooks: List[Any] = []
        for parameter in learning if features.bucket_view else ():
            hook: Any = parameter.register_post_accumulate_grad_hook
            hooks.append(hook(self._into_bucket))
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _into_bucket(self, parameter: Any) -> None:
        parameter.grad = self._buckets[parameter].detach()


def devices(module: torch.nn.Module, features: Features) -> Any:
    """A context manager of `Devices`."""
    return Devices(module, features).made()


def layers_of(module: torch.nn.Module) -> List[Any]:
    """What FSDP makes a group of: layers that Transformers can checkpoint, or those of the longest
    list."""
    modeling = sys.modules.get("transformers.modeling_layers")
    if modeling is not None:
        kind = modeling.GradientCheckpointingLayer
        found = [part for part in module.modules() if isinstance(part, kind)]
        if found:
            return found
    lists = [part for part in module.modules() if isinstance(part, torch.nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


@contextlib.contextmanager
def alone(world: int) -> Iterator[Any]:
    """A mesh of devices that are not there, but for this one."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise TargetError("a sharded step cannot be traced in a process that has a process group")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        with _disable_current_modes():  # its numbers are no fakes
            mesh = init_device_mesh("cpu", (world,))
        yield mesh
    finally:
        dist.destroy_process_group()


def parts_of(parameters: Sequence[torch.Tensor], world: int) -> List[torch.Tensor]:
    """What FSDP leaves of each on the first device."""
    return [_part(p, world) for p in parameters]


def _part(parameter: torch.Tensor, world: int) -> torch.Tensor:
    shape = list(parameter.shape)
    if shape:
        shape[0] = -(-shape[0] // world)
    part: Any = torch.empty(shape, dtype=parameter.dtype, device="meta")
    part.requires_grad_(parameter.requires_grad)
    part.whole = parameter.numel()
    return part  # type: ignore[no-any-return]


def partition(parameters: Sequence[torch.Tensor], world: int) -> List[List[torch.Tensor]]:
    """Of `ZeroRedundancyOptimizer`: whole ones, the largest first, each to whom has least."""
    parts: List[List[torch.Tensor]] = [[] for _ in range(world)]
    sizes = [0] * world
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        least = sizes.index(min(sizes))
        parts[least].append(parameter)
        sizes[least] += parameter.numel()
    return parts
