"""Programs on the simulated CUDA driver, each in a process of its own: without torch, or with a real
torch whose calls of the CUDA runtime go to that driver (tests/sim/cudart_shim.c)."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import textwrap
from typing import List

import pytest
import torch

import memopt
import memopt.torch as mt

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(memopt.__file__)))
SIMULATORS = os.path.join(os.path.dirname(os.path.abspath(memopt.library_path)), "tests", "sim")
DRIVER = os.path.join(SIMULATORS, "lib", "libcuda.so.1")
SHIM = os.path.join(SIMULATORS, "torch", "libcudart_shim.so")

COMMON = """
import ctypes, gc, warnings
import memopt
from memopt._abi import PluggableRaise
from memopt._library import lib
driver = ctypes.CDLL("libcuda.so.1")
driver.memopt_sim_used.restype = ctypes.c_uint64
MIB = 1 << 20

def check(code):
    assert code == 0, code

def empty(nbytes, device="cuda"):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)

def raises(kind, text, function, *arguments, **names):
    try:
        function(*arguments, **names)
    except kind as error:
        assert text in str(error), error
        return str(error)
    raise AssertionError("%s was not raised" % kind)

def new_context(device=0):
    context = ctypes.c_void_p()
    check(driver.cuInit(0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(driver.cuCtxPushCurrent_v2(context))

def new_stream():
    stream = ctypes.c_void_p()
    check(driver.cuStreamCreate(ctypes.byref(stream), 1))
    return stream.value

def begin_capture(stream):
    check(driver.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 2))

def end_capture(stream):
    graph = ctypes.c_void_p()
    check(driver.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)))

def stat(name, device=0, index=0):
    out, value = ctypes.c_void_p(), ctypes.c_uint64()
    lib.memopt_pluggable_get_allocator(device, index, ctypes.byref(out))
    lib.memopt_allocator_get_stat(out, name.encode(), ctypes.byref(value))
    return value.value
"""


#: Imports torch once and runs each program in a child, since a process has one allocator. A child
#: ends through exit(), where the simulator tells what it found wrong.
SERVER = """
import ctypes, json, os, sys, tempfile, traceback
import torch
import memopt.torch as mt

for line in sys.stdin:
    request = json.loads(line)
    output = tempfile.TemporaryFile()
    child = os.fork()
    if child == 0:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.environ.update(request["environment"])
        code = 0
        try:
            exec(compile(request["program"], "<string>", "exec"), {"torch": torch, "mt": mt})
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    output.seek(0)
    print(json.dumps([code, output.read().decode("utf-8", "replace")]), flush=True)
"""

_servers: List["subprocess.Popen[str]"] = []


def variables(**more):
    """The environment of a program on the simulated driver."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES", *mt.allocator.ENVIRONMENT)
    }
    return dict(
        kept,
        LD_LIBRARY_PATH=os.pathsep.join(map(os.path.dirname, (DRIVER, SHIM))),
        PYTHONPATH=PACKAGE,
        MEMOPT_LIBRARY=memopt.library_path,
        MEMOPT_LOG="off",
        MEMOPT_SIM_DEVICES="2",
        MEMOPT_SIM_MEMORY="256M",
        **more,
    )


def run(program, torch_too=False, **environment):
    """Runs a program on the simulated driver; what it printed."""
    if not os.path.exists(DRIVER) or (torch_too and not os.path.exists(SHIM)):
        pytest.skip("the simulated driver is not built")
    if torch_too and torch.version.cuda is None:
        pytest.skip("this torch is not built for CUDA")
    source = COMMON + textwrap.dedent(program)
    ask = _ask if torch_too else _start
    code, output = ask(source, environment)
    assert code == 0, output
    return output


def _start(source, environment):
    result = subprocess.run(
        [sys.executable, "-c", source], env=variables(**environment), capture_output=True, text=True, timeout=100
    )
    return result.returncode, result.stdout + result.stderr


def _ask(source, environment):
    if not _servers:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env=variables(LD_PRELOAD=os.path.basename(SHIM)),  # a path could have a blank in it
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        _servers.append(server)
        atexit.register(server.kill)
    server = _servers[0]
    server.stdin.write(json.dumps({"program": source, "environment": environment}) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())
