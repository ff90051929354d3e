"""The C interface of libmemopt-tools."""

from .monitor import *
from .pluggable import *
from .trace import *
