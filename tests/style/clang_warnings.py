"""Checks the library's C files with clang's warnings: gcc's of the same names differ.

    clang_warnings.py COMPILE_COMMANDS ROOT WARNING...

Status: 0 none, 1 some, 77 there is no clang.
"""
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys


def check(entry):
    """The warnings of one file, under the flags of its own compilation."""
    words = shlex.split(entry["command"])
    kept = [word for word in words if re.match(r"-(I|D|std=|m(?!tune))", word)]
    done = subprocess.run(["clang", "-fsyntax-only", *kept, *sys.argv[3:], entry["file"]],
                          text=True, capture_output=True)
    return done.stderr


def main():
    if shutil.which("clang") is None:
        print("there is no clang")
        return 77
    with open(sys.argv[1]) as file:
        entries = {e["file"]: e for e in json.load(file)
                   if re.match(r"%s/(lib|kernels)/.*\.c$" % re.escape(sys.argv[2]), e["file"])}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        told = "".join(pool.map(check, entries.values()))
    print(told + "%d files" % len(entries))
    return 1 if told or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
