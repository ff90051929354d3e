import pathlib
import sys

CORE = pathlib.Path(__file__).resolve().parents[4] / "bindings" / "python" / "tests"
sys.path[:0] = [str(CORE), str(CORE / "with_torch")]
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "tools" / "tests" / "python"))

from fixtures import *  # noqa: E402, F403
