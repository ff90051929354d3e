"""What is said when configuration files cannot be changed."""

from __future__ import annotations


class ApplyError(Exception):
    """It could not be done, and every file is as it was (or the message says which is not)."""


class KeyMissing(ApplyError):
    """The file does not have the key to set."""
