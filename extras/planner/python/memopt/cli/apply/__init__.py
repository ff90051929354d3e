"""Sets batch size, accumulation, dtype, optimizer and checkpointing in users' configuration files.

``prepare`` works out the changes, ``Edits`` shows and makes them, ``restore`` takes them back;
``add_arguments``, ``wanted`` and ``run`` are the same as options of a verb. YAML needs ruamel.yaml
and TOML needs tomlkit; JSON needs nothing.

    edits = prepare(["config.yaml"], {"micro_batch": 4, "accumulation": 8, "dtype": "bf16"})
    print("\\n".join(edits.diff()))
    edits.commit()
"""

from __future__ import annotations

from .edits import Change, Edits, FileEdit, KeyMapping, prepare, restore
from .errors import ApplyError, KeyMissing
from .options import OptionError, add_arguments, as_it_is, run, wanted
from .presets import PRESETS
from .tree import parse_path
from .values import SETTINGS

__all__ = [
    "ApplyError",
    "Change",
    "Edits",
    "FileEdit",
    "KeyMapping",
    "KeyMissing",
    "OptionError",
    "PRESETS",
    "SETTINGS",
    "add_arguments",
    "as_it_is",
    "parse_path",
    "prepare",
    "restore",
    "run",
    "wanted",
]
