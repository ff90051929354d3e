"""What is known while a program runs under the finder: its blocks, streams and threads.

A block is the memory of a storage that stands for device memory, or is page-locked. It is a weak
reference to the storage, which ends when the last tensor does, also inside of C++. Tensors of the
"device" are the CPU's, and their block says which device they are on.
"""

from __future__ import annotations

import array
import bisect
import collections
import functools
import sys
import threading
import weakref
from typing import Any, Counter, Dict, List, Optional, Set, Tuple

import torch

from ._finder import DEVICE, HOST, PINNED, Finder, words_of
from ._places import Places

raw_storage = torch._C.TensorBase.untyped_storage
current_node = torch._C._current_autograd_node
sequence_number = torch._C._autograd._get_sequence_nr
CPU = torch.device("cpu")
#: Streams that a program gets before it gets earlier ones again; torch has 32 a device.
_MOST_STREAMS = 512


@functools.lru_cache(None)
def is_wrapper(kind: type) -> bool:
    """Whether tensors of this type are of other tensors, as a DTensor is."""
    return hasattr(kind, "__tensor_flatten__")


def storage_of(tensor: torch.Tensor) -> Optional[torch.UntypedStorage]:
    """A tensor's storage; a sparse one has none, and a wrapper's is not its own."""
    if is_wrapper(type(tensor)):
        return None
    try:
        return raw_storage(tensor)
    except (NotImplementedError, RuntimeError):
        return None


def tensors(value: Any) -> List[torch.Tensor]:
    """The tensors of an argument or a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        return []
    found = [one for one in value if isinstance(one, torch.Tensor)]
    return found if len(found) == len(value) else [tensor for one in value for tensor in tensors(one)]


class Block(weakref.ref):  # type: ignore[type-arg]
    """The memory of a storage."""

    __slots__ = ("key", "kind", "device", "actor", "address", "backward", "lent", "recorded")

    key: int
    kind: int  # DEVICE or PINNED
    device: int
    actor: int  # the stream that it was allocated on
    address: int
    backward: Any  # the call of backward in which a node made it on its own stream: a gradient, it may be
    lent: bool  # to another stream: a report may name the place of its free
    recorded: bool  # by record_stream()


def _ended(block: Block) -> None:
    """The storage is gone."""
    session = _active
    if session is not None and session.blocks.get(block.key) is block:
        del session.blocks[block.key]
        if session.confirm is not None:
            session.confirm.free(block)
        if block.address:
            session.finder.free(block.address, session.places.number("free", sys._getframe()) if block.lent else 0)


class Thread:
    """What torch keeps for each thread, and how its streams changed: a node of autograd runs on the
    stream of its forward, which its sequence number finds."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.device = 0
        self.streams: Dict[int, int] = {}  # actors by device
        self.switches: Dict[int, Tuple[List[int], List[int]]] = {}  # by device: sequence numbers, actors
        self.numbers, self.forward = array.array("q"), array.array("I")  # ascending sequence numbers, and places there
        self.backwards: List[Any] = []  # calls of backward, the innermost last
        self.backward: Optional[Tuple[str, int]] = None  # the node that runs, for places
        #: Tensors on the CPU that were made by one instruction of Python: see operators.
        self.instruction: Tuple[int, int] = (0, 0)
        self.made: Set[int] = set()

    def stream(self, device: int) -> int:
        """The current stream of a device."""
        actor = self.streams.get(device)
        if actor is None:
            actor = self.streams[device] = self.session.default_stream(device)
            self.switches[device] = ([-1], [actor])
        return actor

    def set_stream(self, device: int, actor: int) -> None:
        """Makes a stream the current one of its device."""
        if self.stream(device) == actor:
            return
        self.streams[device] = actor
        numbers, actors = self.switches[device]
        number = sequence_number()
        if numbers[-1] == number:
            actors[-1] = actor
        else:
            numbers.append(number)
            actors.append(actor)

    def note_forward(self, number: int, place: int) -> None:
        """An operation followed the making of a node: it is the node's own, a hook's, or came later."""
        if number not in self.numbers[-4:-3]:  # four are enough
            self.numbers.append(number)
            self.forward.append(place)

    def forward_of(self, node: Any) -> int:
        """The place of a node's forward: the operation of its name, else the first one; 0: not known."""
        number, name = node._sequence_nr(), node.name().lower()
        first = bisect.bisect_left(self.numbers, number)
        places = self.forward[first : bisect.bisect_right(self.numbers, number, first)]
        for place in places:
            what = self.session.places.what(place).split(".")
            if len(what) > 1 and name.startswith(what[1].replace("_", "") + "backward"):
                return place
        return places[0] if places else 0

    def stream_of(self, device: int, number: int) -> int:
        """The stream that was current when the node of this sequence number was made."""
        numbers, actors = self.switches[device]
        return actors[max(0, bisect.bisect_right(numbers, number) - 1)]


class Session:
    """A program, or a part of it, under the finder."""

    def __init__(self, depth: int, devices: int, confirm: bool = False) -> None:
        self.finder = Finder()
        self.places = Places(depth)
        self.devices = devices
        self.blocks: Dict[int, Block] = {}  # by the storage's address in C++
        self.names: List[str] = ["the host"]  # of actors
        self.streams = 0  # that the program made
        self._made: Dict[Tuple[int, int], int] = {}
        self._defaults: Dict[int, int] = {}
        self.device_of: List[int] = [-1]  # of actors
        self.group_streams: Dict[int, int] = {}  # of collectives, by device
        #: What the finder cannot see: what it is, and how often.
        self.unseen: Counter[str] = collections.Counter()
        self.confirm: Any = None
        if confirm:
            from ._confirm import Confirm

            self.confirm = Confirm(storage_of)
        self.capture: Any = None  # the CUDA graph that is being captured
        self._local = threading.local()
        for device in range(devices):
            self.default_stream(device)

    def finish(self) -> None:
        """What was put off is done."""
        if self.confirm is not None:
            self.wait_all()

    def restart(self) -> None:
        """Forgets what was done, with the same streams and blocks: the host has waited for all."""
        self.finish()
        self.finder.close()
        self.finder = Finder()
        self.unseen.clear()
        for _ in self.device_of[1:]:
            self.finder.add_stream()
        for block in list(self.blocks.values()):
            storage = block()
            if storage is not None and storage.nbytes():
                self.finder.allocate(block.address, storage.nbytes(), block.kind, block.actor, 0)

    def close(self) -> None:
        """It ends; its blocks may end later."""
        self.finder.close()
        self.blocks.clear()

    def thread(self) -> Thread:
        """The calling thread's."""
        try:
            found: Thread = self._local.thread
        except AttributeError:
            found = self._local.thread = Thread(self)
        return found

    # --- streams ---

    def _add_stream(self, name: str, device: int) -> int:
        actor = self.finder.add_stream()
        where = " of cuda:%d" % device if self.devices > 1 else ""
        self.names.append(name + where)
        self.device_of.append(device)
        return actor

    def default_stream(self, device: int) -> int:
        """A device's default stream."""
        actor = self._defaults.get(device)
        if actor is None:
            actor = self._defaults[device] = self._add_stream("the default stream", device)
        return actor

    def group_stream(self, device: int) -> int:
        """The stream of a device's collectives."""
        if device not in self.group_streams:
            self.group_streams[device] = self._add_stream("the stream of collectives", device)
        return self.group_streams[device]

    def new_stream(self, device: int, name: str = "") -> int:
        """A stream of the program's; torch's own pool is as endless."""
        number = self.streams = self.streams + 1
        slot = (device, number % _MOST_STREAMS)
        if slot not in self._made:
            self._made[slot] = self._add_stream(name or "stream %d" % number, device)
        return self._made[slot]

    # --- what orders ---

    def wait(self, waiter: int, waited: int) -> None:
        """The waiter comes after all work of a stream so far."""
        self.finder.wait(waiter, waited)
        if self.confirm is not None:
            self.confirm.wait(waiter, waited)

    def wait_all(self, device: Optional[int] = None) -> None:
        """The host waits for a device, or for all."""
        for actor, of in enumerate(self.device_of):
            if actor != HOST and device in (None, of):
                self.wait(HOST, actor)

    def record(self, actor: int, event: int = 0) -> int:
        """Records an event; its number."""
        event = self.finder.record(actor, event)
        if self.confirm is not None:
            self.confirm.record(actor, event)
        return event

    def wait_event(self, waiter: int, event: int) -> None:
        """The waiter comes after what the event was recorded behind."""
        self.finder.wait_event(waiter, event)
        if self.confirm is not None:
            self.confirm.wait_event(waiter, event)

    # --- memory ---

    def block_of(self, tensor: torch.Tensor) -> Optional[Block]:
        """The block that a tensor lies in, or the first one that a wrapper has."""
        while is_wrapper(type(tensor)):
            tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])  # type: ignore[attr-defined]
        storage = storage_of(tensor)
        return None if storage is None else self.blocks.get(storage._cdata)

    def tag(self, thread: Thread, storage: torch.UntypedStorage, kind: int, device: int, place: int) -> Block:
        """A storage stands for new memory of a device's current stream, or is page-locked."""
        block = Block(storage, _ended)
        block.key = key = storage._cdata
        block.kind = kind
        block.device = device
        block.actor = actor = thread.stream(device) if kind == DEVICE else HOST
        block.backward, block.lent, block.recorded = None, False, False
        if thread.backwards and thread.backwards[-1].streams.get(device) == actor:
            block.backward = thread.backwards[-1]
        block.address = address = storage.data_ptr()
        self.blocks[key] = block
        if address:
            self.finder.allocate(address, storage.nbytes(), kind, actor, place)
        return block

    def record_stream(self, block: Block, actor: int) -> None:
        """The block is kept until the work of a stream is done that was there when it was freed."""
        block.recorded = True
        self.finder.record_stream(block.address, actor)

    def moved(self, block: Block, place: int) -> None:
        """Its storage was resized: what was there is freed, and new memory was allocated."""
        storage = block()
        if storage is None or storage.data_ptr() == block.address:
            return
        if block.address:
            self.finder.free(block.address, place)
        block.address = storage.data_ptr()
        if storage.nbytes():
            if block.kind == DEVICE:
                block.actor = self.thread().stream(block.device)
            self.finder.allocate(block.address, storage.nbytes(), block.kind, block.actor, place)

    # --- the host ---

    def host_uses(self, what: str, mode: int, *tensors: torch.Tensor) -> None:
        """The host itself reads or writes page-locked tensors."""
        pinned = [t for t in tensors if (block := self.block_of(t)) is not None and block.kind == PINNED]
        if pinned:
            words = [word for tensor in pinned for word in words_of(tensor, mode)]
            self.finder.run(HOST, self.places.number(what, sys._getframe(2)), words)


_active: Optional[Session] = None


def is_active() -> bool:
    """Whether a session runs."""
    return _active is not None


def active() -> Session:
    """The session that runs; torch is replaced only then."""
    if _active is None:
        raise RuntimeError("memopt: this object is of a `with race()` block that has ended")
    return _active


def activate(session: Optional[Session]) -> None:
    """Begins or ends it."""
    global _active
    _active = session
