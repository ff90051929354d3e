"""The options of ``memopt plan`` that change files, and what they print."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, Optional, TextIO, Tuple

from .edits import Edits, FileEdit, KeyMapping, prepare, restore
from .errors import ApplyError
from .presets import ALIASES, PRESETS, preset_named
from .reading import read, together
from .tree import Path, parse_path
from .values import SETTINGS
from .yaml_text import resolved

_COLOURS = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m", "\\": "\x1b[2m"}


class OptionError(Exception):
    """Contradicting options; the verb reports a usage error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options to the verb's parser."""
    group = parser.add_argument_group("changing configuration files")
    group.add_argument(
        "--apply", action="store_true", help="set the planned values in the files of --config-path"
    )
    group.add_argument(
        "--config-path",
        action="append",
        nargs="+",
        metavar="FILE",
        help="YAML, JSON or TOML files; all are changed, or none; may be repeated",
    )
    group.add_argument(
        "--dry-run", action="store_true", help="show what would change, and change nothing"
    )
    group.add_argument(
        "--restore", action="store_true", help="put the newest backup of each file back"
    )
    group.add_argument(
        "--preset",
        type=_preset,
        choices=tuple(PRESETS),
        metavar="NAME",
        help="whose keys the files have: %s; default: found from the keys" % ", ".join(PRESETS),
    )
    group.add_argument(
        "--key",
        action="append",
        type=_key,
        default=[],
        metavar="SETTING=KEY",
        help="where a setting is, as a dotted key (0 is the first of a list, * every entry, quotes "
        "hold dots): micro_batch=stages.*.batch_size; may be repeated; settings: "
        + ", ".join(SETTINGS),
    )
    group.add_argument(
        "--value",
        action="append",
        type=_value,
        default=[],
        metavar="SETTING=VALUE",
        help="write this instead of what the plan says: optimizer=paged_adamw_8bit",
    )
    missing = group.add_mutually_exclusive_group()
    missing.add_argument(
        "--create-keys", action="store_true", help="add keys that a file does not have"
    )
    missing.add_argument(
        "--skip-missing",
        action="store_true",
        help="leave a setting out of files without its key, when another file has it",
    )
    group.add_argument(
        "--partial",
        action="store_true",
        help="write what can be written of the plan's changes; the rest is to be made by hand",
    )
    group.add_argument(
        "--shared",
        action="store_true",
        help="change values that a YAML anchor shares with other keys, for all of them",
    )


def _setting(text: str) -> Tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or not rest:
        raise argparse.ArgumentTypeError("%r is not SETTING=…" % text)
    name = name.strip().replace("-", "_")
    if name not in SETTINGS:
        raise argparse.ArgumentTypeError(
            "%r is not a setting; settings are %s" % (name, ", ".join(SETTINGS))
        )
    return name, rest


def _key(text: str) -> Tuple[str, Path]:
    name, rest = _setting(text)
    try:
        return name, parse_path(rest)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _value(text: str) -> Tuple[str, Any]:
    name, rest = _setting(text)
    value = resolved(rest) if rest.lower() not in ("no", "yes", "on", "off") else rest
    if name in ("micro_batch", "accumulation") and value != "auto":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise argparse.ArgumentTypeError(
                "%s is a number from 1, or auto where the framework knows that, not %s"
                % (name, rest)
            )
    return name, rest if value is None else value


def _preset(text: str) -> str:
    try:
        return preset_named(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError("%s (also %s)" % (error, ", ".join(ALIASES))) from None


def wanted(arguments: argparse.Namespace) -> bool:
    """Whether to change files; OptionError if the options contradict each other."""
    if arguments.config_path and arguments.dry_run and not arguments.restore:
        arguments.apply = True  # a dry run of what else?
    acting = bool(arguments.apply or arguments.restore)
    if arguments.apply and arguments.restore:
        raise OptionError("--apply and --restore exclude each other")
    if acting and not arguments.config_path:
        raise OptionError(
            "--%s needs --config-path FILE…" % ("apply" if arguments.apply else "restore")
        )
    if not acting and (arguments.config_path or arguments.dry_run):
        raise OptionError("--config-path and --dry-run need --apply or --restore")
    if "" in files(arguments):
        raise OptionError("--config-path: a file without a name")
    return acting


def files(arguments: argparse.Namespace) -> List[str]:
    """The files of all --config-path options."""
    return [name for group in arguments.config_path or [] for name in group]


def mapping(arguments: argparse.Namespace) -> KeyMapping:
    """What the options say about keys."""
    keys: Dict[str, List[Path]] = {}
    for name, path in arguments.key:
        keys.setdefault(name, []).append(path)
    return KeyMapping(
        preset=arguments.preset,
        keys=keys,
        values=dict(arguments.value),
        create_keys=arguments.create_keys,
        skip_missing=arguments.skip_missing,
        shared=arguments.shared,
        partial=arguments.partial,
    )


def as_it_is(arguments: argparse.Namespace) -> None:
    """What the files say of the run goes to the options, where these leave it open: the effective
    batch, and autocast to fp16, which a file has where the card has no bf16."""
    try:
        said = together(read(files(arguments), mapping(arguments)))
    except ApplyError:  # the plan alone says what is written
        return
    batch = [said[name].value for name in ("micro_batch", "accumulation") if name in said]
    if not arguments.target_effective_batch and not arguments.accumulation and len(batch) == 2:
        if all(str(number).isdigit() for number in batch):
            batch.append(arguments.world_size or 1)
            arguments.target_effective_batch = math.prod(map(int, batch))
    if not arguments.dtype and not arguments.autocast:
        if "dtype" in said and said["dtype"].value in ("fp16", "fp16-mixed"):
            arguments.autocast = "fp16"


def run(
    arguments: argparse.Namespace,
    settings: Mapping[str, Any],
    required: Mapping[str, str] = MappingProxyType({}),
    quiet: bool = False,
    stream: Optional[TextIO] = None,
) -> Dict[str, Any]:
    """Does what the options say (``settings`` has no effect with --restore), and prints it unless
    ``quiet``; ``required`` must be written. Returns what ``--json`` has under "apply"; ApplyError: no file was changed."""
    if arguments.restore:
        edits = restore(files(arguments))
    else:
        edits = prepare(files(arguments), settings, replace(mapping(arguments), required=required))
    out = stream if stream is not None else sys.stdout
    if not quiet:
        show(edits, out)
        out.flush()
    if not arguments.dry_run:
        edits.commit()
    if not quiet:
        tell(edits, arguments.dry_run, out)
    return {"dry_run": bool(arguments.dry_run), **edits.to_json()}


def show(edits: Edits, stream: TextIO) -> None:
    """Prints the diff, in colour on a terminal."""
    terminal = stream.isatty()
    coloured = terminal and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    for line in edits.diff():
        if terminal:  # text of a file must not control the terminal
            line = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", line.rstrip("\r"))
        bold = line.startswith(("---", "+++"))
        colour = "\x1b[1m" if bold else _COLOURS.get(line[:1], "")
        print(colour + line + "\x1b[0m" if coloured and colour else line, file=stream)


def tell(edits: Edits, dry_run: bool, stream: TextIO) -> None:
    """Prints what was done."""
    for file in edits.files:
        for note in file.notes:
            print("%s: %s" % (file.source.name, note), file=stream)
    for file in edits.files:
        print("%s: %s" % (file.source.name, _outcome(edits, file, dry_run)), file=stream)


def _outcome(edits: Edits, file: FileEdit, dry_run: bool) -> str:
    if edits.restoring:
        if not file.changed:
            return "nothing to change: it is as in %s" % file.backup_shown
        return "%s from %s" % ("would be restored" if dry_run else "restored", file.backup_shown)
    if not file.changed:
        return "nothing to change"
    if dry_run:
        return "would be changed; nothing was written (--dry-run)"
    return "changed; what it was is in %s" % file.backup_shown

