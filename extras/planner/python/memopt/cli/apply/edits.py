"""From settings to changed files: ``prepare`` and ``restore`` make Edits, which show and commit."""

from __future__ import annotations

import difflib
import math
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

from .. import temporary_files
from . import backups, transaction
from .document import Document
from .errors import ApplyError, KeyMissing
from .json_text import JsonDocument
from .presets import Assignment, NoDefault, Preset, detect, preset_named, section_of, unmet
from .toml_text import TomlDocument
from .tree import Path, parse_path, spelled
from .values import DTYPES, CHECKPOINTING, NUMBERS, SETTINGS, Unspellable, by_example, in_kind, is_truth, same
from .yaml_text import YamlDocument

FORMATS: Dict[str, Type[Document]] = {
    ".yaml": YamlDocument,
    ".yml": YamlDocument,
    ".json": JsonDocument,
    ".toml": TomlDocument,
}
_BOM = "\ufeff"
_UNASKED = object()


@dataclass(frozen=True)
class KeyMapping:
    """Which keys the settings have, and how to treat files that lack them."""

    preset: Optional[str] = None
    #: Keys given by the user; they come before the preset's.
    keys: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    #: Values given by the user, written as they are.
    values: Mapping[str, Any] = field(default_factory=dict)
    create_keys: bool = False
    skip_missing: bool = False
    shared: bool = False
    #: Settings that must be written, and what they are called: ApplyError names all that cannot.
    required: Mapping[str, str] = field(default_factory=dict)
    #: What cannot be written is only noted.
    partial: bool = False


@dataclass(frozen=True)
class Change:
    """One value of one file."""

    setting: str
    key: str
    line: int
    old: Any
    new: Any
    added: bool = False

    def to_json(self) -> Dict[str, Any]:
        """The change for ``--json``, which cannot write NaN and infinity."""
        finite = not isinstance(self.old, float) or math.isfinite(self.old)
        return {**vars(self), "old": self.old if finite else str(self.old)}


@dataclass
class FileEdit:
    """The changes of one file."""

    source: transaction.Source
    data: bytes
    preset: Optional[str] = None
    changes: List[Change] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    #: The settings that the file has a key for, and those that have none, with what to do.
    known: List[str] = field(default_factory=list)
    unset: Dict[str, str] = field(default_factory=dict)
    #: The settings whose key was to be added and is none of the framework's.
    refused: List[str] = field(default_factory=list)
    #: The backup that is put back, or that was made.
    backup: Optional[str] = None

    @property
    def changed(self) -> bool:
        """Whether the file will be another one."""
        return self.data != self.source.data or self.source.status is None

    @property
    def backup_shown(self) -> str:
        """The backup as the user would name it: relative where the file was named so."""
        backup, source = str(self.backup), self.source
        beside = os.path.abspath(source.name) == source.path
        return source.name + backup[len(source.path) :] if beside else backup

    def diff(self) -> List[str]:
        """Lines of a unified diff, without line ends."""
        texts = [data.decode("utf-8", "replace") for data in (self.source.data, self.data)]
        old, new = (_lines(text) for text in texts)
        name = self.source.name
        was = os.devnull if self.source.status is None else name
        lines: List[str] = []
        for line in difflib.unified_diff(old, new, was, name, lineterm="\n"):
            heading = len(lines) < 2  # patch(1) needs a mark at the end of a name with blanks
            lines.append(line.rstrip("\n") + ("\t" if heading and " " in line[4:] else ""))
            if not line.endswith("\n"):
                lines.append("\\ No newline at end of file")
        return lines


class Edits:
    """Changes of several files, to be shown, and then made together."""

    def __init__(self, files: List[FileEdit], restoring: bool = False) -> None:
        self.files = files
        self.restoring = restoring
        self.committed = False

    @property
    def changed(self) -> List[FileEdit]:
        """The files that will change."""
        return [file for file in self.files if file.changed]

    def diff(self) -> List[str]:
        """Lines of one unified diff, which ``patch -p0`` understands."""
        return [line for file in self.changed for line in file.diff()]

    def commit(self) -> None:
        """Changes all files, or none (ApplyError). A file that needs no change gets no backup."""
        changed = self.changed
        for file in self.files:
            if not file.changed:
                temporary_files.clean(file.source.path)
        if not changed:
            return
        for file in changed:
            transaction.check_writable(file.source)
        swaps = [self._swap(file) for file in changed]
        made = transaction.swap(swaps)
        if not self.restoring:
            for file, backup in zip(changed, made):
                file.backup = backup
        self.committed = True

    def _swap(self, file: FileEdit) -> transaction.Swap:
        like, attributes = file.source.status, file.source.path
        if self.restoring:
            attributes = str(file.backup)
            like = os.stat(attributes)
        if like is None:
            raise ApplyError("%s: there is no such file" % file.source.name)
        return transaction.Swap(
            file.source,
            file.data,
            like,
            backup=not self.restoring,
            keep_times=self.restoring,
            attributes=attributes,
        )

    def to_json(self) -> Dict[str, Any]:
        """What happened, for ``--json``."""
        return {
            "action": "restore" if self.restoring else "apply",
            "done": self.committed,
            "files": [
                {
                    "path": file.source.name,
                    "changed": file.changed,
                    "preset": file.preset,
                    "backup": file.backup,
                    "changes": [change.to_json() for change in file.changes],
                    "notes": file.notes,
                    "diff": file.diff() if file.changed else [],
                }
                for file in self.files
            ],
        }


def prepare(
    files: Sequence[str], settings: Mapping[str, Any], mapping: Optional[KeyMapping] = None
) -> Edits:
    """Reads the files and works out what setting ``settings`` changes in each; writes nothing.

    ``settings`` has some of ``micro_batch``, ``accumulation`` (ints), ``dtype`` ("fp32", "fp16",
    "bf16"), ``optimizer`` (a name of the command) and ``checkpointing`` ("none", "selective",
    "full"). ApplyError names the file and what is wrong with it.
    """
    mapping = mapping if mapping is not None else KeyMapping()
    _check_settings(settings)
    edits: List[FileEdit] = []
    for name in files:
        source = transaction.read(name)
        if any(other.source.path == source.path for other in edits):
            continue
        try:
            edits.append(_prepare_file(source, settings, mapping))
        except RecursionError:
            raise ApplyError("%s: it is nested too deeply" % name) from None
        except ApplyError as error:
            raise type(error)("%s: %s" % (name, error)) from None
    if not mapping.partial:
        _check_required(edits, mapping)
    for setting in settings if mapping.skip_missing else ():
        if not any(setting in (*file.known, *file.unset) for file in edits):
            names = ", ".join(file.source.name for file in edits)
            raise KeyMissing("no file has a key for %s: %s" % (setting, names))
    for file in edits:
        if file.changed:
            transaction.check_writable(file.source)
    return Edits(edits)


def _check_required(edits: List[FileEdit], mapping: KeyMapping) -> None:
    required = {name: SETTINGS[name] for file in edits for name in file.refused}
    required.update(mapping.required)
    lacking = [
        "%s (%s)" % (what, next((f.unset[name] for f in edits if name in f.unset), "no file has it"))
        for name, what in required.items()
        if not any(name in file.known and name not in file.unset for file in edits)
    ]
    if lacking:
        raise ApplyError(
            "these changes of the plan cannot be written, and no file was changed: %s. Make them "
            "by hand and pass --partial" % "; ".join(lacking)
        )


def restore(files: Sequence[str]) -> Edits:
    """Reads every file's newest backup; committing puts them back. The backups stay."""
    edits: List[FileEdit] = []
    for name in files:
        source = transaction.read(name, missing=True)
        if any(other.source.path == source.path for other in edits):
            continue
        try:
            newest = backups.newest(source.path)
        except OSError as error:
            raise ApplyError("%s: %s: %s" % (name, error.filename, error.strerror)) from None
        if newest is None:
            raise ApplyError("%s: there is no %s%s" % (name, source.path, backups.SUFFIX))
        data = transaction.read(newest).data
        edits.append(FileEdit(source, data, backup=newest))
    for file in edits:
        if file.changed:
            transaction.check_writable(file.source)
    return Edits(edits, restoring=True)


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        choices = {"dtype": DTYPES, "checkpointing": CHECKPOINTING}.get(name)
        if name not in SETTINGS:
            raise ValueError("%r is not a setting; settings are %s" % (name, ", ".join(SETTINGS)))
        if choices is not None and value not in choices:
            raise ValueError("%s is one of %s, not %r" % (name, ", ".join(choices), value))
        if name in NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError("%s is a number from 1, not %r" % (name, value))


def _prepare_file(
    source: transaction.Source, settings: Mapping[str, Any], mapping: KeyMapping
) -> FileEdit:
    document, bom = open_document(source)
    edit, missing = FileEdit(source, source.data), []
    preset, section = find_preset(document, settings, mapping)
    edit.preset = preset.name if preset is not None else None
    for one in _assignments(document, settings, mapping, preset, section, edit):
        document, lacking = _assign(document, one, mapping, edit)
        missing += [lacking] if lacking else []
    for key, why in unmet(document, preset, section) if edit.changes else ():
        raise ApplyError("line %d: %s" % (document.line(section + parse_path(key)), why))
    if missing:
        raise KeyMissing(
            "it has no key %s. Pass --create-keys to add what is missing, or say with --key where "
            "it is, for instance --key %s=…"
            % (" and no key ".join(spelled(one.keys[0]) for one in missing), missing[0].setting)
        )
    for name, why in edit.unset.items():
        edit.notes.append("%s is not set to %s: %s" % (name, settings[name], why))
    edit.data = (bom + document.text).encode("utf-8")
    return edit


def open_document(source: transaction.Source) -> Tuple[Document, str]:
    """The file, parsed, and its byte order mark."""
    text, bom = _decoded(source.data)
    kind = FORMATS.get(os.path.splitext(source.name)[1].lower())
    kind = kind or FORMATS.get(os.path.splitext(source.path)[1].lower())
    if kind is None:
        raise ApplyError("its name does not tell its format; %s are known" % ", ".join(FORMATS))
    return kind(text), bom


def _decoded(data: bytes) -> Tuple[str, str]:
    """The text, and the byte order mark before it."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ApplyError(
            "line %d: it is not UTF-8 (byte 0x%02x at %d)" % (line, data[error.start], error.start)
        ) from None
    return (text[1:], _BOM) if text.startswith(_BOM) else (text, "")


def find_preset(
    document: Document, settings: Mapping[str, Any], mapping: KeyMapping
) -> Tuple[Optional[Preset], Path]:
    """The preset for the settings that the user gave no key for."""
    if all(name in mapping.keys for name in settings):
        return None, ()
    if mapping.preset is not None:
        preset = preset_named(mapping.preset)
        return preset, section_of(preset, document)
    try:
        return detect(document)
    except ApplyError:
        if mapping.keys:  # the notes list what has no key
            return None, ()
        raise


def _assignments(
    document: Document,
    settings: Mapping[str, Any],
    mapping: KeyMapping,
    preset: Optional[Preset],
    section: Path,
    edit: Optional[FileEdit],
) -> List[Assignment]:
    found: List[Assignment] = []
    for name, value in settings.items():
        if name in mapping.keys:
            for path in mapping.keys[name]:
                for one in document.expand(path) or [path]:
                    found.append(Assignment(name, (one,), value, by_example=True))
            continue
        own = preset.assign(name, value) if preset is not None else []
        if own:
            found += _needed(document, [_in_section(one, section) for one in own])
        elif edit is not None:
            edit.unset[name] = _by_hand(preset, name)
    return found


def _by_hand(preset: Optional[Preset], name: str) -> str:
    why = "say where with --key %s=…" % name
    return why if preset is None else preset.by_hand.get(name, why)


def _by_hand_of(edit: FileEdit, name: str) -> str:
    return _by_hand(preset_named(edit.preset) if edit.preset else None, name)


def _needed(document: Document, own: List[Assignment]) -> List[Assignment]:
    """Without absent alternatives; and without other absent keys where an alternative is enough."""
    there = [one for one in own if _place(document, one) is not None]
    enough = any(one.alternative and one.value for one in there)
    return [one for one in own if one in there or not (one.alternative or enough)]


def _place(document: Document, one: Assignment) -> Optional[Path]:
    """The first of the assignment's keys that the file has."""
    return next((key for key in one.keys if document.find(key) is not None), None)


def _in_section(one: Assignment, section: Path) -> Assignment:
    return Assignment(**{**vars(one), "keys": tuple(section + key for key in one.keys)})


def _assign(
    document: Document, one: Assignment, mapping: KeyMapping, edit: FileEdit
) -> Tuple[Document, Optional[Assignment]]:
    """The document with one key set; also the assignment itself where the file lacks its key."""
    path = _place(document, one)
    if path is None:
        return _absent(document, one, mapping, edit)
    old = document.value(path)
    try:
        new = _new_value(one, mapping.values.get(one.setting, _UNASKED), str(path[-1]), old)
        line = document.line(path)
        if new is None and one.value is None and not one.by_example:
            edit.unset[one.setting] = _by_hand_of(edit, one.setting)
            return document, None
        edit.known.append(one.setting)
        if type(new) is type(old) and new == old:
            return document, None
        after = document.set(path, new, mapping.shared)
    except Unspellable as error:
        raise Unspellable("line %d: %s: %s" % (document.line(path), spelled(path), error)) from None
    except ApplyError as error:
        told = str(error)
        if not told.startswith("line "):
            told = "line %d: %s: %s" % (document.line(path), spelled(path), told)
        raise ApplyError(told) from None
    edit.changes.append(Change(one.setting, spelled(path), line, old, new))
    if one.setting == "optimizer":
        _note_arguments(after, path, new, edit)
    return after, None


def _absent(
    document: Document, one: Assignment, mapping: KeyMapping, edit: FileEdit
) -> Tuple[Document, Optional[Assignment]]:
    key = spelled(one.keys[0])
    if one.default is not NoDefault:
        if any(same(one.default, value) for value in (one.value,) + one.accepted):
            edit.known.append(one.setting)
            return document, None
    if one.optional and not (mapping.create_keys and one.addable):
        if mapping.create_keys:
            edit.refused.append(one.setting)
        edit.unset[one.setting] = "the file has no key for it; " + _by_hand_of(edit, one.setting)
        return document, None
    if one.value is None or one.setting in edit.unset:
        edit.unset.setdefault(one.setting, _by_hand_of(edit, one.setting))
        return document, None
    if mapping.skip_missing:
        edit.notes.append("%s is not set: the file has no key %s" % (one.setting, key))
        return document, None
    if not mapping.create_keys:
        return document, one
    value = mapping.values.get(one.setting, one.value)
    if one.by_example and one.setting == "checkpointing" and one.setting not in mapping.values:
        value = value != "none"
    after = document.add(one.keys[0], value, mapping.shared)
    edit.known.append(one.setting)
    edit.changes.append(Change(one.setting, key, after.line(one.keys[0]), None, value, added=True))
    return after, None


def _new_value(one: Assignment, asked: Any, leaf: str, old: Any) -> Any:
    """The value to write; ``old`` itself if it is equivalent."""
    if asked is not _UNASKED:
        written = in_kind(old, asked)
        return old if same(old, written) else written
    if one.by_example:
        return by_example(one.setting, leaf, old, one.value)
    means = one.default if old is None else old  # null asks for the default
    if means is not NoDefault and means is not None:
        if any(same(means, value) for value in (one.value,) + one.accepted):
            return old
    if isinstance(one.value, bool) and not is_truth(old):
        # The key has words too, or numbers: take the one that is of the old value's kind.
        alike = [word for word in one.accepted if type(word) is type(old)]
        return (alike or [in_kind(old, one.value)])[0]
    return in_kind(old, one.value)


def _note_arguments(document: Document, path: Path, new: Any, edit: FileEdit) -> None:
    """Arguments of torch's own classes that the new class does not know."""
    unknown = ["fused", "capturable", "differentiable"]
    if str(new).startswith("memopt."):
        unknown.append("foreach")
    elif new != "torch.optim.Adafactor":
        return
    beside = path[:-1] + (("init_args",) if path[-1] == "class_path" else ())
    for name in unknown:
        if document.find(beside + (name,)) is not None:
            key = spelled(beside + (name,))
            edit.notes.append("%s has no argument %s: take %s out" % (new, name, key))


def _lines(text: str) -> List[str]:
    """Lines with their ends; only line feeds end lines, as for diff and patch."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
