"""Checkpoint regions: run a segment without keeping its activations, and again in backward.

forward() and recompute() re-raise an exception of a callback as the same object; a status that a
callback returns becomes a MemoptError with that status.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from . import _abi, _lifetime, errors
from ._abi import CheckMode, Pass, RegionMode, Status
from ._arguments import choice, unsigned
from ._library import c_text, lib, output, values_of
from .allocator import Allocator
from .memory import Memory
from .sizes import Size, parse_size
from .streams import StreamLike, stream_pointer
from .tensors import TensorLike, tensor_array

#: ``run(region, which, stream)``: enqueues the segment; None or a status, 0 for success.
Run = Callable[["Region", Pass, Any], Optional[int]]


class RandomState(NamedTuple):
    """How a region captures the state of the caller's random generators."""

    #: Size of the state.
    nbytes: int
    #: Gives the state: exactly `nbytes` bytes.
    save: Callable[[], bytes]
    #: Sets it again.
    restore: Callable[[bytes], Any]


class Lease(Memory):
    """Memory for a value that backward needs; the region ends it."""

    __slots__ = ("_region",)

    _kind = "lease"

    def __init__(self, region: "Region", address: Optional[int], nbytes: int) -> None:
        super().__init__(region._allocator.device, address, nbytes, region._handle)
        self._region = region


class Region(_lifetime.Closing):
    """A checkpointed segment of a forward pass.

    `run` enqueues it, leases what backward needs with alloc(), and declares results with check().
    `mode` "keep" keeps the leases and recomputes nothing, so that one option switches
    checkpointing. `check` compares recomputed values by "hash" or "exact"ly.
    """

    __slots__ = ("_allocator", "_handle", "_run", "_random", "_stream", "_leases", "_keeps", "name", "__weakref__")

    def __init__(
        self,
        allocator: Allocator,
        run: Run,
        *,
        name: str = "region",
        mode: Union[str, RegionMode] = "recompute",
        check: Union[str, CheckMode] = "none",
        random: Optional[RandomState] = None,
    ) -> None:
        if not callable(run):
            raise TypeError("run must be a function, not %s" % type(run).__name__)
        self._allocator = allocator
        self._run = run
        self._random = random
        self._stream: StreamLike = None
        self._leases: List[Lease] = []
        #: For messages.
        self.name = name
        callbacks, thunks = _callbacks(weakref.ref(self), random is not None)
        options = _abi.RegionOptions(
            name=c_text(name, "a name"),
            mode=choice(RegionMode, mode, "mode"),
            check=choice(CheckMode, check, "check"),
            random_bytes=0 if random is None else unsigned(random.nbytes, 63, "random.nbytes"),
        )
        self._keeps = options.mode == RegionMode.KEEP
        device = allocator.device
        self._handle = _lifetime.create(
            self,
            "region",
            lib.memopt_region_destroy,
            lib.memopt_region_create,
            device._handle.pointer,
            allocator._handle.pointer,
            callbacks,
            options,
            parents=(allocator._handle, device._handle),
            keep=thunks,
        )

    @property
    def leases(self) -> Tuple[Lease, ...]:
        """The leases that are live, in the order of their alloc()."""
        return tuple(self._leases)

    def forward(self, stream: StreamLike = None) -> None:
        """Runs the segment for the first time and drops its leases (unless the mode keeps)."""
        self._call(lib.memopt_region_forward, stream)

    def recompute(self, stream: StreamLike = None) -> None:
        """Runs it again with the random state of the first run; leases live until release()."""
        self._call(lib.memopt_region_recompute, stream)

    def _call(self, function: Any, stream: StreamLike) -> None:
        outer, self._stream = self._stream, stream
        try:
            function(self._handle.pointer, stream_pointer(stream))
        except BaseException:
            self._forget_dead_leases()
            raise
        finally:
            self._stream = outer
        self._forget_dead_leases()

    def _forget_dead_leases(self) -> None:
        if not self.closed and self.stats()["leased_bytes"] == 0:
            self._drop_leases()

    def _drop_leases(self) -> None:
        leases, self._leases = self._leases, []
        for lease in leases:
            lease._address = None

    def release(self) -> None:
        """Ends the leases after backward has been enqueued."""
        for lease in self._leases:
            lease._refuse_exports()
        lib.memopt_region_release(self._handle.pointer)
        self._drop_leases()

    # --- inside the callback ---

    def alloc(self, nbytes: Size) -> Lease:
        """Leases memory; only inside `run`. The n-th lease of each run has the same size."""
        size = parse_size(nbytes)
        lease = Lease(self, output(lib.memopt_region_alloc, self._handle.pointer, size), size)
        self._leases.append(lease)
        return lease

    def check(self, name: str, value: TensorLike) -> None:
        """Declares a computed value for the content check; only inside `run`."""
        array, views = tensor_array([value], self._allocator.device, name)
        lib.memopt_region_check(self._handle.pointer, c_text(name, "a name"), array)
        self._allocator.device._keep(self._stream, views)

    def stats(self) -> Dict[str, int]:
        """What the region has done."""
        return values_of(output(lib.memopt_region_get_stats, self._handle.pointer))

    def _refuse_exports(self) -> None:
        """C ends leases when `run` returns: they must not be used any more."""
        for number, lease in enumerate(self._leases):
            try:
                lease._refuse_exports()
            except BufferError as error:
                raise BufferError("region %r, lease %d: %s" % (self.name, number, error)) from None


def _guarded(call: Callable[[], Optional[int]]) -> int:
    """Runs a callback for C: an error of the library keeps its status, any other is the user's."""

    def failed(error: BaseException) -> int:
        return int(error.status) if isinstance(error, errors.MemoptError) else Status.USER

    status = errors.run_callback(call, failed)
    return Status.OK if status is None else int(status)


def _callbacks(owner: "weakref.ref[Region]", with_random: bool) -> Tuple[_abi.RegionCallbacks, Tuple[Any, ...]]:
    """The C callbacks of a region and their thunks, which reach it weakly: it can be collected."""

    def region() -> Region:
        found = owner()
        assert found is not None, "its method is running"
        return found

    def run(_user: object, _pointer: object, which: int, _stream: object) -> int:
        def call() -> Optional[int]:
            self = region()
            status = self._run(self, Pass(which), self._stream)
            if which == Pass.FORWARD and not self._keeps:
                self._refuse_exports()
            return status

        return _guarded(call)

    def save(_user: object, state: int) -> int:
        def call() -> None:
            random = region()._random
            assert random is not None
            data = bytes(random.save())
            if len(data) != random.nbytes:
                raise ValueError("random.save returned %d bytes instead of %d" % (len(data), random.nbytes))
            ctypes.memmove(state, data, len(data))

        return _guarded(call)

    def restore(_user: object, state: int) -> int:
        def call() -> None:
            random = region()._random
            assert random is not None
            random.restore(ctypes.string_at(state, random.nbytes))

        return _guarded(call)

    thunks = (
        _abi.RegionRun(run),
        _abi.RandomState(save) if with_random else _abi.RandomState(),
        _abi.RandomState(restore) if with_random else _abi.RandomState(),
    )
    callbacks = _abi.RegionCallbacks(run=thunks[0], random_save=thunks[1], random_restore=thunks[2])
    return callbacks, thunks
