"""TITLE"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from recipe import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(__file__))
