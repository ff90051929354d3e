"""Runs a recipe, or all of them: `python extras/planner/recipes/run.py NAME|all`."""

import argparse
import pathlib
import runpy
import sys

from recipe.running import run

HERE = pathlib.Path(__file__).resolve().parent
NAMES = sorted(path.parent.name for path in HERE.glob("*/steps.toml"))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=(*NAMES, "all"))
    parser.add_argument("--train", type=int, default=2, metavar="N", help="steps before measuring")
    given = parser.parse_args()
    names = NAMES if given.name == "all" else [given.name]
    extras = {name: runpy.run_path(str(HERE / name / "extras.py"))["extras"] for name in names}
    return int(not all([run(HERE / name, extras[name], given.train) for name in names]))


if __name__ == "__main__":
    sys.exit(main())
