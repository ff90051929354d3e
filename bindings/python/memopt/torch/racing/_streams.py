"""torch.cuda's streams, events and devices: what a program says with them goes to the finder."""

from __future__ import annotations

import collections
import contextlib
from typing import Any, Dict, List, Optional, Union

import torch

from ._engine import follow
from ._finder import HOST
from ._session import Thread, active

#: A query of an event says "not yet" so often, as on a GPU: a program must not rely on the first.
_POLLS = 3
DeviceLike = Union[None, int, str, torch.device]


def followed() -> Thread:
    """The calling thread, with the stream of the node that runs in backward."""
    thread = active().thread()
    follow(thread)
    return thread


def index_of(device: DeviceLike) -> int:
    """The number of a device; the current one where none is named."""
    session = active()
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else device
    if index is None:
        return session.thread().device
    if not 0 <= index < session.devices:
        raise torch.AcceleratorError(
            "CUDA error: invalid device ordinal (cuda:%d; there are %d: CUDA_VISIBLE_DEVICES)" % (index, session.devices)
        )
    return index


class Stream:
    """torch.cuda.Stream."""

    def __init__(self, device: DeviceLike = None, priority: int = 0, _actor: Optional[int] = None, **_: Any) -> None:
        session = active()
        if _actor is None:
            _actor = session.new_stream(index_of(device))
        self._actor = _actor
        self.priority = priority
        self.device_index = session.device_of[_actor]
        self.device = torch.device("cuda", self.device_index)
        self.device_type = 1
        default = session.default_stream(self.device_index) == _actor
        self.stream_id = self.cuda_stream = 0 if default else _actor
        self._before: List[Any] = []

    def wait_event(self, event: "Event") -> None:
        """Later work of this stream waits for the event."""
        if event._is_known():
            active().wait_event(self._actor, event._event)

    def wait_stream(self, stream: "Stream") -> None:
        """Later work of this stream waits for that of another so far."""
        active().wait(self._actor, stream._actor)

    def record_event(self, event: "Optional[Event]" = None) -> "Event":
        """Records an event here."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits."""
        active().wait(HOST, self._actor)

    def query(self) -> bool:
        """All work is done: the host has seen it."""
        self.synchronize()
        return True

    def is_capturing(self) -> bool:
        """Whether a graph is being captured."""
        return active().capture is not None

    def __enter__(self) -> "Stream":
        thread = followed()
        self._before.append((thread.device, thread.stream(self.device_index)))
        thread.device = self.device_index
        thread.set_stream(self.device_index, self._actor)
        return self

    def __exit__(self, *_: object) -> None:
        thread = active().thread()
        thread.device, actor = self._before.pop()
        thread.set_stream(self.device_index, actor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._actor == self._actor

    def __hash__(self) -> int:
        return hash(self._actor)

    def __repr__(self) -> str:
        return "<torch.cuda.Stream under memopt race: %s>" % active().names[self._actor]


class ExternalStream(Stream):
    """A stream of another library's."""

    def __init__(self, stream_ptr: int, device: DeviceLike = None, **_: Any) -> None:
        active().unseen["work of a stream of another library"] += 1
        super().__init__(device)


class Event:
    """torch.cuda.Event."""

    def __init__(self, *_: Any, **options: Any) -> None:
        self._event = 0
        self._polls = 0
        self._finder: Any = None
        self.cuda_event = 0

    def _is_known(self) -> bool:
        """Whether it was recorded in this block; an earlier one is done."""
        return self._finder is not None and self._finder is active().finder

    def record(self, stream: Optional[Stream] = None) -> None:
        """Records it on a stream, or the current one."""
        event = self._event if self._is_known() else 0
        self._finder = active().finder
        self._event = active().record((stream or current_stream())._actor, event)

    def wait(self, stream: Optional[Stream] = None) -> None:
        """Later work of a stream waits for it."""
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """The host waits for it."""
        if self._is_known():
            active().wait_event(HOST, self._event)

    def query(self) -> bool:
        """Whether it is done; the host has seen it then."""
        self._polls += 1
        if self._is_known() and self._polls % _POLLS == 0:
            self.synchronize()
            return True
        return not self._is_known()

    def elapsed_time(self, other: "Event") -> float:
        """Milliseconds; there are no times here."""
        return 1.0

    def __del__(self) -> None:
        if self._finder is not None:
            self._finder.drop_event(self._event)


def stream_context(stream: Optional[Stream]) -> Any:
    """torch.cuda.stream()."""
    return contextlib.nullcontext() if stream is None else stream


class DeviceContext:
    """torch.cuda.device()."""

    def __init__(self, device: Any) -> None:
        device = getattr(device, "device", device)
        self.idx = index_of(device) if getattr(device, "type", "cuda") == "cuda" else -1
        self.prev_idx = -1

    def __enter__(self) -> None:
        thread = active().thread()
        self.prev_idx, thread.device = thread.device, self.idx if self.idx >= 0 else thread.device

    def __exit__(self, *_: object) -> None:
        active().thread().device = self.prev_idx


def current_stream(device: DeviceLike = None) -> Stream:
    """torch.cuda.current_stream()."""
    return Stream(_actor=followed().stream(index_of(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """torch.cuda.default_stream()."""
    return Stream(_actor=active().default_stream(index_of(device)))


def set_stream(stream: Optional[Stream]) -> None:
    """torch.cuda.set_stream()."""
    if stream is not None:
        followed().set_stream(stream.device_index, stream._actor)


def set_device(device: DeviceLike) -> None:
    """torch.cuda.set_device()."""
    active().thread().device = index_of(device)


def synchronize(device: DeviceLike = None) -> None:
    """torch.cuda.synchronize()."""
    active().wait_all(index_of(device))


class _Properties:
    """torch.cuda.get_device_properties(): any name that is not here is 0."""

    name = "memopt race"
    major, minor, multi_processor_count, warp_size = 9, 0, 132, 32
    total_memory = 80 << 30
    gcnArchName = ""

    def __getattr__(self, name: str) -> int:
        return 0


def cuda_functions() -> Dict[str, Any]:
    """What replaces functions of torch.cuda."""
    nothing, zero, yes = (lambda *_, **__: None), (lambda *_, **__: 0), (lambda *_, **__: True)
    quiet = "_lazy_init init _sleep empty_cache ipc_collect manual_seed manual_seed_all seed seed_all _check_capability"
    quiet += " reset_peak_memory_stats reset_max_memory_allocated set_per_process_memory_fraction _set_rng_state_offset"
    numbers = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved"
    return {
        **dict.fromkeys(quiet.split(), nothing),
        **dict.fromkeys(numbers.split(), zero),
        **dict.fromkeys("is_available is_initialized is_bf16_supported can_device_access_peer".split(), yes),
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        **dict.fromkeys(("StreamContext", "stream"), stream_context),
        **dict.fromkeys(("device", "device_of"), DeviceContext),
        "default_generators": (torch.default_generator,) * active().devices,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "synchronize": synchronize,
        "device_count": lambda: active().devices,
        "current_device": lambda: active().thread().device,
        "set_device": set_device,
        "get_device_properties": lambda device=None: _Properties(),
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: _Properties.name,
        "mem_get_info": lambda device=None: (_Properties.total_memory, _Properties.total_memory),
        "memory_stats": lambda device=None: collections.defaultdict(int),
        "get_rng_state": lambda *_: torch.default_generator.get_state(),
        "set_rng_state": lambda state, *_: torch.default_generator.set_state(state) and None,
        "is_current_stream_capturing": lambda: active().capture is not None,
    }


def accelerator_functions() -> Dict[str, Any]:
    """What replaces functions of torch.accelerator."""
    return {
        "is_available": lambda: True,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "device_count": lambda: active().devices,
        **dict.fromkeys(("current_device_index", "current_device_idx"), lambda: active().thread().device),
        **dict.fromkeys(("set_device_index", "set_device_idx"), set_device),
        "device_index": DeviceContext,
        "current_stream": current_stream,
        "set_stream": set_stream,
        "synchronize": synchronize,
    }
