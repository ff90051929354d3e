"""The errors of changing configuration files."""

from __future__ import annotations


class ApplyError(Exception):
    """The change failed, and every file is unchanged (or the message says which is not)."""
