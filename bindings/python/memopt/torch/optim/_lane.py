"""Copies between the host and a device beside torch's current stream."""

from __future__ import annotations

from typing import Any

import torch


class Lane:
    """Copies between the host and one device beside torch's current stream. On a CPU they are made
    at once."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """What comes next waits for what torch has enqueued so far."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueues a copy; both must live until it is done."""
        if self._stream is None:
            to.copy_(source)
            return
        with torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)
            (source if source.is_cuda else to).record_stream(self._stream)

    def mark(self) -> Any:
        """The copies so far, for wait()."""
        return None if self._stream is None else self._stream.record_event()

    def wait(self, mark: Any) -> None:
        """Returns when they are done."""
        if mark is not None:
            mark.synchronize()

    def end(self) -> None:
        """What torch enqueues next waits for the copies."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
