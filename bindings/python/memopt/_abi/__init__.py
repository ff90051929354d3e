"""The C interface of libmemopt as ctypes sees it, a module for each public header.

A test compiles a C program against the headers and compares every size, offset, enumerator and
parameter list with what is written here, so a change of the headers cannot pass unnoticed.
"""

from .allocator import *
from .base import *
from .cast import *
from .checkpoint import *
from .device import *
from .fit import *
from .loss import *
from .offload import *
from .optim import *
from .pluggable import *
from .race import *
from .share import *
from .stream import *
from .words import *
