"""Loads libmemopt-tools."""

from __future__ import annotations

from .._abi import tools
from .._library import part

lib = part(tools.TOOLS)
