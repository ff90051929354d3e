"""The command ``memopt``: one verb a module.

A verb's module has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments, output)``,
which returns the exit code; its docstring is the description in ``--help``, and ``JSON_HELP`` says
what ``--json`` prints where that is more than one object. To add a verb, add its module's name to
VERBS. Exit codes: 0 success, 1 it could not be done, 2 usage.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any, List, Optional, Sequence

from .. import __version__
from ..errors import MemoptError
from .output import Output

#: The verbs, in the order of the help.
VERBS = ("info", "plan", "profile", "monitor", "replay")

SUCCESS, FAILURE, USAGE = 0, 1, 2


class UsageError(Exception):
    """Options that a verb can only refuse after looking at them together."""


def build_parser(only: Optional[str] = None) -> argparse.ArgumentParser:
    """The parser of the whole command; man pages and completion are made from it too. `only`: of
    one verb, whose module is imported then and no other."""
    parser = argparse.ArgumentParser(
        prog="memopt",
        description="What a training run needs of memory, and what this machine has.",
    )
    parser.add_argument("--version", action="version", version="memopt " + __version__)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name in VERBS if only is None else (only,):
        module = importlib.import_module("." + name, __name__)
        verb = verbs.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        json_help = getattr(module, "JSON_HELP", "print one JSON object")
        verb.add_argument("--json", action="store_true", help=json_help)
        module.add_arguments(verb)
        verb.set_defaults(run=module.run, parser=verb)
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns its exit code (argparse itself exits with 2)."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = build_parser(words[0] if words and words[0] in VERBS else None)
    parsed = parser.parse_args(words)
    if parsed.verb is None:
        parser.print_help(sys.stderr)
        return USAGE
    output = Output(json=parsed.json)
    try:
        code = int(parsed.run(parsed, output))
        sys.stdout.flush()
        return code
    except UsageError as error:
        parsed.parser.error(str(error))
    except MemoptError as error:
        output.error("%s: %s" % (error.name, error))
    except BrokenPipeError:  # the reader, "head" say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        output.error(str(error))
    except KeyboardInterrupt:
        return 130
    return FAILURE


__all__: List[Any] = ["FAILURE", "SUCCESS", "USAGE", "UsageError", "VERBS", "build_parser", "main"]
