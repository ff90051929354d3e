"""Where the library's log lines go. The sink is one per process."""

from __future__ import annotations

import atexit
import logging
from typing import Any, Callable, Optional, Union

from . import _abi, errors
from ._abi import LogLevel
from ._library import lib

_LEVELS = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.DEBUG: logging.DEBUG,
}
_thunk: Any = None  # the C callback that is set; C calls it from any thread


def set_log(
    receiver: Union[None, logging.Logger, Callable[[LogLevel, str], Any]],
    level: Union[str, LogLevel] = LogLevel.WARNING,
) -> None:
    """Sends log lines up to a level to a function or a logger; None restores the default.

    The receiver is called from any thread and must not call this library. The default is nowhere,
    or standard error where the environment variable MEMOPT_LOG names a level.
    """
    global _thunk
    from .device import choice

    lines = choice(LogLevel, level, "level")
    new = _abi.LogCallback() if receiver is None else _abi.LogCallback(_receive(receiver))
    lib.memopt_set_log(new, None, lines)
    _thunk = new  # the previous one is no longer called


def _receive(receiver: Any) -> Callable[[Any, int, bytes], None]:
    def receive(_user: Any, level: int, message: Optional[bytes]) -> None:
        text = (message or b"").decode("utf-8", "replace")
        try:
            if isinstance(receiver, logging.Logger):
                receiver.log(_LEVELS.get(LogLevel(level), logging.INFO), "%s", text)
            else:
                receiver(LogLevel(level), text)
        except BaseException as error:
            errors.report_unraisable(error, "in a receiver of log lines")

    return receive


def _at_exit() -> None:
    if _thunk is not None:
        set_log(None, LogLevel.OFF)


atexit.register(_at_exit)
