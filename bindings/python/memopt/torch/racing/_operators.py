"""The mode that sees every operator: which memory it uses, on which stream, and what comes out of it.

Tensors of the device are the CPU's, so operators run there. What PyTorch makes inside of an operator "for
the device of this tensor" is then made for the CPU; it becomes the device's where it meets its tensors
within the same instruction of Python. Another tensor of the CPU that meets them is the program's mistake.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode

from ._engine import follow
from ._finder import DEVICE, HOST, PINNED, READ, WRITE, words_of
from ._groups import collective
from ._session import CPU, Block, Session, active, is_wrapper, raw_storage, sequence_number, storage_of, tensors

_Tensor = torch.Tensor
_MASKS = (torch.bool, torch.uint8)
PLAIN, VIEW, COPY, FACTORY, COMPOSITE, COLLECTIVE = range(6)

#: Operators that wait for the device, as their result's size or value is the host's.
_WAIT = frozenset(
    "_local_scalar_dense nonzero equal is_nonzero masked_select _unique2 unique_dim unique_consecutive".split()
)
#: Operators that take tensors of the CPU beside those of a device.
_MIXED = frozenset(
    "index index_put index_put_ _index_put_impl_ copy_ _to_copy set_ _pack_padded_sequence _pad_packed_sequence"
    " _ctc_loss _use_cudnn_ctc_loss lift_fresh record_stream _pin_memory _resize_output_ resize_ _reshape_alias".split()
)


class Operator:
    """What an overload's schema says, read once."""

    def __init__(self, function: Any) -> None:
        schema = function._schema
        self.function = function
        self.run = function._op
        self.name = str(function)
        namespace, self.base = schema.name.split("::")
        base = self.base
        self.positions: List[Tuple[int, int]] = []  # of arguments that may be tensors, and how they are used
        self.keywords: Dict[str, int] = {}
        for index, argument in enumerate(schema.arguments):
            if "Tensor" in str(argument.type):
                alias = argument.alias_info
                mode = READ
                if alias is not None and alias.is_write:
                    mode = WRITE if base == "copy_" else READ | WRITE
                self.keywords[argument.name] = mode
                if not argument.kwarg_only:
                    self.positions.append((index, mode))
        aliases = [out.alias_info for out in schema.returns]
        self.makes = any(alias is None for alias in aliases)
        self.resizes = base.startswith("resize") or base == "set_" or "out" in self.keywords
        self.waits = base in _WAIT
        self.mixed = base in _MIXED
        self.indexes = base.startswith("index") and "indices" in self.keywords
        dispatch = torch._C._dispatch_has_kernel_for_dispatch_key
        if base == "_wrap_tensor_autograd":  # the result of a collective, which is waited for when it is used
            self.kind = VIEW
        elif namespace in ("c10d", "_c10d_functional"):
            self.kind = COLLECTIVE
            if namespace == "c10d":
                reads = ("input",) if base != "send" else ("",)
                modes = {name: READ if any(word in name for word in reads) else READ | WRITE for name in self.keywords}
                self.positions = [(at, modes[schema.arguments[at].name]) for at, _ in self.positions]
        elif base in ("copy_", "_to_copy"):
            self.kind = COPY
        elif base.startswith(("new_", "empty")) or base.endswith("_like"):
            self.kind = FACTORY
        elif base in ("_unsafe_view", "lift_fresh", "is_pinned"):
            self.kind = VIEW
            if base == "is_pinned":
                self.run = is_pinned
        elif dispatch(function.name(), "CompositeImplicitAutograd"):
            self.kind = COMPOSITE
        elif aliases and all(alias is not None and not alias.is_write for alias in aliases):
            self.kind = VIEW
        else:
            self.kind = PLAIN
        self.fills = self.kind != FACTORY or any(word in base for word in ("zeros", "ones", "full", "rand"))


_operators: Dict[int, Operator] = {}  # by the overload's id, which torch keeps
Uses = List[Tuple[torch.Tensor, int, Optional[Block], int]]  # tensor, mode, block, address of its storage


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    """Tensor.is_pinned()."""
    block = active().block_of(tensor)
    return block is not None and block.kind == PINNED


class RaceMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode of a thread."""

    #: torch's own conversions believe that all is on the CPU; only those of Tensor.to() go across.
    across = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would wrap each call of the mode to keep its compiler out; under a mode it compiles nothing."""
        return False

    def __init__(self, session: Session) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.session = session
        self.thread = session.thread()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = _operators.get(id(func))
        if operator is None:
            operator = _operators[id(func)] = Operator(func)
        kind = operator.kind
        if _mode_of(_FAKE) is not None:  # nothing runs
            return func(*args, **(kwargs or {}))
        if types and any(map(is_wrapper, types)):
            return NotImplemented  # its own operators come here
        if kind == VIEW and not kwargs:
            return operator.run(*args)
        if kind == COMPOSITE:  # under inference_mode()
            with self:
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        device = pinned = None
        if kwargs:
            kwargs = dict(kwargs)
            pinned = kwargs.pop("pin_memory", None)
            device = kwargs.get("device")
            if device is not None:
                if device.type not in ("cpu", "cuda"):
                    return func(*args, **kwargs)
                kwargs["device"] = CPU
            if operator.base == "_to_copy" and not RaceMode.across:
                device = kwargs["device"] = None
        else:
            kwargs = {}
        if kind == VIEW:
            return operator.run(*args, **kwargs)
        if kind == COLLECTIVE:
            return collective(self, operator, args, kwargs)
        uses, index, alike = self._uses(operator, args, kwargs)
        if device is not None and device.type == "cuda":
            target = self.thread.device if device.index is None else device.index
            if index < 0 or kind != COPY:
                index = target
        else:
            target = -1 if device is not None else index
        if index < 0 or (kind == FACTORY and target < 0):
            return self._on_host(operator, args, kwargs, uses, pinned)
        return self._on_device(operator, args, kwargs, uses, index, target, alike)

    def _uses(self, operator: Operator, args: Any, kwargs: Any) -> Tuple[Uses, int, bool]:
        """The tensors that an operator gets, the device of the first one that is on any, and whether all are there."""
        blocks, count = self.session.blocks, len(args)
        uses: Uses = []
        index, alike = -1, True
        given = [(args[position], mode) for position, mode in operator.positions if position < count]
        if kwargs:
            given += [(kwargs[name], mode) for name, mode in operator.keywords.items() if name in kwargs]
        for value, mode in given:
            for tensor in (value,) if isinstance(value, _Tensor) else tensors(value):
                try:
                    key = raw_storage(tensor)._cdata
                except (NotImplementedError, RuntimeError):
                    self.session.unseen["%s of a %s tensor" % (operator.name, str(tensor.layout)[6:])] += 1
                    continue
                block = blocks.get(key)
                if block is None or block.kind != DEVICE:
                    alike = False
                elif index < 0:
                    index = block.device
                elif index != block.device:
                    alike = False
                uses.append((tensor, mode, block, key))
        return uses, index, alike

    def _on_host(self, operator: Operator, args: Any, kwargs: Any, uses: Uses, pinned: Any) -> Any:
        session, thread = self.session, self.thread
        words: List[int] = []
        for tensor, mode, block, _ in uses:
            if block is not None and block.kind == PINNED and operator.kind != FACTORY:
                words += words_of(tensor, mode)
        if words:
            session.finder.run(HOST, session.places.number(operator.name, sys._getframe(2)), words)
        result = operator.run(*args, **kwargs)
        if operator.makes:
            frame = sys._getframe(2)
            instruction = (id(frame), frame.f_lasti)
            if instruction != thread.instruction:
                thread.instruction = instruction
                thread.made.clear()
            for tensor in tensors(result):
                storage = storage_of(tensor)
                if storage is not None:
                    thread.made.add(storage._cdata)
                    if pinned:
                        session.tag(thread, storage, PINNED, -1, 0)
        return result

    def _on_device(
        self, operator: Operator, args: Any, kwargs: Any, uses: Uses, index: int, target: int, alike: bool
    ) -> Any:
        session, thread, run = self.session, self.thread, operator.run
        backward = thread.backwards[-1] if thread.backwards else None
        if backward is not None:
            follow(thread)
        actor = thread.stream(index)
        copies, waits, fills = operator.kind == COPY, operator.waits, operator.fills
        across = blocking = False
        peers: List[int] = []
        if copies:
            across = target < 0
            blocking = not (kwargs.pop("non_blocking", False) or (len(args) > 2 and args[2]))
            peers = self._peers(uses, index, target)
            for peer in peers:
                session.wait(actor, peer)
            if operator.base == "_to_copy" and kwargs.get("dtype") is None:
                memory_format = kwargs.get("memory_format") or torch.preserve_format
                run, args, kwargs = _clone, args[:1], {"memory_format": memory_format}
        elif operator.indexes:
            waits = any(use[0].dtype in _MASKS for use in uses[1:])
        frame = sys._getframe(2)
        if frame.f_code is _ENGINE and backward is not None:
            frame = backward.stack  # that of all operations of its nodes
        number = session.places.number(operator.name, frame, thread.backward)
        if backward is None or is_grad_enabled():  # it may be the forward of the node of autograd that was made last
            thread.note_forward(sequence_number() - 1, number)
        if operator.kind == FACTORY:
            uses = []
        elif not alike:
            self._check(operator, uses, index, number)
        if session.confirm is not None:
            result = session.confirm.execute(operator, run, args, kwargs, actor, not across)
        else:
            result = run(*args, **kwargs)
        words: List[int] = []
        made = tensors(result) if operator.makes else []
        if operator.base == "_pack_padded_sequence":
            made.pop()  # the sizes are on the CPU
        for tensor in made:
            storage = storage_of(tensor)
            if storage is None or storage._cdata in session.blocks:
                continue
            if not alike and any(storage._cdata == use[3] for use in uses):
                continue
            if across and blocking:
                waits = True  # in memory that can be swapped out
                continue
            if across:
                session.tag(thread, storage, PINNED, -1, number)
            else:
                session.tag(thread, storage, DEVICE, index if target < 0 else target, number)
            if fills:
                words += words_of(tensor, WRITE)
        for tensor, mode, block, _ in uses:
            if block is None:
                waits = waits or (copies and (blocking or mode != READ))  # memory that can be swapped out
                continue
            if block.kind == PINNED:
                waits = waits or not copies or blocking
            elif block.actor != actor:
                block.lent = True
                if block.backward is backward is not None and backward.streams.get(index) == actor:
                    session.record_stream(block, actor)  # as the engine does with what nodes pass on
            words += words_of(tensor, mode)
            if operator.resizes and mode != READ:
                session.moved(block, number)
        session.finder.run(actor, number, words)
        if session.capture is not None:
            session.capture.add(run, args, kwargs, result if operator.makes else None, words)
        for peer in peers:
            session.wait(peer, actor)
        if waits:
            session.wait(HOST, actor)
        return result

    def _peers(self, uses: Uses, index: int, target: int) -> List[int]:
        """The other device's current stream in a copy from one device to another, on both sides of which it waits."""
        devices = {block.device for _, _, block, _ in uses if block is not None and block.kind == DEVICE}
        if target >= 0:
            devices.add(target)
        return [self.thread.stream(device) for device in sorted(devices - {index})]

    def _check(self, operator: Operator, uses: Uses, index: int, number: int) -> None:
        """All tensors are on one device; those that torch has made for it on the CPU become the device's."""
        frame = sys._getframe(3)
        for at, (tensor, mode, block, key) in enumerate(uses):
            if block is not None and block.kind == DEVICE:
                if block.device == index or operator.mixed:
                    continue
                found = "cuda:%d" % block.device
            elif frame.f_code is _ENGINE or (
                key in self.thread.made and self.thread.instruction == (id(frame), frame.f_lasti)
            ):
                if operator.base != "_to_copy":
                    block = self.session.tag(self.thread, raw_storage(tensor), DEVICE, index, number)
                    uses[at] = (tensor, mode, block, key)
                continue
            elif operator.mixed or not tensor.dim():
                continue
            else:
                found = "cpu"
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:%d and %s!"
                " (when running %s)" % (index, found, operator.name)
            )


_mode_of, _FAKE = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
_ENGINE = _engine_run_backward.__code__
is_grad_enabled = torch.is_grad_enabled
_clone = torch.ops.aten.clone.default._op
