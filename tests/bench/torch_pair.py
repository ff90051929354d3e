#!/usr/bin/env python3
"""An allocation and its free in PyTorch's own allocator and in ours, in one process.

    MEMOPT_LIBRARY=build/test/libmemopt.so.1 PYTHONPATH=bindings/python \\
        python tests/bench/torch_pair.py [--repetitions 15] [--json FILE]

libc10_cuda (a PyTorch built for CUDA) and this library run on the simulated driver. A loop in C, compiled here
against PyTorch's headers, calls both in turns; the best CPU time of each counts. "pair": the same size again
and again; "N live": N blocks of random sizes, of which each step replaces a random one. Nothing passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python", "tests", "with_torch"))

import torch  # noqa: E402
from simulated import run  # noqa: E402

LOOP = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <memopt/allocator.h>
#include <time.h>

namespace torchs = c10::cuda::CUDACachingAllocator;

using alloc_function = decltype(&memopt_allocator_alloc);
using free_function = decltype(&memopt_allocator_free);

struct Side { // one of the two: torch's if there is no allocator
    memopt_allocator *allocator;
    alloc_function alloc;
    free_function free;
    uint64_t random, count;
    void **live;

    void *take(uint64_t bytes)
    {
        void *pointer = nullptr;
        if (allocator == nullptr)
            pointer = torchs::raw_alloc(bytes);
        else if (alloc(allocator, bytes, MEMOPT_TAG_ACTIVATIONS, nullptr, &pointer) != MEMOPT_OK)
            abort();
        return pointer;
    }
    void give(void *pointer)
    {
        if (allocator == nullptr)
            torchs::raw_delete(pointer);
        else if (free(allocator, pointer) != MEMOPT_OK)
            abort();
    }
};

static uint64_t next_random(uint64_t &state)
{
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t random_size(uint64_t &state)
{
    uint64_t r = next_random(state);
    return ((r >> 8) % 512 + 1) << (r % 11);
}

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

extern "C" void *begin(memopt_allocator *allocator, void *alloc, void *free, uint64_t count)
{
    Side *side = new Side{allocator, (alloc_function)alloc, (free_function)free, 1, count, new void *[count + 1]};
    for (uint64_t i = 0; i < count; i++)
        side->live[i] = side->take(random_size(side->random));
    return side;
}

// Nanoseconds a step.
extern "C" double steps(void *user, uint64_t number)
{
    Side &side = *(Side *)user;
    double start = now();
    for (uint64_t i = 0; i < number; i++) {
        if (side.count == 0) {
            side.give(side.take(4096));
            continue;
        }
        void *&block = side.live[next_random(side.random) % side.count];
        side.give(block);
        block = side.take(random_size(side.random));
    }
    return (now() - start) / number;
}

extern "C" void end(void *user)
{
    Side *side = (Side *)user;
    for (uint64_t i = 0; i < side->count; i++)
        side->give(side->live[i]);
    delete[] side->live;
    delete side;
}
"""

PROGRAM = """
import ctypes, json, memopt
from memopt._library import lib
loop = ctypes.CDLL(%(library)r)
loop.begin.restype = ctypes.c_void_p
loop.begin.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
loop.steps.restype, loop.steps.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_uint64]
loop.end.argtypes = [ctypes.c_void_p]
torch.cuda.init()
calls = [ctypes.cast(f, ctypes.c_void_p) for f in (lib.memopt_allocator_alloc, lib.memopt_allocator_free)]
found = []
for kind in ("False", "True"):
    config = "expandable_segments:" + kind
    torch._C._accelerator_setAllocatorSettings(config)
    for count in (0, 200, 2000, 20000):
        with memopt.Device("cuda") as device:
            allocator = memopt.Allocator(device, config)
            sides = [loop.begin(None, None, None, count), loop.begin(allocator._handle.pointer, *calls, count)]
            best = [float("inf")] * 2
            for _ in range(%(repetitions)d):
                for i, side in enumerate(sides):
                    best[i] = min(best[i], loop.steps(side, 20000))
            for side in sides:
                loop.end(side)
            allocator.close()
        torch.cuda.empty_cache()
        found.append([kind == "True", count, *best])
with open(%(result)r, "w") as file:
    json.dump(found, file)
"""


def compile_loop(folder):
    """The loop as a shared library."""
    source, library = (os.path.join(folder, "loop" + end) for end in (".cc", ".so"))
    with open(source, "w") as file:
        file.write(LOOP)
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    site = os.path.dirname(torch.__file__)
    includes = [os.path.join(site, "include"), os.path.join(ROOT, "include"), os.path.join(cuda, "include")]
    links = ["-L" + os.path.join(site, "lib"), "-lc10_cuda", "-lc10"]
    command = ["g++", "-std=c++20", "-O2", "-fPIC", "-shared", source, *("-I" + i for i in includes), *links]
    subprocess.run([*command, "-o", library], check=True)
    return library


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result")
        names = {"library": compile_loop(folder), "repetitions": arguments.repetitions, "result": result}
        run(PROGRAM % names, torch_too=True, MEMOPT_SIM_FILL="0", MEMOPT_SIM_MEMORY="16G")
        with open(result) as file:
            rows = json.load(file)
    print("| segments | | torch | ours | ratio |\n|---|---|---|---|---|")
    for expandable, count, theirs, ours in rows:
        kind, what = "expandable" if expandable else "classic", "%d live" % count if count else "pair"
        print("| %s | %s | %.0f ns | %.1f ns | %.3f |" % (kind, what, theirs, ours, ours / theirs))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
