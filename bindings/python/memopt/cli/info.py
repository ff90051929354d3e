"""Tells the library's version, the back ends, the drivers and devices found, what each supports,
and why one is missing. Each device is opened for a moment; a driver that is missing or broken is
part of the answer, not a failure."""

from __future__ import annotations

import argparse
import os
import platform
from typing import Any, Dict, List, Optional, Tuple

from .. import __version__, library_path
from ..backends import BACKENDS, BackendInfo, backend_info
from ..device import Device
from ..errors import MemoptError
from ..open_device import DeviceProperties
from ..sizes import format_size
from . import VERBS, standard_streams
from .output import Cell, Output, Text

_FEATURES = ("virtual_memory", "host_functions", "graph_capture", "runtime_compiler")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument(
        "--no-devices", action="store_true", help="open no device (opening one costs a moment and a context on a GPU)"
    )


# --- collecting -----------------------------------------------------------------------------------


def collect(open_devices: bool = True) -> Dict[str, Any]:
    """What ``--json`` prints; schemas/info.json describes it."""
    return {
        "version": __version__,
        "library": os.path.abspath(library_path) if os.path.sep in library_path else library_path,
        "python": {
            "version": platform.python_version(),
            "package": os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        },
        "backends": [_backend(name, open_devices) for name in BACKENDS],
    }


def _status(status: int) -> str:
    return getattr(status, "name", str(int(status)))


def _backend(name: str, open_devices: bool) -> Dict[str, Any]:
    info = backend_info(name)
    return {
        "name": name,
        "available": info.available,
        "status": _status(info.status),
        "problem": info.problem or None,
        "driver": _driver(name, info),
        "features": {feature: feature in info.features for feature in _FEATURES},
        "kernels": {"built_in": list(info.targets), "compiler": info.compiler or None},
        "monitoring": _monitoring(name),
        "device_count": info.device_count,
        "devices": [_device(name, index, info) for index in range(info.device_count)]
        if open_devices and info.available
        else [],
    }


def _driver(name: str, info: BackendInfo) -> Optional[Dict[str, Any]]:
    if name == "cpu":
        return None
    return {
        "library": info.library or None,
        "version": driver_version(name, info.driver_version),
        "version_number": info.driver_version,
        "code": info.driver_code,
        "tried": list(info.tried),
        "missing": list(info.missing),
    }


def driver_version(backend: str, number: int) -> Optional[str]:
    """13000 is CUDA's way to write 13.0, and 60443482 HIP's to write 6.4.43482."""
    if number <= 0:
        return None
    if backend == "cuda":
        return "%d.%d" % (number // 1000, number % 1000 // 10)
    return "%d.%d.%d" % (number // 10000000, number // 100000 % 100, number % 100000)


def _monitoring(name: str) -> Optional[Dict[str, Any]]:
    """What an installed verb tells of watching devices; None where none is."""
    for verb in VERBS.values():
        if hasattr(verb, "about_backend"):
            about: Dict[str, Any] = verb.about_backend(name)
            return about
    return None


def _device(backend: str, index: int, info: BackendInfo) -> Dict[str, Any]:
    name = "%s:%d" % (backend, index)
    result: Dict[str, Any] = {"device": name, "index": index, "error": None, "properties": None}
    try:
        with Device(name) as device:
            properties = device.properties
            memory = device.memory_info()
    except MemoptError as error:  # one broken device does not hide the others
        result["error"] = {"status": error.name, "message": str(error)}
        return result
    result["properties"] = {
        "name": properties.name,
        "isa": properties.isa,
        "units": properties.threads,
        "warp_size": properties.warp_size,
        "memory_total": properties.total_memory,
        "memory_free": memory.free,
        "virtual_memory": properties.virtual_memory,
        "granularity": properties.granularity,
        "allocation": "mapped" if properties.virtual_memory else "plain",
        "allocation_limit": None if backend == "cpu" else properties.limit or None,
        "kernels": _kernels(backend, properties, info),
    }
    return result


def _kernels(backend: str, properties: DeviceProperties, info: BackendInfo) -> Dict[str, Any]:
    """The form of the kernels for the device."""
    image = properties.kernels
    if backend == "cpu":
        form = "native"
    elif image == "fatbin":
        form = "sass_or_ptx"
    elif image.startswith("ptx"):
        form = "ptx"
    elif image == "source":
        form = "run_time_compiler" if info.compiler else "none"
    else:
        form = "code_object" if image else "none"
    limit = properties.limit if backend == "cpu" else ""
    return {"form": form, "image": image or None, "limit": limit or None}


# --- printing -------------------------------------------------------------------------------------

_FORMS = {
    "native": "%s",
    "sass_or_ptx": "SASS, or PTX by the driver",
    "ptx": "PTX (%s), compiled by the driver",
    "code_object": "code object %s",
    "run_time_compiler": "compiled at the first launch",
    "none": "none",
}


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Prints what was found."""
    with standard_streams.drivers_quiet():
        found = collect(open_devices=not arguments.no_devices)
    if output.wants_json:
        output.json(found)
        return 0
    output.pairs(
        "memopt " + found["version"],
        [("library", found["library"]), ("Python", "%(version)s, %(package)s" % found["python"])],
    )
    output.table(
        "Back ends",
        ("name", "status", "driver", "devices", "kernels built in", "monitoring"),
        [_backend_row(backend) for backend in found["backends"]],
    )
    for backend in found["backends"]:
        details = _details(backend)
        if details:
            title = "%s: %s" % (backend["name"], _headline(backend))
            output.pairs(title, details, "" if backend["available"] else "warn")
    devices = [(b, device) for b in found["backends"] for device in b["devices"]]
    opened = [(b, device) for b, device in devices if device["properties"]]
    if opened:
        output.table(
            "Devices",
            ("device", "name", "isa", "memory", "units", "warp", "pages", "kernels"),
            [_device_row(device) for _, device in opened],
        )
    notes = [note for b, device in devices for note in _notes(b, device)]
    if notes:
        output.pairs("Notes", notes, "warn")
    return 0


def _backend_row(backend: Dict[str, Any]) -> List[Text]:
    driver, monitoring = backend["driver"], backend["monitoring"]
    good = backend["available"]
    version = "-"
    if driver is not None and driver["library"]:
        version = " ".join(filter(None, [driver["version"], os.path.basename(driver["library"])]))
    watched = "-"
    if monitoring and monitoring["available"]:
        watched = " ".join(filter(None, [monitoring["source"], monitoring["version"]]))
    return [
        backend["name"],
        Cell("ok" if good else backend["status"], "good" if good else "warn"),
        version,
        str(backend["device_count"]),
        ", ".join(backend["kernels"]["built_in"]) or "-",
        watched,
    ]


def _headline(backend: Dict[str, Any]) -> str:
    if not backend["available"]:
        return "cannot be used"
    return "usable; no device" if backend["device_count"] == 0 else "usable"


def briefly(problem: Optional[str]) -> str:
    """Names that failed for the same reason are joined: "a, b: no such file"."""
    reasons: Dict[str, List[str]] = {}
    for part in filter(None, (problem or "").split("; ")):
        subject, _, reason = part.partition(": ")
        reasons.setdefault(reason, []).append(subject)
    return "; ".join(", ".join(s) + (": " + r if r else "") for r, s in reasons.items())


_DRIVERS = {"cuda": "the NVIDIA driver", "hip": "the ROCm runtime"}


def _advice(backend: Dict[str, Any]) -> str:
    if "device: /dev/kfd: " in (backend["problem"] or ""):
        return "make the card usable by its kernel driver, amdgpu, or use cpu"
    if backend["available"]:
        return ""
    if backend["status"] == "UNSUPPORTED":
        return "use a build of libmemopt that has it"
    driver = _DRIVERS[backend["name"]]
    if backend["driver"]["library"] is None:
        return "install %s where the loader finds it, or use cpu" % driver
    return "update or reinstall %s, or use cpu" % driver


def _lacks(backend: Dict[str, Any]) -> str:
    """Optional entry points matter to a device only."""
    missing = backend["driver"]["missing"]
    if backend["device_count"] or any(name.endswith("(required)") for name in missing):
        return ", ".join(missing)
    return ""


def _details(backend: Dict[str, Any]) -> List[Tuple[str, Text]]:
    """The details of a GPU back end; "cpu" has none."""
    driver, monitoring = backend["driver"], backend["monitoring"]
    if driver is None:
        return []
    features = [name.replace("_", " ") for name in _FEATURES if backend["features"][name]]
    details: List[Tuple[str, Text]] = [
        ("why", Cell(briefly(backend["problem"]), "warn" if backend["available"] else "bad")),
        ("what to do", _advice(backend)),
        ("driver", driver["library"] or ""),
        ("tried", ", ".join(driver["tried"]) if not driver["library"] else ""),
        ("lacks", Cell(_lacks(backend), "warn")),
        ("features", ", ".join(features) if backend["available"] else ""),
        ("compiler", backend["kernels"]["compiler"] or "none found"),
    ]
    if monitoring is None:
        return details
    watched = monitoring["library"] if monitoring["available"] else None
    return details + [
        ("monitoring", watched or Cell("none: %s" % briefly(monitoring["problem"]), "dim")),
        ("", Cell(briefly(monitoring["problem"]) if watched else "", "dim")),
        ("not told", Cell(", ".join(monitoring["missing"]), "dim")),
    ]


def _device_row(device: Dict[str, Any]) -> List[Text]:
    p = device["properties"]
    kernels = p["kernels"]
    form = _FORMS[kernels["form"]]
    pages = format_size(p["granularity"]) if p["virtual_memory"] else Cell("plain", "warn")
    return [
        device["device"],
        p["name"],
        p["isa"],
        format_size(p["memory_total"]),
        str(p["units"]),
        str(p["warp_size"]),
        pages,
        Cell(form % kernels["image"] if "%" in form else form, "bad" if kernels["form"] == "none" else ""),
    ]


def _notes(backend: Dict[str, Any], device: Dict[str, Any]) -> List[Tuple[str, Text]]:
    name, error, p = device["device"], device["error"], device["properties"]
    notes: List[Tuple[str, Text]] = []
    if error is not None:
        notes.append((name, Cell("%(status)s: %(message)s" % error, "bad")))
    if p is not None and not p["virtual_memory"]:
        why = p["allocation_limit"] or "the device has none"
        if not backend["features"]["virtual_memory"]:
            why = "the driver lacks the calls"
        notes.append(
            (name, "no virtual memory (%s): falls back to plain allocation; expandable segments are off" % why)
        )
    if p is not None and p["kernels"]["limit"]:
        notes.append((name, "kernels run as %(image)s: %(limit)s" % p["kernels"]))
    if p is not None and p["kernels"]["form"] == "none":
        notes.append(
            (
                name,
                Cell(
                    "no kernels for %s are built in and there is no run-time compiler: memory and "
                    "copies work, optimizers and casts do not" % p["isa"],
                    "bad",
                ),
            )
        )
    return notes
