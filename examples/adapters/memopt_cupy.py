"""CuPy's arrays in a memopt.Allocator, or in PyTorch's pool: one pool for both libraries.

    allocator = memopt.Allocator(memopt.Device("cuda:0"), "expandable_segments:True")
    cupy.cuda.set_allocator(memopt_cupy.CupyAllocator(allocator))

    memopt.torch.enable_allocator()
    cupy.cuda.set_allocator(memopt_cupy.TorchPool(0))

A block belongs to the stream that is CuPy's current one when it is allocated, and is freed in that stream's order. An
array that another stream uses is recorded first: ``allocator.record_stream(array.data.ptr, stream)``. Out of memory is
the exception of memopt or of torch, with the sizes and what to try. CuPy also takes a pair of C functions
(``CFunctionAllocator``), but hands them no stream.
"""

from __future__ import annotations

import cupy
import memopt


def _array_memory(pointer: int, nbytes: int, owner: object, device: int) -> cupy.cuda.MemoryPointer:
    """The owner lives as long as an array uses its block."""
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(pointer, nbytes, owner, device), 0)


class CupyAllocator:
    """For ``cupy.cuda.set_allocator()`` and ``cupy.cuda.using_allocator()``: blocks of an allocator, for its device."""

    def __init__(self, allocator: memopt.Allocator, tag: str = "other") -> None:
        self.allocator = allocator
        self._device = allocator.device.properties.index
        self._tag = tag

    def __call__(self, nbytes: int) -> cupy.cuda.MemoryPointer:
        block = self.allocator.alloc(nbytes, stream=cupy.cuda.get_current_stream().ptr, tag=self._tag)
        return _array_memory(int(block), nbytes, block, self._device)


class TorchPool:
    """The same, of the allocator that PyTorch uses for a device."""

    class _Block:
        def __init__(self, nbytes: int, device: int) -> None:
            import torch

            self._free = torch.cuda.caching_allocator_delete
            self.pointer = torch.cuda.caching_allocator_alloc(nbytes, device, cupy.cuda.get_current_stream().ptr)

        def __del__(self) -> None:
            if hasattr(self, "pointer"):
                self._free(self.pointer)

    def __init__(self, device: int) -> None:
        self._device = device

    def __call__(self, nbytes: int) -> cupy.cuda.MemoryPointer:
        if nbytes == 0:
            return _array_memory(0, 0, None, self._device)
        block = self._Block(nbytes, self._device)
        return _array_memory(block.pointer, nbytes, block, self._device)
