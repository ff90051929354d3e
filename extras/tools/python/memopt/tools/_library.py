"""Loads libmemopt-tools."""

from __future__ import annotations

from .._abi import tools as _prototypes  # noqa: F401
from .._library import part

lib = part("libmemopt-tools")
