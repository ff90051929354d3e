import pathlib
import sys

CORE = pathlib.Path(__file__).resolve().parents[4] / "bindings" / "python" / "tests"
sys.path[:0] = [str(CORE), str(CORE / "with_torch")]

from fixtures import *  # noqa: E402, F403
