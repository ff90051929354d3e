"""Runs twelve cases in which optimizers are known to go wrong on any class of torch's interface:
blocks of very different sizes, decay that bf16 rounds away, ragged sizes, resuming, infinities and
so on. Each case compares with the class's rule computed in 64 bits.

    memopt audit-optimizer memopt.torch.AdamW8bit torch.optim.AdamW
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import sys
from typing import Any, Callable, Dict, List, Tuple

from .output import Cell, Output, Text
from .progress import Progress

JSON_HELP = "print one JSON object with what each case found"
EXIT_STATUS = "0: no case failed; 1: one did, or a class could not be found; 2: wrong usage."
_RULES = (
    *("galore", "apollo", "schedulefree", "adafactor", "ademamix", "adammini", "adagrad", "rmsprop"),
    *("adamw", "adam", "lion", "sgd", "muon", "lamb", "lars"),
)


def _option(text: str) -> Tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError("%r is not NAME=VALUE" % text)
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument(
        "classes", nargs="+", metavar="CLASS", help="an import path, such as torch.optim.AdamW"
    )
    parser.add_argument(
        "--rule",
        choices=_RULES,
        help="the rule that the class follows; its name tells where it contains one of them",
    )
    parser.add_argument(
        "--set",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option for every optimizer that is made; may be repeated",
    )
    parser.add_argument(
        "--large",
        action="store_true",
        help="also the case with 2^31 elements: 7 to 31 GB of memory and minutes",
    )


def _find(path: str) -> Callable[..., Any]:
    from . import Refused

    module, _, name = path.replace(":", ".").rpartition(".")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name) if module else None
    except (ImportError, AttributeError, OSError) as error:
        raise Refused("%s: %s" % (path, error)) from error
    if not callable(found):
        raise Refused("%s is not a class; write its import path: torch.optim.AdamW" % path)
    return found  # type: ignore[no-any-return]


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Runs the cases of each class and prints what they found."""
    from . import Refused, UsageError

    try:
        audit = importlib.import_module("memopt.torch._audit")
    except ImportError as error:
        raise Refused(str(error)) from error
    whom: List[Tuple[str, Callable[..., Any], str]] = []
    for path in arguments.classes:
        rule = arguments.rule or audit.rule_of(path.replace(":", ".").rpartition(".")[2])
        if rule is None:
            raise UsageError("the name of %s tells no rule; say it by --rule" % path)
        whom.append((path, _find(path), rule))
    results: List[Dict[str, Any]] = []
    for path, make, rule in whom:
        findings = []
        with Progress(path) as progress:
            for finding in audit.Audit(make, rule, dict(arguments.set), arguments.large).run():
                findings.append(finding)
                progress(len(findings), len(audit.CASES))
        results.append(_result(path, rule, findings))
        if not output.wants_json:
            _show(output, results[-1])
    if output.wants_json:
        output.json({"classes": results})
    return 1 if any(result["failed"] for result in results) else 0


def _result(path: str, rule: str, findings: List[Any]) -> Dict[str, Any]:
    count = [sum(f.passed is kind for f in findings if f.applicable) for kind in (True, False, None)]
    return {
        "class": path,
        "rule": rule,
        "passed": count[0],
        "failed": count[1],
        "not_run": count[2],
        "not_applicable": sum(not f.applicable for f in findings),
        "cases": [
            {"case": f.name, "passed": f.passed, "applicable": f.applicable, "detail": f.detail}
            for f in findings
        ],
    }


def _show(output: Output, result: Dict[str, Any]) -> None:
    judged = len(result["cases"]) - result["not_applicable"]
    title = "%(class)s (%(rule)s): %(passed)d" % result + "/%d" % judged
    for key, words in (("not_run", "not run"), ("not_applicable", "not applicable")):
        if result[key]:
            title += ", %d %s" % (result[key], words)
    output.table(title, ("case", "", "found"), [_row(case) for case in result["cases"]])


def _row(case: Dict[str, Any]) -> List[Text]:
    word = {True: Cell("ok", "good"), False: Cell("FAILS", "bad"), None: Cell("not run", "dim")}
    found = word[case["passed"]] if case["applicable"] else Cell("not applicable", "dim")
    return [case["case"], found, case["detail"]]
