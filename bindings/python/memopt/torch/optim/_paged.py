"""The optimizers whose states are in the host's memory and come to the GPU for a step, page by page."""

from __future__ import annotations

from ._ademamix import AdEMAMix, AdEMAMix8bit
from ._rules import Adam, Adam8bit, AdamW, AdamW8bit, Lion, Lion8bit

#: Two areas of so many bytes, or of the largest parameter's states, are on the GPU.
PAGE_BYTES = 64 << 20


class PagedAdamW(AdamW):
    """AdamW with 32-bit states in page-locked host memory, which a step brings to the GPU page by page
    and back, beside its arithmetic: the bits are AdamW's. On a CPU it is AdamW. A step cannot be
    captured in a CUDA graph."""

    _page_bytes = PAGE_BYTES


class PagedAdamW8bit(AdamW8bit):
    """AdamW8bit with its states paged as PagedAdamW's."""

    _page_bytes = PAGE_BYTES


class PagedAdam(Adam):
    """Adam with its states paged as PagedAdamW's."""

    _page_bytes = PAGE_BYTES


class PagedAdam8bit(Adam8bit):
    """Adam8bit with its states paged as PagedAdamW's."""

    _page_bytes = PAGE_BYTES


class PagedLion(Lion):
    """Lion with its state paged as PagedAdamW's."""

    _page_bytes = PAGE_BYTES


class PagedLion8bit(Lion8bit):
    """Lion8bit with its state paged as PagedAdamW's."""

    _page_bytes = PAGE_BYTES


class PagedAdEMAMix(AdEMAMix):
    """AdEMAMix with its states paged as PagedAdamW's."""

    _page_bytes = PAGE_BYTES


class PagedAdEMAMix8bit(AdEMAMix8bit):
    """AdEMAMix8bit with its states paged as PagedAdamW's."""

    _page_bytes = PAGE_BYTES
