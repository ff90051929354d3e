#!/usr/bin/env python3
"""Shows that the short check has power: breaks the library in one place at a time, as mutants.py
lists, and expects a test of the short check to fail.

run.py [--junit FILE] [--only NAME...] [--part K/N] [--list]

Works on a copy of the sources in build/mutants/tree, which later runs build on; the logs are beside
it. Prints a line for each mutant. The status is 0 if all were killed.
"""
import argparse
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from typing import Dict, List, NamedTuple, Optional, Set

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
# Tests of the sources' text and of the interface: a defect is to be seen in what the library does.
NOT_ASKED = "^(clang_format|layers|references|mutants|abi)"


class Mutant(NamedTuple):
    """A defect: `old`, which is in `file` once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    step: str  # the step of ./check that kills it
    by: str  # its tests that are tried first: a regular expression, for `python` a -k expression
    needs: str = ""  # a flag of /proc/cpuinfo without which the code does not run


class Step(NamedTuple):
    """How a step is prepared, built and tested, by shell commands in the tree."""

    prepare: str
    build: str
    tests: str  # all of them, up to the first that fails
    first: str  # what chooses those that are tried first: {}


def ctest_step(preset: str, settings: str = "") -> Step:
    return Step(
        "cmake --preset %s %s" % (preset, settings),
        "cmake --build --preset " + preset,
        # A test that hangs has failed.
        "ctest --preset %s -j 2 --stop-on-failure --timeout 120 -E '%s'" % (preset, NOT_ASKED),
        " -R {}",
    )


TEST = ctest_step("test", "-DMEMOPT_BUILD_BENCHMARKS=OFF -DMEMOPT_PROCESSORS=none")
STEPS = {
    "test": TEST,
    "asan": ctest_step("asan"),
    "tsan": ctest_step("tsan"),
    **{  # of a project beside the library
        "%s-%s" % (name, kind): Step(
            "true",
            "extras/build " + name,
            "ctest --test-dir build/extras/%s-%s -j 2 --stop-on-failure --timeout 120 -E '%s'" % (name, kind, NOT_ASKED),
            " -R {}",
        )
        for name in ("tools", "planner")
        for kind in ("plain", "sanitized")
    },
    "python": TEST._replace(
        tests="PART=plain tests/tools/python build/check/python.xml -x -rfE -m 'not long'",
        first=" -k {}",
    ),
}


class Trouble(Exception):
    """What is wrong with the list or the tree, so that a mutant tells nothing."""


# --- the tree ----------------------------------------------------------------------------------


def built_on(root: pathlib.Path) -> Set[str]:
    """All files but what was built."""
    names = set()
    for folder, folders, files in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if name not in ("build", ".git", ".venv")]
        names.update(os.path.relpath(os.path.join(folder, name), root) for name in files)
    return names


def sources(root: pathlib.Path) -> Set[str]:
    """The files of the working tree that git does not ignore; without git all but built ones."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return built_on(root)
    return {name for name in git.stdout.split("\0") if (root / name).is_file()}


def copy_sources(root: pathlib.Path, tree: pathlib.Path) -> None:
    """Makes the tree's sources those of root; a file that is the same keeps its time."""
    names = sources(root)
    for name in names:
        source, target = root / name, tree / name
        content = source.read_bytes()
        if target.is_file() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(source.stat().st_mode)
    for name in built_on(tree) - names:
        (tree / name).unlink()
    if (root / ".venv").exists() and not (tree / ".venv").exists():
        (tree / ".venv").symlink_to(root / ".venv")


# --- one mutant ----------------------------------------------------------------------------------


class Bench:
    """Builds and tests the tree."""

    def __init__(self, tree: pathlib.Path, log: pathlib.Path) -> None:
        self.tree = tree
        self.log = log

    def shell(self, command: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            command, shell=True, cwd=self.tree, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("MEMOPT_TEST_")},
        )  # fmt: skip
        with self.log.open("a") as log:
            log.write("$ %s\n%s\n" % (command, done.stdout))
        return done

    def run(self, command: str, what: str) -> None:
        if self.shell(command).returncode != 0:
            raise Trouble("%s fails: see %s" % (what, self.log))

    def failing(self, step: Step, tests: Optional[str]) -> Optional[str]:
        """The first test of the step, or of `tests` only, that fails; None where all pass."""
        chosen = "" if tests is None else step.first.format(shlex.quote(tests))
        done = self.shell(step.tests + chosen)
        if done.returncode == 0:
            return None
        failed = re.search(
            r"^\s+\d+ - (\S+) \((?!Skipped|Disabled|Not Run)|^(?:FAILED|ERROR) \S+::(\w+)",
            done.stdout,
            re.MULTILINE,
        )
        if failed is None:
            raise Trouble("the tests do not run: see %s" % self.log)
        return failed[1] or failed[2]

    def killer(self, mutant: Mutant) -> Optional[str]:
        """The test that the mutant fails, or None."""
        step, path = STEPS[mutant.step], self.tree / mutant.file
        original = path.read_text()
        path.write_text(mutated(original, mutant))
        try:
            self.run(step.build, "building it")
            first = self.failing(step, mutant.by)
            other = None if first else self.failing(step, None)
        finally:
            path.write_text(original)
        if other is not None:  # not looked at before: is it the mutant that it fails at?
            self.run(step.build, "building without it")
            if self.failing(step, "^%s$" % other if " -R " in step.first else other):
                raise Trouble("%s fails without it too" % other)
        return first or other


def mutated(text: str, mutant: Mutant) -> str:
    count = text.count(mutant.old)
    if count != 1 or mutant.old == mutant.new:
        raise Trouble("its old text is in %s %d times" % (mutant.file, count))
    return text.replace(mutant.old, mutant.new)


def diff(mutant: Mutant) -> str:
    """What the mutant changes."""
    text = (ROOT / mutant.file).read_text()
    lines = text.splitlines(), text.replace(mutant.old, mutant.new).splitlines()
    names = "a/" + mutant.file, "b/" + mutant.file
    return "\n".join(difflib.unified_diff(*lines, *names, lineterm="", n=2))


def lacks(flag: str) -> bool:
    try:
        return bool(flag) and flag not in pathlib.Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return True


# --- all of them -----------------------------------------------------------------------------------


class Verdict(NamedTuple):
    outcome: str  # killed, survived, error, skipped
    text: str
    seconds: float


def prepare(steps: List[str], mutants: List[Mutant], tree: pathlib.Path) -> Dict[str, str]:
    """Builds what the steps need, and sees the first tests pass. What is wrong with which step."""
    wrong = {}
    for name in steps:
        step, bench = STEPS[name], Bench(tree, WORK / ("prepare-%s.log" % name))
        bench.log.write_text("")
        tests = sorted({m.by for m in mutants if m.step == name})
        try:
            bench.run(step.prepare, "configuring")
            bench.run(step.build, "building")
            by = (" or " if name == "python" else "|").join(tests)
            failed = bench.failing(step, by)
            if failed is not None:
                raise Trouble("%s fails without a mutant: see %s" % (failed, bench.log))
        except Trouble as trouble:
            wrong[name] = str(trouble)
    return wrong


def judge(mutant: Mutant, tree: pathlib.Path) -> Verdict:
    start = time.monotonic()
    bench = Bench(tree, WORK / (mutant.name + ".log"))
    bench.log.write_text("")
    if lacks(mutant.needs):
        return Verdict("skipped", "no %s here" % mutant.needs, 0)
    try:
        killer = bench.killer(mutant)
        outcome, text = ("killed", "by " + killer) if killer else ("survived", diff(mutant))
    except (Trouble, OSError) as trouble:
        outcome, text = "error", str(trouble)
    return Verdict(outcome, text, time.monotonic() - start)


def write_junit(path: pathlib.Path, verdicts: Dict[str, Verdict]) -> None:
    suite = ElementTree.Element("testsuite", name="mutants", tests=str(len(verdicts)))
    for name, verdict in verdicts.items():
        case = ElementTree.SubElement(
            suite, "testcase", name=name, classname="mutants", time="%.1f" % verdict.seconds
        )
        if verdict.outcome == "skipped":
            ElementTree.SubElement(case, "skipped", message=verdict.text)
        elif verdict.outcome != "killed":
            failure = ElementTree.SubElement(case, "failure", message=verdict.outcome)
            failure.text = "%s: %s\n%s" % (name, verdict.outcome, verdict.text)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def run(mutants: List[Mutant], junit: Optional[pathlib.Path]) -> int:
    tree = WORK / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    copy_sources(ROOT, tree)
    steps = sorted({m.step for m in mutants})
    print("building %s in %s" % (", ".join(steps), tree), flush=True)
    wrong = prepare(steps, mutants, tree)
    verdicts: Dict[str, Verdict] = {}
    for mutant in mutants:
        verdict = (
            Verdict("error", wrong[mutant.step], 0) if mutant.step in wrong else judge(mutant, tree)
        )
        verdicts[mutant.name] = verdict
        end = "" if verdict.outcome != "survived" else "\n" + verdict.text
        told = verdict.text if not end else ""
        line = "%-28s %-8s %4.0f s  %s" % (mutant.name, verdict.outcome, verdict.seconds, told)
        print(line.rstrip() + end, flush=True)
        if junit is not None:
            write_junit(junit, verdicts)
    outcomes = [verdict.outcome for verdict in verdicts.values()]
    counts = ["%d %s" % (outcomes.count(x), x) for x in ("killed", "survived", "error", "skipped")]
    shown = [counts[0]] + [text for text in counts[1:] if not text.startswith("0 ")]
    print("%d mutants: %s" % (len(outcomes), ", ".join(shown)))
    return 0 if set(outcomes) <= {"killed", "skipped"} and "killed" in outcomes else 1


def chosen(mutants: List[Mutant], only: Optional[List[str]], part: str) -> List[Mutant]:
    """Those named, or the K-th of N parts, which share as few builds as can be."""
    unknown = set(only or []) - {m.name for m in mutants}
    if unknown:
        sys.exit("mutants: there is no %s; --list tells" % ", ".join(sorted(unknown)))
    if not re.fullmatch(r"[1-9]\d*/[1-9]\d*", part):
        sys.exit("mutants: the part is %s; K/N" % part)
    k, n = map(int, part.split("/"))
    if k > n:
        sys.exit("mutants: part %s: there are only %d" % (part, n))
    mutants = sorted(mutants, key=lambda m: list(STEPS).index(m.step))
    mutants = mutants[len(mutants) * (k - 1) // n : len(mutants) * k // n]
    return [m for m in mutants if not only or m.name in only]


def main(arguments: List[str], mutants: List[Mutant]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--junit", metavar="FILE", type=pathlib.Path, help="the verdicts as JUnit")
    parser.add_argument("--only", metavar="NAME", nargs="+", help="only these")
    parser.add_argument("--part", metavar="K/N", default="1/1", help="the K-th of N parts")
    parser.add_argument("--list", action="store_true", help="names the mutants")
    options = parser.parse_args(arguments)
    mutants = chosen(mutants, options.only, options.part)
    if options.list:
        for m in mutants:
            print("%-28s %-8s %s" % (m.name, m.step, m.file))
        return 0
    return run(mutants, options.junit)


if __name__ == "__main__":
    sys.modules["run"] = sys.modules["__main__"]  # for mutants.py
    from mutants import MUTANTS

    sys.exit(main(sys.argv[1:], MUTANTS))
