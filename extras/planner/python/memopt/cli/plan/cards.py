"""The cards to plan for: given, or found on this machine."""

from __future__ import annotations

import argparse
from typing import Any, List, NamedTuple, Optional

from ...backends import backend_info
from ...device import Device
from ...errors import MemoptError
from ...plan import Card as Settings
from ...tools import Monitor
from ...sizes import format_size
from .. import UsageError
from ..info import briefly
from ..option_types import size as parsed_size
from ..standard_streams import drivers_quiet
from .describe import card_fields
from .gpus import GPUS, Gpu, named, recognised

DEFAULT_MARGIN = 0.85


class Card(NamedTuple):
    """A card and its name for people."""

    name: str
    card: Settings


class NoCard(Exception):
    """--auto found nothing to plan for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    group = parser.add_argument_group("card")
    group.add_argument(
        "--gpu-memory",
        action="append",
        type=_memories,
        metavar="GIB",
        help="memory of a device, in GiB or as a size: 24, 24GiB; several (8,16,24, or the option "
        "again) are shown side by side",
    )
    group.add_argument(
        "--gpu", action="append", type=_gpus, metavar="NAME", help="a card by name, or several: %s" % ", ".join(GPUS)
    )
    group.add_argument("--auto", action="store_true", help="the GPUs of this machine, and what is free on them")
    group.add_argument(
        "--safety-margin",
        type=_margin,
        default=DEFAULT_MARGIN,
        metavar="SHARE",
        help="share of the memory to use: %(default)s; 0.75 is cautious",
    )
    group.add_argument(
        "--device",
        choices=("cpu", "cuda", "hip"),
        help="whose kernels and overhead to count; default: cuda for a card, else cpu",
    )
    group.add_argument(
        "--allocator",
        choices=("classic", "expandable"),
        default="classic",
        help="how the device's memory is handed out (default: %(default)s)",
    )


def _gpus(text: str) -> List[str]:
    names = []
    for part in text.split(","):
        found = named(part)
        if len(found) > 1:
            sizes = " or ".join(name.rpartition("-")[2] for name in found)
            raise argparse.ArgumentTypeError("%s: %s GB? Say %s" % (part, sizes, " or ".join(found)))
        if not found:
            raise argparse.ArgumentTypeError(
                "%r is not one of %s; --gpu-memory takes any size" % (part, ", ".join(GPUS))
            )
        names += found
    return names


def _memories(text: str) -> List[int]:
    return [_memory(part) for part in text.split(",")]


def _memory(text: str) -> int:
    """24 is GiB; else a size with its unit."""
    try:
        plain = float(text)
    except ValueError:
        size = parsed_size(text.strip())
    else:
        if not 0 < plain <= 1024:
            also = ": do you mean %sMiB?" % text if 1024 < plain < 1 << 20 else ""
            raise argparse.ArgumentTypeError("%s is not the memory of a card in GiB%s" % (text, also))
        size = round(plain * (1 << 30))
    if not 1 << 20 <= size < 1 << 50:
        raise argparse.ArgumentTypeError("%s is %s: a card has from 1 MiB to 1024 TiB" % (text, format_size(size)))
    return size


def _number(text: str, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise argparse.ArgumentTypeError("%s is not %s above 0 and up to %g" % (text, what, most))
    return value


def _margin(text: str) -> float:
    return _number(text, 1, "a share")


def cards(arguments: argparse.Namespace) -> List[Card]:
    """The cards of the options; none is an answer. NoCard where --auto finds nothing."""
    if sum(map(bool, (arguments.auto, arguments.gpu_memory, arguments.gpu))) > 1:
        raise UsageError("--auto, --gpu and --gpu-memory exclude each other")
    if arguments.auto:
        with drivers_quiet():
            return _found(arguments)
    names = [name for part in arguments.gpu or [] for name in part]
    memories = [size for part in arguments.gpu_memory or [] for size in part]
    return [
        *(Card(name, _card(arguments, GPUS[name].memory << 20, gpu=GPUS[name])) for name in names),
        *(Card(format_size(size).replace(".00", ""), _card(arguments, size)) for size in memories),
    ]


def on_gpu(arguments: argparse.Namespace) -> bool:
    """Whether the plan is of a GPU's kernels."""
    card = arguments.auto or arguments.gpu or arguments.gpu_memory
    return bool((arguments.device or (card and "cuda") or "cpu") != "cpu")


def bare(arguments: argparse.Namespace) -> Settings:
    """A card without a limit, for --device and --allocator alone."""
    return _card(arguments, 0)


def _card(
    arguments: argparse.Namespace,
    capacity: int,
    device: Optional[str] = None,
    other: int = 0,
    gpu: Optional[Gpu] = None,
) -> Settings:
    fields: Any = {
        "capacity": capacity or None,
        "margin": arguments.safety_margin,
        "device": device or arguments.device or (gpu and gpu.device),
        "bf16": None if gpu is None else gpu.bf16,
        "allocator": arguments.allocator,
        "other_bytes": other or None,
        "flops_per_second": gpu and gpu.flops,
        **card_fields(arguments),
    }
    return Settings(**fields)


def _found(arguments: argparse.Namespace) -> List[Card]:
    found: List[Card] = []
    problems: List[str] = []
    for backend in ("cuda", "hip"):
        here: List[Card] = []
        try:
            if Monitor.info(backend).available:
                here = _devices(arguments, backend)
            if not here:  # no NVML or ROCm SMI: ask the driver itself, for a context
                here = _opened(arguments, backend, problems)
        except MemoptError as error:
            problems.append("%s: %s" % (backend, error))
        found += here
    if not found:
        raise NoCard(
            "no GPU was found (%s); give its memory instead: --gpu-memory 24 (GiB). "
            "`memopt info` says more" % ("; ".join(problems) or "no device")
        )
    return found


def _opened(arguments: argparse.Namespace, backend: str, problems: List[str]) -> List[Card]:
    info = backend_info(backend)
    if not info.available:
        problems.append("%s: %s" % (backend, briefly(info.problem) or "not there"))
        return []
    result = []
    for index in range(info.device_count):
        with Device("%s:%d" % (backend, index)) as device:
            memory = device.memory_info()
            used = memory.total - memory.free
            result.append(_seen(arguments, backend, index, device.properties.name, memory.total, used))
    return result


def _devices(arguments: argparse.Namespace, backend: str) -> List[Card]:
    result = []
    with Monitor(backend) as monitor:
        for index in range(len(monitor)):
            reading = monitor.read(index)
            if reading.memory_total is None:
                continue
            used = reading.memory_used or 0
            result.append(_seen(arguments, backend, index, reading.name or "", reading.memory_total, used))
    return result


def _seen(arguments: argparse.Namespace, backend: str, index: int, name: str, total: int, used: int) -> Card:
    """A card of this machine."""
    card = _card(arguments, total, backend, used, recognised(name))
    return Card(("%s:%d %s" % (backend, index, name)).strip(), card)
