#!/usr/bin/env bash
# build.sh FOLDER cuda|hip TARGET: builds what check.sh runs, with kernels for one back end.
#
# TARGET is a compute capability (90), "-" (what the build chooses by itself) or "all". Only CMake, a
# C compiler, and nvcc, hipcc or clang are needed: no cmocka, no C++, no pthreadpool. Ninja is used
# where it is found. If kernels for the target do not build, they are left to the run-time compiler
# (NVRTC, hipRTC), and the status is 1 although the rest can run.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$1 backend=$2 target=$3
jobs=$(nproc 2>/dev/null || echo 4)

# nvcc on the PATH, in a toolkit's folder, or in the packages of a Python environment.
find_nvcc() {
    local candidate
    if command -v nvcc; then return; fi
    for candidate in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-* /opt/cuda; do
        if [ -x "$candidate/bin/nvcc" ]; then
            echo "$candidate/bin/nvcc"
            return
        fi
    done
    "${PYTHON:-python3}" - 2>/dev/null <<'END' || true
import glob, os, site
folders = site.getsitepackages() + [site.getusersitepackages()]
found = [x for f in folders for x in glob.glob(os.path.join(f, "nvidia", "*", "bin", "nvcc"))]
print(next((x for x in sorted(found) if os.access(x, os.X_OK)), ""))
END
}

options=(-DCMAKE_BUILD_TYPE=Release -DMEMOPT_BUILD_TESTS=OFF -DMEMOPT_BUILD_EXAMPLES=OFF
         -DMEMOPT_BUILD_GPU_CHECK=ON -DMEMOPT_INSTALL=OFF)
if command -v ninja >/dev/null 2>&1; then
    options+=(-G Ninja)
else
    options+=(-G "Unix Makefiles")
fi
# For tests: what a machine without pthreadpool gets.
if [ -n "${MEMOPT_CHECK_THREADS:-}" ]; then options+=("-DMEMOPT_THREADS=$MEMOPT_CHECK_THREADS"); fi

kernels=()
if [ "$backend" = cuda ]; then
    nvcc=$(find_nvcc)
    options+=(-DMEMOPT_HIP=OFF)
    if [ -n "$nvcc" ]; then
        options+=("-DMEMOPT_NVCC=$nvcc")
        if [[ $target =~ ^[0-9]+$ ]]; then kernels+=("-DMEMOPT_CUDA_TARGETS=$target"); fi
    fi
    echo "build.sh: nvcc: ${nvcc:-none}"
else
    options+=(-DMEMOPT_CUDA=OFF)
fi

build() {
    rm -rf "$folder"
    cmake -S "$root" -B "$folder" "${options[@]}" "$@" &&
        cmake --build "$folder" --parallel "$jobs"
}

if build "${kernels[@]}"; then
    # Which kernels are in the library; the run-time compiler does the rest.
    grep -E '^MEMOPT_(CUDA|HIP)_TARGETS' "$folder/CMakeCache.txt" || true
    echo "built with $jobs jobs"
    exit 0
fi
echo "build.sh: that failed; again with kernels left to the run-time compiler"
build -DMEMOPT_CUDA_TARGETS= -DMEMOPT_HIP_TARGETS= -DMEMOPT_CLANG=MEMOPT_CLANG-NOTFOUND &&
    echo "kernels did not build; they are left to the run-time compiler"
exit 1
