"""The options of ``memopt plan`` that change files, and what they print."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Any, Dict, List, Mapping, Tuple

from .edits import Edits, prepare
from .synonyms import SETTINGS

_COLOURS = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}


class OptionError(Exception):
    """Contradicting options; the verb reports a usage error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options to the verb's parser."""
    group = parser.add_argument_group("changing training files")
    group.add_argument("--apply", action="store_true", help="set the planned values in the files")
    group.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    group.add_argument(
        "--key",
        action="append",
        type=_key,
        default=[],
        metavar="SETTING=KEY",
        help="where a setting is, as a dotted key (* is every entry): micro_batch=stages.*.batch_size; may be "
        "repeated; settings: " + ", ".join(SETTINGS),
    )
    group.add_argument(
        "--partial", action="store_true", help="write what can be written; the rest is to be made by hand"
    )


def _key(text: str) -> Tuple[str, str]:
    name, equals, rest = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not rest or any(not part for part in rest.split(".")):
        raise argparse.ArgumentTypeError("%r is not SETTING=KEY" % text)
    if name not in SETTINGS:
        raise argparse.ArgumentTypeError("%r is not a setting; settings are %s" % (name, ", ".join(SETTINGS)))
    return name, rest


def wanted(arguments: argparse.Namespace) -> bool:
    """Whether to change files; OptionError if the options contradict each other."""
    arguments.apply = arguments.apply or arguments.dry_run  # a dry run of what else?
    if arguments.apply and not files(arguments):
        raise OptionError("--apply needs --from FILE, or --config-path FILE")
    return bool(arguments.apply)


def files(arguments: argparse.Namespace) -> List[str]:
    """The training files."""
    return [name for group in arguments.from_files or [] for name in group]


def keys_of(arguments: argparse.Namespace) -> Dict[str, List[str]]:
    """The keys that the options name."""
    keys: Dict[str, List[str]] = {}
    for name, key in arguments.key:
        keys.setdefault(name, []).append(key)
    return keys


def run(
    arguments: argparse.Namespace, settings: Mapping[str, Any], called: Mapping[str, str], quiet: bool = False
) -> Dict[str, Any]:
    """Does what the options say and prints it unless
    ``quiet``. Returns what ``--json`` has under "apply"; ApplyError: no file was changed."""
    edits = prepare(files(arguments), settings, keys_of(arguments), called, arguments.partial)
    if not quiet:
        _show(edits)
    if not arguments.dry_run:
        edits.commit()
    if not quiet:
        _tell(edits, arguments.dry_run)
    return {"dry_run": bool(arguments.dry_run), **edits.to_json()}


def _show(edits: Edits) -> None:
    terminal = sys.stdout.isatty()
    coloured = terminal and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    for line in edits.diff():
        if terminal:  # text of a file must not control the terminal
            line = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", line.rstrip("\r"))
        colour = _COLOURS.get(line[:1], "") if coloured else ""
        print(colour + line + "\x1b[0m" if colour else line)


def _tell(edits: Edits, dry_run: bool) -> None:
    for file in edits.files:
        for note in file.notes:
            print("%s: %s" % (file.source.name, note))
    for file in edits.files:
        done = "nothing to change"
        if file.changed and dry_run:
            done = "would be changed; nothing was written (--dry-run)"
        elif file.changed:
            beside = file.source.name + str(file.backup)[len(file.source.path) :]
            done = "changed; what it was is in %s" % beside
        print("%s: %s" % (file.source.name, done))
