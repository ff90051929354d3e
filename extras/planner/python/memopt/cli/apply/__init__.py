"""Reads what users' training files say of a run, and sets batch size, accumulation and the rest in them.

``prepare`` works out the changes, ``Edits`` shows and makes them. YAML needs ruamel.yaml and TOML needs tomlkit.

    edits = prepare(["config.yaml"], {"micro_batch": 4, "accumulation": 8, "dtype": "bf16"})
    print("\\n".join(edits.diff()))
    edits.commit()
"""

from __future__ import annotations

from .edits import Edits, FileEdit, prepare
from .errors import ApplyError
from .options import OptionError, add_arguments, files, keys_of, run, wanted
from .synonyms import SETTINGS

__all__ = [
    "ApplyError",
    "Edits",
    "FileEdit",
    "OptionError",
    "SETTINGS",
    "add_arguments",
    "files",
    "keys_of",
    "prepare",
    "run",
    "wanted",
]
