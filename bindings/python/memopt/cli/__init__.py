"""The command ``memopt``: one verb a module.

A verb's module has ``add_arguments(parser)`` and ``run(arguments, output)``, which returns the exit
code. Its docstring is the description in ``--help``, and ``JSON_HELP`` says what ``--json`` prints
where that is more than one object. Only the requested verb's module is imported, with the libraries
that it needs. To add a verb, add a module to ``verbs``. Exit codes: 0 success, 1 it could not be done, 2
usage.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import pkgutil
import sys
from typing import Any, List, NoReturn, Optional, Sequence

from .. import __version__
from ..errors import MemoptError
from . import standard_streams, verbs
from .output import Output

#: The verbs that are installed, as their modules in ``verbs``.
VERBS = {
    found.name: importlib.import_module("." + found.name, verbs.__name__)
    for found in sorted(pkgutil.iter_modules(verbs.__path__))
}

SUCCESS, FAILURE, USAGE = 0, 1, 2


class UsageError(Exception):
    """Options that a verb can only refuse in combination."""


class Refused(Exception):
    """The verb failed; the text says why and what to do."""


class _Parser(argparse.ArgumentParser):
    """Reports an error in three lines; argparse would list every option first."""

    def error(self, message: str) -> NoReturn:
        usage = self.usage
        if usage is None:
            words = [str(a.metavar or a.dest) for a in self._get_positional_actions()]
            usage = " ".join([self.prog, "[options]"] + words)
        text = "usage: %s\n%s: error: %s\n`%s --help` lists the options\n"
        self.exit(USAGE, text % (usage, self.prog, message, self.prog))

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse ignores a failing write."""
        if message:
            (file or sys.stderr).write(message)

    def unknown(self, words: List[str]) -> NoReturn:
        """Refuses words that are no options, with those that they resemble."""
        text = "unrecognized arguments: " + " ".join(words)
        for word in words:
            name = word.partition("=")[0]
            near = difflib.get_close_matches(name, self._option_string_actions, 1, 0.7)
            if name.startswith("--") and near:
                text += "; did you mean %s?" % near[0]
        self.error(text)


def module_of(verb: str) -> Any:
    """The module of a verb."""
    return importlib.import_module("." + verb, __name__)


def build_parser(*loaded: str) -> _Parser:
    """The parser of the command, with the options of the verbs named: their modules are imported.
    Man pages and completions are made from the parser with all of them."""
    parser = _Parser(prog="memopt", description="What a training run needs of memory, and what this machine has.")
    parser.add_argument("--version", action="version", version="memopt " + __version__)
    commands = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, declared in VERBS.items():
        verb = commands.add_parser(name, help=declared.HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name not in loaded:
            continue
        module = module_of(name)
        verb.description = module.__doc__
        json_help = getattr(module, "JSON_HELP", "print one JSON object")
        verb.add_argument("--json", action="store_true", help=json_help)
        module.add_arguments(verb)
        verb.set_defaults(run=module.run, parser=verb)
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns its exit code (argparse itself exits with 2)."""
    try:
        standard_streams.prepare()
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as "head", has ended
        standard_streams.give_up()
    except OSError as error:
        standard_streams.give_up()
        print("memopt: " + standard_streams.said(error), file=sys.stderr)
    except ImportError as error:
        if not str(error).startswith("memopt: "):
            raise
        print(error, file=sys.stderr)  # a library that the verb needs is missing
    except KeyboardInterrupt:
        return 130
    return FAILURE


def _run(arguments: Optional[Sequence[str]]) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    parser = build_parser(*[word for word in words if word in VERBS][:1])
    try:
        parsed, unknown = parser.parse_known_args(words)
        if unknown:
            known: _Parser = getattr(parsed, "parser", parser)
            known.unknown(unknown)
    except SystemExit:
        sys.stdout.flush()  # a failed write is a failure, even of --help
        raise
    if parsed.verb is None:
        parser.print_help(sys.stderr)
        return USAGE
    output = Output(json=parsed.json)
    try:
        return int(parsed.run(parsed, output))
    except UsageError as error:
        parsed.parser.error(str(error))
    except MemoptError as error:
        output.error("%s: %s" % (error.name, error))
    except Refused as error:
        output.error(str(error))
    return FAILURE
