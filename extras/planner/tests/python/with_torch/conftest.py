from torch_fixtures import *  # noqa: F403
