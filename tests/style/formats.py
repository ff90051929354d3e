#!/usr/bin/env python3
"""A new format of states touches few files: those of the library that name the one added last are those that
CONTRIBUTING.md lists, and they are at most eight."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAST = re.compile(r"COMPANDED4|companded4|STATE_4BIT|(adamw|quantize)c4\b")  # its constants, word and kernels
FOLDERS = ("cmake", "include", "kernels", "lib")
MOST = 8


def naming(root, pattern):
    """The files that name it."""
    files = (path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in files if pattern.search(path.read_text())}


def listed(text):
    """The files of the list in CONTRIBUTING.md."""
    section = text.split("## A new format of states", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\d\. `([^`]+)`", section, re.M))


def main():
    found, wanted = naming(ROOT, LAST), listed((ROOT / "CONTRIBUTING.md").read_text())
    here = {name for name in wanted if name.split("/")[0] in FOLDERS}
    for name in sorted(found - here):
        print("%s names the format, but is not in CONTRIBUTING.md's list" % name)
    for name in sorted(here - found):
        print("%s is in CONTRIBUTING.md's list, but does not name the format" % name)
    if len(wanted) > MOST:
        print("the list has %d files; at most %d are allowed" % (len(wanted), MOST))
    return 0 if found == here and len(wanted) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
