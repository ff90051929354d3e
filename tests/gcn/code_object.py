"""An AMD code object: its segments, and what llvm-objdump prints of its instructions."""
import shutil
import struct
import subprocess
import sys
import zlib

# By the machine number in the ELF's flags: the name, a wave's lanes, and what semantics.h is told.
TARGETS = {0x36: ("gfx1030", 32, ""), 0x3F: ("gfx90a", 64, "#define GFX9 1")}


class Unknown(Exception):
    pass


class CodeObject:
    """The file's segments at their addresses, and what llvm-objdump prints of it."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        machine = struct.unpack_from("<I", self.bytes, 48)[0] & 0xFF
        if machine not in TARGETS:
            raise Unknown("machine 0x%x" % machine)
        self.target, self.lanes, self.define = TARGETS[machine]
        self.image = self.segments()
        self.text = disassemble(path, self.target)

    def segments(self):
        offset, = struct.unpack_from("<Q", self.bytes, 32)
        size, count = struct.unpack_from("<HH", self.bytes, 54)
        image = bytearray()
        for i in range(count):
            kind, _, at, address, _, held, _, _ = struct.unpack_from(
                "<IIQQQQQQ", self.bytes, offset + i * size)
            if kind == 1:
                image.extend(bytes(max(0, address + held - len(image))))
                image[address:address + held] = self.bytes[at:at + held]
        return bytes(image)

    def digest(self):
        """CRC-32, as module.c computes it of the image that the library loads."""
        return zlib.crc32(self.bytes)


def tools():
    """Every llvm-objdump that knows the targets, the newest first."""
    versions = range(30, 14, -1)
    names = ["llvm-objdump-%d" % v for v in versions] + ["llvm-objdump"]
    names += ["/usr/lib/llvm-%d/bin/llvm-objdump" % v for v in versions]
    names += ["/opt/rocm/llvm/bin/llvm-objdump"]
    return [tool for tool in map(shutil.which, names) if tool and "amdgcn" in subprocess.run(
        [tool, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout]


def disassemble(path, target):
    for tool in tools():
        done = subprocess.run([tool, "-d", "-T", "--mcpu=" + target, str(path)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode == 0 and "s_endpgm" in done.stdout and "<unknown>" not in done.stdout:
            return done.stdout
    print("no llvm-objdump here knows " + target)
    sys.exit(77)
