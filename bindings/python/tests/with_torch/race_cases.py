"""Stream mistakes from public threads, written anew: `mended` gives each in its right form."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memopt.torch as mt

WIDTH = 64


def find(case: Callable[..., None], *arguments: Any) -> List[Tuple[str, str]]:
    """The kind and the text of each race."""
    with mt.race() as found:
        case(*arguments)
    return [(race.kind, str(race)) for race in found.races]


def twice(case: Callable[..., None], *arguments: Any) -> Set[str]:
    """The kinds; a second run reports the same, byte for byte."""
    first, again = find(case, *arguments), find(case, *arguments)
    assert first == again
    return kinds(first)


def check(case: Callable[..., Any], expected: Set[str]) -> None:
    """The wrong form of a program has these kinds of races, the mended one none."""
    assert twice(case, False) == expected
    assert not twice(case, True)


def kinds(found: List[Tuple[str, str]]) -> Set[str]:
    return {kind for kind, _ in found}


def on_device(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def pinned(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, pin_memory=True)


# --- offloaders of activations: torchtune and TRL -------------------------------------------------


class Offloader(torch.autograd.graph.saved_tensors_hooks):
    """Activations go to pinned memory on a side stream and come back on it. `form` is the commit of torchtune
    whose rule it has for values that outlive their node; `live` and `clone_first` are TRL's two mends."""

    def __init__(self, form: str = "9eced211b", live: bool = True, clone_first: bool = True, stash: int = 2) -> None:
        self.form, self.live, self.clone_first, self.stash = form, live, clone_first, stash
        self.first, self.side = torch.cuda.default_stream(), torch.cuda.Stream()
        self.hosts: List[torch.Tensor] = []
        self.leaving: Dict[int, Tuple[torch.Tensor, Any]] = {}
        self.back: Dict[int, Tuple[torch.Tensor, Any]] = {}
        self.events: Dict[int, Any] = {}
        super().__init__(self.pack, self.unpack)

    @property
    def compute(self) -> Any:
        return torch.cuda.current_stream() if self.live else self.first

    def pack(self, value: torch.Tensor) -> Any:
        if not value.is_cuda or value.numel() < WIDTH or isinstance(value, nn.Parameter):
            return value
        if self.clone_first and value.storage_offset():
            value = value.clone()
        for key in list(self.leaving)[: -self.stash]:
            self.let_go(key)
        self.side.wait_stream(self.compute)
        with torch.cuda.stream(self.side):
            if value.storage_offset():
                value = value.clone()
            host = torch.empty_like(value, device="cpu", pin_memory=True)
            host.copy_(value, non_blocking=True)
        self.hosts.append(host)
        key = len(self.hosts) - 1
        self.leaving[key] = value, self.side.record_event()
        return key

    def let_go(self, key: int) -> None:
        self.compute.wait_event(self.leaving[key][1])
        del self.leaving[key]

    def unpack(self, key: Any) -> torch.Tensor:
        if isinstance(key, torch.Tensor):
            return key
        if key in self.leaving:
            return self.leaving[key][0]
        with torch.cuda.stream(self.side):
            value = self.hosts[key].to("cuda", non_blocking=True)
        self.compute.wait_stream(self.side)
        node = torch._C._current_autograd_node()
        if not self.back:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self.settle(None))
        self.back[key] = value, node
        held = torch._C._storage_Use_Count(value.untyped_storage()._cdata)

        def after(outputs: Any, _: Any) -> None:
            value = self.back[key][0]
            if self.outlives(value, outputs, held):
                value.record_stream(self.compute)
                del self.back[key]
            else:
                self.events[key] = self.compute.record_event()
            for other in list(self.leaving):
                self.let_go(other)
            self.settle(node)

        node.register_hook(after)
        return value

    def outlives(self, value: torch.Tensor, outputs: Any, held: int) -> bool:
        storage = value.untyped_storage()
        if self.form == "7045e965d":
            return False
        if self.form in ("3ca0d309c", "e99b89007"):
            return any(o is not None and o.untyped_storage()._cdata == storage._cdata for o in outputs)
        return torch._C._storage_Use_Count(storage._cdata) > held

    def settle(self, node: Any) -> None:
        """Drops what earlier nodes have used."""
        for key, (_, user) in list(self.back.items()):
            if user is not node:
                self.side.wait_event(self.events[key])
                del self.back[key]


class Step(torch.autograd.Function):
    """Saves what `save` makes of its input; `backward` makes the gradient of the gradient and of what was saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, save: Optional[Callable[..., Any]], backward: Callable[..., Any]) -> Any:
        ctx.save_for_backward(*([] if save is None else [save(x)]))
        ctx.made = backward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.made(gradient, *ctx.saved_tensors), None, None


def backward_of(offloader: Offloader, through: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.ones(WIDTH, WIDTH, device="cuda", requires_grad=True)
    with offloader:
        out = through(x).sum()
    torch.cuda.synchronize()  # the stash is no part of the case
    offloader.leaving.clear()
    out.backward()


def view_of_unpacked(form: str) -> None:
    """torchtune#1860: a node's gradient is a view of the value that came back."""

    def through(x: torch.Tensor) -> torch.Tensor:
        x = Step.apply(x, torch.clone, lambda g, saved: saved)  # its value comes into a block of the side stream
        x = Step.apply(x, None, lambda g: g + 1)
        x = Step.apply(x, torch.clone, lambda g, saved: g)
        return Step.apply(x, lambda x: x.clone().t(), lambda g, saved: saved.t())

    backward_of(Offloader(form), through)


def view_in_recompute(form: str) -> None:
    """torchtune#1936: a checkpointed region saves a view of the value that came back (#1867)."""

    def region(x: torch.Tensor) -> torch.Tensor:
        x = Step.apply(x, lambda x: x.t().t(), lambda g, saved: saved + 1)
        x = Step.apply(x, torch.rand_like, lambda g, saved: torch.rand_like(g))
        return Step.apply(x, torch.rand_like, lambda g, saved: torch.rand_like(g))

    def through(x: torch.Tensor) -> torch.Tensor:
        x = Step.apply(x, torch.clone, lambda g, saved: saved)
        x = Step.apply(x, torch.clone, lambda g, saved: g.clone())
        return checkpoint(region, x, use_reentrant=False)

    backward_of(Offloader(form), through)


TORCHTUNE = {  # the commit: whether each of the two programs has a race
    "7045e965d": (True, True),
    "3ca0d309c": (False, True),
    "e99b89007": (False, True),
    "9eced211b": (False, False),
}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU()).to("cuda")


def cached_stream(mended: bool) -> None:
    """trl#7195, first mend: the stream of the computation is not the one that the offloader has remembered."""
    model, work = net(), torch.cuda.Stream()
    work.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(work):
        with Offloader(live=mended):
            loss = model(on_device(WIDTH, WIDTH)).square().mean()
        loss.backward()
    torch.cuda.synchronize()


def late_clone(mended: bool) -> None:
    """trl#7195, second mend: a view with an offset (shifted labels) is cloned on the side stream."""
    scores = nn.Linear(WIDTH, 8).to("cuda")(on_device(2 * WIDTH, WIDTH))
    labels = torch.zeros(2 * WIDTH, dtype=torch.long, device="cuda")
    with Offloader(clone_first=mended):
        shifted = nn.functional.pad(labels, (0, 1), value=1)[1:]
        loss = nn.functional.cross_entropy(scores, shifted)
        del shifted
        loss.backward()
    torch.cuda.synchronize()


# --- other offloaders -----------------------------------------------------------------------------


def inline_reload(mended: bool) -> None:
    """Megatron-LM#7398: backward reaches a group that no prefetch has brought, and copies it back itself."""
    out, staging = torch.cuda.Stream(), pinned(WIDTH, WIDTH)
    value = on_device(WIDTH, WIDTH)
    out.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(out):
        staging.copy_(value, non_blocking=True)
    value.record_stream(out)
    offloaded = out.record_event()
    del value
    if mended:
        torch.cuda.current_stream().wait_event(offloaded)
    staging.to("cuda", non_blocking=True).sum().item()


def replayed_offload(mended: bool) -> None:
    """ROCm TransformerEngine#721: an event of a captured offload orders no replay, whose copy is read too early."""
    value, kept, back = on_device(WIDTH, WIDTH), pinned(WIDTH, WIDTH), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept.copy_(value * 2, non_blocking=True)
        done = torch.cuda.current_stream().record_event()
    torch.cuda.synchronize()
    value.fill_(3)
    graph.replay()
    if mended:
        done.record()
    back.wait_event(done)
    with torch.cuda.stream(back):
        assert kept.to("cuda", non_blocking=True).sum().item() == 6 * WIDTH * WIDTH  # the replay has computed it


class Layers:
    """Weights of layers wait in pinned memory; two places on the device take turns."""

    def __init__(self) -> None:
        self.hosts = [pinned(WIDTH, WIDTH).fill_(1) for _ in range(4)]
        self.places = [torch.zeros(WIDTH, WIDTH, device="cuda") for _ in range(2)]
        self.side, self.used = torch.cuda.Stream(), [torch.cuda.Event() for _ in range(2)]
        self.side.wait_stream(torch.cuda.current_stream())

    def bring(self, i: int) -> torch.Tensor:
        with torch.cuda.stream(self.side):
            self.side.wait_event(self.used[i % 2])
            self.places[i % 2].copy_(self.hosts[i], non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.side)
        return self.places[i % 2]


def early_event(mended: bool) -> None:
    """OneTrainer#1306: backward runs a layer's forward again, whose event does not cover the rest of backward."""
    layers, x = Layers(), on_device(WIDTH, WIDTH)
    for i in reversed(range(4)):
        weight = layers.bring(i)
        again = torch.tanh(x @ weight)
        if not mended:
            layers.used[i % 2].record()
        x = (1 - again * again) @ weight.t()
        if mended:
            layers.used[i % 2].record()
    torch.cuda.synchronize()


def reload_in_turn(mended: bool) -> None:
    """TransformerEngine#2341: two places take turns, and a reload comes into one that backward still reads."""
    layers, x = Layers(), on_device(WIDTH, WIDTH)
    for i in reversed(range(4)):
        x = x @ layers.bring(i)
        if mended:
            layers.used[i % 2].record()
    torch.cuda.synchronize()


def group(mended: bool, onload: bool) -> None:
    """Groups of layers whose parameters come on a transfer stream and go when the group is done."""
    layers, transfer = [nn.Linear(WIDTH, WIDTH) for _ in range(3)], torch.cuda.Stream()
    hosts = [[p.data.pin_memory() for p in layer.parameters()] for layer in layers]
    x = on_device(WIDTH, WIDTH)
    with torch.no_grad():
        for layer, kept in zip(layers, hosts):
            with torch.cuda.stream(transfer):
                for p, host in zip(layer.parameters(), kept):
                    p.data = host.to("cuda", non_blocking=True)
            if mended or not onload:
                torch.cuda.current_stream().wait_stream(transfer)
            x = layer(x)
            if mended or onload:
                torch.cuda.current_stream().synchronize()
            for p, host in zip(layer.parameters(), kept):
                p.data = host
    torch.cuda.synchronize()


def group_onload(mended: bool) -> None:
    """diffusers#13502: the forward does not wait for the parameters' copies."""
    group(mended, onload=True)


def group_offload(mended: bool) -> None:
    """diffusers#14657: parameters are dropped while the forward reads them."""
    group(mended, onload=False)


READ, FREED = "read after write", "freed in use"
PUBLIC = {
    cached_stream: {READ, FREED},
    late_clone: {READ, FREED},
    inline_reload: {READ},
    replayed_offload: {READ},
    early_event: {"write after read"},
    reload_in_turn: {"write after read"},
    group_onload: {READ},
    group_offload: {FREED},
}


# --- the clean offloaders whose calls are deleted one by one --------------------------------------


class Without:
    """Leaves out what is called at the k-th place of this file that waits, records an event or records a use."""

    CALLS = {"Stream": ("wait_stream", "wait_event", "record_event"), "Event": ("record", "wait", "synchronize")}

    def __init__(self, k: Optional[int]) -> None:
        self.k = k
        self.places: List[Tuple[str, int, str]] = []

    def run(self, program: Callable[[], None]) -> None:
        calls = [(getattr(torch.cuda, owner), name) for owner, names in self.CALLS.items() for name in names]
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in [*calls, (torch.Tensor, "record_stream")]:
                patch.setattr(owner, name, self.left_out(name, getattr(owner, name)))
            program()

    def left_out(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(this: Any, *args: Any) -> Any:
            caller = sys._getframe(1)
            if caller.f_code.co_filename == __file__:
                place = (caller.f_code.co_name, caller.f_lineno, name)
                if place not in self.places:
                    self.places.append(place)
                if self.places.index(place) == self.k:
                    return torch.cuda.Event() if name == "record_event" else None
            return original(this, *args)

        return call


def steps_of_torchtune() -> None:
    """Two steps of a small network."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with Offloader():
            loss = model(on_device(WIDTH, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    view_of_unpacked("9eced211b")


def layers_in_turn() -> None:
    reload_in_turn(True)


#: Programs, and how many of their offloader's calls order something.
CLEAN = {steps_of_torchtune: 7, layers_in_turn: 4}
