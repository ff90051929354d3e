"""Autograd's engine: a node runs on the stream of its forward, behind the nodes that its gradients come from.

As the engine does it: the first nodes come after what the caller's streams have; what a node gets from
one on another stream, it waits for; and at the end the caller's streams wait for those of the leaves.
torch calls nothing as a node begins, so a change is noticed at the next operation. A node without
operations passes on what it waits for.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Tuple

from ._session import Session, Thread, active, current_node

_NO_NUMBER = 1 << 63  # sequence numbers of leaves, which accumulate gradients, are larger


def follow(thread: Thread) -> None:
    """Notices that another node runs."""
    if thread.backwards:
        node = current_node()
        backward = thread.backwards[-1]
        if node is not backward.node and node is not None:
            backward.enter(node)


def _producers(roots: Iterable[Any]) -> Dict[Any, List[Any]]:
    """The nodes of a graph, and for each those whose gradients it gets."""
    found: Dict[Any, List[Any]] = {root: [] for root in roots}
    todo = list(found)
    while todo:
        node = todo.pop()
        for following, _ in node.next_functions:
            if following is None:
                continue
            if following not in found:
                found[following] = []
                todo.append(following)
            found[following].append(node)
    return found


class _Backward:
    """A call of the engine."""

    def __init__(self, session: Session, thread: Thread, outputs: Iterable[Any]) -> None:
        self.session, self.thread = session, thread
        self.node: Any = None
        self.stack = session.places.stack(sys._getframe())
        self.before = dict(thread.streams), thread.backward
        self.streams = self.before[0]  # of the node that runs
        self.producers: Dict[Any, List[Any]] = {}
        self.done: Dict[Any, List[int]] = {}  # events of nodes
        self.begun: List[int] = []
        if session.streams:  # with the default stream only there is nothing to wait for
            roots = (getattr(output, "grad_fn", None) or getattr(output, "node", None) for output in outputs)
            self.producers = _producers(root for root in roots if root is not None)
            self.begun = self._events()

    def _events(self) -> List[int]:
        return [self.session.record(actor) for actor in self.thread.streams.values()]

    def number(self, node: Any) -> int:
        """The sequence number that finds a node's stream: a leaf's is that of its first use."""
        number: int = node._sequence_nr()
        if number >= _NO_NUMBER:
            used = [producer._sequence_nr() for producer in self.producers.get(node, ())]
            number = min((n for n in used if n < _NO_NUMBER), default=-1)
        return number

    def leave(self) -> None:
        """The node that ran has ended."""
        if self.node is not None and self.producers:
            self.done[self.node] = self._events()

    def enter(self, node: Any) -> None:
        """Another node runs."""
        self.leave()
        self.node = node
        thread = self.thread
        thread.backward = (node.name(), thread.forward_of(node))
        if not self.producers:
            return
        number = self.number(node)
        for device in list(thread.streams):
            thread.set_stream(device, thread.stream_of(device, number) if number >= 0 else self.before[0][device])
        self.streams = dict(thread.streams)
        for event in self._waited(node):
            for actor in thread.streams.values():
                self.session.wait_event(actor, event)

    def _waited(self, node: Any) -> Iterator[int]:
        """Events of the producers; through those that had no operations, of theirs."""
        seen, todo = {node}, [node]
        while todo:
            at = todo.pop()
            producers = self.producers.get(at)
            if not producers:  # a root, or a node that a hook brought in
                yield from self.begun
            for producer in producers or ():
                if producer in self.done:
                    yield from self.done[producer]
                elif producer not in seen:
                    seen.add(producer)
                    todo.append(producer)

    def end(self, leaves_only: bool) -> None:
        """The caller's streams wait for those of the leaves, or of all nodes where it gets gradients."""
        self.leave()
        thread, session = self.thread, self.session
        streams, thread.backward = self.before
        for device, actor in streams.items():
            thread.set_stream(device, actor)
        waited = set()
        for node in self.producers:
            if not leaves_only or node._sequence_nr() >= _NO_NUMBER:
                waited |= {thread.stream_of(d, n) for d in streams if (n := self.number(node)) >= 0}
        for actor in sorted(waited):
            for waiter in streams.values():
                if waiter != actor:
                    session.wait(waiter, actor)
        for event in self.begun + [event for events in self.done.values() for event in events]:
            session.finder.drop_event(event)


@contextlib.contextmanager
def _call(outputs: Iterable[Any], leaves_only: bool) -> Iterator[None]:
    session = active()
    thread = session.thread()
    follow(thread)
    backward = _Backward(session, thread, outputs)
    thread.backwards.append(backward)
    try:
        yield
    finally:
        thread.backwards.pop()
        backward.end(leaves_only)
        if not thread.backwards and len(thread.forward) > 100000:
            del thread.numbers[:], thread.forward[:]


def engine(run: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function that runs the engine, followed."""

    def run_backward(outputs: Tuple[Any, ...], *arguments: Any, **options: Any) -> Any:
        with _call(outputs, bool(options.get("accumulate_grad"))):
            return run(outputs, *arguments, **options)

    return run_backward
