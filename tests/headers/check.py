"""Compares what the library declares of the vendors' interfaces with the vendors' own headers.

    check.py cuda|hip [--include FOLDER]...

The library's tables are read from its sources and compiled next to the header: numbers must be equal,
structs must have equal sizes and offsets, and every argument and result must be passed alike (same
size, same kind, and pointers to things of the same size). Codes that a header describes as the end of
the context must be fatal here. What a header is too old for is listed.
Status: 0 all alike, 1 not, 77 the header is not on this machine.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = ROOT / "lib" / "device" / "gpu"

COMPARE = """
#include <cstddef>
#include <cstdint>
#include <type_traits>
template <class T, class = void> struct size_of { static constexpr size_t value = 0; };
template <class T> struct size_of<T, std::void_t<decltype(sizeof(T))>> {
    static constexpr size_t value = sizeof(T);
};
template <class A, class B> constexpr bool alike() {
    if (std::is_floating_point_v<A> != std::is_floating_point_v<B>) return false;
    if constexpr (std::is_void_v<A> || std::is_void_v<B>) return std::is_same_v<A, B>;
    else if (sizeof(A) != sizeof(B)) return false;
    if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
        typedef std::remove_cv_t<std::remove_pointer_t<A>> a;
        typedef std::remove_cv_t<std::remove_pointer_t<B>> b;
        if constexpr (!std::is_void_v<a> && !std::is_void_v<b> && !std::is_function_v<a> &&
                      !std::is_function_v<b>)
            return size_of<a>::value == 0 || size_of<b>::value == 0 ||
                   size_of<a>::value == size_of<b>::value ||
                   /* Room for what later versions add: the members are compared by themselves. */
                   (std::is_class_v<a> && size_of<a>::value > size_of<b>::value);
    }
    return true;
}
template <class A, class B> struct same_call : std::false_type {};
template <class R, class S, class... P, class... Q>
struct same_call<R (*)(P...), S (*)(Q...)> {
    static constexpr bool count = sizeof...(P) == sizeof...(Q);
    template <bool c, class = void> struct each { static constexpr bool value = false; };
    template <class d> struct each<true, d> {
        static constexpr bool value = alike<R, S>() && (... && alike<P, Q>());
    };
    static constexpr bool value = each<count>::value;
};
"""


class Judge(NamedTuple):
    header: str
    before: str  # in front of the header
    sources: list
    tables: list  # of entry points
    numbers: dict  # ours: theirs
    structs: dict  # ours: (theirs, {our member: their member})
    more: str = ""


def text_of(path):
    return path.read_text()


def macro(source, name):
    """The rows of an X-macro: lists of their fields."""
    body = re.search(r"#define %s\(X\)(.*?[^\\])\n" % name, source, re.S)[1].replace("\\\n", " ")
    rows, depth, start = [], 0, 0
    for i, c in enumerate(body):
        if c == "(":
            depth += 1
            start = i + 1 if depth == 1 else start
        elif c == ")":
            depth -= 1
            if depth == 0:
                rows.append(fields(body[start:i]))
    return rows


def fields(row):
    parts, depth, last = [], 0, 0
    for i, c in enumerate(row + ","):
        depth += {"(": 1, ")": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append(" ".join(row[last:i].split()))
            last = i + 1
    return parts


def numbers_of(sources):
    """Every enumerator with a number."""
    code = re.sub(r"/\*.*?\*/", "", "\n".join(sources), flags=re.S)
    found = {}
    for body in re.findall(r"enum\s*\w*\s*\{([^}]*)\}", code):
        found.update((n, int(v, 0)) for n, v in re.findall(r"(\w+)\s*=\s*(-?\w+)", body)
                     if re.fullmatch(r"-?(0x)?[0-9A-Fa-f]+", v))
    return found


def struct_of(sources, name):
    return next(m[0] for s in sources
                for m in [re.search(r"typedef struct %s \{.*?\} %s;" % (name, name), s, re.S)] if m)


def calls_of(judge, sources):
    """(name, result, parameters) of each entry point that the library looks up."""
    joined = "\n".join(sources)
    for table, symbol, result in judge.tables:
        for row in macro(joined, table):
            name = symbol(row)
            if name is not None:
                typed = result is not None
                yield name, row[1] if typed else "int", row[2] if typed else row[1]


def unknown_ends(judge, commented):
    """Status codes that the header describes as the end of the context, and error.c does not."""
    if GPU / "driver_calls.h" not in judge.sources:
        return []
    ours = numbers_of([text_of(GPU / "driver_calls.h")])
    ends = {ours[name] for name in re.findall(r"case (MO_GPU_\w+):", re.search(
        r"int mo_gpu_code_is_fatal\(.*?return 1", text_of(GPU / "error.c"), re.S)[0])}
    told = re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*(\w+)\s*=\s*(\d+)\b", commented, re.S)
    return [name for text, name, number in told if int(number) not in ends and
            re.search(r"must be terminated|cannot be used anymore", " ".join(
                text.replace("*", " ").split()))]


def program(judge, header_text, commented):
    sources = [text_of(path) for path in judge.sources]
    ours = numbers_of(sources)
    lines, absent = [COMPARE, judge.before, "#include <%s>" % judge.header,
                     "#define _Static_assert static_assert",
                     '#include "device/gpu/driver_calls.h"', judge.more], []
    lines.append("namespace ours {")  # some names are theirs too
    for name in judge.structs:
        if name not in ("mo_gpu_allocation", "mo_gpu_access"):
            lines.append(struct_of(sources, name))
    lines += re.findall(r"typedef void \*\w+;", "\n".join(sources))
    known = lambda name: re.search(r"\b%s\b" % name, header_text) is not None
    for name in unknown_ends(judge, commented):
        lines.append('static_assert(false, "%s ends the context");' % name)
    for name, theirs in judge.numbers.items():
        if not known(theirs):
            absent.append(theirs)
            continue
        lines.append('static_assert(%d == (long long)%s, "%s");' % (ours[name], theirs, name))
    for name, (theirs, members) in judge.structs.items():
        if not known(theirs):
            absent.append(theirs)
            continue
        for mine, other in members.items():
            if mine == "":
                lines.append('static_assert(sizeof(%s) %s sizeof(%s), "size of %s");' % (
                    name, other, theirs, name))
            else:
                lines.append('static_assert(offsetof(%s, %s) == offsetof(%s, %s), "%s.%s");' % (
                    name, mine, theirs, other, name, mine))
    for name, result, parameters in calls_of(judge, sources):
        if not known(name):
            absent.append(name)
            continue
        if name in OVERLOADED:  # C++ templates of the same name stand beside it
            lines.append("static auto check_%s = static_cast<hipError_t (*)%s>(&%s);" % (
                name, parameters, name))
        else:
            lines.append('static_assert(same_call<%s (*)%s, decltype(&%s)>::value, "%s");' % (
                result, parameters, name, name))
    return "\n".join([*lines, "}", ""]), absent


def status(names, prefix):
    return {"MO_GPU_" + ours: prefix + theirs for ours, theirs in names.items()}


STATUS = {
    "SUCCESS": "SUCCESS", "INVALID_VALUE": "ERROR_INVALID_VALUE",
    "OUT_OF_MEMORY": "ERROR_OUT_OF_MEMORY", "NOT_INITIALIZED": "ERROR_NOT_INITIALIZED",
    "DEINITIALIZED": "ERROR_DEINITIALIZED", "STUB_LIBRARY": "ERROR_STUB_LIBRARY",
    "NO_DEVICE": "ERROR_NO_DEVICE", "INVALID_DEVICE": "ERROR_INVALID_DEVICE",
    "INVALID_IMAGE": "ERROR_INVALID_IMAGE", "INVALID_CONTEXT": "ERROR_INVALID_CONTEXT",
    "NO_BINARY": "ERROR_NO_BINARY_FOR_GPU", "ECC_UNCORRECTABLE": "ERROR_ECC_UNCORRECTABLE",
    "INVALID_PTX": "ERROR_INVALID_PTX", "NVLINK_UNCORRECTABLE": "ERROR_NVLINK_UNCORRECTABLE",
    "NO_PTX_COMPILER": "ERROR_JIT_COMPILER_NOT_FOUND",
    "UNSUPPORTED_PTX": "ERROR_UNSUPPORTED_PTX_VERSION",
    "PTX_COMPILER_OFF": "ERROR_JIT_COMPILATION_DISABLED", "CONTAINED": "ERROR_CONTAINED",
    "INVALID_HANDLE": "ERROR_INVALID_HANDLE", "NOT_FOUND": "ERROR_NOT_FOUND",
    "NOT_READY": "ERROR_NOT_READY", "ILLEGAL_ADDRESS": "ERROR_ILLEGAL_ADDRESS",
    "LAUNCH_TIMEOUT": "ERROR_LAUNCH_TIMEOUT", "CONTEXT_DESTROYED": "ERROR_CONTEXT_IS_DESTROYED",
    "ASSERT": "ERROR_ASSERT",
    "ALREADY_REGISTERED": "ERROR_HOST_MEMORY_ALREADY_REGISTERED",
    "NOT_REGISTERED": "ERROR_HOST_MEMORY_NOT_REGISTERED",
    "HARDWARE_STACK": "ERROR_HARDWARE_STACK_ERROR",
    "ILLEGAL_INSTRUCTION": "ERROR_ILLEGAL_INSTRUCTION",
    "MISALIGNED_ADDRESS": "ERROR_MISALIGNED_ADDRESS",
    "INVALID_ADDRESS_SPACE": "ERROR_INVALID_ADDRESS_SPACE", "INVALID_PC": "ERROR_INVALID_PC",
    "LAUNCH_FAILED": "ERROR_LAUNCH_FAILED", "NOT_PERMITTED": "ERROR_NOT_PERMITTED",
    "NOT_SUPPORTED": "ERROR_NOT_SUPPORTED",
    "DRIVER_MISMATCH": "ERROR_SYSTEM_DRIVER_MISMATCH",
    "COMPAT_NOT_SUPPORTED": "ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    "TENSOR_MEMORY_LEAK": "ERROR_TENSOR_MEMORY_LEAK",
    "MPS_CLIENT_TERMINATED": "ERROR_MPS_CLIENT_TERMINATED",
    "EXTERNAL_DEVICE": "ERROR_EXTERNAL_DEVICE",
    "CAPTURE_IMPLICIT": "ERROR_STREAM_CAPTURE_IMPLICIT",
}
HIP_STATUS = {
    "SUCCESS": "Success", "INVALID_VALUE": "ErrorInvalidValue", "OUT_OF_MEMORY": "ErrorOutOfMemory",
    "NOT_INITIALIZED": "ErrorNotInitialized", "DEINITIALIZED": "ErrorDeinitialized",
    "INVALID_POINTER": "ErrorInvalidDevicePointer", "OLD_DRIVER": "ErrorInsufficientDriver",
    "NO_DEVICE": "ErrorNoDevice", "INVALID_DEVICE": "ErrorInvalidDevice",
    "INVALID_IMAGE": "ErrorInvalidImage", "INVALID_CONTEXT": "ErrorInvalidContext",
    "NO_BINARY": "ErrorNoBinaryForGpu", "ECC_UNCORRECTABLE": "ErrorECCNotCorrectable",
    "INVALID_HANDLE": "ErrorInvalidHandle", "NOT_FOUND": "ErrorNotFound",
    "NOT_READY": "ErrorNotReady", "ILLEGAL_ADDRESS": "ErrorIllegalAddress",
    "LAUNCH_TIMEOUT": "ErrorLaunchTimeOut", "CONTEXT_DESTROYED": "ErrorContextIsDestroyed",
    "ASSERT": "ErrorAssert", "ALREADY_REGISTERED": "ErrorHostMemoryAlreadyRegistered",
    "NOT_REGISTERED": "ErrorHostMemoryNotRegistered", "LAUNCH_FAILED": "ErrorLaunchFailure",
    "NOT_SUPPORTED": "ErrorNotSupported", "CAPTURE_IMPLICIT": "ErrorStreamCaptureImplicit",
}
OVERLOADED = ("hipMalloc", "hipHostMalloc")
ALLOCATION = {"": "==", "type": "type", "handle_types": "requestedHandleTypes",
              "location": "location"}
ACCESS = {"": "==", "location": "location", "flags": "flags"}

JUDGES = {
    "cuda": Judge(
        "cuda.h", "", [GPU / "driver_calls.h", GPU / "cuda.c"],
        [("MO_GPU_CALLS", lambda row: row[4], None), ("CUDA_CALLS", lambda row: row[4], None)],
        {**status(STATUS, "CUDA_"),
         "MO_GPU_STREAM_NON_BLOCKING": "CU_STREAM_NON_BLOCKING",
         "MO_GPU_EVENT_DISABLE_TIMING": "CU_EVENT_DISABLE_TIMING",
         "MO_GPU_HOST_PORTABLE": "CU_MEMHOSTALLOC_PORTABLE",
         "MO_GPU_CAPTURE_NONE": "CU_STREAM_CAPTURE_STATUS_NONE",
         "MO_GPU_CAPTURE_MODE_RELAXED": "CU_STREAM_CAPTURE_MODE_RELAXED",
         "MO_GPU_ALLOCATION_PINNED": "CU_MEM_ALLOCATION_TYPE_PINNED",
         "MO_GPU_LOCATION_DEVICE": "CU_MEM_LOCATION_TYPE_DEVICE",
         "MO_GPU_ACCESS_READ_WRITE": "CU_MEM_ACCESS_FLAGS_PROT_READWRITE",
         "MO_GPU_GRANULARITY_MINIMUM": "CU_MEM_ALLOC_GRANULARITY_MINIMUM",
         "ATTRIBUTE_WARP_SIZE": "CU_DEVICE_ATTRIBUTE_WARP_SIZE",
         "ATTRIBUTE_MULTIPROCESSORS": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
         "ATTRIBUTE_MAJOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
         "ATTRIBUTE_MINOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
         "ATTRIBUTE_PAGEABLE_ACCESS": "CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS",
         "ATTRIBUTE_VIRTUAL_MEMORY":
             "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
         "ATTRIBUTE_RDMA_VIRTUAL_MEMORY":
             "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
         "POINTER_MEMORY_TYPE": "CU_POINTER_ATTRIBUTE_MEMORY_TYPE",
         "POINTER_IS_MANAGED": "CU_POINTER_ATTRIBUTE_IS_MANAGED",
         "POINTER_DEVICE": "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL",
         "MEMORY_DEVICE": "CU_MEMORYTYPE_DEVICE"},
        {"mo_gpu_allocation": ("CUmemAllocationProp", {
            **ALLOCATION, "windows_metadata": "win32HandleMetaData",
            "compression": "allocFlags.compressionType",
            "rdma_capable": "allocFlags.gpuDirectRDMACapable", "usage": "allocFlags.usage"}),
         "mo_gpu_access": ("CUmemAccessDesc", ACCESS)}),
    "hip": Judge(
        "hip/hip_runtime_api.h", "#define __HIP_PLATFORM_AMD__ 1",
        [GPU / "driver_calls.h", GPU / "hip.c"],
        [("MO_GPU_CALLS", lambda row: row[6], None), ("HIP_CALLS", lambda row: row[4], 1)],
        {**status(HIP_STATUS, "hip"),
         "MO_GPU_STREAM_NON_BLOCKING": "hipStreamNonBlocking",
         "MO_GPU_EVENT_DISABLE_TIMING": "hipEventDisableTiming",
         "MO_GPU_HOST_PORTABLE": "hipHostMallocPortable",
         "MO_GPU_CAPTURE_NONE": "hipStreamCaptureStatusNone",
         "MO_GPU_CAPTURE_MODE_RELAXED": "hipStreamCaptureModeRelaxed",
         "MO_GPU_ALLOCATION_PINNED": "hipMemAllocationTypePinned",
         "MO_GPU_LOCATION_DEVICE": "hipMemLocationTypeDevice",
         "MO_GPU_ACCESS_READ_WRITE": "hipMemAccessFlagsProtReadWrite",
         "MO_GPU_GRANULARITY_MINIMUM": "hipMemAllocationGranularityMinimum",
         "ATTRIBUTE_MULTIPROCESSORS": "hipDeviceAttributeMultiprocessorCount",
         "ATTRIBUTE_PAGEABLE_ACCESS": "hipDeviceAttributePageableMemoryAccess",
         "ATTRIBUTE_WARP_SIZE": "hipDeviceAttributeWarpSize",
         "ATTRIBUTE_VIRTUAL_MEMORY": "hipDeviceAttributeVirtualMemoryManagementSupported",
         "COPY_DEFAULT": "hipMemcpyDefault"},
        {"mo_gpu_access": ("hipMemAccessDesc", ACCESS),
         "pointer_attributes": ("hipPointerAttribute_t", {
             "": "==", "device": "device", "device_pointer": "devicePointer",
             "host_pointer": "hostPointer", "managed": "isManaged",
             "flags": "allocationFlags"})},
        """
#if HIP_VERSION_MAJOR >= 6 /* before, its members had another order: no virtual memory then */
static_assert(sizeof(mo_gpu_allocation) == sizeof(hipMemAllocationProp), "mo_gpu_allocation");
static_assert(offsetof(hipMemAllocationProp, type) == 0, "type");
static_assert(offsetof(hipMemAllocationProp, location) == 8, "location");
static_assert(offsetof(hipDeviceProp_tR0600, gcnArchName) == 1160, "ISA_SINCE_ROCM_6");
static_assert(hipMemoryTypeDevice == 2, "MEMORY_DEVICE");
static_assert(sizeof(hipDeviceProp_tR0600) <= 4096, "PROPERTIES_BYTES");
#else
static_assert(offsetof(hipDeviceProp_t, gcnArchName) == 396, "ISA_BEFORE");
static_assert(hipMemoryTypeDevice == 1, "MEMORY_DEVICE_BEFORE");
static_assert(sizeof(hipDeviceProp_t) <= 4096, "PROPERTIES_BYTES");
#endif
"""),
}


def main(judges=JUDGES):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("judge", choices=sorted(judges))
    parser.add_argument("--include", action="append", default=[])
    options = parser.parse_args()
    judge = judges[options.judge]
    if shutil.which("c++") is None:
        print("there is no C++ compiler here")
        return 77
    compiler = ["c++", "-std=c++17", "-x", "c++", "-w", "-I", str(ROOT / "lib"),
                *(word for folder in options.include for word in ("-I", folder))]
    expand = lambda *flags: subprocess.run(
        [*compiler, "-E", *flags, "-"], text=True, capture_output=True,
        input="%s\n#include <%s>\n" % (judge.before, judge.header))
    header, defines, commented = expand(), expand("-dM"), expand("-C")
    if header.returncode != 0:
        print("there is no %s here" % judge.header)
        return 77
    code, absent = program(judge, header.stdout + defines.stdout, commented.stdout)
    done = subprocess.run([*compiler, "-fsyntax-only", "-"], text=True, input=code,
                          capture_output=True)
    print(done.stderr[:4000])
    print("%d comparisons%s" % (code.count("\nstatic_assert"), "; not in this header: " +
                                ", ".join(absent) if absent else ""))
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
