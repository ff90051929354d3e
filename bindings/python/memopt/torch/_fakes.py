"""What a run of a model on fake tensors needs to be like a real one."""

from __future__ import annotations

import contextlib
import sys
from typing import Iterator


@contextlib.contextmanager
def not_packed() -> Iterator[None]:
    """Transformers takes fake position ids for several packed sequences, and makes a mask that a real
    step does not have."""
    masking = sys.modules.get("transformers.masking_utils")
    name = "find_packed_sequence_indices"
    if masking is None or not hasattr(masking, name):
        yield
        return
    before = getattr(masking, name)
    setattr(masking, name, lambda position_ids: None)
    try:
        yield
    finally:
        setattr(masking, name, before)
