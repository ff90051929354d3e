"""Finds and loads libmemopt and gives its functions their prototypes.

Libraries that are built on it are loaded from where it is, when they are first used.

Order: the path in the environment variable MEMOPT_LIBRARY (then nothing else is tried), the library
bundled beside this file, and what the system's loader finds as libmemopt.so.1.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Dict, Iterable, List, Optional, Tuple

from . import _abi, errors

_SONAME = "libmemopt.so.1"


def _candidates() -> List[Tuple[str, str]]:
    """What to try, as (path, where it comes from)."""
    named = os.environ.get("MEMOPT_LIBRARY")
    if named:
        return [(named, "MEMOPT_LIBRARY")]
    here = os.path.dirname(os.path.abspath(__file__))
    return [(os.path.join(here, "lib", _SONAME), "bundled with this package"), (_SONAME, "the system's library path")]


def _open(path: str) -> ctypes.CDLL:
    """Loads one candidate; OSError or AttributeError says why it cannot be used."""
    if os.path.sep in path and not os.path.exists(path):
        raise OSError("no such file")
    library = ctypes.CDLL(os.path.expanduser(path))
    _check_version(library)
    _set_prototypes(library, _abi.LIBRARY)
    return library


@functools.lru_cache(None)
def part(name: str) -> ctypes.CDLL:
    """A library beside libmemopt, by its name. ImportError says why it cannot be used."""
    folder, file = os.path.split(path)
    beside = os.path.join(folder, file.replace(_abi.LIBRARY, name, 1))
    try:
        library = ctypes.CDLL(os.path.expanduser(beside))
        _set_prototypes(library, name)
    except OSError as error:
        raise ImportError("memopt: %s cannot be loaded from beside %s: %s" % (name, path, error))
    return library


def _check_version(library: ctypes.CDLL) -> None:
    try:
        function = library.memopt_version
    except AttributeError:
        raise OSError("it is not libmemopt (it has no memopt_version)") from None
    function.restype, function.argtypes = ctypes.c_uint32, []
    version = function()
    major, minor = version // 10000, version // 100 % 100
    if (major, minor) != _abi.HEADER_VERSION:  # before 1.0 a minor version may change anything
        raise OSError("it is version %d.%d; this package needs %d.%d" % (major, minor, *_abi.HEADER_VERSION))


def _set_prototypes(library: ctypes.CDLL, which: str) -> None:
    for name, (result, parameters) in _abi.PROTOTYPES[which].items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise OSError("it lacks the function " + name) from None
        function.argtypes = parameters
        if result is _abi.CHECKED:
            function.restype = ctypes.c_int32
            function.errcheck = _check
        else:
            function.restype = result


def _check(status: int, function: Any, arguments: Any) -> int:
    """Raises the exception of a failed call; that of the innermost callback if one raised."""
    if status != 0:
        raise errors.take_callback_exception() or from_status(status)
    if errors.has_callback_exception():
        errors.report_callback_exception()
    return status


def from_status(status: int) -> errors.MemoptError:
    """The exception for a status, with the library's message where the message belongs to it."""
    info = _abi.ErrorInfo()
    lib.memopt_last_error_info(info)
    if info.status == status:
        return errors.make(
            status, _text(info.message), driver_code=info.driver_code, driver_message=_text(info.driver_message)
        )
    if status >= _abi.Status.USER:
        return errors.make(status, "a callback returned status %#x" % status)
    return errors.make(status, _text(lib.memopt_status_message(status)))


def output(function: Any, *arguments: Any) -> Any:
    """What a function writes through its last parameter: a struct, a number or an address."""
    out = function.argtypes[-1]._type_()
    function(*arguments, out)
    return out if isinstance(out, _abi.Struct) else out.value


def listed(function: Any, *arguments: Any) -> List[Any]:
    """What a function gives for the numbers 0, 1, …, its last argument, up to the first that there is not."""
    found: List[Any] = []
    while True:
        try:
            found.append(output(function, *arguments, len(found)))
        except errors.NotFoundError:
            return found


def values_of(raw: ctypes.Structure, names: Iterable[str] = ()) -> Dict[str, Any]:
    """Fields of a struct by name, all but its size where none are named; texts as str."""
    values = {name: getattr(raw, name) for name in names or [field[0] for field in raw._fields_[1:]]}
    return {name: _text(v) if isinstance(v, bytes) else v for name, v in values.items()}


def _text(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")


def c_text(text: str, what: str) -> bytes:
    """Text for C, which would stop reading at a NUL character."""
    if not isinstance(text, str):
        raise TypeError("%s must be text, not %s" % (what, type(text).__name__))
    if "\0" in text:
        raise ValueError("%s contains a NUL character: %r" % (what, text))
    try:
        return text.encode()
    except UnicodeEncodeError:  # bytes on a command line that are no text, say
        raise ValueError("%s contains characters that UTF-8 cannot encode: %r" % (what, text)) from None


def load() -> Tuple[ctypes.CDLL, str]:
    """The loaded library and its path; ImportError lists every path with its reason."""
    failures = []
    for path, origin in _candidates():
        try:
            return _open(path), path
        except OSError as error:
            failures.append("  %s (%s): %s" % (path, origin, error))
    raise ImportError(
        "memopt: the library libmemopt cannot be loaded. Tried:\n"
        + "\n".join(failures)
        + "\nBuild it (cmake --preset test && cmake --build --preset test) and set MEMOPT_LIBRARY"
        " to its path, or reinstall this package."
    )


lib, path = load()
