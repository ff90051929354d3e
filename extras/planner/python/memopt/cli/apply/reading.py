"""What training files say of a run, by the table of synonyms."""

from __future__ import annotations

import difflib
import fnmatch
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import swap
from .errors import ApplyError
from .synonyms import (
    NEEDS,
    NEVER,
    NUMBERS,
    OPEN,
    READ,
    SETTINGS,
    Framework,
    Row,
    about_training,
    ends,
    find,
    framework_of,
    not_counted,
    rows_of,
)
from .text import Leaf, Text
from .words import OPTIMIZERS, Say, number, optimizer, precision, rank, same, spelled, truth

Keys = Mapping[str, Sequence[str]]

#: The values that a setting may have, the likeliest first; of others it is what the file has.
_DOMAINS: Dict[str, Tuple[Any, ...]] = {
    "dtype": ("fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true"),
    "optimizer": tuple(OPTIMIZERS),
    "checkpointing": ("none", "full", "selective"),
    "loss": ("plain", "fused", "chunked"),
    "offload": ("none", "activations"),
    "sharding": ("ddp", "zero3", "zero2", "zero1", "deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3"),
    "attention": ("sdpa", "eager", "flash"),
    "quantize": ("none", "nf4", "nf4-double", "int8", "gptq", "awq"),
    "weights": ("bf16-true", "fp16-true", "fp32-true"),
}


class Place(NamedTuple):
    """A key of a setting: in the file, or what its framework takes without it."""

    row: Row
    leaf: Optional[Leaf]
    raw: Any
    #: The file says it, and does not leave it to others.
    written: bool = False


class Said(NamedTuple):
    """A setting of a file."""

    value: Any
    #: Where: "train.yaml: optim is adamw_torch".
    place: str
    #: The file has the key; else it is what the framework takes without it.
    written: bool


class Reading(NamedTuple):
    """A file, and what it says."""

    source: swap.Source
    text: Text
    framework: Optional[Framework]
    said: Dict[str, Said]
    places: Dict[str, List[Place]]
    #: What matters and is not counted.
    open: List[str]
    #: Settings whose keys the user named.
    by_key: Sequence[str]

    @property
    def whose(self) -> str:
        """Of what program the keys are."""
        return self.framework.name if self.framework else "own keys"

    def raw(self, key: str) -> Any:
        """The value of a key; None: it is not there."""
        leaf = find(self.text.leaves, key)
        return leaf.value if leaf else None


def read(names: Sequence[str], keys: Keys) -> List[Reading]:
    """What each file says; a folder is Hydra's. ApplyError: it cannot be read, or is ambiguous."""
    texts = [text for name in names for text in (_hydra(name) if os.path.isdir(name) else [_open(name)])]
    for setting, patterns in keys.items():
        every = [leaf.key for _, text in texts for leaf in text.leaves]
        for pattern in patterns:
            if not any(_matching(text, pattern) for _, text in texts):
                near = difflib.get_close_matches(pattern, every, 3, 0.4)
                raise ApplyError(
                    "--key %s=%s: no file has this key%s"
                    % (setting, pattern, near and "; near: " + ", ".join(near) or "")
                )
    return [_read(source, text, keys) for source, text in texts]


def _open(name: str, before: Tuple[str, ...] = ()) -> Tuple[swap.Source, Text]:
    source = swap.read(name)
    return source, Text(name, source.data, before)


def _hydra(folder: str) -> List[Tuple[swap.Source, Text]]:
    """config.yaml and the files that its list of defaults names."""
    inside = [name for name in ("config.yaml", "train.yaml") if os.path.exists(os.path.join(folder, name))]
    if not inside:
        raise ApplyError("%s: a folder needs a config.yaml with a list of defaults; else name the files" % folder)
    first = _open(os.path.join(folder, inside[0]))
    found = [first]
    for leaf in first[1].leaves:
        if leaf.path[0] == "defaults" and len(leaf.path) == 3 and isinstance(leaf.value, str):
            group = leaf.path[-1].replace("override ", "").strip("/")
            place = os.path.join(folder, group, leaf.value.replace(".yaml", "") + ".yaml")
            if os.path.exists(place):
                found.append(_open(place, tuple(group.split("/"))))
    return found


def together(readings: Sequence[Reading]) -> Dict[str, Said]:
    """What the files say together; what is written wins over a default, and two that are written
    must agree."""
    found: Dict[str, Said] = {}
    for setting in (*SETTINGS, *READ):
        said = [each.said[setting] for each in readings if setting in each.said]
        said = [each for each in said if each.written] or said
        for other in said[1:]:
            if not same(other.value, said[0].value):
                raise ApplyError("%s, but %s; say one in both" % (said[0].place, other.place))
        if said:
            found[setting] = said[0]
    return found


def _read(source: swap.Source, text: Text, keys: Keys) -> Reading:
    framework = framework_of(text.leaves)
    reading = Reading(source, text, framework, {}, {}, [], list(keys))
    lacking = unmet(text.leaves, framework)
    reading.open.extend(why for _, why in lacking)
    for setting in (*SETTINGS, *READ):
        places = _by_key(text, setting, keys) if setting in keys else _places(text, framework, setting)
        places = [one for one in places if one.leaf is None or one.leaf not in [leaf for leaf, _ in lacking]]
        reading.places[setting] = places
        written = [one for one in places if one.written]
        value = _value(setting, places, text.name) if places else None
        if value is None:
            reading.open.extend("%s: %s" % (one.leaf.key, one.raw) for one in written if one.leaf and one.raw)
            continue
        told = " and ".join("%s is %s" % (one.leaf.key, _shown(one.raw)) for one in written if one.leaf)
        place = "%s: %s" % (text.name, told or "without a key, %s is %s" % (setting, value))
        reading.said[setting] = Said(value, place, bool(written))
    taken = [one.leaf for places in reading.places.values() for one in places if one.leaf]
    reading.open.extend(one for one in not_counted(text.leaves, taken) if one not in reading.open)
    return reading


def unmet(leaves: Sequence[Leaf], framework: Optional[Framework]) -> List[Tuple[Leaf, str]]:
    """Keys that the framework does not take without another one, and what to do."""
    found = []
    for name, key, other, word, advice in NEEDS:
        leaf, beside = find(leaves, key), find(leaves, other)
        if framework and framework.name == name and leaf and leaf.value not in (None, False):
            if beside is None or beside.value in (None, False, []) or word not in str(beside.value):
                found.append((leaf, "%s needs %s: %s" % (key, other, advice)))
    return found


def _shown(raw: Any) -> str:
    return str(raw).lower() if isinstance(raw, bool) else str(raw)


def _matching(text: Text, pattern: str) -> List[Leaf]:
    wanted = [part.strip("\"'") for part in pattern.split(".")]
    found = [leaf for leaf in text.leaves if len(leaf.path) >= len(wanted)]
    found = [leaf for leaf in found if all(map(fnmatch.fnmatchcase, leaf.path[-len(wanted) :], wanted))]
    whole = [leaf for leaf in found if leaf.key == pattern]
    return whole or ([leaf for leaf in text.leaves if leaf.key == pattern] if '"' in pattern else found)


def _any_dtype(value: Any, old: Any) -> Tuple[Any, ...]:
    if isinstance(old, bool):
        return (value[:4] != "fp32",)
    return precision(value, old) if str(old).endswith(("-true", "-mixed")) else spelled(value, old)


def _by_key(text: Text, setting: str, keys: Keys) -> List[Place]:
    """The keys that the user names, in words like the old ones."""
    own: Dict[str, Say] = {"dtype": _any_dtype, "optimizer": optimizer, "checkpointing": truth, "lora": rank}
    row = Row(setting, [], own.get(setting, number), (), NEVER)
    leaves = [leaf for key in keys[setting] for leaf in _matching(text, key)]
    if len({str(leaf.value) for leaf in leaves}) > 1 and not any("*" in key for key in keys[setting]):
        _ask(setting, leaves, text.name)
    return [Place(row, leaf, leaf.value, True) for leaf in leaves]


def _places(text: Text, framework: Optional[Framework], setting: str) -> List[Place]:
    found: List[Place] = []
    rows = rows_of(framework, setting)
    for row in rows:
        known = framework is not None and bool({framework.name, framework.base} & set(row.of))
        there = [one for one in found if one.leaf]
        if there and not known and (setting in NUMBERS or any(one.row.of for one in there)):
            continue
        leaves = next((some for some in (_named(text, name) for name in row.names) if some), [])
        leaves = [leaf for leaf in leaves if leaf not in [one.leaf for one in there]]
        if len({str(leaf.value) for leaf in leaves}) > 1:
            _ask(setting, leaves, text.name)
        default = row.default if known and row.default not in (OPEN, NEVER) else None
        for leaf in leaves:
            left = leaf.value is None or (leaf.value == "auto" and row.default != "auto")
            found.append(Place(row, leaf, default if left else leaf.value, not left))
        if not leaves and known and row.default not in (OPEN, NEVER):
            found.append(Place(row, None, row.default))
    if any(row.default == OPEN and row.of for row in rows) and not any(one.written for one in found):
        return []
    return found


def _named(text: Text, name: Sequence[str]) -> List[Leaf]:
    return [leaf for leaf in text.leaves if ends(leaf, name) and about_training(leaf)]


def _ask(setting: str, leaves: Sequence[Leaf], name: str) -> None:
    places = ", ".join("%s is %s (line %d)" % (leaf.key, _shown(leaf.value), leaf.line) for leaf in leaves)
    last = ".".join((*("*" for _ in leaves[0].path[:-1]), leaves[0].path[-1]))
    raise ApplyError(
        "%s: which key is %s, %s?\n  %s\n  say it with --key %s=%s, or all with --key '%s=%s'"
        % (name, setting, SETTINGS.get(setting, "of the run"), places, setting, leaves[0].key, setting, last)
    )


def _value(setting: str, places: List[Place], name: str) -> Any:
    """What the keys of a setting say together: what would be written as they are."""
    written = [one for one in places if one.written]
    if setting in NUMBERS:
        numbers = [_whole(one.raw) for one in written or places if one.raw is not None]
        if None in numbers:
            raise ApplyError(
                "%s: %s is %s, which is no number" % (name, setting, [p.raw for p in written or places][0])
            )
        return max(numbers, key=int, default=None)  # type: ignore[arg-type]
    ranks = [one.raw for one in places if one.row.say is rank and one.raw]
    candidates = _DOMAINS.get(setting) or ([*ranks, 0] if ranks else [one.raw for one in places if one.raw is not None])
    for kept in ([one for one in places if one.leaf is None or one.raw is not None], written):
        for exactly in (True, False):
            for value in candidates:
                fits = [_means(one, value, exactly) for one in kept]
                if False not in fits and True in fits:
                    return value
    if ranks:
        return 0  # there are no adapters
    if len(written) > 1:
        told = " and ".join("%s is %s" % (one.leaf.key, _shown(one.raw)) for one in written if one.leaf)
        raise ApplyError("%s: %s, which do not go together" % (name, told))
    return None


def _whole(raw: Any) -> Optional[int]:
    try:
        return int(float(raw)) if not isinstance(raw, bool) and float(raw) == int(float(raw)) > 0 else None
    except (TypeError, ValueError):
        return len(raw) if isinstance(raw, list) and raw else None


def _means(one: Place, value: Any, exactly: bool) -> Optional[bool]:
    """Whether the key has the word for a value; None: there is no word for it."""
    said = one.row.say(value, one.raw)
    if not said:
        return None
    return any(same(one.raw, word) for word in (said[:1] if exactly else said))
