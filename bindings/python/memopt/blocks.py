"""Block-scaled matrices: codes of 8 or 4 bits, and a scale for each block."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._abi import BlockFormat, DType, Rounding
from ._arguments import choice, unsigned
from ._library import lib, output
from .casts import Tensors, amax_cells
from .device import Device
from .streams import StreamLike, stream_pointer
from .tensors import TensorLike, naming, passing, tensor, tensor_array, tensor_list
from .views import Tensor

FormatLike = Union[str, BlockFormat]


class BlocksLayout(NamedTuple):
    """The sizes of a block-scaled matrix, in elements, bits and bytes."""

    block_rows: int
    block_columns: int
    code_bits: int
    code_row_bytes: int
    code_bytes: int
    scale_size: int
    scale_rows: int
    scale_columns: int
    scale_bytes: int


class Blocks(NamedTuple):
    """A block-scaled matrix. `codes` and `scales` are memory of the layout's bytes, of any type;
    `tensor_amax` is one f32 with the tensor's largest magnitude (NVFP4, formats of one scale) or with what NF4's
    scales are stored less, or None."""

    codes: TensorLike
    scales: TensorLike
    format: FormatLike
    rows: int
    columns: int
    tensor_amax: Optional[TensorLike] = None


def blocks_layout(format: FormatLike, rows: int, columns: int) -> BlocksLayout:
    """The sizes of a matrix in a format: "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4",
    "e4m3_1x128", "e4m3_128x128", "e4m3_tensor", "e5m2_tensor", "nf4", "nf4_32", "nf4_128" to "nf4_4096" or "dynamic8"."""
    raw = output(
        lib.memopt_blocks_get_layout,
        int(choice(BlockFormat, format, "format")),
        unsigned(rows, 64, "rows"),
        unsigned(columns, 64, "columns"),
    )
    return BlocksLayout(*(getattr(raw, name) for name in BlocksLayout._fields))


def quantize_blocks(
    device: Device,
    destinations: Union[Blocks, Sequence[Blocks]],
    sources: Tensors,
    *,
    rounding: Union[str, Rounding] = Rounding.NEAREST_EVEN,
    power_of_two: bool = False,
    seed: int = 0,
    sequence: int = 0,
    amax: Optional[TensorLike] = None,
    stream: StreamLike = None,
) -> None:
    """Quantises tensors of f32, f16 or bf16, many in one call.

    `power_of_two` rounds f32 scales up to powers of two. `amax` is as many f32 as there are
    tensors: each is raised to the largest magnitude of its tensor.
    """
    into, kept, sizes = _array(device, destinations, "destination", True)
    start, inputs = tensor_array(tensor_list(sources), device, "source")
    count = _same(sizes, len(inputs), "quantize_blocks", "destinations", "sources")
    options = _abi.BlocksOptions(
        rounding=choice(Rounding, rounding, "rounding"),
        power_of_two=int(bool(power_of_two)),
        seed=unsigned(seed, 64, "seed"),
        sequence=unsigned(sequence, 64, "sequence"),
    )
    if amax is not None:
        cells = amax_cells(device, amax, count)
        options.amax = cells.pointer
        kept.append(cells)
    at = stream_pointer(stream)
    lib.memopt_blocks_quantize(device._handle.pointer, into, start, count, options, at)
    device._keep(stream, kept, inputs)


def dequantize_blocks(
    device: Device, destinations: Tensors, sources: Union[Blocks, Sequence[Blocks]], *, stream: StreamLike = None
) -> None:
    """Writes the values of block-scaled matrices into tensors of f32, f16 or bf16."""
    into, outputs = tensor_array(tensor_list(destinations), device, "destination", writable=True)
    start, kept, sizes = _array(device, sources, "source", False)
    count = _same(len(outputs), sizes, "dequantize_blocks", "destinations", "sources")
    at = stream_pointer(stream)
    lib.memopt_blocks_dequantize(device._handle.pointer, into, start, count, at)
    device._keep(stream, outputs, kept)


def _same(one: int, other: int, call: str, name: str, other_name: str) -> int:
    if one != other:
        raise ValueError("%s: %d %s, %d %s" % (call, one, name, other, other_name))
    return one


def _piece(device: Device, source: TensorLike, least: int, name: str, write: bool) -> Tensor:
    """A view of memory that has room for so many bytes."""
    view = tensor(source, writable=True) if write else passing(source)
    device._check_tensor(view)
    bytes_ = view.count * view.dtype.itemsize
    if bytes_ < least:
        raise ValueError("%s of %d bytes; %d are needed" % (name, bytes_, least))
    return view


def _array(
    device: Device, matrices: Union[Blocks, Sequence[Blocks]], what: str, write: bool
) -> Tuple[Any, List[Tensor], int]:
    """A C array of matrices, the views, which must outlive its use, and how many there are."""
    items = [matrices] if isinstance(matrices, Blocks) else list(matrices)
    array = (_abi.BlocksStruct * max(len(items), 1))()
    views: List[Tensor] = []
    for i, item in enumerate(items):
        with naming(what, i):
            layout = blocks_layout(item.format, item.rows, item.columns)
            codes = _piece(device, item.codes, layout.code_bytes, "codes", write)
            scales = _piece(device, item.scales, layout.scale_bytes, "scales", write)
            views += [codes, scales]
            entry = array[i]
            entry.codes, entry.scales = codes.pointer, scales.pointer
            entry.rows, entry.columns = item.rows, item.columns
            entry.format = int(choice(BlockFormat, item.format, "format"))
            if item.tensor_amax is not None:
                views.append(_piece(device, item.tensor_amax, 4, "tensor_amax", False))
                if views[-1].dtype is not DType.F32:
                    raise ValueError("tensor_amax is of %s, not f32" % views[-1].dtype.name)
                entry.tensor_amax = views[-1].pointer
    return array, views, len(items)
