"""Runs a recipe: `python examples/recipes/run.py NAME [--json FILE]`, or all of them by `all`."""

import pathlib
import runpy
import sys

HERE = pathlib.Path(__file__).resolve().parent
NAMES = sorted(path.parent.name for path in HERE.glob("*/steps.toml"))


def run(name: str) -> int:
    """The exit code of one recipe."""
    sys.argv[0] = str(HERE / name / "run.py")
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> int:
    """The command."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in (*NAMES, "all"):
        print("which recipe? %s, or all" % ", ".join(NAMES), file=sys.stderr)
        return 2
    del sys.argv[1]
    return max([run(each) for each in (NAMES if name == "all" else [name])])


if __name__ == "__main__":
    sys.exit(main())
