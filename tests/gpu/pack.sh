#!/usr/bin/env bash
# Makes one folder, and FOLDER.tar.gz, with all that check.sh needs on a machine with a GPU: no compiler and no
# network are needed there, only python3 (3.11 for the tests), PyTorch if it is to be tested, and the driver.
#
#   tests/gpu/pack.sh FOLDER TARGET
#
# TARGET is a compute capability such as 90 (nvcc; and PTX, with clang 17 or newer), an AMD target such as
# gfx90a, or the folder of a build that has been made. Python is $PYTHON, else .venv's; its pytest is packed.
set -euo pipefail

most=60 # MB
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ $# != 2 ]; then
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
folder=$1 target=$2
if [ -e "$folder" ]; then
    echo "pack.sh: $folder is there already" >&2
    exit 2
fi

case $target in
    */*) build=$target ;;
    gfx*) options=(-DMEMOPT_CUDA=OFF "-DMEMOPT_HIP_TARGETS=$target") ;;
    [5-9][0-9] | 1[0-9][0-9]) options=(-DMEMOPT_HIP=OFF "-DMEMOPT_CUDA_TARGETS=$target") ;;
    *) echo "pack.sh: $target is no target (90, gfx90a) and no folder" >&2; exit 2 ;;
esac
if [ -z "${build-}" ]; then
    build=$root/build/gpu-$target
    cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DMEMOPT_THREADS=OWN -DMEMOPT_INSTALL=OFF \
        -DMEMOPT_GPU_IMAGES_EMBED=OFF -DMEMOPT_BUILD_TESTS=OFF -DMEMOPT_BUILD_EXAMPLES=OFF -DMEMOPT_BUILD_GPU_CHECK=ON "${options[@]}"
    cmake --build "$build" --parallel "$(nproc)"
fi

programs=(libmemopt.so.1 tests/conformance/conformance
          tests/gpu/gpu_bench tests/gpu/gpu_held_memory)
for program in "${programs[@]}"; do
    mkdir -p "$(dirname "$folder/build/gpu/$program")"
    strip -o "$folder/build/gpu/$program" "$build/$program"
done

if [ -f "$build/tests/gpu/exact.ptx" ]; then # where there was an nvcc
    cp "$build/tests/gpu/exact.ptx" "$folder/build/gpu/tests/gpu"
fi
if [ -d "$build/memopt/kernels" ]; then # once, not in every program
    mkdir "$folder/build/gpu/memopt"
    cp -R "$build/memopt/kernels" "$folder/build/gpu/memopt"
fi

sources=(bindings/python/memopt bindings/python/memopt_command bindings/python/tests
         examples/python tests/bench/workloads.py tests/gpu)
for source in "${sources[@]}"; do
    mkdir -p "$folder/$(dirname "$source")"
    cp -R "$root/$source" "$folder/$(dirname "$source")"
done

# pytest and what it needs; all of it is Python.
python=${PYTHON:-$root/.venv/bin/python}
mkdir -p "$folder/build/packages"
if ! env -u LD_LIBRARY_PATH "$python" - "$folder/build/packages" <<'END_OF_PYTHON'
import importlib.util, pathlib, shutil, sys
for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"):
    origin = pathlib.Path(importlib.util.find_spec(name).origin)
    if origin.name == "__init__.py":
        shutil.copytree(origin.parent, pathlib.Path(sys.argv[1], name))
    else:
        shutil.copy(origin, sys.argv[1])
END_OF_PYTHON
then
    echo "pack.sh: $python has no pytest: the tests of memopt.torch will be skipped" >&2
fi
find "$folder" -name __pycache__ -prune -exec rm -r {} +

tar -C "$(dirname "$folder")" -czf "$folder.tar.gz" "$(basename "$folder")"
size=$(du -sm "$folder" | cut -f 1)
echo "$folder: $size MB; there: tests/gpu/check.sh OUTDIR"
[ "$size" -lt $most ] || { echo "pack.sh: more than $most MB" >&2; exit 1; }
