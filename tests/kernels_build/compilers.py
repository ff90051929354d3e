"""Compiles the GPU kernels with the compilers that a build found and reads their reports."""
import pathlib
import re
import struct
import subprocess

# As in cmake/MemoptGpu.cmake.
NVCC_FLAGS = ["-x", "cu", "--std=c++17", "-O3", "--fmad=false", "--prec-div=true", "--prec-sqrt=true",
              "--ftz=false", "--diag-suppress=177"]
CLANG_PTX_FLAGS = ["-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib",
                   "--cuda-gpu-arch=sm_75", "--cuda-feature=+ptx63", "-std=c++17", "-O3",
                   "-ffp-contract=off", "-Wno-unknown-cuda-version"]
HIP_FLAGS = ["-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc",
             "-mcode-object-version=4", "-std=c++17", "-O3", "-ffp-contract=off"]

ROOT = pathlib.Path(__file__).resolve().parents[2]


def kernel_names():
    """The names in the tables of the CPU forms, and those made of steps.def: each must have its GPU form."""
    names = set()
    for path in (ROOT / "kernels").glob("*/*_kernels.c"):
        text = path.read_text()
        names |= set(re.findall(r'"(mo_\w*[a-z0-9])"', text))
        for prefix in re.findall(r'"(mo_\w*_)" #', text):
            names |= {prefix + word for word in re.findall(r"^KERNEL\((\w+),", text, re.MULTILINE)}
    steps = (ROOT / "kernels/optim/steps.def").read_text()
    names |= {"mo_step_" + kernel for kernel in re.findall(r"X\((\w+), [A-Z_]+, \w+\)", steps)}
    for suffix in re.findall(r"X\((c?\d), \w+\)", steps):
        names |= {"mo_quantize" + suffix, "mo_dequantize" + suffix}
    return names


class Failure(Exception):
    """A compiler said no, or its report is not as it must be."""


def run(*command):
    """Both outputs of a command; Failure where it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def loose_arithmetic(ptx):
    """What may have other bits elsewhere: sums and products without a rounding, which ptxas may contract; quotients that
    are not exact; and what flushes subnormals (.ftz). The approximations of adamw_gpu.h and mo_reciprocal() flush, too,
    but have no subnormal operand or result that matters:
    - rcp of (sqrt(v) + eps) * 2^-64 and of sqrt(v) + eps, v up to 2^40 and eps from 2^-37 to 2^20: from 2^-101 to 2^21;
      of a block's scale, from 2^-100 to 2^100 where it is used, or of an e4m3 number;
    - sqrt of v up to 2^40. A subnormal v counts as 0: its root, below 2^-63, is lost beside eps;
    - rsqrt of 2^64 v + 2^-126: from 2^-126, the least normal number, to 2^104."""
    rest = re.sub(r"\b(rcp|sqrt|rsqrt)\.approx\.ftz\.f32\b", "", ptx)
    return re.findall(r"\b(?:add|sub|mul|fma)(?:\.ftz)?\.f(?:32|64)\b|[\w.]+\.ftz\b[\w.]*|[\w.]+\.approx\b[\w.]*|"
                      r"\bdiv\.full\b", rest)


def ptxas_kernels(report):
    """{kernel: {stack, spill, shared}} of a report of ptxas -v."""
    kernels, name = {}, None
    for line in report.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name = found[1]
            kernels[name] = {"shared": 0}
        elif found := re.search(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if name:
                kernels[name]["stack"] = int(found[1])
                kernels[name]["spill"] = int(found[2]) + int(found[3])
        elif name and (found := re.search(r"Used \d+ registers.* (\d+) bytes smem", line)):
            kernels[name]["shared"] = int(found[1])
    return kernels


def nvcc_kernels(nvcc, source, arch, folder):
    """The report of nvcc for one architecture (80, 90, ...)."""
    return ptxas_kernels(run(nvcc, *NVCC_FLAGS, "--cubin", "-Xptxas", "-v", f"-arch=sm_{arch}", source,
                             "-o", pathlib.Path(folder) / f"kernels.sm_{arch}.cubin"))


def assemble_kernels(ptxas, ptx, arch, folder):
    """The report of ptxas for a PTX text."""
    return ptxas_kernels(run(ptxas, "-v", f"-arch=sm_{arch}", ptx, "-o",
                             pathlib.Path(folder) / f"ptx.sm_{arch}.cubin"))


def hip_kernels(compiler, source, target, folder):
    """{kernel: {stack, spill, shared}} from the metadata of the assembly."""
    out = pathlib.Path(folder) / f"kernels.{target}.s"
    run(compiler, *HIP_FLAGS, f"--offload-arch={target}", "-S", source, "-o", out)
    kernels = {}
    metadata = out.read_text().split("amdhsa.kernels:", 1)[1].split("amdhsa.target:", 1)[0]
    for entry in metadata.split("\n  - ")[1:]:
        field = dict(re.findall(r"^    \.(\w+): +(\S+)$", entry, re.M))
        kernels[field["name"]] = {
            "stack": int(field["private_segment_fixed_size"]),
            "spill": int(field["vgpr_spill_count"]) + int(field["sgpr_spill_count"]),
            "shared": int(field["group_segment_fixed_size"]),
        }
    return kernels


def fatbin_targets(path):
    """('ptx' or 'elf', 75) of every entry of a fatbin."""
    data = pathlib.Path(path).read_bytes()
    magic, _, header, size = struct.unpack_from("<IHHQ", data)
    if magic != 0xBA55ED50:
        raise Failure(f"{path}: not a fatbin")
    targets, at = [], header
    while at < header + size:
        kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, at)
        arch, = struct.unpack_from("<I", data, at + 28)
        targets.append(({1: "ptx", 2: "elf"}[kind], arch))
        at += entry_header + entry_size
    return targets


def code_object_target(path):
    """The target that a code object's metadata names, as gfx90a or gfx10-3-generic."""
    found = re.search(rb"amdgcn-amd-amdhsa--(gfx[0-9a-f]+(-[0-9-]*generic)?)", pathlib.Path(path).read_bytes())
    if not found:
        raise Failure(f"{path}: names no target")
    return found[1].decode()


def code_object_numbers(path, key):
    """What the metadata of a code object (MessagePack) says under `key`, for each kernel."""
    data, numbers = pathlib.Path(path).read_bytes(), []
    for found in re.finditer(re.escape(key.encode()), data):
        at = found.end()
        wide = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(data[at], 0)
        numbers.append(int.from_bytes(data[at + 1:at + 1 + wide], "big") if wide else data[at])
    return numbers
