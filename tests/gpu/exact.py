"""Tries the f32 reciprocal, root and quotient of the optimizers' loops on a card: exact.cu.

    exact.py PROGRAM [--device cuda:N] [--small]

PROGRAM is exact.cu as nvcc's PTX. Every fp32 number for one operand; for quotients every significand of the divisor with
64 of the dividend, and 1,024 of each with all exponents. --small: one operand of 4,096. Status: 0 all are correctly
rounded, 1 some are not, 77 there is no CUDA device or no program.
"""
import argparse
import ctypes
import pathlib
import sys

BLOCK = 256 * 256  # operands of a block of threads
#: Words, what exact.cu calls it, operands as a power of two, bits of the divisor's significand and of the dividend's.
TRIED = [("reciprocal", 0, 32, 0, 0), ("root", 1, 32, 0, 0),
         ("quotient, every divisor", 2, 29, 23, 6),
         ("quotient, all exponents", 2, 33, 10, 10)]


class Arguments(ctypes.Structure):
    _fields_ = [("wrong", ctypes.c_uint64), ("stride", ctypes.c_uint64), ("what", ctypes.c_uint32),
                ("divisor_bits", ctypes.c_uint32), ("other_bits", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


class Absent(Exception):
    """What this machine lacks."""


class Card:
    def __init__(self, number, program):
        try:
            self.driver = ctypes.CDLL("libcuda.so.1")
            self.text = program.read_bytes() + b"\0"
        except OSError as problem:
            raise Absent(problem) from problem
        if self.driver.cuInit(0) != 0:
            raise Absent("the driver finds no card")
        device, context, self.module, self.wrong = (ctypes.c_int(), *(ctypes.c_void_p() for _ in range(3)))
        self.call("cuDeviceGet", ctypes.byref(device), number)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(self.module), self.text)
        self.call("cuMemAlloc_v2", ctypes.byref(self.wrong), ctypes.c_size_t(512))

    def call(self, name, *arguments):
        code = self.driver[name](*arguments)
        if code == 222:  # this driver is older than the program
            raise Absent("the driver takes no such PTX")
        if code != 0:
            raise SystemExit("%s: %d" % (name, code))

    def wrong_of(self, what, count, stride, divisor, other):
        """The bits of an operand whose result is wrong, or 0."""
        function, found, first = ctypes.c_void_p(), ctypes.c_uint32(), ctypes.c_uint64()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, b"mo_exact")
        self.call("cuMemsetD8Async", self.wrong, ctypes.c_ubyte(0), ctypes.c_size_t(4), None)
        arguments = Arguments(self.wrong.value, stride, what, divisor, other)
        parameters = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(x), ctypes.c_void_p) for x in (arguments, first)))
        self.call("cuLaunchKernel", function, count // BLOCK, 1, 1, 256, 1, 1, 0, None, parameters, None)
        host = ctypes.c_uint64(ctypes.addressof(found))
        self.call("cuMemcpyAsync", host, self.wrong, ctypes.c_size_t(4), None)
        self.call("cuStreamSynchronize", None)
        return found.value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    kind, _, number = options.device.partition(":")
    try:
        if kind != "cuda":
            raise Absent("HIP's forms need no card: they allow for every approximation")
        card = Card(int(number), options.program)
        stride, bad = 4093 if options.small else 1, 0
        for words, what, power, divisor, other in TRIED:
            count = -(-2**power // stride // BLOCK) * BLOCK
            wrong = card.wrong_of(what, count, stride, divisor, other)
            bad += wrong != 0
            print("%s: %s of %d" % (words, "wrong for 0x%08x" % wrong if wrong else "all right", count), flush=True)
    except Absent as problem:
        print(problem)
        return 77
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
