"""Loads libmemopt-plan."""

from __future__ import annotations

from .._abi import plan
from .._library import part

lib = part(plan.PLAN)
