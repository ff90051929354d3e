import os
import sys

# From the source tree when the package is not found elsewhere (MEMOPT_LIBRARY then names the library).
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from fixtures import *  # noqa: E402, F403
