"""Checks that every excerpt of a guide page is in the source file that it names.

Usage: test_gpt_excerpts.py ROOT PAGE
"""

import pathlib
import re
import sys


def main() -> int:
    root, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
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
    print(f"{len(blocks)} excerpts")
    return failed


if __name__ == "__main__":
    sys.exit(main())
