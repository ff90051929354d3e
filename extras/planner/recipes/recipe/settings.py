"""A way to train: settings under the names that `memopt plan` has for them, and files of them."""

import json
import pathlib
from typing import Any, Dict, List, NamedTuple, Optional

#: Settings of the training loop that the planner has no option for: they take no memory.
LOOP_ONLY = ("grad-scaler",)

Settings = Dict[str, Any]


class Step(NamedTuple):
    """One change of a recipe, on top of those before it."""

    title: str
    settings: Settings
    #: What the guide says of it, for people.
    guide: str
    #: Category to [least, most] percent that the change saves of it, against the step before.
    saves: Dict[str, List[float]]
    #: How far losses may be from those of the step before: 0 is bit for bit; None: other samples.
    losses: Optional[float]


def options(settings: Settings) -> List[str]:
    """The options of `memopt plan`."""
    result: List[str] = []
    for name, value in settings.items():
        if name in LOOP_ONLY or value is False:
            continue
        result += ["--" + name] if value is True else ["--" + name, str(value)]
    return result


def load(path: pathlib.Path) -> Dict[str, Any]:
    """A TOML, YAML or JSON file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return _toml(text)
    if path.suffix in (".yaml", ".yml"):
        from ruamel.yaml import YAML

        return dict(YAML(typ="safe").load(text))
    return dict(json.loads(text))


def _toml(text: str) -> Dict[str, Any]:
    try:
        import tomllib as toml
    except ImportError:  # Python 3.9 and 3.10
        import tomlkit as toml
    return dict(toml.loads(text))


def steps(described: Dict[str, Any]) -> List[Step]:
    """The steps of a recipe's `steps.toml`: its start, then each change."""
    settings = dict(described["start"])
    result = [Step("as the guide starts", dict(settings), "", {}, None)]
    for change in described["change"]:
        settings.update(change["set"])
        result.append(
            Step(
                change["title"], dict(settings), change.get("guide", ""), change.get("saves", {}), change.get("losses")
            )
        )
    return result
