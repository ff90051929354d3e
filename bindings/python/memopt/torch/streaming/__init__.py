"""stream_weights(): layers whose weights are on the host or in a file, and on the device while they are used.

The library's streamer has the arena, the order and the copies (_arena.py). Hooks say when a layer is needed
(_layers.py); _parts.py decides what streams, _stores.py keeps it, _state.py saves and loads it, and
_trained.py trains it on the host.
"""

from __future__ import annotations

import gc
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import torch

from ... import errors
from ..._abi import Status
from ...sizes import Size, format_size, parse_size
from . import _four_bits
from ._arena import ARENA_UNIT, Arena
from ._coded import FORMATS, Code, CodedStore, Decoded
from ._layers import Layer, Layers
from ._parts import Found, Part, find, rounded
from ._state import State
from ._stores import CheckpointStore, FileStore, HostStore, InFiles
from ._trained import Trained

__all__ = ["WeightStream", "stream_weights"]

#: Bytes, or a torch device and bytes.
Budget = Union[Size, Tuple[Union[str, torch.device], Size]]


def stream_weights(
    layers: Any, device: Budget, store: Optional[str] = None, train: Optional[str] = None
) -> "WeightStream":
    """Keeps the weights of layers off the device but for those that are needed, in at most so many bytes of it.

        stream = mt.stream_weights(model.model.layers, device="4GiB")
        print(stream.table())

    The model is used as before, with or without checkpointing: training of adapters, eval, generate(). Losses
    and gradients are the same bits. The order of the layers is learned in the first step, and copies run ahead.

    Args:
        layers: a ModuleList, a Sequential or a list of modules. Parameters of 4 KiB or more that belong to one of
            them and are frozen stream; small, tied and trained ones stay (`table()` counts them). One that is
            also used outside of its layer reads as NaN there.
        device: the most bytes for streamed weights, at least those of the largest layer. A pair names the device,
            ("cuda", "4GiB"): what stays of the layers moves there. Else it is the one where they are (the CPU
            for layers on the meta device).
        store: where the weights are. None: page-locked host memory. "disk:PATH": a file in the folder PATH, or
            a file to make; it has no name and ends with the process. "disk:model.safetensors" (a file that
            exists, or an index): that checkpoint itself, which is only read, in place of the model's weights.
            "bf16", "mxfp8", "nvfp4", "nf4": host memory with each matrix rounded to that; the model sees its own
            types. The budget then has one decoded layer and codes of others. Codes of a QLoRA checkpoint that is
            loaded into "nf4" are kept as they are.
        train: "host": parameters that require a gradient stream, too. Each gradient goes to the host at once.
            Give an optimizer the stream's `parameters()`, which are the store itself. Where torch.distributed has
            several processes, all must make the call: weights become those of the first one, and at the end of
            each backward the gradients are averaged on the host (over gloo).

    Raises:
        LimitReachedError: a layer is larger than the budget. Later: tensors hold weights of other layers, so that
            there is no room for one; the message names them.
        NotImplementedError: parameters of FSDP or ZeRO-3, tensor subclasses, compiled layers. Later: backward
            with create_graph=True. UnsupportedError later: the stream records a CUDA graph.
        ValueError, TypeError: the layers or arguments do not fit; nothing was changed.
    """
    where, limit = _parse_budget(device)
    if train not in (None, "host"):
        raise ValueError("stream_weights: train is %r; it can be None or 'host'" % (train,))
    if train is not None and store is not None:
        raise ValueError("stream_weights: train='host' needs its weights in host memory; leave out store")
    kind, path = _parse_store(store)
    found = find(layers, where, train is not None)
    block = _check_sizes(found, limit, kind)
    return WeightStream(found, limit, block, (kind, path), train is not None, where is not None)


class WeightStream:
    """Layers that stream, made by :func:`stream_weights`. They keep it alive."""

    def __init__(
        self, found: Found, budget: int, block: int, store: Tuple[str, str], trained: bool, moves: bool
    ) -> None:
        self.budget, self.kept_bytes = budget, found.kept
        self._is_coded = bool(block)
        self._moves, self._trained, self._removed = moves, None, False
        self._states: List[State] = []
        self._fresh: Dict[int, torch.nn.Parameter] = {}  # in place of those on the meta device
        self._stale = False  # the file has other bytes than the tickets know
        kind, path = store
        everything = [part for _, _, parts in found.layers for part in parts]
        arena: Any = Decoded(found.device, budget, block) if kind in FORMATS else Arena(found.device, budget)
        self._store: Any
        if kind in FORMATS:
            self._store = CodedStore(arena, kind)
        elif kind == "host":
            self._store = HostStore(arena)
        else:
            self._store = (CheckpointStore if kind == "checkpoint" else FileStore)(path, everything)
        self._layers = Layers(arena, self._settle)
        try:
            for name, module, parts in found.layers:
                self._begin(Layer(name, module, parts), module, found.device)
            if trained:
                self._trained = Trained(self._layers, self._store, found.device)
        except BaseException:
            self.remove()
            raise

    def _begin(self, layer: Layer, module: torch.nn.Module, device: torch.device) -> None:
        tickets = self._store.add(layer.parts) if layer.parts else []
        self._make_real(module, layer.parts, device)
        if not layer.parts:
            return
        self._layers.attach(layer)
        if isinstance(self._store, InFiles):
            tickets = self._store.tickets(self._layers.arena, layer.parts)
        layer.number = self._layers.arena.add(tickets)
        self._states.append(State(layer, self._store.read, self._write))

    def _make_real(self, module: torch.nn.Module, parts: List[Part], device: torch.device) -> None:
        """What stays of a layer goes to a named device; what was on the meta device has memory, and is NaN."""
        mine = {id(part.parameter): part for part in parts}
        for inner in module.modules():
            for name, p in inner._parameters.items():
                if p is not None and p.is_meta:
                    inner._parameters[name] = self._made_for(p, mine.get(id(p)), device)
                elif p is not None and self._moves:
                    if id(p) not in mine:
                        p.data = p.data.to(device)
                    if _four_bits.is_four_bits(p):
                        _four_bits.move_state(p, device, lambda value: id(value) in mine)
            for name, buffer in inner._buffers.items():
                if buffer is not None and self._moves and not buffer.is_meta:
                    inner._buffers[name] = buffer.to(device)

    def _made_for(self, p: torch.nn.Parameter, part: Optional[Part], device: torch.device) -> torch.nn.Parameter:
        if id(p) not in self._fresh:
            memory = part.absent if part else torch.full(p.shape, float("nan"), dtype=p.dtype, device=device)
            self._fresh[id(p)] = torch.nn.Parameter(memory, requires_grad=p.requires_grad)
            if part:
                part.parameter = self._fresh[id(p)]
        return self._fresh[id(p)]

    def remove(self) -> None:
        """All weights are in the model again, on the device where they were (the stream's, if that was meta)."""
        if self._removed:
            return
        self._removed = True
        self._layers.detach()
        for state in self._states:
            state.remove()
        for layer in self._layers.all:
            for part in layer.parts:
                back = torch.empty_strided(part.shape, part.stride, dtype=part.dtype, device=part.device)
                part.parameter.data = back.copy_(self._store.read(part))
        if self._trained is not None:
            self._trained.remove()
        self._layers.arena.close()

    # --- the stores' changes ---

    def _settle(self) -> None:
        if self._trained is not None:
            self._trained.settle()
        if self._stale:
            self._map_again()

    def _write(self, layer: Layer, part: Part, value: Union[torch.Tensor, _four_bits.Packed]) -> None:
        if isinstance(value, _four_bits.Packed) and not self._is_coded:
            value = value.tensor(part.dtype)
        if self._trained is not None:
            self._trained.settle()
        if layer.flat is not None and not layer.depth:
            self._layers.unbind(layer)
        with torch.no_grad():
            self._stale = self._store.write(part, value) or self._stale
        layer.is_old = True
        layer.generation += 1

    def _map_again(self) -> None:
        """New tickets, and an arena for them."""
        layers, old = self._layers, self._layers.arena
        self._take_all_back("weights were loaded into the store")
        old.close()
        arena = layers.arena = Arena(old.device, old.budget)
        for layer in layers.all:
            layer.number = arena.add(self._store.tickets(arena, layer.parts))
            layer.is_old = False
        self._stale = False

    def _take_all_back(self, why: str) -> None:
        """Raises where a layer's memory is in use."""
        layers, arena = self._layers, self._layers.arena
        layers.unbind_idle()
        gc.collect()
        arena.take_back()
        held = [layer.name for layer in layers.all if layer.number in arena.held()]
        if held:
            raise errors.make(
                Status.BUSY, "stream_weights: %s, but tensors hold those of layers %s" % (why, ", ".join(held))
            )

    def resize(self, device: Size) -> None:
        """Gives the layers another number of bytes of the device, between two steps; the store stays as it is.

        LimitReachedError where a layer is larger, BusyError where tensors hold a layer's weights; nothing is changed.
        """
        limit = parse_size(device)
        if self._removed:
            raise RuntimeError("stream_weights: nothing streams any more: remove() was called")
        with self._layers.lock:
            self._settle()
            self._take_all_back("the arena is to have %s" % format_size(limit))
            self._layers.arena.resize(limit)
            self.budget = limit

    # --- training ---

    def named_parameters(self) -> Iterator[Tuple[str, torch.nn.Parameter]]:
        """The trained parameters on the host, with `train="host"`: what an optimizer is given. A step changes the
        store itself. Change them between a backward and the next forward only."""
        for master in [] if self._trained is None else self._trained.masters():
            yield master.part.name, master.parameter

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Those without their names."""
        for _, parameter in self.named_parameters():
            yield parameter

    def ignore_in_ddp(self, model: torch.nn.Module) -> None:
        """Tells DistributedDataParallel, before it wraps `model`, to leave streamed weights alone."""
        mine = {id(part.parameter) for layer in self._layers.all for part in layer.parts}
        names = [name for name, p in model.named_parameters(remove_duplicate=False) if id(p) in mine]
        ignored: Any = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
        model._ddp_params_and_buffers_to_ignore = [*ignored, *names]  # type: ignore[assignment]

    # --- figures ---

    def stats(self) -> Dict[str, int]:
        """Counts of the streamer (layers, resident bytes and their peak, copies, late ones), the bytes that
        stream, and the bytes of host memory or of the file's parts that hold them."""
        arena = self._layers.arena
        plan, host = arena.plan(), arena.offloader.stats()
        return {
            "budget": self.budget // ARENA_UNIT * ARENA_UNIT,
            "layers": plan["layers"],
            "layer_bytes": plan["layer_bytes"],
            "copies_a_step": plan["copies"],
            "copied_bytes_a_step": plan["copied_bytes"],
            "kept_bytes": sum(self.kept_bytes.values()),
            "host_bytes": host["host_bytes"],
            "disk_bytes": host["disk_bytes_used"],
            **{key: value for key, value in arena.stats().items() if key != "written_bytes"},
        }

    def limit(self, compute: float, link: Size) -> float:
        """The least seconds of a training step with this budget: a step of the resident model takes `compute`
        seconds, of which each layer has its part by its bytes, half of it forward, and the link copies `link` bytes a
        second ("25GB"). That is more than the larger of both where the link waits at the turn of the step."""
        if not 0 <= compute < float("inf"):
            raise ValueError("limit: a step takes %r seconds; it must be finite, at least 0" % (compute,))
        layers = [layer.nbytes for layer in self._layers.all]
        forward = [compute / 2 * nbytes / sum(layers) for nbytes in layers]
        return self._layers.arena.limit([*forward, *reversed(forward)], float(parse_size(link)))

    def table(self, compute: Optional[float] = None, link: Optional[Size] = None) -> str:
        """What streams, what stays, and what a training step copies; with both arguments of limit() this, too."""
        stats, plan = self.stats(), self._layers.arena.plan()
        rows = [
            ("budget", "%s on %s" % (format_size(self.budget), self._layers.arena.device)),
            ("streams", "%d layers, %s; the largest %s"
             % (plan["layers"], format_size(plan["layer_bytes"]), format_size(plan["largest_bytes"]))),
            ("at once", "%d layers%s" % (plan["resident"], ", as codes, and one decoded" if self._is_coded else "")),
            ("a step copies", "%d layers, %s" % (plan["copies"], format_size(plan["copied_bytes"]))),
            ("store", "%s, %s" % (self._store.where, format_size(stats["host_bytes"] or stats["disk_bytes"]))),
        ]  # fmt: skip
        if compute is not None and link is not None:
            best = self.limit(compute, link)
            copies = plan["copied_bytes"] / parse_size(link)
            rows.append(
                ("a step takes", "%.4g s or more: compute %.4g s, copies %.4g s over %s a second"
                 % (best, compute, copies, format_size(parse_size(link))))
            )  # fmt: skip
        rows += [("stays: %s" % reason, format_size(size)) for reason, size in sorted(self.kept_bytes.items())]
        width = max(len(first) for first, _ in rows)
        return "\n".join("%-*s  %s" % (width, first, second) for first, second in rows)

    __str__ = table


def _parse_budget(device: Budget) -> Tuple[Optional[torch.device], int]:
    name, size = device if isinstance(device, tuple) else (None, device)
    limit = parse_size(size)
    if name is None:
        return None, limit
    where = torch.device(name)
    if where.type not in ("cpu", "cuda"):
        raise ValueError("stream_weights: weights stream to cpu or cuda, not to %s" % where)
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    return where, limit


def _parse_store(store: Optional[str]) -> Tuple[str, str]:
    if store is None:
        return "host", ""
    if store in FORMATS:
        return store, ""
    if not isinstance(store, str) or not store.startswith("disk:") or not store[5:]:
        raise ValueError(
            'stream_weights: store is %r; it can be None, "disk:PATH", %s' % (store, ", ".join(map(repr, FORMATS)))
        )
    path = store[5:]
    is_checkpoint = path.endswith((".safetensors", ".json")) and os.path.isfile(path)
    return ("checkpoint" if is_checkpoint else "file"), path


def _check_sizes(found: Found, limit: int, kind: str) -> int:
    """The bytes of the decoded layer, if the store has codes."""
    sizes = {name: sum(rounded(part.nbytes) for part in parts) for name, _, parts in found.layers}
    codes = dict.fromkeys(sizes, 0)
    if kind in FORMATS:
        codes = {name: sum(Code(part, kind).nbytes for part in parts) for name, _, parts in found.layers}
    block, room = max(sizes.values()), limit // ARENA_UNIT * ARENA_UNIT
    largest = max(sizes, key=lambda name: sizes[name])
    need = block + max(codes.values())
    if need > room:
        raise errors.make(
            Status.LIMIT_REACHED,
            "stream_weights: layer %s has %s of weights that stream%s; the budget is %s: %d of %d bytes"
            % (largest, format_size(block), " and codes of %s" % format_size(max(codes.values())) if codes[largest] else "",
               format_size(limit), limit, need)
        )  # fmt: skip
    return block if kind in FORMATS else 0
