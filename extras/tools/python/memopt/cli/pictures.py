"""Pictures of --plot. Failures such as a missing matplotlib or a read-only folder are reported
before the work begins."""

from __future__ import annotations

import io
import os
import warnings
from typing import Any

from . import Refused, UsageError
from .replace_file import check_writable, replace

_USUAL = (".png", ".svg", ".pdf")


def check_picture(path: str) -> None:
    """UsageError for a name with an unknown ending; Refused without matplotlib; OSError if it
    cannot be written."""
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
            "--plot %s: the name must end in one of %s, or in another format that "
            "matplotlib writes" % (path or "''", ", ".join(_USUAL))
        )
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise Refused("--plot %s: the folder %s does not exist" % (path, folder))
    check_writable(path)


def _kind(path: str) -> str:
    return os.path.splitext(path)[1][1:].lower()


def write_picture(figure: Any, path: str) -> None:
    """Draws a figure of matplotlib into a file; the name says of which kind."""
    picture = io.BytesIO()
    for axes in figure.axes:
        axes.set_title(drawable(axes.get_title()), fontsize=axes.title.get_fontsize())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that the font lacks
        figure.savefig(picture, format=_kind(path), dpi=120)
    replace(path, picture.getvalue())


def drawable(text: str) -> str:
    """A text without characters that no font draws."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)
