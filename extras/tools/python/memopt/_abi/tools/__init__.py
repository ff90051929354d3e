"""The C interface of libmemopt-tools."""

from .monitor import *
from .trace import *
