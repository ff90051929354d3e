"""Snapshots of allocators, in the format of torch.cuda.memory._snapshot()."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

from . import _abi, errors
from ._abi import BlockState
from ._interrupt import Interruptible
from ._library import lib
from ._stacks import Frame, no_frames

Segment = Dict[str, Any]


def read_segments(
    allocator: int, device: int, pool: Tuple[int, int] = (0, 0), frames: Callable[[int], List[Frame]] = no_frames
) -> List[Segment]:
    """The segments of an allocator, given by its C handle, in the order of addresses.

    As in torch, a segment is a contiguous range of mapped memory: an expandable one with holes
    becomes several, and reserved addresses without memory are in none.
    """
    segments: List[Segment] = []
    before = 0  # the reserved range that the last segment may continue; 0: none

    def visit(_user: object, pointer: Any) -> int:
        def call() -> int:
            nonlocal before
            raw = pointer.contents
            if raw.state == BlockState.UNMAPPED:
                before = 0
                return _abi.Status.OK
            if raw.segment_address != before:
                segments.append(_segment(raw, device, pool))
                before = raw.segment_address
            _add_block(segments[-1], raw, frames)
            return _abi.Status.OK

        return errors.run_callback(call, lambda error: _abi.Status.USER)

    visitor = _abi.BlockVisitor(visit)
    with Interruptible():
        lib.memopt_allocator_snapshot(allocator, visitor, None)
    return segments


def whole(segments: List[Segment], config: str, traces: List[List[Any]]) -> Dict[str, Any]:
    """What torch.cuda.memory._snapshot() gives, and its viewers read."""
    devices = max([segment["device"] + 1 for segment in segments] + [len(traces)])
    return {
        "segments": segments,
        "device_traces": traces + [[] for _ in range(devices - len(traces))],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": config},
        "external_annotations": [],
    }


def dump(snapshot: Dict[str, Any], path: Any) -> None:
    """Writes a snapshot: as JSON or a page of HTML if the name ends so, else the pickle that
    torch's viewers and pytorch.org/memory_viz open."""
    import os

    name = os.fspath(path)
    ending = os.path.splitext(os.fsdecode(name))[1].lower()
    if ending == ".html":
        from ._page import page

        data = page(snapshot).encode()
    elif ending == ".json":
        import json

        data = json.dumps(snapshot, allow_nan=False).encode()
    else:
        import pickle

        data = pickle.dumps(snapshot)
    with open(name, "wb") as file:
        file.write(data)


def _segment(raw: _abi.BlockInfoStruct, device: int, pool: Tuple[int, int]) -> Segment:
    return {
        "device": device,
        "address": raw.address or 0,
        "total_size": 0,
        "stream": raw.stream or 0,
        "segment_type": "large" if raw.segment_large else "small",
        "segment_pool_id": pool,
        "is_expandable": bool(raw.segment_expandable),
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "frames": [],
        "blocks": [],
    }


def _add_block(segment: Segment, raw: _abi.BlockInfoStruct, frames: Callable[[int], List[Frame]]) -> None:
    state = BlockState(raw.state)
    segment["total_size"] += raw.bytes
    if state is BlockState.ACTIVE_ALLOCATED:
        segment["allocated_size"] += raw.bytes
    if state in (BlockState.ACTIVE_ALLOCATED, BlockState.ACTIVE_PENDING_FREE):
        segment["active_size"] += raw.bytes
        segment["requested_size"] += raw.requested_bytes
    segment["blocks"].append(
        {
            "address": raw.address or 0,
            "size": raw.bytes,
            "requested_size": raw.requested_bytes,
            "state": state.name.lower(),
            "tag": raw.tag,
            "context": raw.context,
            "age": raw.age,
            "frames": frames(raw.context) if state is BlockState.ACTIVE_ALLOCATED else [],
        }
    )
