"""What the tests of changing configuration files share."""

from __future__ import annotations

import os

from memopt.cli import apply
from memopt.cli.apply import KeyMapping, parse_path

#: Every setting, each with a value that the files of the tests do not have.
ALL = {"micro_batch": 4, "accumulation": 16, "dtype": "bf16", "optimizer": "adamw8bit", "checkpointing": "full"}


def write(folder, name, content):
    """A file with exactly these bytes."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def content(path):
    with open(path, "rb") as file:
        return file.read()


def keyed(*keys, **options):
    """The mapping with --key options."""
    found = {}
    for key in keys:
        name, _, path = key.partition("=")
        found.setdefault(name, []).append(parse_path(path))
    return KeyMapping(keys=found, **options)


def changed(folder, name, before, settings, mapping=None):
    """The file's new content as text, by prepare alone."""
    path = write(folder, name, before)
    edits = apply.prepare([path], settings, mapping)
    assert content(path) == (before if isinstance(before, bytes) else before.encode())
    return edits.files[0].data.decode()


def set_batch(folder, name, before, key, batch=4, **options):
    """The text with one number set."""
    mapping = keyed("micro_batch=" + key, **options)
    return changed(folder, name, before, {"micro_batch": batch}, mapping)


#: What the tests of several files change: "b" in three of them.
KEY = keyed("micro_batch=b")
NAMES = ("one.json", "two.json", "three.json")


def prepare(paths, batch=4):
    return apply.prepare([str(path) for path in paths], {"micro_batch": batch}, KEY)


def change(*paths, batch=4):
    edits = prepare(paths, batch)
    edits.commit()
    return edits


def before(name):
    return ('{"b": 8, "name": "%s"}\n' % name).encode()


def after(name, batch=4):
    return ('{"b": %d, "name": "%s"}\n' % (batch, name)).encode()


def three_files(folder):
    """Three files, one of them in a folder of its own."""
    (folder / "sub").mkdir()
    folders = {"three.json": folder / "sub"}
    return [write(folders.get(name, folder), name, before(name)) for name in NAMES]


def everything(folder):
    """Every file below, hidden ones too, with its content."""
    found = {}
    for place, _, names in os.walk(folder):
        found.update({os.path.join(place, name): content(os.path.join(place, name)) for name in names})
    return found
