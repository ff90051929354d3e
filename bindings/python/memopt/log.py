"""Where the library's log lines go. The sink is one per process."""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import _abi, errors
from ._abi import LogLevel
from ._arguments import choice
from ._library import lib

if TYPE_CHECKING:
    import logging

_LEVELS = {LogLevel.ERROR: 40, LogLevel.WARNING: 30, LogLevel.INFO: 20, LogLevel.DEBUG: 10}
_thunk: Any = None  # the C callback that is set; C calls it from any thread


def set_log(
    receiver: Union[None, "logging.Logger", Callable[[LogLevel, str], Any]],
    level: Union[str, LogLevel] = LogLevel.WARNING,
) -> None:
    """Sends log lines up to a level to a function or a logger; None restores the default.

    The receiver is called from any thread and must not call this library. The default is nowhere,
    or standard error where the environment variable MEMOPT_LOG names a level.
    """
    global _thunk
    lines = choice(LogLevel, level, "level")
    new = _abi.LogCallback() if receiver is None else _abi.LogCallback(_receive(receiver))
    lib.memopt_set_log(new, None, lines)
    _thunk = new  # the previous one is no longer called


def _receive(receiver: Any) -> Callable[[Any, int, bytes], None]:
    logging = sys.modules.get("logging")  # whoever has a Logger has imported it
    is_logger = logging is not None and isinstance(receiver, logging.Logger)

    def receive(_user: Any, level: int, message: Optional[bytes]) -> None:
        text = (message or b"").decode("utf-8", "replace")
        try:
            if is_logger:
                receiver.log(_LEVELS.get(LogLevel(level), 20), "%s", text)
            else:
                receiver(LogLevel(level), text)
        except BaseException as error:
            errors.report_unraisable(error, "in a receiver of log lines")

    return receive


def _at_exit() -> None:
    if _thunk is not None:
        set_log(None, LogLevel.OFF)


atexit.register(_at_exit)
