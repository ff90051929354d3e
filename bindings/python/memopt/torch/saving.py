"""save_on_cpu(): tensors that autograd saves wait for backward in page-locked host memory.

A drop-in for ``torch.autograd.graph.save_on_cpu``: its options and statistics. Its hooks are in
_packer.py.
"""

from __future__ import annotations

import math
import os
import weakref
from typing import Dict, Optional, Tuple, Union

import torch
from torch.autograd.graph import saved_tensors_hooks

from .. import _abi
from .._arguments import choice
from ..offload import Disk, parse_disk
from ..sizes import Size, parse_size
from . import _buffers, _hooks
from ._coded import Coder, Compress
from ._packer import Packer
from ._store import Options


class save_on_cpu(saved_tensors_hooks):
    """Under this context manager, tensors that autograd saves wait for backward on the host.

        with memopt.torch.save_on_cpu():
            loss = model(batch).sum()
        loss.backward()

    As ``torch.autograd.graph.save_on_cpu``, with these differences. Views of one storage are stored
    once, with their strides. Parameters, leaves that require a gradient, buffers of the modules that
    are called, tensor subclasses, and sparse or quantized tensors stay where they are; so do tensors
    whose storage is smaller than `min_bytes`. What stays is checked: changed in place before
    backward it raises, as without hooks. A copy to the host is a snapshot.

    Args:
        pin_memory: taken as torch does; host memory is always page-locked, and of exact size.
        device_type: "cuda" or "cpu": whose tensors to store. By default CUDA's; on a machine
            without, the CPU's.
        host_limit: the most host memory to hold for each device, as a number or as "8GiB"; 0 is
            no limit.
        min_bytes: storages smaller than this stay. Saving one costs as much of the host's time as saving 4 KiB.
        prefetch: how many bytes to bring back ahead of what backward asks for, as a number or as
            "512MiB"; at least the next value comes ahead, with 0 none. None: a sixteenth of what a
            forward pass stores (the largest so far), at least 32 MiB. On the CPU there is nothing to
            overlap with, and it has no effect.
        in_flight: how many bytes may be on their way to the host before the stream that saves waits
            for the oldest copy; their memory is in use until then. One copy may always be under way.
            None: as for `prefetch`. No effect on the CPU.
        keep_last: the newest values stay on the device, since backward begins with them: a number
            of tensors, or bytes as "64MiB".
        overflow: what to do with a value that does not fit below `host_limit`: "keep" it on the
            device; "wait" for memory that is about to be given back, and fail where none is;
            "fail" with LimitReachedError; "spill" older values to `disk`.
        disk: a directory, or a file to make, where the oldest values go when the host is full:
            "/scratch", or ("/scratch", "200GiB") to use no more of it. It needs a `host_limit`, and
            makes "spill" the default of `overflow`. The file has no name: nothing is left of it
            when the process ends. A disk that cannot be written raises StorageError in forward, one
            that cannot be read in backward.
        compress: None stores every bit. "mxfp8" (as "mxfp8_e4m3"), "mxfp8_e5m2", "mxfp4", "nvfp4" or
            "e4m3_1x128" quantises float32, float16 and bfloat16 values on their device before they
            go to the host, and backward gets them back rounded: within 2.9 % (mxfp8) to 11.5 %
            (mxfp4), as the root of the mean square. An infinity or a NaN becomes a block of NaNs. A
            function is given the tensor, and returns one of these for it, or None.
        compress_min_bytes: storages smaller than this are stored as they are.

    An object may be entered again, also within itself and on several threads. Host memory is kept
    for the next object of the same limits. Ctrl-C may end any of it: the next step works, and
    nothing leaks. (As with torch's contexts, a signal at the very start of ``__exit__`` leaves the
    context on.)
    """

    def __init__(
        self,
        pin_memory: bool = True,
        device_type: Optional[str] = None,
        *,
        host_limit: Size = 0,
        min_bytes: Size = 4096,
        prefetch: Optional[Size] = None,
        in_flight: Optional[Size] = None,
        keep_last: Size = 0,
        overflow: Union[None, str, _abi.Overflow] = None,
        disk: Optional[Disk] = None,
        compress: Compress = None,
        compress_min_bytes: Size = "16KiB",
    ) -> None:
        options = _options(parse_size(host_limit), overflow, disk)
        self._packer = packer = Packer(
            options,
            device_type,
            max(1, parse_size(min_bytes)),
            _last(keep_last),
            (_bytes("prefetch", prefetch), _bytes("in_flight", in_flight)),
            None if compress is None else Coder(compress, parse_size(compress_min_bytes)),
        )
        packer.context = weakref.ref(self)
        self.pack_hook, self.unpack_hook = packer.pack, packer.unpack

    def __enter__(self) -> "save_on_cpu":  # type: ignore[override]
        if not _hooks.enabled():
            super().__enter__()  # raises, and tells why
        packer = self._packer
        try:
            _buffers.watchers.append(packer)
            _buffers.settle()
            try:
                _hooks.push(self.pack_hook, self.unpack_hook)
            except BaseException:  # of a signal, which is heard afterwards
                _hooks.pop()
                raise
        except BaseException:
            _buffers.watchers.remove(packer)
            _buffers.settle()
            raise
        return self

    def __exit__(self, *arguments: object) -> None:
        if self._packer not in _buffers.watchers:
            raise RuntimeError("save_on_cpu: __exit__ was called more often than __enter__")
        try:
            _hooks.pop()
        finally:
            _buffers.watchers.remove(self._packer)
        _buffers.settle()
        if self._packer.open and (not arguments or arguments[0] is None):
            self._packer.close_batch()

    def stats(self) -> Dict[str, int]:
        """What it holds and has done.

        Of this object: `saved` tensors that went to the host or wait to (keep_last), of which
        `shared` needed no copy of their own; `kept_parameters`, `kept_buffers`, `kept_small`,
        `kept_overflow`, `kept_other`: tensors that stayed, by reason; `kept_last`: of those saved
        what keep_last holds back (values below 32 KiB share batches, each counted as one, as in
        `packs` and `tickets`); `compressed`: values that were quantised, and `compressed_bytes`
        theirs before; `packs`, `copied_out_bytes`, `copied_back_bytes`,
        `prefetch_hits`, `waits`, `disk_written_bytes`, `disk_read_bytes`, `disk_waits`. Of its host
        memory and its file, now: `tickets`, `host_bytes`, `host_bytes_peak`, `host_bytes_used`,
        `kept_bytes`, `disk_tickets` (values on the disk only), `disk_bytes_used` (theirs),
        `disk_bytes` (of the file), `disk_bytes_peak`.
        """
        return self._packer.stats()

    def trim(self) -> int:
        """Gives host memory and space of the disk that are not in use back; the bytes of memory."""
        stores = list(self._packer.stores.values())
        return sum(store.trim() for store in stores if store is not None)


_NO_LIMIT = Options(0)


def _options(host_limit: int, overflow: Union[None, str, _abi.Overflow], disk: Optional[Disk]) -> Options:
    if disk is None and overflow is None:
        return Options(host_limit) if host_limit else _NO_LIMIT
    path, limit = parse_disk(disk, host_limit)
    if overflow is None:
        overflow = _abi.Overflow.KEEP if path is None else _abi.Overflow.SPILL
    policy = int(choice(_abi.Overflow, overflow, "overflow"))
    if (policy == _abi.Overflow.SPILL) != (path is not None):
        raise ValueError("save_on_cpu: overflow 'spill' and disk need each other: pass both, or leave both out")
    return Options(host_limit, policy, None if path is None else (os.fsdecode(path), limit))


def _bytes(name: str, size: Optional[Size]) -> Optional[int]:
    number = None if size is None else parse_size(size)
    if number is not None and 0 < number < 512:  # it was a number of tensors once
        raise ValueError("save_on_cpu: %s is in bytes, or text as '512MiB'; %d is too few" % (name, number))
    return number


def _last(keep_last: Size) -> Tuple[float, float]:
    """The most tensors and the most bytes to hold back."""
    if isinstance(keep_last, str):
        return math.inf, parse_size(keep_last)
    if keep_last < 0:
        raise ValueError("save_on_cpu: keep_last must be a number of tensors or bytes, not %r" % keep_last)
    return keep_last, math.inf
