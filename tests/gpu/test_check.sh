#!/usr/bin/env bash
# Tests of check.sh on a machine without a GPU, with the simulated drivers in its place.
#
#   test_check.sh arguments            wrong ones are told, an absent device is status 77
#   test_check.sh broken               a stage that hangs, dies, or writes half a line costs itself only
#   test_check.sh dry DEVICE BUILD SIM all stages over an existing build
#   test_check.sh build DEVICE SIM     the build stage too, as on a machine without pthreadpool
#   test_check.sh python SCRIPT BUILD  a script with PyTorch on the cpu; 77 where there is no PyTorch
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# expect STATUS TEXT COMMAND...: the command ends with the status and says the text.
expect() {
    local wanted=$1 text=$2 status=0
    shift 2
    "$@" >"$scratch/said" 2>&1 </dev/null || status=$?
    [ "$status" = "$wanted" ] || { cat "$scratch/said"; fail "status $status, not $wanted: $*"; }
    grep -qF -e "$text" "$scratch/said" || { cat "$scratch/said"; fail "\"$text\" was not said: $*"; }
}

arguments() {
    expect 2 'OUTDIR' "$here/check.sh"
    expect 2 'unknown option --fast' "$here/check.sh" "$scratch/out" --fast
    expect 2 'needs a value' "$here/check.sh" "$scratch/out" --device
    expect 2 'cuda:N or hip:N' "$here/check.sh" "$scratch/out" --device cpu
    expect 2 'number of seconds' "$here/check.sh" "$scratch/out" --budget long
    expect 2 'one output folder' "$here/check.sh" "$scratch/out" "$scratch/other"
    expect 0 'results.json' "$here/check.sh" --help
    expect 77 'no GPU here (cuda:63)' "$here/check.sh" "$scratch/out" --work "$scratch/work" \
        --device cuda:63
}

# A compute-sanitizer that runs the program and finds nothing, first on the PATH.
stand_in_sanitizer() {
    mkdir -p "$scratch/bin"
    cat >"$scratch/bin/compute-sanitizer" <<'END'
#!/bin/sh
while :; do
    case $1 in
        --*) shift 2 ;;
        *) break ;;
    esac
done
status=0
"$@" || status=$?
echo "========= ERROR SUMMARY: 0 errors"
exit $status
END
    chmod +x "$scratch/bin/compute-sanitizer"
    export PATH=$scratch/bin:$PATH
}

# state STAGE: what results.json says of it.
state() {
    sed -n "s/^ *{\"name\": \"$1\", \"status\": \"\([a-z]*\)\".*/\1/p" "$scratch/out/results.json" |
        head -n 1
}

is_json() {
    python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$1" || fail "$1 is no JSON"
}

# The stages of a run; python3 may or may not have PyTorch.
look_at_results() {
    local stage
    is_json "$scratch/out/results.json"
    for stage in "$@"; do
        [ "$(state "$stage")" = passed ] || {
            cat "$scratch/out/check.log"
            fail "$stage: $(state "$stage")"
        }
    done
    grep -q '^| 148 tensors, GPT-2 | AdamW 8-bit bf16 |' "$scratch/out/results.md" ||
        fail "no benchmarks in results.md"
    [ "$(find "$scratch/out" -type f | wc -l)" = 3 ] || fail "$(ls "$scratch/out")"
}

dry() {
    local device=$1 build=$2 simulators=$3 sanitizers=(memcheck racecheck initcheck synccheck)
    stand_in_sanitizer
    "$here/check.sh" "$scratch/out" --work "$scratch/work" --device "$device" --build "$build" \
        --dry-run "$simulators" || { cat "$scratch/out/check.log"; fail "status $?"; }
    if [ "${device%%:*}" = hip ]; then sanitizers=(); fi
    look_at_results conformance stress bench "${sanitizers[@]}"
}

build() {
    local device=$1 simulators=$2
    stand_in_sanitizer
    MEMOPT_CHECK_THREADS=OWN "$here/check.sh" "$scratch/out" --work "$scratch/work" \
        --device "$device" --dry-run "$simulators" || { cat "$scratch/out/check.log"; fail "status $?"; }
    look_at_results build conformance stress bench
    ! grep -q pthreadpool <(ldd "$scratch/work/build/libmemopt.so") || fail "it needs pthreadpool"
}

# A build whose conformance hangs and whose benchmark dies within a line.
broken() {
    local simulators=$1 started=$SECONDS
    mkdir -p "$scratch/build/tests/conformance" "$scratch/build/tests/gpu"
    cat >"$scratch/build/tests/conformance/conformance" <<'END'
#!/bin/sh
case "$*" in *--list*) echo stress_all; exit 0 ;; esac
trap '' TERM
while :; do sleep 1; done
END
    cat >"$scratch/build/tests/gpu/gpu_bench" <<'END'
#!/bin/sh
while [ "$1" != --json ]; do shift; done
printf '{"case": "whole"}\n{"case": "cut i' >"$2"
kill -9 $$
END
    chmod +x "$scratch/build/tests/conformance/conformance" "$scratch/build/tests/gpu/gpu_bench"
    expect 1 'failed' env PYTHON=false "$here/check.sh" "$scratch/out" --work "$scratch/work" \
        --device cuda:0 --build "$scratch/build" --dry-run "$simulators" --budget 14
    [ $((SECONDS - started)) -lt 40 ] || fail "it took $((SECONDS - started)) s"
    is_json "$scratch/out/results.json"
    [ "$(state conformance)" = failed ] || fail "conformance: $(state conformance)"
    grep -q 'no time left' "$scratch/out/results.json" || fail 'the budget was not kept'
    # The benchmark alone, with all the time it wants: its whole line counts, the other does not.
    printf '#!/bin/sh\nexit 77\n' >"$scratch/build/tests/conformance/conformance"
    expect 1 'bench' env PYTHON=false "$here/check.sh" "$scratch/out" --work "$scratch/work" \
        --device cuda:0 --build "$scratch/build" --dry-run "$simulators"
    is_json "$scratch/out/results.json"
    grep -q whole "$scratch/out/results.json" || fail 'what was measured is lost'
    ! grep -q 'cut i' "$scratch/out/results.json" || fail 'half a line was taken'
    # An interrupted run leaves its results.
    printf '#!/bin/sh\nsleep 60\n' >"$scratch/build/tests/conformance/conformance"
    "$here/check.sh" "$scratch/out" --work "$scratch/work" --device cuda:0 \
        --build "$scratch/build" --dry-run "$simulators" >"$scratch/said" 2>&1 &
    sleep 3
    kill -TERM $!
    wait $! && fail 'an interrupted run succeeded'
    is_json "$scratch/out/results.json"
    grep -q interrupted "$scratch/out/results.json" || fail 'the interruption is not told'
}

python() {
    local script=$1 build=$2 candidate
    for candidate in "${PYTHON:-}" "$here/../../.venv/bin/python" python3; do
        if env -u LD_LIBRARY_PATH "$candidate" -c 'import torch' >/dev/null 2>&1; then
            env -u LD_LIBRARY_PATH MEMOPT_LIBRARY="$build/libmemopt.so" \
                PYTHONPATH="$here/../../bindings/python" "$candidate" "$here/$script" \
                --device cpu --small --json "$scratch/rows.jsonl" || fail "$script: status $?"
            [ -s "$scratch/rows.jsonl" ] || fail "$script wrote no rows"
            return
        fi
    done
    echo "no Python here has PyTorch"
    exit 77
}

"$@"
