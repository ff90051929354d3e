"""What users' configuration files say of a run, by the presets' table of keys."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import transaction
from .document import Document
from .edits import KeyMapping, find_preset, open_document
from .errors import ApplyError
from .presets import MARKS, ByExample, NoDefault, Preset, rank_of, unmet, weights
from .tree import Path, parse_path, plain, spelled
from .values import NUMBERS, SETTINGS, Unspellable, by_example, optimizer_words, same

#: The values that a setting may have, the likeliest first; of others it is what the file has.
_DOMAINS: Dict[str, Tuple[Any, ...]] = {
    "dtype": ("fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true"),
    "optimizer": optimizer_words(),
    "checkpointing": ("none", "full", "selective"),
    "loss": ("plain", "fused", "chunked"),
    "offload": ("none", "activations"),
    "sharding": ("ddp", "zero3", "zero2", "zero1")
    + ("deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3"),
    "attention": ("sdpa", "eager", "flash"),
    "quantize": ("none", "nf4", "nf4-double", "int8", "gptq", "awq"),
    "weights": ("bf16-true", "fp16-true", "fp32-true"),
}
#: What is read beside the settings.
_READ = ("weights", "model", "deepspeed", "world_size", "packing", "lora_targets", "lora_dropout")
_PARTS = ("all_linear", "lora_mlp", "lora_head", "builder")


class Said(NamedTuple):
    """A setting of a file."""

    value: Any
    #: Where: "train.yaml: optim is adamw_torch".
    place: str
    #: The file has the key; else it is what the framework takes without it.
    written: bool


class Reading(NamedTuple):
    """A file, and what it says."""

    name: str
    preset: Optional[Preset]
    said: Dict[str, Said]
    #: All of its keys, dotted, in the section that is read.
    keys: Dict[str, Any]
    #: Settings whose value is not understood.
    open: List[str]


class _Row(NamedTuple):
    """A key of a setting."""

    key: str
    raw: Any
    say: Any
    written: bool

    def means(self, setting: str, value: Any, exactly: bool) -> Optional[bool]:
        """Whether the key has the word for a value; None: there is no word for it."""
        if self.say is ByExample:
            try:
                leaf = self.key.rpartition(".")[2]
                return bool(by_example(setting, leaf, self.raw, value) == self.raw)
            except Unspellable:
                return False
        word, accepted = self.say(value)
        if word is None and not accepted:
            return None
        words = (word,) if exactly and word is not None else (word, *accepted)
        return any(same(self.raw, each) for each in words)


def read(names: Sequence[str], mapping: KeyMapping) -> List[Reading]:
    """What each file says. ApplyError: a file cannot be read, or its framework is not known."""
    found = []
    for name in names:
        try:
            found.append(_read(name, mapping))
        except ApplyError as error:
            raise type(error)("%s: %s" % (name, error)) from None
    return found


def together(readings: Sequence[Reading]) -> Dict[str, Said]:
    """What the files say together; what is written wins over a default, and two that are written
    must agree."""
    found: Dict[str, Said] = {}
    for setting in (*SETTINGS, *_READ, *_PARTS):
        said = [each.said[setting] for each in readings if setting in each.said]
        said = [each for each in said if each.written] or said
        for other in said[1:]:
            if other.value != said[0].value:
                raise ApplyError("%s, but %s; say one in both" % (said[0].place, other.place))
        if said:
            found[setting] = said[0]
    return found


def _read(name: str, mapping: KeyMapping) -> Reading:
    document = open_document(transaction.read(name))[0]
    preset, section = find_preset(document, dict.fromkeys(SETTINGS), mapping)
    said: Dict[str, Said] = {}
    unknown: List[str] = []
    without = unmet(document, preset, section)
    ignored = {spelled(section + parse_path(key)) for key, _ in without}
    unknown += [why for _, why in without]
    for setting in (*SETTINGS, *_READ, *_PARTS):
        rows = list(_rows(document, preset, section, setting, mapping))
        rows = [row for row in rows if row.key not in ignored]
        value = _value(setting, rows) if rows else None
        written = [row for row in rows if row.written]
        if value is None:
            unknown += ["%s: %s" % (row.key, _shown(row.raw)) for row in written if row.raw]
        else:
            told = " and ".join("%s is %s" % (row.key, _shown(row.raw)) for row in written)
            place = "%s: %s" % (name, told or "without a key, %s is %s" % (setting, value))
            said[setting] = Said(value, place, bool(written))
    spot = [found for tree in document.trees for found in [tree.find(section)] if found]
    keys = dict(_flat(plain(spot[0].node))) if spot else {}
    return Reading(name, preset, said, keys, unknown)


def _shown(raw: Any) -> str:
    return str(raw).lower() if isinstance(raw, bool) else str(raw)


def _flat(value: Any, before: str = "") -> Iterator[Tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, "%s%s." % (before, key))
    if before:
        yield before[:-1], value


def _rows(
    document: Document, preset: Optional[Preset], section: Path, setting: str, mapping: KeyMapping
) -> Iterator[_Row]:
    """The keys of a setting that the file has; of others what the framework takes without."""
    if setting in mapping.keys:
        for path in mapping.keys[setting]:
            for one in document.expand(path) or [path]:
                raw = _raw(document, one)
                if raw is not None:
                    yield _Row(spelled(one), raw, ByExample, True)
        return
    open_ended = False
    rows: List[_Row] = []
    table = preset.rows("dtype" if setting == "weights" else setting) if preset else []
    for _, _, keys, say, default in table:
        if (say is weights) != (setting == "weights"):
            continue
        paths = [section + parse_path(key) for key in keys.split()]
        there = [(path, raw) for path in paths for raw in [_raw(document, path)] if raw is not None]
        if there:
            how = ByExample if default is ByExample and setting in SETTINGS else say
            rows.append(_Row(spelled(there[0][0]), there[0][1], how, True))
        elif default is NoDefault:
            open_ended = True
        elif default not in MARKS:
            rows.append(_Row(keys.split()[0], default, say, False))
    if not open_ended or any(row.written for row in rows):
        yield from rows


def _raw(document: Document, path: Path) -> Any:
    """The value of a key; None where the file leaves it open."""
    found = document.find(path)
    value = plain(found[1].node) if found is not None else None
    return None if value == "auto" and path[-1] not in ("bf16", "flash_attn") else value


def _value(setting: str, rows: List[_Row]) -> Any:
    """What the keys of a setting say together: what would be written as they are."""
    ranks = [row.raw for row in rows if row.say is rank_of]
    own = [row.raw for row in rows if row.raw is not None]
    candidates = _DOMAINS.get(setting) or ([*ranks, 0] if ranks else own)
    written = [row for row in rows if row.written]
    for kept in (rows, written):  # what is written may be no default's neighbour
        for exactly in (True, False):
            for value in candidates:
                fits = [row.means(setting, value, exactly) for row in kept]
                if False not in fits and True in fits:
                    return value
    if ranks:
        return 0  # there are no adapters
    if len(written) > 1 or setting in NUMBERS:
        told = " and ".join("%s is %s" % (row.key, _shown(row.raw)) for row in written)
        raise ApplyError("%s, which do not go together" % told)
    return None
