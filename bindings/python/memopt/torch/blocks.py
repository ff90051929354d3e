"""quantize_blocks() and its family: torch tensors as block-scaled matrices."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple, Union

import torch

from .. import _abi
from .._abi import BlockFormat
from .._arguments import choice
from .._library import lib
from ..blocks import BlocksLayout, FormatLike, blocks_layout
from . import _tensor_lists as _lists
from ._native import native
from .cast import _ROUNDINGS, _seed

# torch 2.7 and 2.8 have brought these; before, the bytes stay bytes.
_E8M0: torch.dtype = getattr(torch, "float8_e8m0fnu", torch.uint8)
_E2M1: torch.dtype = getattr(torch, "float4_e2m1fn_x2", torch.uint8)

#: Of each format, the types of its codes and its scales.
_TYPES = {
    BlockFormat.MXFP8_E4M3: (torch.float8_e4m3fn, _E8M0),
    BlockFormat.MXFP8_E5M2: (torch.float8_e5m2, _E8M0),
    BlockFormat.MXFP4: (_E2M1, _E8M0),
    BlockFormat.NVFP4: (_E2M1, torch.float8_e4m3fn),
    BlockFormat.E4M3_1X128: (torch.float8_e4m3fn, torch.float32),
    BlockFormat.E4M3_128X128: (torch.float8_e4m3fn, torch.float32),
    BlockFormat.E4M3_TENSOR: (torch.float8_e4m3fn, torch.float32),
    BlockFormat.E5M2_TENSOR: (torch.float8_e5m2, torch.float32),
    **{kind: (torch.uint8, torch.float32) for kind in BlockFormat if kind >= BlockFormat.NF4_32},
}
#: Formats that take matrices alone, and those of one scale.
_MATRICES = (BlockFormat.E4M3_128X128,)
_ONE_SCALE = (BlockFormat.E4M3_TENSOR, BlockFormat.E5M2_TENSOR)
#: Those whose blocks go on from row to row, as bitsandbytes' do: the bytes of a tensor are those of one row.
_FLAT = tuple(kind for kind in BlockFormat if kind >= BlockFormat.NF4_32)


@torch.no_grad()
def quantize_blocks(
    source: torch.Tensor,
    format: FormatLike,
    *,
    rounding: str = "nearest",
    seed: Optional[int] = None,
    power_of_two: bool = False,
    tensor_amax: Optional[torch.Tensor] = None,
    amax: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """The codes and the scales of a tensor in a block-scaled format, in one pass.

        codes, scales = quantize_blocks(weight, "mxfp8_e4m3")

    Formats: "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4", "e4m3_1x128", "e4m3_128x128",
    "e4m3_tensor" and "e5m2_tensor"; blocks lie along the last dimension, and the last two have one
    scale. "nf4" (blocks of 64; "nf4_32", "nf4_128" to "nf4_4096") and "dynamic8" are bitsandbytes': blocks go on from
    row to row, codes and scales have one dimension, of uint8 and float32, and rounding is to nearest. `source` is of float32, float16 or bfloat16; "e4m3_128x128" takes
    matrices, the others any shape. Types: float8_e4m3fn, float8_e5m2 or float4_e2m1fn_x2 for the
    codes, float8_e8m0fnu, float8_e4m3fn or float32 for the scales. `rounding` and `seed` are as in
    cast_(). `power_of_two` rounds float32 scales up to powers of two. `tensor_amax` is the largest
    magnitude of the tensor, for NVFP4 and one scale: one float32 on its device; for NF4 it is what its scales are
    stored less. `amax`, also one float32, is raised to the largest magnitude of `source`.
    """
    kind = choice(BlockFormat, format, "format")
    values = _values("source", source).contiguous()
    rows, columns, layout = _sizes(kind, values.shape)
    codes, scales = _empty(kind, values.shape, layout, values.device)
    options = _options(rounding, seed, power_of_two, amax, values)
    side = native(values.device)
    lib.memopt_blocks_quantize(
        side.device._handle.pointer,
        _matrix(kind, rows, columns, codes, scales, _cell("tensor_amax", tensor_amax, values)),
        _lists.array([values]),
        1,
        options,
        side.stream(),
    )
    if amax is not None:
        _lists.changed([amax])
    return codes, scales


@torch.no_grad()
def dequantize_blocks(
    codes: torch.Tensor,
    scales: torch.Tensor,
    format: FormatLike,
    *,
    dtype: torch.dtype = torch.float32,
    columns: Optional[int] = None,
    tensor_amax: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """The values of codes and scales as quantize_blocks() returns them.

    `columns` is the last dimension of the result; of two codes a byte, None means an even number. The result of
    "nf4" and "dynamic8" has one dimension.
    """
    kind = choice(BlockFormat, format, "format")
    if not codes.is_contiguous() or not scales.is_contiguous():
        raise ValueError("dequantize_blocks: codes and scales must be contiguous")
    if codes.dtype is not _TYPES[kind][0] or scales.dtype is not _TYPES[kind][1]:
        raise TypeError(
            "dequantize_blocks: codes of %s and scales of %s; %s and %s are expected"
            % (*map(_lists.name_of, (codes.dtype, scales.dtype)), *map(_lists.name_of, _TYPES[kind]))
        )
    shape = codes.shape if kind not in _FLAT else torch.Size([codes.numel()])
    if columns is None:
        columns = shape[-1] * (8 // blocks_layout(kind, 1, 1).code_bits)
    shape = torch.Size((*shape[:-1], columns))
    result = _values("result", torch.empty(shape, dtype=dtype, device=codes.device))
    rows, columns, layout = _sizes(kind, result.shape)
    for name, tensor, needed in (
        ("codes", codes, layout.code_bytes),
        ("scales", scales, 4 if kind in _ONE_SCALE else layout.scale_bytes),
    ):
        size = tensor.numel() * tensor.element_size()
        if size != needed or tensor.device != codes.device:
            raise ValueError(
                "dequantize_blocks: %s of %d bytes on %s; %d on %s are expected"
                % (name, size, tensor.device, needed, codes.device)
            )
    side = native(result.device)
    lib.memopt_blocks_dequantize(
        side.device._handle.pointer,
        _lists.array([result]),
        _matrix(kind, rows, columns, codes, scales, _cell("tensor_amax", tensor_amax, result)),
        1,
        side.stream(),
    )
    return result


def _values(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or not _lists.is_plain(tensor):
        raise TypeError("%s must be a dense tensor on cpu or cuda, no subclass" % name)
    if tensor.dtype not in _lists.GRADIENT_TYPES:
        raise TypeError("%s is of %s; float32, float16 and bfloat16 can be used" % (name, _lists.name_of(tensor.dtype)))
    return tensor


def _sizes(kind: BlockFormat, shape: Any) -> Tuple[int, int, BlocksLayout]:
    if len(shape) == 0 or (kind in _MATRICES and len(shape) != 2):
        raise ValueError(
            "%s takes %s, not a shape of %s"
            % (kind.name.lower(), "matrices" if len(shape) else "at least one dimension", list(shape))
        )
    columns = shape[-1]
    rows = 1
    for size in shape[:-1]:
        rows *= size
    if kind in _FLAT:
        rows, columns = 1, rows * columns
    return rows, columns, blocks_layout(kind, rows, columns)


def _options(
    rounding: str, seed: Optional[int], power_of_two: bool, amax: Optional[torch.Tensor], values: torch.Tensor
) -> Any:
    if rounding not in _ROUNDINGS:
        raise ValueError(
            "quantize_blocks: rounding must be one of %s, not %r" % (", ".join(map(repr, _ROUNDINGS)), rounding)
        )
    options = _abi.BlocksOptions(rounding=_ROUNDINGS[rounding], power_of_two=int(power_of_two))
    if rounding == "stochastic":
        options.seed = _seed(seed)
    options.amax = _cell("amax", amax, values)
    return ctypes.byref(options)


def _empty(
    kind: BlockFormat, shape: Any, layout: BlocksLayout, device: torch.device
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Memory of codes and scales; uint8 first, since not all types can be allocated everywhere."""
    lead = [] if kind in _FLAT else list(shape[:-1])
    code_type, scale_type = _TYPES[kind]
    scale_shape = [*lead, layout.scale_columns]
    if kind in _ONE_SCALE:
        scale_shape = []
    elif kind in _MATRICES:
        scale_shape = [layout.scale_rows, layout.scale_columns]
    codes = torch.empty([*lead, layout.code_row_bytes], dtype=torch.uint8, device=device)
    scales = torch.empty(scale_shape, dtype=torch.float32 if layout.scale_size == 4 else torch.uint8, device=device)
    return codes.view(code_type), scales.view(scale_type)


def _cell(name: str, cell: Optional[torch.Tensor], values: torch.Tensor) -> Optional[int]:
    """The address of one float32 beside the values."""
    if cell is None:
        return None
    if cell.dtype is not torch.float32 or cell.numel() != 1 or cell.device != values.device:
        raise ValueError(
            "%s must be one float32 on %s, not %d of %s on %s"
            % (name, values.device, cell.numel(), _lists.name_of(cell.dtype), cell.device)
        )
    return cell.data_ptr()


def _matrix(
    kind: BlockFormat, rows: int, columns: int, codes: torch.Tensor, scales: torch.Tensor, tensor_amax: Union[int, None]
) -> Any:
    return ctypes.byref(
        _abi.BlocksStruct(
            codes=codes.data_ptr(),
            scales=scales.data_ptr(),
            tensor_amax=tensor_amax,
            rows=rows,
            columns=columns,
            format=int(kind),
        )
    )
