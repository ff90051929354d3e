"""366M parameters on a T4 of 15 GB, scaled down: what each setting of the guide saves."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from recipe import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(__file__))
