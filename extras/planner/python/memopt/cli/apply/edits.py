"""From settings to changed files: ``prepare`` makes Edits, which show and commit."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import swap
from .errors import ApplyError
from .reading import Keys, Reading, read, unmet
from .synonyms import NEVER, OPEN, SETTINGS, Row, rows_of
from .text import New, Text
from .words import same, written


@dataclass
class FileEdit:
    """The changes of one file."""

    source: swap.Source
    data: bytes
    preset: Optional[str] = None
    changes: List[Dict[str, Any]] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    backup: Optional[str] = None

    @property
    def changed(self) -> bool:
        """Whether the file will be another one."""
        return self.data != self.source.data

    def diff(self) -> List[str]:
        """Lines of a unified diff, without line ends."""
        texts = [data.decode("utf-8", "replace") for data in (self.source.data, self.data)]
        lines = [text.split("\n")[: -1 if text.endswith("\n") else None] for text in texts]
        return list(difflib.unified_diff(lines[0], lines[1], self.source.name, self.source.name, lineterm=""))


@dataclass
class Edits:
    """Changes of several files, to be shown, and then made together."""

    files: List[FileEdit]
    committed: bool = False

    def diff(self) -> List[str]:
        """Lines of one unified diff."""
        return [line for file in self.files if file.changed for line in file.diff()]

    def commit(self) -> None:
        """Changes all files, or none (ApplyError). A file that needs no change gets no backup."""
        changed = [file for file in self.files if file.changed]
        if changed:
            made = swap.swap([file.source for file in changed], [file.data for file in changed])
            for file, backup in zip(changed, made):
                file.backup = backup
            self.committed = True

    def to_json(self) -> Dict[str, Any]:
        """What happened, for ``--json``."""
        return {
            "action": "apply",
            "done": self.committed,
            "files": [
                {
                    "path": file.source.name,
                    "changed": file.changed,
                    "preset": file.preset,
                    "backup": file.backup,
                    "changes": file.changes,
                    "notes": file.notes,
                    "diff": file.diff() if file.changed else [],
                }
                for file in self.files
            ],
        }


def prepare(
    files: Sequence[str],
    settings: Mapping[str, Any],
    keys: Optional[Keys] = None,
    called: Optional[Mapping[str, str]] = None,
    partial: bool = False,
) -> Edits:
    """Reads the files and works out what setting ``settings`` changes in each; writes nothing.

    ``settings`` has some of ``micro_batch``, ``accumulation`` (ints), ``dtype`` ("fp32", "fp16",
    "bf16"), ``optimizer`` and the others of SETTINGS; ``called`` is what messages call some of them.
    ApplyError names what cannot be written, unless ``partial``.
    """
    for name in set(settings) - set(SETTINGS):
        raise ValueError("%r is not a setting; settings are %s" % (name, ", ".join(SETTINGS)))
    readings = {reading.source.path: reading for reading in read(files, keys or {})}
    news: Dict[str, Dict[Tuple[str, ...], Tuple[str, New]]] = {path: {} for path in readings}
    failed: Dict[str, str] = {}
    for setting in (name for name in SETTINGS if name in settings):
        for path, reading in readings.items():
            try:
                for new in list(_news(reading, setting, settings[setting], list(readings.values()))):
                    place = new.leaf.path[:-1] + new.name if new.name else new.leaf.path
                    news[path][place] = setting, new
            except ApplyError as error:
                failed.setdefault(setting, str(error))
    edits = [_edit(readings[path], news[path]) for path in readings]
    if failed and not partial:
        told = "; ".join("%s (%s)" % ((called or {}).get(name, name), why) for name, why in failed.items())
        raise ApplyError("these cannot be written, and no file was changed: %s. --partial writes the rest" % told)
    for name, why in failed.items():
        edits[0].notes.append("by hand: %s %s: %s" % (name, settings[name], why))
    return Edits(edits)


def _news(reading: Reading, setting: str, value: Any, readings: Sequence[Reading]) -> Iterator[New]:
    """What is written for a setting. ApplyError says why it cannot be, and what to do."""
    own, there = reading.framework, [one for one in reading.places[setting] if one.leaf]
    if setting == "dtype" and not there and not own:
        there = [one for one in reading.places["weights"] if one.leaf]
    known = [row for row in rows_of(own, setting) if own and {own.name, own.base} & set(row.of)]
    elsewhere = any(other.said[setting].written for other in readings if setting in other.said and other is not reading)
    if setting in reading.by_key or (there and not any(one.row in known for one in there)) or elsewhere:
        known = []
    said = elsewhere or (value in (1, "fp32", "none", "plain", "ddp") and not there and not known)
    for row, leaf, raw, _ in there:
        if leaf is None or (not row.say(value, raw) and len(there) > 1):
            continue
        try:
            new = written(row.say, value, leaf.value)
        except ApplyError as error:
            told = own.by_hand.get(setting, error) if own else error
            raise ApplyError("line %d: %s: %s" % (leaf.line, leaf.key, told)) from None
        said = True
        yield New(leaf, new)
    for row in known:
        words = row.say(value, None)
        if row.default == NEVER or not words or row in [one.row for one in there]:
            continue
        if row.default == OPEN or not any(same(row.default, word) for word in words):
            yield _added(reading, row, words[0])
        said = True
    if not said:
        by_hand = own.by_hand.get(setting) if own else None
        raise ApplyError(by_hand or "%s has no key for it; say where with --key %s=…" % (reading.text.name, setting))
    if setting == "dtype" and value.endswith("-true") and own and own.name == "transformers":
        if not reading.places["weights"]:
            raise ApplyError(own.by_hand["dtype"])
        yield from (New(p.leaf, written(p.row.say, value, p.raw)) for p in reading.places["weights"] if p.leaf)


def _added(reading: Reading, row: Row, word: Any) -> New:
    """A key of the framework beside those that the file has."""
    name = row.names[0]
    beside = [leaf for leaf in reading.text.leaves if len(name) > 1 and leaf.path[-len(name) : -1] == name[:-1]]
    if beside:
        name = name[-1:]
    for setting in ("micro_batch", "accumulation", "model"):
        beside += [one.leaf for one in reading.places[setting] if one.leaf]
    beside = [leaf for leaf in beside if leaf.node.style != "fixed"]
    if not beside:
        raise ApplyError("add %s: %s to %s" % (".".join(name), word, reading.text.name))
    return New(beside[0], word, name)


def _edit(reading: Reading, news: Mapping[Tuple[str, ...], Tuple[str, New]]) -> FileEdit:
    text, source = reading.text, reading.source
    edit = FileEdit(source, source.data, reading.framework.name if reading.framework else None)
    for path, (setting, new) in news.items():
        old = None if new.name else new.leaf.value
        if not new.name and type(old) is type(new.value) and old == new.value:
            continue
        edit.changes.append({"setting": setting, "key": ".".join(path), "line": new.leaf.line, "old": old,
                             "new": new.value, "added": bool(new.name)})  # fmt: skip
        if setting == "optimizer" and str(new.value).startswith("memopt."):
            beside = [
                leaf.key for leaf in text.leaves if leaf.path[-1] in ("fused", "foreach") and "optimizer" in leaf.path
            ]
            edit.notes += ["%s has no argument %s: take it out" % (new.value, key) for key in beside]
    if edit.changes:
        edit.data = text.changed([new for _, new in news.values()]).encode("utf-8")
        for leaf, why in unmet(Text(text.name, edit.data).leaves, reading.framework):
            raise ApplyError("%s: line %d: %s" % (text.name, leaf.line, why))
        swap.check_writable(source)
    return edit
