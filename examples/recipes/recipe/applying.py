"""Has `memopt plan --apply` change a copy of the recipe's own configuration file, and back."""

import pathlib
import shlex
import shutil
import tempfile
from typing import Any, Dict, List, Tuple

from .planning import call, plan
from .settings import load

Check = Tuple[str, bool]


def apply(folder: pathlib.Path, described: Dict[str, Any]) -> List[Check]:
    """`described` is the `[apply]` of `steps.toml`: the file, the options, and which of its keys
    holds which value of the plan."""
    original = folder / described["file"]
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch) / original.name
        shutil.copy(original, copy)
        arguments = ["--model", str(folder / "model.json"), *shlex.split(described["options"])]
        arguments += ["--apply", "--config-path", str(copy)]
        result = plan(arguments)
        changed = copy.read_bytes()
        checks = [
            (
                "--apply sets %s to %s" % (key, _show(value)),
                at(load(copy), key) == value,
            )
            for key, value in _expected(described["expect"], result)
        ]
        backup = pathlib.Path(str(copy) + ".backup")
        checks.append(
            ("the .backup is what the file was", backup.read_bytes() == original.read_bytes())
        )
        call(arguments)
        checks.append(
            (
                "applied again, nothing changes",
                copy.read_bytes() == changed and len(list(copy.parent.iterdir())) == 2,
            )
        )
        call(["--restore", "--config-path", str(copy)])
        checks.append(
            ("--restore puts it back", copy.read_bytes() == original.read_bytes() != changed)
        )
    return checks


def _expected(expect: Dict[str, Any], result: Dict[str, Any]) -> List[Tuple[str, Any]]:
    """A text that names a key of `--json` stands for its value; all else is the value itself."""
    return [
        (key, result[value] if isinstance(value, str) and value in result else value)
        for key, value in expect.items()
    ]


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def at(config: Any, key: str) -> Any:
    """The value of a dotted key."""
    for part in key.split("."):
        config = config[part]
    return config
