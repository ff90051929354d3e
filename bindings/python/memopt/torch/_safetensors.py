"""The safetensors format: headers read and checked, data read in pieces.

A file is 8 bytes (the header's length, little-endian), the header (a JSON object of names, each
with type, shape and range of bytes) and the data. An inconsistent file raises ValueError before any
data is read: see :func:`read_header`.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, NamedTuple, Tuple

import torch

_INDEX = ".safetensors.index.json"
#: The reference implementation's bound.
_MOST_HEADER_BYTES = 100_000_000
#: torch's own bound.
_MOST_DIMENSIONS = 64
_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "C64": "complex64",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
}
_DTYPES: Dict[str, torch.dtype] = {  # older versions of torch lack some
    name: getattr(torch, torch_name) for name, torch_name in _NAMES.items() if hasattr(torch, torch_name)
}


class Entry(NamedTuple):
    """A tensor in a file."""

    path: str
    dtype: torch.dtype
    shape: Tuple[int, ...]
    offset: int  # of its first byte, in the file
    nbytes: int


def read_header(path: str) -> Dict[str, Entry]:
    """The tensors of a file by name.

    ValueError for: a file that ends too early or too late, a header that is no JSON object or says
    a name twice, unknown types, shapes and ranges that do not agree, and ranges that overlap,
    leave gaps or are out of the file.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        start = _read(file.fileno(), 0, min(size, 8))
        if len(start) < 8:
            raise ValueError("%s: a file of %d bytes is not a safetensors file" % (path, size))
        length = int.from_bytes(start, "little")
        if length > min(size - 8, _MOST_HEADER_BYTES):
            raise ValueError(
                "%s: the header should have %d bytes; the file has %d, and the format allows %d"
                % (path, length, size, _MOST_HEADER_BYTES)
            )
        text = _read(file.fileno(), 8, length)
    if len(text) < length:
        raise ValueError("%s: the file ends within its header" % path)
    items = _object(path, "the header", text)
    items.pop("__metadata__", None)
    entries = {name: _entry(path, name, item, 8 + length) for name, item in items.items()}
    _check_ranges(path, entries, 8 + length, size)
    return entries


def read_index(path: str) -> Dict[str, str]:
    """A sharded checkpoint's index: the file, in the same folder, of each name."""
    with open(path, "rb") as file:
        text = file.read(_MOST_HEADER_BYTES + 1)
    index = _object(path, "the index", text)
    files = index.get("weight_map")
    if not isinstance(files, dict):
        raise ValueError('%s: the object "weight_map" is missing' % path)
    folder = os.path.dirname(path)
    for name, file_name in files.items():
        if (
            not isinstance(file_name, str)
            or file_name in ("", ".", "..")
            or os.path.basename(file_name) != file_name
            or "\0" in file_name
        ):
            raise ValueError(
                "%s: tensor %r is in %r, which is not the name of a file in the same folder" % (path, name, file_name)
            )
    return {name: os.path.join(folder, file_name) for name, file_name in files.items()}


def entries_of(path: str) -> Dict[str, Entry]:
    """The tensors of a checkpoint by name: of a file, of an index, or of a folder with either."""
    if os.path.isdir(path):
        path = _file_in(path)
    if not path.endswith(".json"):
        return read_header(path)
    files = read_index(path)
    shards = {file: read_header(file) for file in sorted(set(files.values()))}
    result = {}
    for name, file in files.items():
        if name not in shards[file]:
            raise ValueError("%s: tensor %r is not in %s" % (path, name, file))
        result[name] = shards[file][name]
    return result


def _file_in(folder: str) -> str:
    names = sorted(os.listdir(folder))
    for preferred in ("model" + _INDEX, "model.safetensors"):
        if preferred in names:
            return os.path.join(folder, preferred)
    for ending in (_INDEX, ".safetensors"):
        found = [name for name in names if name.endswith(ending)]
        if len(found) == 1:
            return os.path.join(folder, found[0])
        if found:
            raise ValueError(
                "%s: there are %d files *%s (%s, …) and no model%s; name one"
                % (folder, len(found), ending, found[0], ending)
            )
    raise FileNotFoundError("%s: the folder has no file *.safetensors" % folder)


def _read(descriptor: int, offset: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.pread(descriptor, min(count, 1 << 30), offset)
        if not part:
            break
        parts.append(part)
        offset, count = offset + len(part), count - len(part)
    return b"".join(parts)


def _object(path: str, what: str, text: bytes) -> Dict[str, Any]:
    def once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        result: Dict[str, Any] = {}
        for name, value in pairs:
            if name in result:
                raise ValueError("the name %r occurs twice" % name)
            result[name] = value
        return result

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ValueError("%s: %s is malformed: %s" % (path, what, error)) from None
    if not isinstance(value, dict):
        raise ValueError("%s: %s is not a JSON object" % (path, what))
    return value


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _entry(path: str, name: str, item: Any, start: int) -> Entry:
    def wrong(text: str) -> ValueError:
        return ValueError("%s: tensor %r: %s" % (path, name, text))

    if not isinstance(item, dict) or item.keys() != {"dtype", "shape", "data_offsets"}:
        raise wrong("an object with dtype, shape and data_offsets is expected")
    dtype, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise wrong("the type %r is unknown" % (dtype,))
    if not _counts(shape) or len(shape) > _MOST_DIMENSIONS:
        raise wrong("the shape is not a list of at most %d sizes" % _MOST_DIMENSIONS)
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong("data_offsets %r is not a range" % (offsets,))
    nbytes = _DTYPES[dtype].itemsize
    for size in shape:
        nbytes *= size
    if nbytes != offsets[1] - offsets[0]:
        raise wrong(
            "shape %s of %s needs %d bytes; data_offsets %s have %d"
            % (shape, dtype, nbytes, offsets, offsets[1] - offsets[0])
        )
    return Entry(path, _DTYPES[dtype], tuple(shape), start + offsets[0], nbytes)


def _check_ranges(path: str, entries: Dict[str, Entry], start: int, size: int) -> None:
    end, last = start, None
    for name, entry in sorted(entries.items(), key=lambda item: item[1][3:]):
        if entry.offset < end:
            raise ValueError("%s: tensors %r and %r overlap" % (path, last, name))
        if entry.offset > end:
            raise ValueError("%s: %d bytes before tensor %r belong to no tensor" % (path, entry.offset - end, name))
        end, last = entry.offset + entry.nbytes, name
        if end > size:
            raise ValueError("%s: tensor %r ends at byte %d, the file at %d; is it cut off?" % (path, name, end, size))
    if end != size:
        raise ValueError("%s: %d bytes at the end belong to no tensor" % (path, size - end))
