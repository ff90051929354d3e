"""Loads libmemopt-plan."""

from __future__ import annotations

from .._abi import plan as _prototypes  # noqa: F401
from .._library import part

lib = part("libmemopt-plan")
