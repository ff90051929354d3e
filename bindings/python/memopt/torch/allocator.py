"""enable_allocator(): torch's device memory from the library's caching allocator.

torch calls the library's C functions directly, without this module. Statistics, snapshots and
histories, which torch does not give for such an allocator, come from the library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Sequence, Union

import torch

from .. import _snapshot, errors, steps
from .._abi import Status
from .._abi import PluggableRaise
from .._library import c_text, lib, output
from .._lock import Guard
from ..allocator import Paused, config_items, pause_options
from ..oom import OutOfMemoryReport
from ..sizes import Size, parse_size
from ..steps import StepPlan
from . import _paused, _pluggable
from ._torch_memory import TorchMemory

DeviceLike = Union[torch.device, str, int, None]

#: The variables for the configuration if none is given; the first that is set counts.
ENVIRONMENT = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

#: torch's setters and their arguments. Setters that a torch lacks are skipped.
_HOOKS = {
    "set_record_stream_fn": "memopt_pluggable_record_stream",
    "set_reset_fn": "memopt_pluggable_empty_cache",
    "set_base_alloc_fn": "memopt_pluggable_base_alloc",
    "set_memory_fraction_fn": "memopt_pluggable_memory_fraction",
    "set_begin_allocate_to_pool": "memopt_pluggable_begin_pool",
    "set_end_allocate_to_pool_fn": "memopt_pluggable_end_pool",
    "set_release_pool": "memopt_pluggable_release_pool",
}

#: c10::detail::torchCheckFail(char const*, char const*, unsigned int, char const*)
_TORCH_RAISE = "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"

_lock = Guard()
_enabled: Optional["TorchAllocator"] = None
_last: Optional["TorchAllocator"] = None  # that was made


class TorchAllocator:
    """The library's allocators of torch's devices, one for each, made when they are first used.

    Made by :func:`enable_allocator`, for the whole process, or by itself, for what runs in
    ``with allocator.pool():``. There is one configuration in a process.
    """

    def __init__(self, config: Optional[str] = None, device: DeviceLike = None) -> None:
        self._config = _environment() if config is None else config
        self._device = device
        self._seen: Optional[TorchMemory] = None  # once enabled
        global _last
        lib.memopt_pluggable_configure(_backend().encode(), c_text(self._config, "a configuration"), _torch_raise())
        _last = self

    @property
    def config(self) -> str:
        """The configuration that counts."""
        return self._config

    @property
    def enabled(self) -> bool:
        """Whether it serves the whole process."""
        return self is _enabled

    def __repr__(self) -> str:
        state = "enabled" if self.enabled else "for pools"
        return "<memopt.torch.allocator.TorchAllocator %r, %s>" % (self._config, state)

    # --- what it serves ---

    @contextlib.contextmanager
    def pool(self, device: DeviceLike = None) -> Iterator[Any]:
        """What this thread allocates inside comes from the library, through a torch.cuda.MemPool.

        Works at any time and gives the pool. Where the allocator is enabled for the whole process
        it changes nothing and gives None. torch then requests whole segments from the library and
        splits them itself. They return when the pool and its tensors are gone. BusyError inside
        another one of the thread and the device.
        """
        if self.enabled:
            yield None
            return
        _needs_gpu("pool")
        index = self._index(device)
        _paused.refuse_nested("pool", index)
        with torch.cuda.device(index):  # a MemPool is of the current one
            made = torch.cuda.MemPool(_torch_allocator("memopt_pluggable_alloc"))
        with _paused.in_pool(_paused.this_tag(), index):
            with torch.cuda.use_mem_pool(made, device=index):
                yield made

    @contextlib.contextmanager
    def tagged(self, name: str, device: DeviceLike = None) -> Iterator[Any]:
        """What this thread allocates inside has a tag: "weights", "gradients", "optimizer",
        "activations", "other", or one of your own of up to 31 characters. Reports count bytes by
        tag, and :meth:`pause` can pause some. Where the allocator is not enabled for the process it
        is :meth:`pool`, too: on `device` only, and not inside another one, which is a BusyError."""
        if not self.enabled:
            _needs_gpu("tagged")
            _paused.refuse_nested("tagged(%r)" % name, self._index(device))
            if name in _paused.paused_tags(self._indexes(device)):
                raise errors.BusyError(Status.BUSY, "tagged: %r is paused" % name)
        before = _paused.set_tag(name)
        try:
            with self.pool(device) as made:
                yield made
        finally:
            _paused.set_tag(before)

    # --- pausing ---

    def pause(
        self,
        *tags: str,
        keep: bool = True,
        file: Union[str, "os.PathLike[str]", None] = None,
        device: DeviceLike = None,
    ) -> Paused:
        """Gives the memory of tensors with one of the `tags`, or of all, back to the device; the
        bytes given back. Their addresses stay. With `keep` the contents move to pinned host memory,
        or to a `file` (a folder, or a new file, which has no name once it is open); else they are
        lost. Until :meth:`resume` no work may use these tensors, and nothing can be allocated under
        the tags; all else goes on. A page that holds other tensors, too, stays: see
        :attr:`memopt.allocator.Paused.shared`. Waits for the device. Without a `device`, on every
        device; after a failure on none. It needs ``expandable_segments:True``."""
        pause_options(keep, file)
        _needs_gpu("pause")
        return _paused.pause(self._indexes(device), tags, keep, file)

    def resume(self, *tags: str, device: DeviceLike = None) -> None:
        """Gives paused tensors memory again, at the same addresses and with the contents that were
        kept: those of `tags`, and of the tags that were paused together with them, or all.
        OutOfMemoryError where too little is free, OSError where a file cannot be read: they stay
        paused, and the call can be repeated."""
        _needs_gpu("resume")
        _paused.resume(self._indexes(device), tags)

    def paused_tags(self, device: DeviceLike = None) -> FrozenSet[str]:
        """The names of the paused tags."""
        _needs_gpu("paused_tags")
        return _paused.paused_tags(self._indexes(device))

    # --- what there is to see ---

    def stats(self, device: DeviceLike = None) -> Dict[str, int]:
        """All statistics of a device, under the keys of torch.cuda.memory_stats().

        Memory of recorded graphs is included; of a peak that is an upper bound then.
        """
        return _pluggable.stats(self._index(device))

    def reset_peaks(self, device: DeviceLike = None) -> None:
        """Makes every peak the current value."""
        _pluggable.reset_peaks(self._index(device))

    def snapshot(self, device: DeviceLike = None) -> List[Dict[str, Any]]:
        """Segments with their blocks, in the format of torch.cuda.memory_snapshot(); those of
        graphs come last."""
        return _pluggable.segments(self._index(device))

    def dump_snapshot(self, path: Union[str, "os.PathLike[str]"], device: DeviceLike = None) -> None:
        """Writes a device's memory and history to a file: a page for a browser if the name ends in
        .html, JSON if it ends in .json, else the pickle that https://pytorch.org/memory_viz opens.
        torch.cuda.memory._record_memory_history() begins the history. Only of the allocator that is
        enabled for the process."""
        _snapshot.dump(self._memory("dump_snapshot").seen(self._index(device)), path)

    def out_of_memory(self, device: DeviceLike = None) -> Optional[OutOfMemoryReport]:
        """Why the last allocation on a device has failed, and who held what then; None if none has
        failed. With torch.cuda.memory._record_memory_history(), it says since when, and in which
        lines of the program. Only of the allocator that is enabled for the process."""
        return self._memory("out_of_memory").reports.get(self._index(device))

    def _memory(self, what: str) -> TorchMemory:
        if self._seen is None:
            raise RuntimeError("%s: the allocator is not enabled: see enable_allocator()" % what)
        return self._seen

    def trim(self, target: Size = 0, device: DeviceLike = None) -> int:
        """Gives cached memory back until at most `target` bytes of the device are held, memory of
        recorded graphs included; the bytes given back. Without a device, of every device;
        torch.cuda.empty_cache() does that with target 0. Tensors are not touched.
        """
        most = parse_size(target)
        indexes = range(torch.cuda.device_count()) if device is None else [self._index(device)]
        return sum(output(lib.memopt_pluggable_trim_to_sync, i, most) for i in indexes)

    def mark_step(self, device: DeviceLike = None, *, learn: bool = False, end: bool = False) -> None:
        """Marks the end of a training step on a device, as :meth:`memopt.Allocator.mark_step`: after
        ``optimizer.step()``, say. Memory of recorded graphs takes no part. Only of the allocator
        that is enabled for the process."""
        self._memory("mark_step")
        steps.mark(_pluggable.handles(self._index(device))[0], learn, end)

    def step_plan(self, device: DeviceLike = None) -> StepPlan:
        """What is known of the steps that were marked on a device."""
        self._memory("step_plan")
        return steps.read(_pluggable.handles(self._index(device))[0])

    def _indexes(self, device: DeviceLike) -> Sequence[int]:
        return _pluggable.in_use() if device is None else [self._index(device)]

    def _index(self, device: DeviceLike) -> int:
        device = self._device if device is None else device
        if isinstance(device, int):
            return device
        if device is not None:
            device = torch.device(device)
            if device.type != "cuda":
                raise ValueError("allocator: device must be a cuda device, not %s" % device)
            if device.index is not None:
                return device.index
        return torch.cuda.current_device()


def enable_allocator(config: Optional[str] = None, device: DeviceLike = None) -> TorchAllocator:
    """Makes the library's allocator torch's, for the whole process and all its GPUs.

    Call it before torch allocates on a GPU; RuntimeError if it is too late. `config` is a string as
    in PYTORCH_CUDA_ALLOC_CONF; without it the one of PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF or
    PYTORCH_HIP_ALLOC_CONF counts, less what the library does not know. `device` is the one that the
    methods of the result mean where none is given; None is torch's current one. Called again, it
    gives the same object; ValueError for another configuration.

    torch.cuda.memory_stats(), memory_allocated(), memory_summary(), memory_snapshot(), the memory
    history and what else torch.cuda.memory has then answer for the library's allocator.

    Out of memory is a torch.OutOfMemoryError whose message begins with "CUDA out of memory." and
    has the library's report in it.
    """
    global _enabled
    _needs_gpu("enable_allocator")
    with _lock:
        if _enabled is not None:
            if config is not None and config != _enabled.config:
                raise ValueError(
                    "enable_allocator: the allocator is enabled with %r; config cannot change to %r"
                    % (_enabled.config, config)
                )
            return _enabled
        _refuse_late()
        made = TorchAllocator(config, device)
        handle = _torch_allocator("memopt_pluggable_alloc_or_raise")
        for setter, function in _HOOKS.items():
            if hasattr(handle, setter):
                getattr(handle, setter)(_address(function))
        try:
            torch._C._cuda_changeCurrentAllocator(handle)
        except RuntimeError as error:
            raise RuntimeError(_LATE) from error
        _enabled = made
        made._seen = TorchMemory(made.config)
        made._seen.install()
        return made


def enabled_allocator() -> Optional[TorchAllocator]:
    """What :func:`enable_allocator` gave, or None."""
    return _enabled


def any_allocator(what: str) -> TorchAllocator:
    """The one that is enabled, or else the last that was made: there is one configuration."""
    found = _enabled or _last
    if found is None:
        raise RuntimeError(
            '%s: the library allocates nothing yet: call enable_allocator("expandable_segments:True")'
            ' or TorchAllocator("expandable_segments:True") first' % what
        )
    return found


_LATE = (
    "enable_allocator: torch's own allocator is in use already, and torch cannot change it then."
    " Call it before the first tensor on a GPU, best right after the imports; or use"
    " `with memopt.torch.allocator.TorchAllocator(config).pool():`, which works at any time"
)


def _refuse_late() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(_LATE)


def _needs_gpu(what: str) -> None:
    if not torch.cuda.is_available():
        raise RuntimeError("%s: torch sees no GPU, and on the CPU torch's allocator cannot be replaced" % what)


def _backend() -> str:
    return "hip" if torch.version.hip else "cuda"


def _address(function: str) -> int:
    return ctypes.cast(getattr(lib, function), ctypes.c_void_p).value or 0


def _torch_allocator(alloc: str) -> Any:
    make: Any = torch._C._cuda_customAllocator
    return make(_address(alloc), _address("memopt_pluggable_free"))


def _torch_raise() -> Any:
    """What throws torch's exceptions. A torch without the one for memory throws its RuntimeError;
    without that, a failure is only logged."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        found = output(lib.memopt_pluggable_find_torch, os.fsencode(path))
        return ctypes.cast(found, PluggableRaise)
    except errors.NotFoundError:
        pass
    try:
        function = getattr(ctypes.CDLL(path), _TORCH_RAISE)
    except (OSError, AttributeError):
        return PluggableRaise()
    return ctypes.cast(function, PluggableRaise)


def _environment() -> str:
    """The configuration of the environment, less what the library does not know."""
    for name in ENVIRONMENT:
        text = os.environ.get(name)
        if text:
            return _known_items(name, text)
    return ""


def _known_items(name: str, text: str) -> str:
    if _check(name, text) is None:
        return text
    good = []
    for position, item in config_items(text):
        # Blanks before it, so that the message has the column of the whole text.
        wrong = _check(name, " " * position + item)
        if wrong is None:
            good.append(item)
        else:
            warnings.warn("enable_allocator: %r of %s is left out: %s" % (item, name, wrong), stacklevel=5)
    return ",".join(good)


def _check(name: str, text: str) -> Optional[errors.MemoptError]:
    try:
        lib.memopt_allocator_check_config(c_text(text, name))
    except errors.InvalidArgumentError as error:
        return error
    return None
