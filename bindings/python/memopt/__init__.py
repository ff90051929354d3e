"""Training-memory savers: a caching allocator, checkpoint regions, save-on-CPU, 8-bit optimizers,
casts and loss scaling, over libmemopt by ctypes. Only the standard library is needed.

    import memopt

    device = memopt.Device("cpu", capacity="512MiB")
    allocator = memopt.Allocator(device, "expandable_segments:True")
    optimizer = memopt.AdamW8bit(allocator, model.parameters(), lr=1e-3)

The library is the one that MEMOPT_LIBRARY names, or the one bundled with this package.
"""

from ._abi import (
    BlockState,
    CheckMode,
    HistoryAction,
    LogLevel,
    OomCause,
    Overflow,
    Pass,
    RegionMode,
    Rounding,
    ScheduleOperation,
    StateFormat,
    Status,
    StreamOrder,
    Tag,
)
from ._events import HistoryEvent
from ._library import lib as _lib
from ._library import path as library_path
from .allocator import Allocator, Buffer, Paused, Pool, RangeEvent, TagStats
from .backends import BackendInfo, backend_info
from .blocks import (
    Blocks,
    BlocksLayout,
    blocks_layout,
    dequantize_blocks,
    quantize_blocks,
)
from .casts import Scaler, amax, cast
from .checkpoint import Lease, RandomState, Region
from .codes import (
    dequantize,
    quantize,
    state_map,
)
from .device import Device
from .dtypes import DType, dtype_of
from .errors import (
    BusyError,
    ClosedError,
    CorruptError,
    DeviceError,
    InvalidArgumentError,
    LimitReachedError,
    MemoptError,
    MismatchError,
    NotFoundError,
    OutOfMemoryError,
    StorageError,
    UnsupportedError,
)
from .groups import Group
from .log import set_log
from .memory import Memory
from .norms import clip, norm
from .offload import Offloader, Ticket
from .oom import Holder, OutOfMemoryReport
from .optim import (
    SGD,
    Adafactor,
    Adam,
    Adam8bit,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    AdamWBf16,
    Lion,
    Lion8bit,
    SGD8bit,
)
from .optimizer import Optimizer
from .open_device import DeviceProperties, MemoryInfo
from .pinned import PinnedMemory, Registration
from .schedule import Schedule, Stage
from .sharing import Export, ImportedBlock, import_block
from .sizes import format_size, parse_size
from .steps import StepPlan
from .streams import Event, Stream
from .tensors import tensor
from .views import Tensor

#: The version of the library that is loaded.
__version__: str = _lib.memopt_version_string().decode()

__all__ = [
    "Adafactor",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW4bit",
    "AdamW8bit",
    "AdamWBf16",
    "Allocator",
    "BackendInfo",
    "BlockState",
    "Buffer",
    "Blocks",
    "BlocksLayout",
    "BusyError",
    "CheckMode",
    "ClosedError",
    "CorruptError",
    "DType",
    "Device",
    "DeviceError",
    "DeviceProperties",
    "Event",
    "Export",
    "Group",
    "HistoryAction",
    "HistoryEvent",
    "Holder",
    "ImportedBlock",
    "InvalidArgumentError",
    "Lease",
    "LimitReachedError",
    "Lion",
    "Lion8bit",
    "LogLevel",
    "MemoptError",
    "Memory",
    "MemoryInfo",
    "MismatchError",
    "NotFoundError",
    "Offloader",
    "OomCause",
    "Optimizer",
    "OutOfMemoryError",
    "OutOfMemoryReport",
    "Overflow",
    "Pass",
    "PinnedMemory",
    "Paused",
    "Pool",
    "RandomState",
    "Region",
    "RegionMode",
    "Registration",
    "Rounding",
    "SGD",
    "SGD8bit",
    "Scaler",
    "Schedule",
    "ScheduleOperation",
    "Stage",
    "StateFormat",
    "Status",
    "StepPlan",
    "StorageError",
    "Stream",
    "StreamOrder",
    "Tag",
    "TagStats",
    "Tensor",
    "Ticket",
    "UnsupportedError",
    "amax",
    "backend_info",
    "blocks_layout",
    "cast",
    "clip",
    "dequantize",
    "dequantize_blocks",
    "dtype_of",
    "format_size",
    "import_block",
    "library_path",
    "norm",
    "parse_size",
    "quantize",
    "quantize_blocks",
    "set_log",
    "state_map",
    "tensor",
]
