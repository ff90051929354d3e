"""Exceptions: MemoptError with the library's status and message, and one subclass per kind.

The subclasses also derive from the built-in exception that fits, so `except MemoryError` or
`except ValueError` works without importing this package.
"""

from __future__ import annotations

import sys
import threading
from typing import Callable, Dict, Optional, Type, TypeVar, Union

from ._abi import Status

_T = TypeVar("_T")


class MemoptError(RuntimeError):
    """A call of the library failed.

    ``str(error)`` and ``error.message`` are the library's own message, ``error.status`` its code (a
    :class:`Status`, or an int that a callback returned), ``error.name`` the code's name.
    ``driver_code`` and ``driver_message`` are the driver's or the system's own.
    """

    def __init__(
        self, status: Union[Status, int], message: str, driver_code: int = 0, driver_message: str = ""
    ) -> None:
        super().__init__(message)
        self.status: Union[Status, int] = known(status)
        self.message = message
        self.driver_code = driver_code
        self.driver_message = driver_message

    @property
    def name(self) -> str:
        """The status by name: "OUT_OF_DEVICE_MEMORY", or "USER" for a callback's own number."""
        if isinstance(self.status, Status):
            return self.status.name
        return "USER" if self.status >= Status.USER else "UNKNOWN"

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> "tuple[object, ...]":
        return (type(self), (int(self.status), self.message, self.driver_code, self.driver_message))


class InvalidArgumentError(MemoptError, ValueError):
    """An argument is invalid; nothing was changed."""


class ClosedError(InvalidArgumentError):
    """The object was closed or freed before."""

    def __init__(self, what: str) -> None:
        super().__init__(Status.INVALID_ARGUMENT, what)

    def __reduce__(self) -> "tuple[object, ...]":
        return (ClosedError, (self.message,))


class UnsupportedError(MemoptError, NotImplementedError):
    """This build, back end or device cannot do it."""


class OutOfMemoryError(MemoptError, MemoryError):
    """Device or host memory is out; the message says what was asked and what there is."""


class LimitReachedError(MemoptError):
    """A limit that the caller set is reached."""


class DeviceError(MemoptError):
    """The driver is missing or failed, or device memory was misused."""


class BusyError(MemoptError):
    """Something still uses it; nothing was changed."""


class NotFoundError(MemoptError, LookupError):
    """The thing does not exist."""


class CorruptError(MemoptError, ValueError):
    """The data are damaged or not of this format."""


class StorageError(MemoptError, OSError):
    """A file could not be read or written; `errno` says why, where the system did."""

    def __init__(
        self, status: Union[Status, int], message: str, driver_code: int = 0, driver_message: str = ""
    ) -> None:
        super().__init__(status, message, driver_code, driver_message)
        self.errno = driver_code or None


class MismatchError(MemoptError):
    """Recomputed values differ from the first run."""


_CLASSES: Dict[int, Type[MemoptError]] = {
    Status.INVALID_ARGUMENT: InvalidArgumentError,
    Status.UNSUPPORTED: UnsupportedError,
    Status.OUT_OF_HOST_MEMORY: OutOfMemoryError,
    Status.OUT_OF_DEVICE_MEMORY: OutOfMemoryError,
    Status.LIMIT_REACHED: LimitReachedError,
    Status.DRIVER_MISSING: DeviceError,
    Status.DRIVER_ERROR: DeviceError,
    Status.DEVICE_LOST: DeviceError,
    Status.DEVICE_FAULT: DeviceError,
    Status.BUSY: BusyError,
    Status.NOT_FOUND: NotFoundError,
    Status.CORRUPT: CorruptError,
    Status.IO_ERROR: StorageError,
    Status.MISMATCH: MismatchError,
}


def known(status: Union[Status, int]) -> Union[Status, int]:
    """The status, or the number of one that a later library has."""
    try:
        return Status(status)
    except ValueError:
        return int(status)


def make(status: Union[Status, int], message: str, driver_code: int = 0, driver_message: str = "") -> MemoptError:
    """The exception of the class that fits a status."""
    return _CLASSES.get(status, MemoptError)(status, message, driver_code, driver_message)


# An exception cannot pass through C. A callback leaves it here, on its thread, and returns a
# failing status; the binding raises it, the same object, when the C call around it fails.
_pending = threading.local()


def run_callback(call: Callable[[], _T], failed: Callable[[BaseException], _T]) -> _T:
    """Runs a callback of the user's for C. Where it raises, the exception is kept for the call of
    the library that is running, and `failed` says what C gets; the first exception wins."""
    earlier = take_callback_exception()
    try:
        result = call()
    except BaseException as error:
        if earlier is None:
            _pending.error = error
        else:
            report_unraisable(error, "a callback of memopt raised after another had")
        result = failed(error)
    if earlier is not None:
        _pending.error = earlier
    return result


def has_callback_exception() -> bool:
    """Whether a callback on this thread has left an exception."""
    return getattr(_pending, "error", None) is not None


def take_callback_exception() -> Optional[BaseException]:
    """The exception that a callback on this thread left, if any; it is forgotten."""
    error: Optional[BaseException] = getattr(_pending, "error", None)
    _pending.error = None
    return error


def report_callback_exception() -> None:
    """Tells of an exception that must not change the outcome of a call that went well."""
    error = take_callback_exception()
    if error is not None:
        report_unraisable(error, "a callback of memopt raised, and the call succeeded all the same")


class _Unraisable:
    """What sys.unraisablehook takes."""

    def __init__(self, error: BaseException, text: str) -> None:
        self.exc_type = type(error)
        self.exc_value = error
        self.exc_traceback = error.__traceback__
        self.err_msg = text
        self.object = None


def report_unraisable(error: BaseException, text: str) -> None:
    """Hands an exception that nobody can catch to sys.unraisablehook.

    Python's own hook takes nothing but a type that only Python can make: what it would print is
    printed here.
    """
    if sys.unraisablehook is not sys.__unraisablehook__:
        sys.unraisablehook(_Unraisable(error, text))  # type: ignore[arg-type]
    elif sys.stderr is not None:
        import traceback  # costs an import of this package more than all else

        print("Exception ignored %s:" % text, file=sys.stderr)
        traceback.print_exception(type(error), error, error.__traceback__)
