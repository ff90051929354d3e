"""Checks that every excerpt of guide pages is in the source file that it names.

Usage: test_gpt_excerpts.py ROOT PAGE...
"""

import pathlib
import re
import sys


def check(root: pathlib.Path, page: pathlib.Path) -> int:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^`([^`\n]+)`\n```c\n(.*?)^```$", text, re.M | re.S)
    failed = 0
    if len(blocks) != text.count("```c\n") or not blocks:
        print(f"{page}: a block of C without the name of its file in front of it")
        failed = 1
    for name, block in blocks:
        if block not in (root / name).read_text(encoding="utf-8"):
            print(f"{page}: not in {name}:\n{block}")
            failed = 1
    print(f"{len(blocks)} excerpts of {page.name}")
    return failed


def main() -> int:
    root, *pages = map(pathlib.Path, sys.argv[1:])
    return max(check(root, page) for page in pages)


if __name__ == "__main__":
    sys.exit(main())
