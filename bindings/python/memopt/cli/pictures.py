"""Files that a verb writes in the end: pictures of --plot, and reports.

What cannot work, matplotlib missing or a folder that takes no file, is told before the work begins,
and a file is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from typing import Any

from . import Refused, UsageError

_USUAL = (".png", ".svg", ".pdf")


def check_picture(path: str) -> None:
    """UsageError for a name that is no picture's; Refused without matplotlib; OSError where it
    could not be written."""
    try:
        import matplotlib
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise Refused(
            "--plot needs matplotlib: pip install 'memopt[plot]' (or matplotlib); %s" % error
        ) from None
    matplotlib.use("Agg", force=True)
    matplotlib.rcParams["text.parse_math"] = False  # names of files and programs stand in titles
    if _kind(path) not in FigureCanvasBase.get_supported_filetypes():
        raise UsageError(
            "--plot %s: a picture's name has to end in one of %s, or in another kind that "
            "matplotlib draws" % (path, ", ".join(_USUAL))
        )
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise Refused("--plot %s: there is no folder %s" % (path, folder))
    check_writable(path)


def _kind(path: str) -> str:
    return os.path.splitext(path)[1][1:].lower()


def check_writable(path: str) -> None:
    """OSError where a file could not be written. What is there stays as it is."""
    real = os.path.realpath(path)
    new = not os.path.lexists(real)
    try:
        os.close(os.open(real, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    if new:
        os.unlink(real)


def write_picture(figure: Any, path: str, **options: Any) -> None:
    """Draws a figure of matplotlib into a file; the name says of which kind."""
    picture = io.BytesIO()
    for axes in figure.axes:
        axes.set_title(drawable(axes.get_title()), fontsize=axes.title.get_fontsize())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that the font lacks
        figure.savefig(picture, format=_kind(path), **options)
    write_whole(path, picture.getvalue())


def drawable(text: str) -> str:
    """A text without what no font draws."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def write_whole(path: str, data: bytes) -> None:
    """Replaces a file's content; where that fails, the disk is full say, no half of it is left."""
    new = not os.path.lexists(path)
    with open(path, "wb", buffering=0) as file:
        try:
            done = 0
            while done < len(data):
                done += file.write(data[done:])
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(0)
            if new:
                os.unlink(path)
            raise OSError(error.errno, error.strerror, path) from error
