#!/usr/bin/env python3
"""Keeps the numbers of the recipes, of the README and of the guide what `memopt plan` says.

    PYTHONPATH=build/extras/python python extras/planner/docs/recipes/update.py            # writes all pages anew
    PYTHONPATH=build/extras/python python extras/planner/docs/recipes/update.py --check    # says what is stale

Two things on a page are made by commands:

* Blocks of `console` that begin with ``$ memopt plan …``: the sections that are quoted (a section
  is a title and what is below it up to an empty line) are replaced by those of the same title.
* Tables whose first heading is a command, ``memopt plan …``: each row's first cell has further
  options, and cells below the headings of COLUMNS are filled in from ``--json``. Rows that begin
  with "the guide" are its claims, and stay.

Plans with ``--profile``, which train, stay as they are.
"""

import argparse
import contextlib
import difflib
import io
import json
import os
import pathlib
import re
import shlex
import sys
from typing import Any, Callable, Dict, List

import memopt.cli
from memopt.sizes import format_size

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[3]
#: Pages beside the recipes that quote the command.
OTHERS = (ROOT / "README.md", HERE.parent / "command-plan.md", ROOT / "docs" / "guide" / "pytorch-8gb.md")
_PLAN = "$ memopt plan "
_CLAIM = "the guide"
_BLOCK = re.compile(r"(```console\n)(.*?)(```\n)", re.S)
_HEADING = re.compile(r"\| `memopt plan ([^`]*)` \|")


class Failed(RuntimeError):
    """A command of a page failed."""


def _most(result: Dict[str, Any], category: str, *phases: str) -> str:
    of = result["phases"]
    return format_size(max(int(of[name][category]) for name in phases or of))


def _fits(result: Dict[str, Any]) -> str:
    return "yes" if result["fits"] else "after changes" if result["fits_after_changes"] else "no"


def _used(result: Dict[str, Any]) -> str:
    return "%.0f %%" % (100.0 * result["planned_peak_bytes"] / result["capacity_bytes"])


#: What stands below a heading, from the object of ``--json``.
COLUMNS: Dict[str, Callable[[Dict[str, Any]], str]] = {
    "weights": lambda r: _most(r, "parameters", "load"),
    "gradients": lambda r: _most(r, "gradients", "step"),
    "states": lambda r: _most(r, "optimizer", "load"),
    "activations": lambda r: _most(r, "activations", "forward", "loss"),
    "logits": lambda r: _most(r, "logits"),
    "overhead": lambda r: format_size(r["categories"]["overhead"]),
    "peak": lambda r: format_size(r["peak_bytes"]),
    "live peak": lambda r: format_size(r["peak_bytes"] - r["categories"]["overhead"]),
    "planned peak": lambda r: format_size(r["planned_peak_bytes"]),
    "micro-batch": lambda r: str(r["micro_batch"]),
    "accumulation": lambda r: str(r["accumulation"]),
    "effective": lambda r: str(r["effective_batch"]),
    "largest": lambda r: str(r["largest_micro_batch"]),
    "fits": _fits,
    "used": _used,
    "time": lambda r: "%.2f ×" % r["time_factor"],
    "learning": lambda r: "%.2f %%" % (100.0 * r["model"]["trainable"] / r["model"]["parameters"]),
}


def call(options: List[str]) -> str:
    """What `memopt plan` prints when it is piped, run at the repository's root."""
    said, complained = io.StringIO(), io.StringIO()
    os.chdir(ROOT)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        try:
            code = memopt.cli.main(["plan", *options])
        except SystemExit as end:
            code = int(end.code or 0)
    if code:
        raise Failed("memopt plan %s: %s" % (" ".join(options), complained.getvalue()))
    return said.getvalue()


# --- blocks ---------------------------------------------------------------------------------------


def _sections(text: str) -> List[str]:
    return [part for part in text.rstrip("\n").split("\n\n") if part]


def _title(section: str) -> str:
    return section.partition("\n")[0]


def _block(body: str) -> str:
    command, _, quoted = body.partition("\n")
    while command.endswith("\\"):
        more, _, quoted = quoted.partition("\n")
        command = command + "\n" + more
    words = command.replace("\\\n", " ")
    if words.startswith(_PLAN) and "--profile" not in words.split():
        printed = _sections(call(shlex.split(words[len(_PLAN) :])))
        return command + "\n" + _chosen(printed, quoted, words)
    return body


def _chosen(printed: List[str], quoted: str, command: str) -> str:
    by_title = {_title(section): section for section in printed}
    result = []
    for section in _sections(quoted):
        if section != "…":
            if _title(section) not in by_title:
                raise Failed("%s prints no section %r any more" % (command, _title(section)))
            section = by_title[_title(section)]
        result.append(section)
    return "\n\n".join(result) + "\n"


# --- tables ---------------------------------------------------------------------------------------


def _cells(line: str) -> List[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _table(lines: List[str]) -> List[str]:
    heading = _HEADING.match(lines[0])
    if heading is None:
        return lines
    columns = _cells(lines[0])
    base = shlex.split(heading.group(1).replace("…", ""))
    return lines[:2] + [_row(columns, base, line) for line in lines[2:]]


def _row(columns: List[str], base: List[str], line: str) -> str:
    cells = _cells(line)
    if cells[0].startswith(_CLAIM):
        return line
    if len(cells) != len(columns):
        raise Failed("%d cells below %d headings: %s" % (len(cells), len(columns), line))
    code = re.match(r"`([^`]*)`", cells[0])
    result = json.loads(call([*base, *shlex.split(code.group(1) if code else ""), "--json"]))
    filled = [COLUMNS[column](result) if column in COLUMNS else cell for column, cell in zip(columns, cells)]
    return "| " + " | ".join(filled) + " |"


def _tables(text: str) -> str:
    result: List[str] = []
    table: List[str] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        result += (_table(table) if table else []) + [line]
        table = []
    return "\n".join(result[:-1])


# --- pages ----------------------------------------------------------------------------------------


def updated(text: str) -> str:
    """A page with today's numbers."""
    text = _BLOCK.sub(lambda m: m.group(1) + _block(m.group(2)) + m.group(3), text)
    return _tables(text)


def stale(text: str) -> List[str]:
    """What of a page is no longer what the commands print, as a diff; empty: nothing."""
    now = updated(text)
    return list(difflib.unified_diff(text.split("\n"), now.split("\n"), "page", "now", lineterm=""))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=pathlib.Path, help="default: all")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    options = parser.parse_args()
    code = 0
    for page in [path.resolve() for path in options.pages] or [*sorted(HERE.glob("*.md")), *OTHERS]:
        text = page.read_text(encoding="utf-8")
        if options.check:
            lines = stale(text)
            code = max(code, int(bool(lines)))
            print("\n".join([page.name + (": stale" if lines else ": as it is"), *lines]))
        else:
            page.write_text(updated(text), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
