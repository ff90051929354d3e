"""Adds up JUnit files.

results.py --failed FILE   names the failed tests of one file; status 1 where it has none
results.py --total FOLDER...  "N passed, N failed, N skipped" over FOLDER/*.xml; every FOLDER/*.broken
                           is a step that failed without results, and counts as one failure
"""
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def cases(path):
    """Yields (name, outcome, text) of each test case; CTest's and pytest's dialects."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        bad = [x for x in case if x.tag in ("failure", "error")]
        skipped = [x for x in case if x.tag == "skipped"]
        status = case.get("status")
        if bad or status == "fail":
            outcome = "failed"
        elif skipped or status in ("notrun", "disabled"):
            outcome = "skipped"
        else:
            outcome = "passed"
        out = case.find("system-out")
        said = (out.text if out is not None else "") or ""
        reason = "".join((x.text or x.get("message") or "") for x in bad)
        if outcome == "skipped" and not said:
            reason = "".join(x.get("message") or "" for x in skipped)
        yield case.get("name"), outcome, reason + said


def show_case(name, text, lines):
    print(f"  {name}")
    for line in text.strip().splitlines()[-lines:]:
        print(f"    {line}")


def show_failed(path):
    try:
        failed = [(name, text) for name, outcome, text in cases(path) if outcome == "failed"]
    except (OSError, ElementTree.ParseError):
        failed = []
    for name, text in failed:
        show_case(name, text, 25)
    return 0 if failed else 1


def show_skipped(step, skipped):
    """One line a reason; the names too where they are few."""
    for reason, names in skipped.items():
        if len(names) <= 3:
            for name in names:
                print(f"skipped    {step}: {name} {reason}".rstrip())
        else:
            print(f"skipped    {step}: {len(names)} tests: {reason or 'no reason given'}")


def show_total(folders):
    """Skips first, failures last with their ends: the tail of a log is what is kept of it."""
    count = {"passed": 0, "failed": 0, "skipped": 0}
    failed = []
    for path in sorted(path for folder in folders for path in folder.glob("*.xml")):
        skipped = {}
        try:
            for name, outcome, text in cases(path):
                count[outcome] += 1
                if outcome == "failed":
                    failed.append((f"{path.stem}: {name}", text))
                if outcome == "skipped":
                    lines = [x.strip() for x in text.strip().splitlines() if x.strip()]
                    skipped.setdefault(lines[-1] if lines else "", []).append(name)
        except ElementTree.ParseError:
            count["failed"] += 1
            failed.append((path.name, "is no JUnit file"))
        show_skipped(path.stem, skipped)
    for path in sorted(path for folder in folders for path in folder.glob("*.broken")):
        count["failed"] += 1
        failed.append((path.stem, f"left no results: see {path.with_suffix('.log')}"))
    for name, text in failed:
        print("failed", end="   ")
        show_case(name, text, 12)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**count))
    return 0 if count["failed"] == 0 and count["passed"] > 0 else 1


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("--failed", "--total"):
        sys.exit(__doc__)
    places = [pathlib.Path(word) for word in sys.argv[2:]]
    sys.exit(show_failed(places[0]) if sys.argv[1] == "--failed" else show_total(places))
